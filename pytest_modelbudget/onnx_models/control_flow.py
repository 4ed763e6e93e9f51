"""Loop, Scan and If: bodies written out as often as they run, and branches that data choose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.graph.graph import Fork, Graph, Op, holding, way, with_holding
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, nbytes_of
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.inference import Frame, find_types
from pytest_modelbudget.onnx_models.misfits import MisfitError
from pytest_modelbudget.onnx_models.program import CONSTANT, Body, Node
from pytest_modelbudget.onnx_models.value_types import ValueType, fresh

if TYPE_CHECKING:
    from pytest_modelbudget.onnx_models.graph_reader import GraphReader

TRUE = np.array(True)
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

    inputs are what it reads first; carried pairs each result of the node with the value that the
    last run leaves, and with the input that the next run reads it from. holds is an input that is
    true in every run: the condition of a loop whose count is known.
    """

    node: Node
    body: Body
    count: int
    inputs: Mapping[str, tuple[Tensor, ValueType]]
    carried: Sequence[tuple[str, str, str]]
    stacked: Sequence[Stacked]
    holds: str = ""


def read_loop(reader: GraphReader, node: Node, frame: Frame) -> None:
    """Loop(trip count, condition, state ...): its body, times the count where that is known."""
    body, states = _body(node, "body"), node.inputs[2:]
    _expect(node, "inputs", len(body.inputs), 2 + len(states))
    _expect(node, "outputs", len(body.outputs), 1 + len(node.outputs))
    counter, condition, *inputs = body.inputs
    fed = {
        counter: (_register(counter, TensorProto.INT64), ValueType(TensorProto.INT64, ())),
        condition: (_register(condition, TensorProto.BOOL), ValueType(TensorProto.BOOL, ())),
    }
    scope = node.scope
    for inside, name in zip(inputs, states, strict=True):
        fed[inside] = (reader.operand(name, scope, frame), frame.type(name))
    count = _trip_count(reader, node, frame, body)
    if count is None:
        reader.opaque(node, frame, "how often its body runs is not known before the run")
        reader.forks.extend(unread(node))
        return
    results = body.outputs[1:]
    _tell_apart(fed, inputs, map(frame.tensor, body.reads_outside))
    carried = list(zip(node.outputs, results, inputs, strict=False))
    stacked = [Stacked(*ends) for ends in zip(node.outputs[len(states) :], results[len(states) :], strict=True)]
    _repeat(reader, Repeated(node, body, count, fed, carried, stacked, condition), frame)


def _body(node: Node, name: str) -> Body:
    """A body of a node; raises SourceError where the node has none of that name."""
    if name not in node.bodies:
        raise SourceError(f"{node.operator} '{node.result}' has no {name}, which ONNX asks for")
    return node.bodies[name]


def _expect(node: Node, what: str, count: int, wanted: int) -> None:
    """Raise SourceError where a body has another number of inputs or outputs than its node gives and takes."""
    if count != wanted:
        raise SourceError(f"{node.operator} '{node.result}': its body has {count} {what}, and should have {wanted}")


def _trip_count(reader: GraphReader, node: Node, frame: Frame, body: Body) -> int | None:
    """How often a Loop runs: its count, where no condition can end it before."""
    wanted = reader.folding.value(node.inputs[0], frame) if node.inputs[0] else None
    if len(node.inputs) > 1 and node.inputs[1]:
        condition = reader.folding.value(node.inputs[1], frame)
        if condition is None:
            return None
        if not condition.any():
            return 0
    if wanted is None:
        return None
    inside, flag = frame.inside(body), body.inputs[1]
    inside.values[flag] = TRUE
    inside.place(flag, _register(flag, TensorProto.BOOL), ValueType(TensorProto.BOOL, ()))
    goes_on = reader.folding.value(body.outputs[0], inside)
    if goes_on is None or not goes_on.all():
        return None
    return max(int(wanted.reshape(-1)[0]), 0)


def read_scan(reader: GraphReader, node: Node, frame: Frame) -> None:
    """Scan(state ..., scanned ...): its body, times the length of what it scans."""
    attributes, body, scope = node.attributes, _body(node, "body"), node.scope
    scanned = attributes.get("num_scan_inputs", 0)
    states = len(node.inputs) - scanned
    operands = [reader.operand(name, scope, frame) for name in node.inputs if name]
    if reader.opset < SCAN_WITHOUT_BATCH:
        reader.opaque(node, frame, f"it has a batch of its own: convert the model to opset {SCAN_WITHOUT_BATCH}")
        reader.forks.extend(unread(node))
        return
    if any(operand.unsized for operand in operands):
        reader.opaque(node, frame, "the length that it scans is not known before the run")
        reader.forks.extend(unread(node))
        return
    _expect(node, "inputs", len(body.inputs), len(operands))
    _expect(node, "outputs", len(body.outputs), len(node.outputs))
    fed = {
        inside: (operand, frame.type(name))
        for inside, operand, name in zip(body.inputs, operands, node.inputs, strict=True)
    }
    axes = attributes.get("scan_input_axes") or (0,) * scanned
    count = _scanned_length(node, operands[max(states, 0) :], axes)
    for inside, axis in zip(body.inputs[states:], axes, strict=True):
        whole, known = fed[inside]
        part = _slice(inside, whole, axis)
        fed[inside] = (part, ValueType(known.code, part.shape))
    results = body.outputs
    _tell_apart(fed, body.inputs[:states], map(frame.tensor, body.reads_outside))
    carried = list(zip(node.outputs[:states], results[:states], body.inputs[:states], strict=True))
    out_axes = attributes.get("scan_output_axes") or (0,) * (len(results) - states)
    stacked = [Stacked(*ends) for ends in zip(node.outputs[states:], results[states:], out_axes, strict=True)]
    _repeat(reader, Repeated(node, body, count, fed, carried, stacked), frame)


def _tell_apart(
    fed: dict[str, tuple[Tensor, ValueType]], states: Sequence[str], outside: Iterable[Tensor | None]
) -> None:
    """Have each state that comes in a tensor of others be one of its own on that memory, as later runs have them."""
    met: set[Tensor | None] = {*outside}
    for name in states:
        tensor, known = fed[name]
        fed[name] = (replace(tensor) if tensor in met else tensor), known
        met.add(tensor)


def _scanned_length(node: Node, wholes: Sequence[Tensor], axes: Sequence[int]) -> int:
    """How many slices all that is scanned has; raises SourceError where that is no one number."""
    fits = 0 < len(wholes) == len(axes) and all(
        -len(whole.shape) <= axis < len(whole.shape) for whole, axis in zip(wholes, axes, strict=True)
    )
    lengths = {whole.shape[axis] for whole, axis in zip(wholes, axes, strict=True)} if fits else set()
    if len(lengths) != 1:
        said = f"tensors of different lengths, {sorted(lengths)}" if lengths else "nothing, or along no axis of it"
        raise SourceError(f"{node.operator} '{node.result}' scans {said}")
    return lengths.pop()


def _slice(name: str, whole: Tensor, axis: int) -> Tensor:
    """One step of what is scanned, on the memory of the whole, all of which the steps sweep."""
    axis %= len(whole.shape)
    shape = whole.shape[:axis] + whole.shape[axis + 1 :]
    strides = whole.strides[:axis] + whole.strides[axis + 1 :]
    everything = whole.sweeps or whole
    return Tensor(name, shape, whole.dtype, whole.storage, whole.offset, strides, sweeps=everything)


def _repeat(reader: GraphReader, repeated: Repeated, frame: Frame) -> None:
    """Write a body out once, to run count times; its slices land in the stacked results."""
    ops, forks = len(reader.ops), len(reader.forks)
    inside = frame.inside(repeated.body, times=repeated.count)
    for name, (tensor, known) in repeated.inputs.items():
        inside.place(name, tensor, known)
    if repeated.holds:
        inside.values[repeated.holds] = TRUE
    if not repeated.count:
        _pass_by(reader, repeated, inside, frame)
        return
    find_types(inside, reader.folding)
    stacks = {part: _stack(inside, part, repeated.count) for part in repeated.stacked}
    inside.placed.update((part.inside, stack.storage) for part, stack in stacks.items() if stack is not None)
    reader.read(inside)
    scope = repeated.node.scope
    _refuse_other_states(repeated, inside)
    grows = any(
        reader.operand(left, scope, inside).shape != repeated.inputs[read][0].shape
        for _, left, read in repeated.carried
    )
    if grows or not all(stacks.values()):
        del reader.ops[ops:], reader.forks[forks:]
        reader.opaque(repeated.node, frame, "its state or its slices change their shape")
        reader.forks.extend(unread(repeated.node))
        return
    for part, stack in stacks.items():
        assert stack is not None
        _land(reader, part, stack, inside, scope)
        if part.result:
            frame.place(part.result, stack, ValueType(inside.type(part.inside).code, stack.shape))
    if repeated.count > 1:
        read = [stack for part, stack in stacks.items() if stack and frame.body.reads.get(part.result)]
        _hold(reader, (ops, forks), read, _states(reader, repeated, inside, reader.ops[ops:]))
    for result, left, _ in filter(itemgetter(0), repeated.carried):
        frame.place(result, reader.operand(left, scope, inside), inside.type(left))


def _land(reader: GraphReader, part: Stacked, stack: Tensor, inside: Frame, scope: str) -> None:
    """Copy a slice to its place, where no operation of the body writes it there."""
    slice_ = reader.operand(part.inside, scope, inside)
    if slice_.storage is not stack.storage:
        placed = dense(part.inside, slice_.shape, slice_.dtype, stack.storage)
        reader.ops.append(Op("onnx::Identity", (slice_,), (placed,), {}, scope, times=inside.times))


def _hold(reader: GraphReader, start: tuple[int, int], stacks: Sequence[Tensor], states: States) -> None:
    """Have every operation of a body hold what its next run reads, and what each run writes a part of.

    That is what the body reads from outside, stacked results, and each state that a run leaves, from where it is made.
    A state that came from outside gives its memory to the one before; where others need it, too, both are there.
    """
    body = tuple(reader.ops[start[0] :])
    made = {output.storage for op in body for output in op.outputs}
    read = {tensor.storage: tensor for op in body for tensor in (*op.tensors(), *op.held) if tensor.storage not in made}
    fixed = [tensor for storage, tensor in read.items() if storage.is_activation and storage not in states.given]
    fixed += [*states.passed_on, *stacks, *(tensor for tensor in states.moved_on if tensor.storage.is_activation)]
    until = [(twin, len(body) if given in states.moved_on else _last_read(given, body)) for given, twin in states.twins]
    waiting = {tensor.storage: tensor for tensor in states.left}
    left: list[Tensor] = []
    holders: dict[Op, Op] = {}
    for at, op in enumerate(body):
        left += [waiting.pop(output.storage) for output in op.outputs if output.storage in waiting]
        holders[op] = holding(op, (*fixed, *left, *(twin for twin, last in until if at <= last)))
    reader.ops[start[0] :] = holders.values()
    reader.forks[start[1] :] = with_holding(reader.forks[start[1] :], holders, fixed)


def _last_read(given: Tensor, body: Sequence[Op]) -> int:
    """The last operation of a body that reads a tensor, or a view of it; -1 without any."""
    views, last = {given}, -1
    for at, op in enumerate(body):
        if not views.isdisjoint(op.tensors()):
            last = at
            views.update(op.outputs if op.is_view else ())
    return last


@dataclass(frozen=True, slots=True)
class States:
    """What a body is given, passes on as it came, and leaves for its next run.

    given are memories of states that nothing else needs in later runs, moved_on the states that the next run has as
    other ones, as a register shifts. Where others need the memory that a state came
    in, or it is stored, what the run before left is in memory beside it: its twin, behind the tensor that is given.
    """

    left: Sequence[Tensor]
    passed_on: Sequence[Tensor]
    moved_on: Collection[Tensor]
    given: Collection[Storage]
    twins: Sequence[tuple[Tensor, Tensor]]


def _states(reader: GraphReader, repeated: Repeated, inside: Frame, ops: Sequence[Op]) -> States:
    """The states of a body of these operations."""
    whole = _viewed(ops)
    ends = ((repeated.inputs[read][0], reader.operand(left, "", inside)) for _, left, read in repeated.carried)
    pairs = [(given, whole.get(left, left)) for given, left in ends]
    left_in = dict(pairs)
    moved_on = {left for given, left in pairs if left in left_in and left is not given}
    passed_on = [given for given, left in pairs if left.storage is given.storage and left not in moved_on]
    changed = [(given, left) for given, left in pairs if given not in passed_on]
    carried = {read for _, _, read in repeated.carried}
    others = [tensor for name, (tensor, _) in repeated.inputs.items() if name not in carried]
    others += filter(None, map(inside.tensor, repeated.body.reads_outside))
    needed = {tensor.storage for tensor in (*others, *passed_on)}
    taken: set[Storage] = set()
    twins: list[tuple[Tensor, Tensor]] = []
    for given, left in sorted(changed, key=lambda pair: (pair[0] not in moved_on, -_last_read(pair[0], ops))):
        storage, left = given.storage, _made(left, left_in)
        is_free = left in left_in or left.storage in inside.placed.values()  # there all runs have room
        is_kept = storage in needed | taken or _is_needed_later(given, repeated.node, inside.outer)
        if left.storage.is_activation and is_kept and not is_free:
            twins.append((given, replace(left, storage=replace(left.storage))))
        taken.add(storage)
    left_behind = [left for _, left in changed if left.storage.is_activation]
    return States(left_behind, passed_on, moved_on, taken - needed, twins)


def _viewed(body: Sequence[Op]) -> Mapping[Tensor, Tensor]:
    """The tensor behind each view in a body."""
    whole: dict[Tensor, Tensor] = {}
    for op in filter(attrgetter("is_view"), body):
        for output in op.outputs:
            behind = next(tensor for tensor in op.tensors() if tensor.storage is output.storage)
            whole[output] = whole.get(behind, behind)
    return whole


def _made(left: Tensor, left_in: Mapping[Tensor, Tensor]) -> Tensor:
    """What a state becomes that runs move on from one state to the next: itself where they only turn round."""
    met: set[Tensor] = set()
    while left in left_in and left not in met:
        met.add(left)
        left = left_in[left]
    return left


def _is_needed_later(given: Tensor, node: Node, frame: Frame | None) -> bool:
    """Whether the memory in which a state comes stays as it is: it is stored, or others read it after a node."""
    assert frame is not None, "a body is inside another one"
    names = {name for name, tensor in frame.tensors.items() if tensor.storage is given.storage}
    if not given.storage.is_activation or given.sweeps or not names:
        return True
    nodes = frame.body.nodes
    place = next(at for at, each in enumerate(nodes) if each.proto is node.proto)
    return not names.isdisjoint(frame.body.outputs) or any(
        not names.isdisjoint(each.reads) for each in nodes[place + 1 :]
    )


def _refuse_other_states(repeated: Repeated, inside: Frame) -> None:
    """Raise SourceError where a run leaves a state of another type than it takes, which no runtime loads."""
    for _, left, read in repeated.carried:
        taken, given = repeated.inputs[read][1], inside.type(left)
        if taken.code and given.code and taken.code != given.code and not (taken.container or given.container):
            raise SourceError(
                f"{repeated.node.operator} '{repeated.node.result}' takes the state '{read}' as {taken.dtype.name}, "
                f"and leaves it as {given.dtype.name}: export the model anew"
            )


def _pass_by(reader: GraphReader, repeated: Repeated, inside: Frame, frame: Frame) -> None:
    """A body that never runs: its states are as they came, and its stacked results are empty."""
    with suppress(MisfitError):  # of what does not run
        find_types(inside, reader.folding)
    known = {part: inside.type(part.inside) for part in repeated.stacked}
    if any(slice_.sizes is None for slice_ in known.values()):
        reader.opaque(repeated.node, frame, "its body never runs, and does not say the shapes of its slices")
    for result, _, read in repeated.carried:
        if result:
            frame.place(result, *repeated.inputs[read])
    for part, slice_ in known.items():
        if part.result and slice_.sizes is not None:
            axis = part.axis % (len(slice_.sizes) + 1)
            empty = ValueType(slice_.code, (*slice_.sizes[:axis], 0, *slice_.sizes[axis:]))
            nothing = Storage(part.result, 0, StorageKind.CONSTANT)  # an activation is written by some operation
            frame.place(part.result, fresh(part.result, empty, "", nothing), empty)


def _stack(inside: Frame, stacked: Stacked, count: int) -> Tensor | None:
    """The whole result whose slices a body writes; None where a slice has no known shape."""
    known = inside.type(stacked.inside)
    if known.sizes is None:
        return None
    axis = stacked.axis % (len(known.sizes) + 1)
    shape = (*known.sizes[:axis], count, *known.sizes[axis:])
    storage = Storage(stacked.result, nbytes_of(prod(shape), known.dtype), StorageKind.ACTIVATION)
    return dense(stacked.result, shape, known.dtype, storage)


def read_if(reader: GraphReader, node: Node, frame: Frame) -> None:
    """If: the branch that a known condition takes, else the dearer one, and a note says which.

    What is counted is a lower bound where the other branch cannot run, or gives another shape to all that follows.
    """
    branches = {name: _body(node, name) for name in ("then_branch", "else_branch")}
    for body in branches.values():
        _expect(node, "outputs", len(body.outputs), len(node.outputs))
    scope = node.scope
    reader.operand(node.inputs[0], scope, frame)
    condition = reader.folding.value(node.inputs[0], frame)
    if condition is not None:
        taken = "then_branch" if condition.any() else "else_branch"
        known = _branch(reader, branches[taken], frame, scope)
        reader.forks.extend(known.forks)
        _take(reader, node, frame, known)
        return
    read = _readable(reader, node, frame, branches)
    _must_agree(reader, node, frame, read)
    taken = max(sorted(read, reverse=True), key=lambda name: _cost(read[name], reader))
    reader.notes.append(f"If '{scope}' is counted as its dearer branch, {taken}")
    ways = {
        name: way(branch.ops, (tensor for tensor, _ in branch.outputs), branch.forks) for name, branch in read.items()
    }
    reader.forks.append(Fork(node.operator, f"If '{scope}'", ways, taken))
    _take(reader, node, frame, read[taken])


def _readable(reader: GraphReader, node: Node, frame: Frame, branches: Mapping[str, Body]) -> dict[str, Branch]:
    """The branches that can run, by name; raises MisfitError where none can."""
    read: dict[str, Branch] = {}
    misfits: dict[str, MisfitError] = {}
    for name, body in branches.items():
        try:
            read[name] = _branch(reader, body, frame, node.scope)
        except MisfitError as error:  # as exporters write it for other shapes
            misfits[name] = error
    for name, misfit in misfits.items():
        if not read:
            raise misfit
        reader.opaque(node, frame, f"its {name} is not counted: {misfit}")
        reader.forks.extend(unread(node, [name]))
    return read


def _must_agree(reader: GraphReader, node: Node, frame: Frame, read: Mapping[str, Branch]) -> None:
    """Refuse branches of other types; what is counted behind branches of other shapes is a lower bound."""
    types = {tuple(known.code for _, known in branch.outputs) for branch in read.values()}
    if len(types) > 1 and all(code for codes in types for code in codes):
        raise SourceError(
            f"If '{node.scope}' gives other types in its branches, which no runtime loads: export it anew"
        )
    shapes = {tuple(known.shape for _, known in branch.outputs) for branch in read.values()}
    if len(shapes) > 1 and any(frame.body.uses(name) for name in node.outputs):
        reader.opaque(node, frame, "its branches give different shapes, and nobody knows which is taken")


@dataclass(frozen=True, slots=True)
class Branch:
    """What one branch does and gives."""

    ops: tuple[Op, ...]
    outputs: tuple[tuple[Tensor, ValueType], ...]
    notes: tuple[str, ...]
    forks: tuple[Fork, ...]


def _branch(reader: GraphReader, body: Body, frame: Frame, scope: str) -> Branch:
    ops, notes, forks = len(reader.ops), len(reader.notes), len(reader.forks)
    inside = frame.inside(body)
    try:
        find_types(inside, reader.folding)
        reader.read(inside)
        outputs = tuple((reader.operand(name, scope, inside), inside.type(name)) for name in body.outputs)
        return Branch(tuple(reader.ops[ops:]), outputs, tuple(reader.notes[notes:]), tuple(reader.forks[forks:]))
    finally:
        del reader.ops[ops:], reader.notes[notes:], reader.forks[forks:]


def _take(reader: GraphReader, node: Node, frame: Frame, branch: Branch) -> None:
    reader.ops.extend(branch.ops)
    reader.notes.extend(branch.notes)
    for name, (tensor, known) in zip(node.outputs, branch.outputs, strict=True):
        frame.place(name, tensor, known)


def _cost(branch: Branch, reader: GraphReader) -> tuple[bool, int, int]:
    """Unmeasured before measured, then MACs, then bytes moved."""
    operands = tuple(tensor for op in branch.ops for tensor in op.tensors())
    outputs = tuple(tensor for tensor, _ in branch.outputs)
    costed = CostedGraph(Graph(branch.ops, (*operands, *outputs), outputs), reader.rules)
    computed, moved = macs(costed), bandwidth(costed)
    complete = computed.complete and moved.complete
    return not complete, int(computed.value), int(moved.value)


def unread(node: Node, names: Collection[str] = (), why: str = "") -> Iterator[Fork]:
    """Bodies of a node that are not written out, all or those of these names: which operators they hold.

    why is the operator around them by which nobody knows how often they run, where that is not the node's.
    """
    why, place = why or node.operator, f"{node.operator.rpartition('::')[2]} '{node.scope}'"
    for name in names or node.bodies:
        nodes = node.bodies[name].nodes
        ops = [Op(each.operator, (), (), {}, each.scope) for each in nodes if each.operator not in NO_OPERATION]
        yield Fork(why, place, {name: way(ops, (), [fork for each in nodes for fork in unread(each, (), why)])})


def _register(name: str, code: int) -> Tensor:
    """A scalar that a loop keeps for itself: its counter or its condition."""
    dtype = ValueType(code).dtype
    return dense(name, (), dtype, Storage(name, nbytes_of(1, dtype), StorageKind.CONSTANT))


ReadNode = Callable[["GraphReader", Node, Frame], None]
CONTROL_FLOW: Mapping[str, ReadNode] = {"onnx::Loop": read_loop, "onnx::Scan": read_scan, "onnx::If": read_if}
NO_OPERATION = frozenset({*CONTROL_FLOW, CONSTANT})
