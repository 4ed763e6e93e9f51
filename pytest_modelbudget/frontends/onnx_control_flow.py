"""Loop, Scan and If: what is inside them runs so many times, or is one of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.frontends.onnx_frames import Frame
from pytest_modelbudget.frontends.onnx_scopes import scope_of
from pytest_modelbudget.frontends.onnx_steps import Body, Step
from pytest_modelbudget.frontends.onnx_types import ValueType, dtype_of
from pytest_modelbudget.ir.graph import Graph, Op
from pytest_modelbudget.ir.tensor import Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.metrics.bandwidth import bandwidth
from pytest_modelbudget.metrics.costed_graph import CostedGraph
from pytest_modelbudget.metrics.macs import macs

if TYPE_CHECKING:
    from pytest_modelbudget.frontends.onnx_graph import GraphReader

SCAN_WITHOUT_BATCH = 9  # the first opset whose Scan has no batch dimension of its own


@dataclass(frozen=True, slots=True)
class Stacked:
    """One result of a body that every run writes a slice of: where it goes, along which axis."""

    result: str
    inside: str
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Repeated:
    """A body that runs count times.

    given are its inputs; carried pairs each result of the node with the value that the last run
    leaves, and with the input that the next run reads it from.
    """

    step: Step
    body: Body
    count: int
    given: Mapping[str, tuple[Tensor, ValueType]]
    carried: Sequence[tuple[str, str, str]]
    stacked: Sequence[Stacked]


def read_loop(reader: GraphReader, step: Step, frame: Frame) -> None:
    """Loop(trip count, condition, state ...): its body, times the count where that is known."""
    body = step.bodies["body"]
    states = step.inputs[2:]
    given = {
        body.proto.input[0].name: (
            _register(body.proto.input[0].name, TensorProto.INT64),
            _scalar_of("INT64"),
        ),
        body.proto.input[1].name: (
            _register(body.proto.input[1].name, TensorProto.BOOL),
            _scalar_of("BOOL"),
        ),
    }
    scope = frame.prefix + scope_of(step.node)
    for value, name in zip(body.proto.input[2:], states, strict=True):
        given[value.name] = (reader.operand(name, scope, frame), frame.type(name))
    count = _trip_count(reader, step, frame, body)
    if count is None:
        reader.opaque(step, frame, "how often its body runs is not known before the run")
        return
    inside = [output.name for output in body.proto.output[1:]]
    inputs = [value.name for value in body.proto.input[2:]]
    carried = list(zip(step.outputs, inside, inputs, strict=False))
    stacked = [
        Stacked(result, name)
        for result, name in zip(step.outputs[len(states) :], inside[len(states) :], strict=True)
    ]
    _repeat(reader, Repeated(step, body, count, given, carried, stacked), frame)


def _trip_count(reader: GraphReader, step: Step, frame: Frame, body: Body) -> int | None:
    """How often a Loop runs: its count, where no condition can end it before."""
    wanted = reader.folding.value(step.inputs[0], frame) if step.inputs[0] else None
    begins = True
    if len(step.inputs) > 1 and step.inputs[1]:
        condition = reader.folding.value(step.inputs[1], frame)
        if condition is None:
            return None
        begins = bool(numpy_helper.to_array(condition).any())
    if not begins:
        return 0
    if wanted is None:
        return None
    inside = reader.frame(body, frame, times=1)
    inside.values[body.proto.input[1].name] = onnx.helper.make_tensor(
        "", TensorProto.BOOL, (), [True]
    )
    inside.tensors[body.proto.input[1].name] = _register(body.proto.input[1].name, TensorProto.BOOL)
    goes_on = reader.folding.value(body.proto.output[0].name, inside)
    if goes_on is None or not numpy_helper.to_array(goes_on).all():
        return None
    return max(int(numpy_helper.to_array(wanted).reshape(-1)[0]), 0)


def read_scan(reader: GraphReader, step: Step, frame: Frame) -> None:
    """Scan(state ..., scanned ...): its body, times the length of what it scans."""
    attributes = step.attributes
    body = step.bodies["body"]
    scanned = int(str(attributes["num_scan_inputs"]))
    states = len(step.inputs) - scanned
    scope = frame.prefix + scope_of(step.node)
    operands = [reader.operand(name, scope, frame) for name in step.inputs if name]
    if reader.opset < SCAN_WITHOUT_BATCH or any(each.unsized for each in operands):
        reader.opaque(step, frame, "the length that it scans is not known before the run")
        return
    given = {
        value.name: (operand, frame.type(name))
        for value, operand, name in zip(body.proto.input, operands, step.inputs, strict=True)
    }
    axes = _axes(attributes.get("scan_input_axes"), scanned)
    count = 0
    for value, axis in zip(body.proto.input[states:], axes, strict=True):
        whole, known = given[value.name]
        count = whole.shape[axis]
        part = _slice(value.name, whole, axis)
        given[value.name] = (part, ValueType(known.code, part.shape))
    inside = [output.name for output in body.proto.output]
    inputs = [value.name for value in body.proto.input]
    carried = list(zip(step.outputs[:states], inside[:states], inputs[:states], strict=True))
    out_axes = _axes(attributes.get("scan_output_axes"), len(inside) - states)
    stacked = [
        Stacked(*each)
        for each in zip(step.outputs[states:], inside[states:], out_axes, strict=True)
    ]
    _repeat(reader, Repeated(step, body, count, given, carried, stacked), frame)


def _axes(given: object, count: int) -> tuple[int, ...]:
    return tuple(int(axis) for axis in given) if isinstance(given, tuple) else (0,) * count


def _slice(name: str, whole: Tensor, axis: int) -> Tensor:
    """One step of what is scanned, on the memory of the whole, all of which the steps sweep."""
    axis %= len(whole.shape)
    shape = whole.shape[:axis] + whole.shape[axis + 1 :]
    strides = whole.strides[:axis] + whole.strides[axis + 1 :]
    everything = whole.sweeps or whole
    return Tensor(name, shape, whole.dtype, whole.storage, whole.offset, strides, sweeps=everything)


def _repeat(reader: GraphReader, repeated: Repeated, frame: Frame) -> None:
    """Write a body out once, to run count times; its slices land in the stacked results."""
    before = len(reader.ops)
    inside = reader.frame(repeated.body, frame, times=frame.times * max(repeated.count, 1))
    for name, (tensor, known) in repeated.given.items():
        inside.tensors[name] = tensor
        inside.types[name] = known
    reader.find_types(inside)
    stacks = {each: _stack(inside, each, repeated.count) for each in repeated.stacked}
    inside.placed.update(
        (each.inside, stack.storage) for each, stack in stacks.items() if stack is not None
    )
    reader.read(inside)
    scope = frame.prefix + scope_of(repeated.step.node)
    grows = any(
        reader.operand(left, scope, inside).shape != repeated.given[read][0].shape
        for _, left, read in repeated.carried
    )
    if grows or not all(stacks.values()):
        del reader.ops[before:]
        reader.opaque(repeated.step, frame, "its state or its slices change their shape")
        return
    if not repeated.count:
        del reader.ops[before:]
    for result, left, read in repeated.carried:
        if result:
            last = reader.operand(left, scope, inside)
            frame.tensors[result] = last if repeated.count else repeated.given[read][0]
            frame.types[result] = inside.type(left)
    for each, stack in stacks.items():
        assert stack is not None
        _land(reader, inside, each.inside, stack, scope)
        if each.result:
            frame.tensors[each.result] = stack
            frame.types[each.result] = ValueType(inside.type(each.inside).code, stack.shape)


def _stack(inside: Frame, stacked: Stacked, count: int) -> Tensor | None:
    """The whole result whose slices a body writes; None where a slice has no known shape."""
    known = inside.type(stacked.inside)
    if known.sizes is None:
        return None
    axis = stacked.axis % (len(known.sizes) + 1)
    shape = (*known.sizes[:axis], count, *known.sizes[axis:])
    dtype = dtype_of(known.code)
    nbytes = dense("", shape, dtype, Storage("", 0, StorageKind.ACTIVATION)).nbytes
    return dense(
        stacked.result, shape, dtype, Storage(stacked.result, nbytes, StorageKind.ACTIVATION)
    )


def _land(reader: GraphReader, inside: Frame, name: str, stack: Tensor, scope: str) -> None:
    """Copy a slice into the stack where the body's own operation does not write it there."""
    part = reader.operand(name, scope, inside)
    if part.storage is stack.storage:
        return
    placed = dense(name, part.shape, part.dtype, stack.storage)
    reader.ops.append(Op("onnx::Identity", (part,), (placed,), {}, scope, times=inside.times))


def read_if(reader: GraphReader, step: Step, frame: Frame) -> None:
    """If: the branch that a known condition takes, else the dearer one, and a note says which."""
    branches = step.bodies
    scope = frame.prefix + scope_of(step.node)
    reader.operand(step.inputs[0], scope, frame)
    condition = reader.folding.value(step.inputs[0], frame)
    if condition is not None:
        taken = "then_branch" if numpy_helper.to_array(condition).any() else "else_branch"
        _take(reader, step, frame, _branch(reader, branches[taken], frame, scope))
        return
    read = {name: _branch(reader, body, frame, scope) for name, body in branches.items()}
    taken = max(sorted(read, reverse=True), key=lambda name: _cost(read[name], reader))
    reader.notes.append(f"If '{scope}' is counted as its dearer branch, {taken}")
    _take(reader, step, frame, read[taken])


@dataclass(frozen=True, slots=True)
class Branch:
    """What one branch does and gives."""

    ops: tuple[Op, ...]
    outputs: tuple[tuple[Tensor, ValueType], ...]


def _branch(reader: GraphReader, body: Body, frame: Frame, scope: str) -> Branch:
    before = len(reader.ops)
    inside = reader.frame(body, frame, times=frame.times)
    reader.find_types(inside)
    reader.read(inside)
    outputs = tuple(
        (reader.operand(output.name, scope, inside), inside.type(output.name))
        for output in body.proto.output
    )
    ops = tuple(reader.ops[before:])
    del reader.ops[before:]
    return Branch(ops, outputs)


def _take(reader: GraphReader, step: Step, frame: Frame, branch: Branch) -> None:
    reader.ops.extend(branch.ops)
    for name, (tensor, known) in zip(step.outputs, branch.outputs, strict=True):
        frame.tensors[name] = tensor
        frame.types[name] = known


def _cost(branch: Branch, reader: GraphReader) -> tuple[bool, int, int]:
    """Unmeasured before measured, then MACs, then bytes moved."""
    operands = tuple(tensor for op in branch.ops for tensor in op.tensors())
    outputs = tuple(tensor for tensor, _ in branch.outputs)
    costed = CostedGraph(Graph(branch.ops, (*operands, *outputs), outputs), reader.rules)
    computed, moved = macs(costed), bandwidth(costed)
    complete = computed.complete and moved.complete
    return not complete, int(computed.value), int(moved.value)


def _register(name: str, code: int) -> Tensor:
    """A scalar that a loop keeps for itself: its counter or its condition."""
    dtype = dtype_of(code)
    return dense(name, (), dtype, Storage(name, nbytes_of(1, dtype), StorageKind.CONSTANT))


def _scalar_of(name: str) -> ValueType:
    return ValueType(TensorProto.DataType.Value(name), ())


ReadNode = Callable[["GraphReader", Step, Frame], None]
CONTROL_FLOW: Mapping[str, ReadNode] = {
    "onnx::Loop": read_loop,
    "onnx::Scan": read_scan,
    "onnx::If": read_if,
}
