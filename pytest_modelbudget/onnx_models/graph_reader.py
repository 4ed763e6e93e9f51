"""ONNX nodes as operations of the one graph: operands, results, views, and what stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from math import prod

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.graph.graph import Fork, Graph, Op, Operand, Reader, Weight, way
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, nbytes_of, unbound, unsized
from pytest_modelbudget.metrics.compute import macs
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.declared import notes_on_shapes
from pytest_modelbudget.onnx_models.files import ReadModel, bind_dims, read_model, weightless
from pytest_modelbudget.onnx_models.fitting import CHECKS, MisfitError, check_fit
from pytest_modelbudget.onnx_models.inference import Folding, Frame, find_types, result_types, with_shapes
from pytest_modelbudget.onnx_models.normal_form import SORTED, in_order
from pytest_modelbudget.onnx_models.program import CONSTANT, Body, Node, Program, StoredTensor
from pytest_modelbudget.onnx_models.protos import weight_name
from pytest_modelbudget.onnx_models.value_types import LARGEST, NOTHING_KNOWN, ValueType, dtype_of
from pytest_modelbudget.onnx_models.weights import StoredKinds, untrained
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import with_article

TENSOR, TENSORS, SPARSE = AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR
NO_SHAPE = "nothing says which shape its result has"
TRUE = np.array(True)
GRIDS = frozenset({"quantize", "dequantize"})
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
    carried = list(zip(node.outputs[:states], results[:states], body.inputs[:states], strict=True))
    out_axes = attributes.get("scan_output_axes") or (0,) * (len(results) - states)
    stacked = [Stacked(*ends) for ends in zip(node.outputs[states:], results[states:], out_axes, strict=True)]
    _repeat(reader, Repeated(node, body, count, fed, carried, stacked), frame)


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
    grows = any(
        reader.operand(left, scope, inside).shape != repeated.inputs[read][0].shape
        for _, left, read in repeated.carried
    )
    if grows or not all(stacks.values()):
        del reader.ops[ops:], reader.forks[forks:]
        reader.opaque(repeated.node, frame, "its state or its slices change their shape")
        reader.forks.extend(unread(repeated.node))
        return
    for result, left, _ in repeated.carried:
        if result:
            frame.place(result, reader.operand(left, scope, inside), inside.type(left))
    for part, stack in stacks.items():
        assert stack is not None
        slice_ = reader.operand(part.inside, scope, inside)
        if slice_.storage is not stack.storage:  # the body's own operation does not write it there
            placed = dense(part.inside, slice_.shape, slice_.dtype, stack.storage)
            reader.ops.append(Op("onnx::Identity", (slice_,), (placed,), {}, scope, times=inside.times))
        if part.result:
            frame.place(part.result, stack, ValueType(inside.type(part.inside).code, stack.shape))


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
    read: dict[str, Branch] = {}
    misfits: dict[str, MisfitError] = {}
    for name, body in branches.items():
        try:
            read[name] = _branch(reader, body, frame, scope)
        except MisfitError as error:  # as exporters write it for other shapes
            misfits[name] = error
    for name, misfit in misfits.items():
        if not read:
            raise misfit
        reader.opaque(node, frame, f"its {name} is not counted: {misfit}")
        reader.forks.extend(unread(node, [name]))
    shapes = {tuple(known.shape for _, known in branch.outputs) for branch in read.values()}
    if len(shapes) > 1 and any(frame.body.uses(name) for name in node.outputs):
        reader.opaque(node, frame, "its branches give different shapes, and nobody knows which is taken")
    taken = max(sorted(read, reverse=True), key=lambda name: _cost(read[name], reader))
    reader.notes.append(f"If '{scope}' is counted as its dearer branch, {taken}")
    ways = {
        name: way(branch.ops, (tensor for tensor, _ in branch.outputs), branch.forks) for name, branch in read.items()
    }
    reader.forks.append(Fork(node.operator, f"If '{scope}'", ways, taken))
    _take(reader, node, frame, read[taken])


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


def fresh(name: str, known: ValueType, why: str = "", storage: Storage | None = None) -> Tensor:
    """A result on memory of its own, or on the memory given; why says what hides its shape."""
    dtype, sizes = known.dtype, known.sizes
    if known.is_plain and sizes is not None:
        home = storage or Storage(name, known.nbytes, StorageKind.ACTIVATION)
        return Tensor(name, sizes, dtype, home, 0, known.strides)
    if sizes is None or known.container or not dtype.bits:
        hidden = sizes is None or bool(known.container)
        reason = why if hidden else f"{name} holds {dtype.name}s, which have no fixed size"
        home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
        return unsized(name, dtype, home, reason, known.declared)
    home = storage or Storage(name, nbytes_of(prod(sizes), dtype), StorageKind.ACTIVATION)
    return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype = known.dtype if known.code else base.dtype
    if known.sizes is None or base.storage.unsized:
        return unsized(name, dtype, base.storage, why or base.unsized, known.declared)
    strides = base.strides
    if known.sizes != base.shape:
        strides = dense(name, known.sizes, dtype, base.storage).strides
    return Tensor(name, known.sizes, dtype, base.storage, base.offset, strides, sweeps=base.sweeps)


class GraphReader:
    """Turns one model into a graph; ops, weights and notes grow as its nodes are read."""

    def __init__(self, program: Program, untrained: frozenset[str]) -> None:
        self.rules = program.rules
        self.opset = program.opsets.get("", 1)
        self.folding = Folding(program.opsets)
        self.ops: list[Op] = []
        self.notes: list[str] = []
        self.forks: list[Fork] = []
        self._weights: list[Weight] = []
        self._scales: dict[tuple[DType, tuple[int, ...], bytes], Tensor] = {}
        self._met: set[tuple[Body, str]] = set()
        self._graph = program.graph
        self._kinds = StoredKinds(program.graph, untrained)
        self._inputs = program.inputs
        self._symbols = self._symbols_of_inputs()

    def graph(self) -> Graph:
        """The graph of the whole model. Raises SourceError where it is no valid program."""
        frame = Frame(self._graph)
        inputs = tuple(self._input(name, frame) for name in self._inputs)
        self.read(frame)
        reader = "the graph's outputs"
        outputs = tuple(self.operand(name, reader, frame) for name in self._graph.outputs)
        for name, stored in self._graph.stored.items():
            if name not in frame.tensors:
                self._stored(stored, frame, "")
        for node in self._graph.nodes:
            if node.bodies:
                self._take_bodies(node, frame, node.scope)
        if self._symbols:
            self.notes.append(unbound(self._symbols))
        self.notes.extend(notes_on_shapes(frame, self.folding.decided))
        return Graph(tuple(self.ops), inputs, outputs, tuple(self._weights), forks=tuple(self.forks))

    def _symbols_of_inputs(self) -> Mapping[str, list[str]]:
        """The inputs that each unbound symbol comes from."""
        symbols: dict[str, list[str]] = {}
        for name in self._inputs:
            for size in dict.fromkeys(self._graph.types[name].shape or ()):
                if isinstance(size, str):
                    symbols.setdefault(size, []).append(name)
        return symbols

    def _input(self, name: str, frame: Frame) -> Tensor:
        known = self._graph.types[name]
        why = self._unbound(known.symbols) or f"input {name} has no shape"
        if known.container:
            why = f"input {name} is {with_article(known.container)}, whose size the data decide"
        elements = prod(known.sizes or ())
        if elements > LARGEST:
            raise SourceError(f"input {name} has {elements:,} elements, more than 64 bits count")
        frame.tensors[name] = fresh(name, known, why)
        return frame.tensors[name]

    def _unbound(self, symbols: Iterable[str]) -> str:
        """The sentence that names those of some symbols that inputs have and nobody bound; "" without any."""
        named = {symbol: self._symbols[symbol] for symbol in symbols if symbol in self._symbols}
        return unbound(named) if named else ""

    def _behind(self, node: Node, frame: Frame) -> str:
        """What hides a value that a node's results come from: symbols of inputs, or numbers that leave 64 bits.

        A size that is worked out from one (Shape, Gather, Range) hides what is made with it.
        """
        symbols: dict[str, None] = {}
        hidden = frame.hidden_reason(node.result)
        reached, waiting = set[tuple[int, str]](), [(name, frame) for name in node.reads]
        for name, around in waiting:  # which grows
            home = around.home(name)
            if home is None or (id(home), name) in reached:
                continue
            reached.add((id(home), name))
            symbols.update(dict.fromkeys(home.type(name).symbols))
            hidden = hidden or home.hidden_reason(name)
            maker = home.body.makers.get(name)
            waiting += [(read, home) for read in maker.reads] if maker else ()
        return self._unbound(name for name in self._symbols if name in symbols) or hidden

    def read(self, frame: Frame) -> None:
        """Read every node of a frame's graph, in the order of the file."""
        for node in frame.body.nodes:
            operator = node.signature.operator
            if operator in CONTROL_FLOW:
                CONTROL_FLOW[operator](self, node, frame)
            elif operator != CONSTANT:
                self._operation(node, frame)

    def operand(self, name: str, reader: str, frame: Frame) -> Tensor:
        """The tensor of a value, stored ones made on first use; raises SourceError without any."""
        tensor = frame.tensor(name)
        if tensor is not None:
            return tensor
        home = frame.home(name)
        if home is None:
            raise SourceError(f"{reader} reads '{name}', which no input, weight or node gives")
        if name not in home.body.stored:
            raise SourceError(f"{reader} reads '{name}' before the node that makes it: the nodes form a cycle")
        return self._stored(home.body.stored[name], home, reader)

    def _stored(self, stored: StoredTensor, frame: Frame, place: str) -> Tensor:
        """A stored tensor as a weight of the graph."""
        name, known = stored.name, stored.type
        assert known.sizes is not None, "what is stored has a shape"
        kind = self._kinds.kind(stored)
        path = weight_name(name, place)
        self._met.add((frame.body, name))
        tensor = dense(path, known.sizes, known.dtype, Storage(path, known.nbytes, kind))
        frame.place(name, tensor, stored.read_as)
        is_parameter = kind is StorageKind.PARAMETER
        packed = self._kinds.packed(stored) if is_parameter else None
        reader = self._kinds.unknown_reader(stored) if kind is StorageKind.CONSTANT else None
        self._weights.append(Weight(tensor, is_parameter, bool(known.sizes), packed, reader))
        return tensor

    def _operation(self, node: Node, frame: Frame) -> None:
        """One ordinary node as one operation."""
        scope, signature = node.scope, node.signature
        operands = self._operands(node, scope, frame)
        types = result_types(node, frame, self.folding)
        if signature.operator in CHECKS:
            check_fit(node, [frame.type(name) if name else NOTHING_KNOWN for name in node.inputs], types)
        outputs = self._results(node, operands, types, frame)
        self.ops.append(Op(signature.operator, operands, outputs, node.attributes, scope, frame.times))
        if signature.rule is None:
            self._take_attributes(node, scope)
        if node.bodies:
            self.forks.extend(unread(node))

    def _take_attributes(self, node: Node, scope: str) -> None:
        """What an operator without a rule stores in its attributes, which may be its weights."""
        for attribute in node.held:
            protos = {TENSOR: [attribute.t], TENSORS: attribute.tensors, SPARSE: [attribute.sparse_tensor.values]}
            for at, proto in enumerate(protos.get(attribute.type, ())):
                if proto.dims:
                    path = weight_name(
                        f"{attribute.name}{at or ''}", f"{scope}.{node.result}" if scope else node.result
                    )
                    dtype, shape = dtype_of(proto.data_type), tuple(proto.dims)
                    storage = Storage(path, nbytes_of(prod(shape), dtype), StorageKind.CONSTANT)
                    reader = Reader(node.operator, "")
                    self._weights.append(Weight(dense(path, shape, dtype, storage), unknown_reader=reader))

    def _operands(self, node: Node, scope: str, frame: Frame) -> tuple[Operand, ...]:
        """Operands in order; what only says how large or where is left out."""
        made, signature = frame.tensors, node.signature
        operands: list[Tensor | None] = [
            (made.get(name) or self.operand(name, scope, frame)) if name else None for name in node.inputs
        ]
        for at in signature.sizing:
            tensor = operands[at]
            if tensor and tensor.storage.kind is not StorageKind.SHAPE:
                operands[at] = None
        quantised = operands[0] if operands and signature.rule and signature.rule.kind in GRIDS else None
        if quantised and quantised.storage.is_activation:
            return (quantised, *map(self._first_of_equal, operands[1:], node.inputs[1:], repeat(frame)))
        return tuple(operands)

    def _first_of_equal(self, scale: Tensor | None, name: str, frame: Frame) -> Tensor | None:
        """A stored scale or zero point, or the first of that type and number: exporters write one for each node."""
        home = frame.home(name) if scale and scale.elements == 1 else None
        stored = home.body.stored.get(name) if home else None
        if scale is None or stored is None or stored.values is None:
            return scale
        return self._scales.setdefault((scale.dtype, scale.shape, stored.array().tobytes()), scale)

    def _results(
        self, node: Node, operands: tuple[Operand, ...], types: tuple[ValueType, ...], frame: Frame
    ) -> tuple[Tensor, ...]:
        """Results on the memory where they belong; further ones of a view only where read."""
        results: list[Tensor] = []
        base = self._viewed(node, operands, frame) if node.signature.viewed >= 0 else None
        shaping = frame.body.shaping
        for position, (name, known) in enumerate(zip(node.outputs, types, strict=True)):
            if not name or (base and position and not self._graph.reads.get(name)):
                continue
            why = "" if known.sizes is not None else self._why(node, known, operands, frame)
            if base and not position:
                tensor = view(name, base, known, why)
            elif name in shaping:
                storage = Storage(name, 0, StorageKind.SHAPE)  # it takes no memory, known or not
                tensor = dense(name, known.sizes or (), known.dtype, storage)
            else:
                tensor = fresh(name, known, why, frame.placed.get(name))
            frame.tensors[name] = tensor
            results.append(tensor)
        return tuple(results)

    def _viewed(self, node: Node, operands: tuple[Operand, ...], frame: Frame) -> Tensor | None:
        """The operand whose memory the first result is, if no flag of the node says otherwise."""
        viewed, flag = node.signature.viewed, node.signature.flag
        if flag >= 0 and node.inputs[flag]:
            value = self.folding.value(node.inputs[flag], frame)
            if value is None or value.any():
                return None
        operand = operands[viewed]
        return operand if isinstance(operand, Tensor) else None

    def _why(self, node: Node, known: ValueType, operands: tuple[Operand, ...], frame: Frame) -> str:
        """Why a result's shape is not known: an operand's reason, a symbol, or the node itself."""
        for operand in operands:
            if isinstance(operand, Tensor) and operand.unsized:
                return operand.unsized
        if known.container:
            return f"{node.operator} gives {with_article(known.container)}, whose size the data decide"
        place = node.proto.name or node.outputs[0]
        hidden = self._unbound(known.symbols) or self._behind(node, frame)
        if hidden:
            return hidden
        self.folding.refuse_misfit(node, frame)
        undecided = "the shape of its result is decided by the data" if node.rule else NO_SHAPE
        return f"{node.operator} '{place}': {undecided}"

    def opaque(self, node: Node, frame: Frame, why: str) -> None:
        """A node whose body cannot be written out: one operation with unknown results."""
        scope = node.scope
        reason = self._behind(node, frame) or f"{node.operator} '{scope}': {why}"
        operands = tuple(self.operand(name, scope, frame) if name else None for name in node.inputs)
        outputs = []
        for name in filter(None, node.outputs):
            declared = frame.type(name).or_declared(frame.body.declared[name])
            known = ValueType(declared.code)
            storage = Storage(name, 0, StorageKind.ACTIVATION, reason)
            frame.place(name, unsized(name, known.dtype, storage, reason, declared.declared), known)
            outputs.append(frame.tensors[name])
        self.ops.append(Op(node.operator, operands, tuple(outputs), {}, scope, times=frame.times))

    def _take_bodies(self, node: Node, frame: Frame, scope: str) -> None:
        """What bodies store that are not written out, or do not read it: the file holds it all the same."""
        for body in node.bodies.values():
            inside = frame.inside(body)
            for name, stored in body.stored.items():
                if (body, name) not in self._met:
                    self._stored(stored, inside, scope)
            for inner in body.nodes:
                self._take_bodies(inner, inside, scope)


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
    return loaded_model(read_model(path, rules), path.name, source.dims)


def loaded_model(model: ReadModel, file: str, dims: Mapping[str, int]) -> LoadedModel:
    """The graph of a model without weights, which is written to: its dims are bound."""
    program = in_order(model.program)
    bind_dims(program, dims, file)
    reader = GraphReader(with_shapes(program, file, is_bound=bool(dims)), model.untrained)
    graph = reader.graph()
    notes = (*([] if program is model.program else [SORTED]), *reader.notes)
    return LoadedModel(graph, "onnx", notes=notes, files=model.beside)


def measured_graph(model: onnx.ModelProto, name: str, dims: Mapping[str, int], rules: OpTable) -> LoadedModel:
    """The graph of a model in memory, read as a file of that name would be."""
    light = ReadModel(Program(weightless(model), rules), untrained(Program(model, rules).graph))
    return loaded_model(light, name, dims)
