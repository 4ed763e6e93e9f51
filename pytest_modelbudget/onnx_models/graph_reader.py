"""ONNX nodes as operations of the one graph: operands, results, views, and what stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path, PurePath

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from pytest_modelbudget.errors import SourceError, TransformError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.formats.user_code import user_code
from pytest_modelbudget.graph.graph import Graph, Op, Operand, Weight
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, dense, nbytes_of, unsized
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.files import ReadModel, bind_dims, read_model
from pytest_modelbudget.onnx_models.inference import (
    Folding,
    Frame,
    declared_types,
    weightless,
    with_shapes,
)
from pytest_modelbudget.onnx_models.program import (
    Body,
    Step,
    ValueType,
    all_graphs,
    dtype_of,
    metadata_of,
    read_body,
    scope_of,
    shape_values,
    value_type,
    weight_name,
)
from pytest_modelbudget.onnx_models.weights import StoredKinds, StoredTensor, masks
from pytest_modelbudget.ops.table import OpTable

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


def fresh(name: str, known: ValueType, why: str = "", storage: Storage | None = None) -> Tensor:
    """A result on memory of its own, or on the memory given; why says what hides its shape."""
    dtype = dtype_of(known.code)
    sizes = known.sizes
    if sizes is None or known.container or not dtype.bits:
        hidden = sizes is None or bool(known.container)
        reason = why if hidden else f"{name} holds {dtype.name}s, which have no fixed size"
        home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
        return unsized(name, dtype, home, reason)
    home = storage or Storage(name, nbytes_of(prod(sizes), dtype), StorageKind.ACTIVATION)
    return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype = dtype_of(known.code) if known.code else base.dtype
    if known.sizes is None or base.storage.unsized:
        return unsized(name, dtype, base.storage, why or base.unsized)
    strides = base.strides
    if known.sizes != base.shape:
        strides = dense(name, known.sizes, dtype, base.storage).strides
    return Tensor(name, known.sizes, dtype, base.storage, base.offset, strides, sweeps=base.sweeps)


def shape_tensor(name: str, known: ValueType) -> Tensor:
    """A value that only leads to shapes: it takes no memory, known or not."""
    storage = Storage(name, 0, StorageKind.SHAPE)
    return dense(name, known.sizes or (), dtype_of(known.code), storage)


def constant_tensor(node: NodeProto) -> TensorProto:
    """The value of a Constant node, whichever of its attributes holds it."""
    attribute = node.attribute[0]
    held: TensorProto | None = {
        AttributeProto.TENSOR: attribute.t,
        AttributeProto.SPARSE_TENSOR: attribute.sparse_tensor.values,
    }.get(attribute.type)
    if held is not None:
        return held
    code, entries = {
        AttributeProto.INT: (TensorProto.INT64, [attribute.i]),
        AttributeProto.INTS: (TensorProto.INT64, attribute.ints),
        AttributeProto.FLOAT: (TensorProto.FLOAT, [attribute.f]),
        AttributeProto.FLOATS: (TensorProto.FLOAT, attribute.floats),
        AttributeProto.STRING: (TensorProto.STRING, [attribute.s]),
        AttributeProto.STRINGS: (TensorProto.STRING, attribute.strings),
    }[attribute.type]
    listed = attribute.type in {AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS}
    shape = (len(entries),) if listed else ()
    return onnx.helper.make_tensor(node.output[0], code, shape, entries)


CONSTANT = "onnx::Constant"


class GraphReader:
    """Turns one model into a graph; ops, weights and notes grow as its nodes are read."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        masks: frozenset[str],
        opsets: Mapping[str, int],
        rules: OpTable,
    ) -> None:
        self.rules = rules
        self.opset = opsets.get("", 1)
        self.folding = Folding(opsets)
        self.ops: list[Op] = []
        self.notes: list[str] = []
        self._weights: list[Weight] = []
        self._met: set[tuple[Body, str]] = set()
        self._proto = proto.graph
        self._symbols = symbols_of_inputs(proto.graph)
        body = read_body(proto.graph, rules)
        self._outputs = frozenset(output.name for output in proto.graph.output)
        self._kinds = StoredKinds(body, frozenset(_stored_names(body)), masks)
        self._frame = Frame(body, declared_types(proto.graph), shape_values(body))

    def graph(self) -> Graph:
        """The graph of the whole model. Raises SourceError where it is no valid program."""
        frame = self._frame
        self._take_stored(frame)
        given = (value for value in self._proto.input if value.name not in frame.stored)
        inputs = tuple(self._input(value, frame) for value in given)
        self.read(frame)
        reader = "the graph's outputs"
        outputs = tuple(self.operand(each.name, reader, frame) for each in self._proto.output)
        for name, proto in frame.stored.items():
            if name not in frame.tensors:
                self._stored(proto, name, frame, "")
        if self._symbols:
            self.notes.append(f"not bound by dims: {self._listed(self._symbols)}")
        return Graph(tuple(self.ops), inputs, outputs, tuple(self._weights))

    def frame(self, body: Body, outer: Frame, *, times: int) -> Frame:
        """A frame for a body inside another graph, with its stored tensors known."""
        types = declared_types(body.proto)
        frame = Frame(body, types, shape_values(body), outer, times, outer.prefix)
        self._take_stored(frame)
        return frame

    def _take_stored(self, frame: Frame) -> None:
        """Make the stored tensors of a frame's graph known; their kind waits for the first use."""
        proto = frame.body.proto
        frame.stored.update((tensor.name, tensor) for tensor in proto.initializer)
        frame.stored.update((each.values.name, each.values) for each in proto.sparse_initializer)
        for step in frame.body.steps:
            if step.name == CONSTANT:
                frame.stored[step.outputs[0]] = constant_tensor(step.node)

    def _input(self, value: onnx.ValueInfoProto, frame: Frame) -> Tensor:
        known = value_type(value.type)
        why = self._unbound(known) or f"input {value.name} has no shape"
        if known.container:
            why = f"input {value.name} is a {known.container}, whose size the data decide"
        tensor = fresh(value.name, known, why)
        frame.tensors[value.name] = tensor
        frame.types[value.name] = known
        return tensor

    def _unbound(self, known: ValueType) -> str:
        """The sentence that names a type's unbound symbols and where they come from."""
        symbols = dict.fromkeys(size for size in known.shape or () if isinstance(size, str))
        named = [symbol for symbol in symbols if symbol in self._symbols]
        return f"not bound by dims: {self._listed(named)}" if named else ""

    def _listed(self, symbols: Mapping[str, list[str]] | list[str]) -> str:
        """Symbols with the inputs they come from: "batch (of x, y)"."""
        return ", ".join(f"{each} (of {', '.join(self._symbols[each])})" for each in symbols)

    def read(self, frame: Frame) -> None:
        """Read every node of a frame's graph, in the order of the file."""
        for step in frame.body.steps:
            if step.name in CONTROL_FLOW:
                CONTROL_FLOW[step.name](self, step, frame)
            elif step.name != CONSTANT:
                self._operation(step, frame)

    def find_types(self, frame: Frame) -> None:
        """Work out the types of a body's values before its results are placed."""
        for step in frame.body.steps:
            if step.name not in CONTROL_FLOW and step.name != CONSTANT:
                self._result_types(step, frame)

    def operand(self, name: str, reader: str, frame: Frame) -> Tensor:
        """The tensor of a value, stored ones made on first use; raises SourceError without any."""
        tensor = frame.tensor(name)
        if tensor is not None:
            return tensor
        home = frame.home(name)
        if home is None:
            raise SourceError(f"{reader} reads '{name}', which no input, weight or node gives")
        if name not in home.stored:
            raise SourceError(
                f"{reader} reads '{name}' before the node that makes it: the nodes form a cycle, "
                "or do not stand in the order in which they run"
            )
        return self._stored(home.stored[name], name, home, reader)

    def _stored(self, proto: TensorProto, name: str, frame: Frame, place: str) -> Tensor:
        """A stored tensor as a weight of the graph."""
        dtype = dtype_of(proto.data_type)
        sizes = tuple(proto.dims)
        stored = StoredTensor(name, dtype, len(sizes), metadata_of(proto))
        kind = self._kinds.kind(stored)
        path = weight_name(name, place)
        self._met.add((frame.body, name))
        tensor = dense(path, sizes, dtype, Storage(path, nbytes_of(prod(sizes), dtype), kind))
        frame.tensors[name] = tensor
        frame.types[name] = ValueType(proto.data_type, sizes)
        is_parameter = kind is StorageKind.PARAMETER
        packed = self._kinds.packed(name) if is_parameter else None
        reader = self._kinds.unknown_reader(stored) if kind is StorageKind.CONSTANT else None
        self._weights.append(Weight(tensor, is_parameter, bool(sizes), packed, reader))
        return tensor

    def _operation(self, step: Step, frame: Frame) -> None:
        """One ordinary node as one operation."""
        scope = frame.prefix + scope_of(step.node)
        operands = self._operands(step, scope, frame)
        types = self._result_types(step, frame)
        outputs = self._results(step, operands, types, frame)
        self.ops.append(Op(step.name, operands, outputs, step.attributes, scope, times=frame.times))

    def _operands(self, step: Step, scope: str, frame: Frame) -> tuple[Operand, ...]:
        """Operands in order; what only says how large or where is left out."""
        operands: list[Operand] = []
        for name, role in zip(step.inputs, step.roles, strict=True):
            tensor = (frame.tensors.get(name) or self.operand(name, scope, frame)) if name else None
            if role.shape and tensor and tensor.storage.kind is not StorageKind.SHAPE:
                tensor = None
            operands.append(tensor)
        return tuple(operands)

    def _result_types(self, step: Step, frame: Frame) -> tuple[ValueType, ...]:
        """Types of a node's results: as declared, or worked out where that leaves them open."""
        declared = tuple([frame.type(name) for name in step.outputs])
        if declared and None not in [each.sizes for each in declared]:
            return declared
        pairs = zip(declared, self.folding.types(step.node, frame), strict=True)
        types = tuple(
            known if known.sizes is not None or not other.code else other for known, other in pairs
        )
        frame.types.update(zip(step.outputs, types, strict=True))
        return types

    def _results(
        self,
        step: Step,
        operands: tuple[Operand, ...],
        types: tuple[ValueType, ...],
        frame: Frame,
    ) -> tuple[Tensor, ...]:
        """Results on the memory where they belong; further ones of a view only where read."""
        results: list[Tensor] = []
        base = self._viewed(step, operands, frame)
        for position, (name, known) in enumerate(zip(step.outputs, types, strict=True)):
            if not name or (base and position and not self._is_read(name)):
                continue
            why = "" if known.sizes is not None else self._why(step, known, operands)
            if base and not position:
                tensor = view(name, base, known, why)
            elif name in frame.shapes:
                tensor = shape_tensor(name, known)
            else:
                tensor = fresh(name, known, why, frame.placed.get(name))
            frame.tensors[name] = tensor
            results.append(tensor)
        return tuple(results)

    def _viewed(self, step: Step, operands: tuple[Operand, ...], frame: Frame) -> Tensor | None:
        """The operand whose memory the first result is, if the node is a view."""
        rule = step.rule
        if rule is None or rule.shares_storage_of is None:
            return None
        by_word = {role.word: at for at, role in enumerate(step.roles)}
        flag = by_word.get(rule.computes_where or "")
        if flag is not None and step.inputs[flag]:
            value = self.folding.value(step.inputs[flag], frame)
            if value is None or onnx.numpy_helper.to_array(value).any():
                return None
        operand = operands[by_word[rule.shares_storage_of]]
        return operand if isinstance(operand, Tensor) else None

    def _is_read(self, name: str) -> bool:
        return name in self._kinds.uses or name in self._outputs

    def _why(self, step: Step, known: ValueType, operands: tuple[Operand, ...]) -> str:
        """Why a result's shape is not known: an operand's reason, a symbol, or the node itself."""
        for operand in operands:
            if isinstance(operand, Tensor) and operand.unsized:
                return operand.unsized
        if known.container:
            return f"{step.name} gives a {known.container}, whose size the data decide"
        place = step.node.name or step.outputs[0]
        return self._unbound(known) or (
            f"{step.name} '{place}': the shape of its result is decided by the data"
            if step.rule
            else f"{step.name} '{place}': nothing says which shape its result has"
        )

    def opaque(self, step: Step, frame: Frame, why: str) -> None:
        """A node whose body cannot be written out: one operation with unknown results."""
        scope = frame.prefix + scope_of(step.node)
        reason = f"{step.name} '{scope}': {why}"
        operands = tuple(self.operand(name, scope, frame) if name else None for name in step.inputs)
        outputs = []
        for name in filter(None, step.outputs):
            code = frame.type(name).code
            storage = Storage(name, 0, StorageKind.ACTIVATION, reason)
            frame.tensors[name] = unsized(name, dtype_of(code), storage, reason)
            frame.types[name] = ValueType(code)
            outputs.append(frame.tensors[name])
        self.ops.append(Op(step.name, operands, tuple(outputs), {}, scope, times=frame.times))
        self._take_bodies(step, frame, scope)

    def _take_bodies(self, step: Step, frame: Frame, scope: str) -> None:
        """What bodies store that are not written out, which the file holds all the same."""
        for body in step.bodies.values():
            inside = self.frame(body, frame, times=frame.times)
            for name, proto in inside.stored.items():
                if (body, name) not in self._met:
                    self._stored(proto, name, inside, scope)
            for inner in body.steps:
                self._take_bodies(inner, inside, scope)


def symbols_of_inputs(graph: onnx.GraphProto) -> Mapping[str, list[str]]:
    """The inputs that each unbound symbol comes from."""
    symbols: dict[str, list[str]] = {}
    stored = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name in stored:
            continue
        for size in value_type(value.type).shape or ():
            if isinstance(size, str) and value.name not in symbols.setdefault(size, []):
                symbols[size].append(value.name)
    return symbols


def _stored_names(body: Body) -> Iterator[str]:
    """Names of initialisers and constants, those inside bodies included."""
    for each in body.everything():
        yield from (tensor.name for tensor in each.proto.initializer)
        constants = (step.outputs for step in each.steps if step.name == CONSTANT)
        yield from chain.from_iterable(constants)


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The graph of an ONNX file, on the shapes it declares and the sizes that dims binds.

    Weights are not read, so external data may be missing. Raises SourceError for what is no
    valid model, and InputError for dims that name nothing.
    """
    path = existing_file(source, "an ONNX model")
    if source.dtype is not None:
        raise SourceError("dtype converts modules, not ONNX files: export it in that type")
    if source.inputs:
        raise SourceError("an ONNX file brings its own inputs: bind its symbols with dims")
    return loaded_model(read_model(path), path.name, source.dims, rules)


def loaded_model(
    model: ReadModel, file: str, dims: Mapping[str, int], rules: OpTable
) -> LoadedModel:
    """The graph of a model without weights, which is written to: its dims are bound."""
    bind_dims(model.proto, dims, file)
    proto = with_shapes(model, file)
    reader = GraphReader(proto, model.masks, model.opsets, rules)
    graph = reader.graph()
    return LoadedModel(graph, "onnx", notes=tuple(reader.notes))


def model_with_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory; those in missing files stay outside.

    Raises SourceError for a file that is no ONNX model.
    """
    with user_code(f"reading {path.name}", SourceError):
        model = onnx.load(str(path), load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL and _is_there(tensor, path.parent):
                load_external_data_for_tensor(tensor, str(path.parent))
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]
    return model


def with_all_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory. Raises TransformError where some are not."""
    return must_be_whole(model_with_weights(path), path.name)


def must_be_whole(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """The model, unless a file with its weights is missing."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            words = f"{file}: the data of '{tensor.name}' lie in a file that is not there"
            raise TransformError(words)
    return model


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files with a model's weights, those that are there."""
    with user_code(f"reading {path.name}", SourceError):
        stored = onnx.load(str(path), load_external_data=False).graph.initializer
    beside = dict.fromkeys(_location(tensor) for tensor in stored)
    return tuple(path.parent / each for each in beside if each and (path.parent / each).is_file())


def _location(tensor: TensorProto) -> str:
    """Where a tensor's values lie, beside the model or below; "" for inside it or elsewhere."""
    named = next((each.value for each in tensor.external_data if each.key == "location"), "")
    path = PurePath(named)
    return "" if path.is_absolute() or ".." in path.parts else named


def _is_there(tensor: TensorProto, folder: Path) -> bool:
    location = _location(tensor)
    return bool(location) and (folder / location).is_file()


def measured_graph(
    model: onnx.ModelProto, name: str, dims: Mapping[str, int], rules: OpTable
) -> LoadedModel:
    """The graph of a model in memory, read as a file of that name would be."""
    found = masks(tuple(all_graphs(model.graph)))
    return loaded_model(ReadModel(weightless(model), found), name, dims, rules)
