"""ONNX nodes as operations of the one graph: operands, results, views, and what stays unknown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat

from onnx import AttributeProto

from pytest_modelbudget.errors import InputError, SourceError
from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.graph.graph import Graph, Op, Operand, Reader, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense, unbound, unsized
from pytest_modelbudget.onnx_models.checks import CHECKS, check_fit, refuse_invalid, refuse_negative
from pytest_modelbudget.onnx_models.control_flow import CONTROL_FLOW, Flow, unknown_branches
from pytest_modelbudget.onnx_models.exporter_names import weight_name
from pytest_modelbudget.onnx_models.inputs import bind_dims
from pytest_modelbudget.onnx_models.program import CONSTANT, Body, Node, Program, StoredTensor
from pytest_modelbudget.onnx_models.reading import ReadModel, read_model, weightless_model
from pytest_modelbudget.onnx_models.shape_inference import Frame, ShapeInference, bind_numbers
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN, ValueType, fresh, tensor_type, view
from pytest_modelbudget.onnx_models.weights import AttributeNames, StoredKinds, attribute_weight
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import some_of, with_article

TENSOR, TENSORS, SPARSE = AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR
NO_SHAPE = "nothing says which shape its result has"
RANDOM = "random"
GRIDS = frozenset({"quantize", "dequantize"})
NAMED = 2  # operators that a note names


def _notes_on_shapes(frame: Frame, decided: Iterable[str]) -> Iterator[str]:
    """A sentence on shapes that operators contradict, and one on sizes that only the file tells: data decide them."""
    pairs = ((name, declared.sizes, frame.type(name).sizes) for name, declared in frame.body.types.items())
    wrong = [(name, said, given) for name, said, given in pairs if None not in (said, given) and said != given]
    if wrong:
        name, said, given = wrong[0]
        yield (
            f"the file declares '{name}' as {list(said or ())}, and its operators give {list(given or ())}"
            f"{f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''}: counted as they give, "
            "which is what ONNX Runtime runs"
        )
    if named := some_of(decided, NAMED):
        yield f"data decide sizes of this model ({named}): counted as the file declares them; a run may have more"


def _origins(names: Iterable[str], frame: Frame) -> Iterator[tuple[str, Frame]]:
    """Values, and all that they come from, each once and with the frame that has it."""
    reached, waiting = set[tuple[int, str]](), [(name, frame) for name in names]
    for name, around in waiting:  # which grows
        home = around.home(name)
        if home is None or (id(home), name) in reached:
            continue
        reached.add((id(home), name))
        yield name, home
        maker = home.body.makers.get(name)
        waiting += [(read, home) for read in maker.reads] if maker else ()


class GraphReader:
    """Turns one model into a graph; ops, weights and notes grow as its nodes are read."""

    def __init__(
        self, program: Program, untrained: frozenset[str], numbers: Mapping[str, int], open_numbers: Collection[str]
    ) -> None:
        self.rules = program.rules
        self.opset = program.opsets.get("", 1)
        self.shapes = ShapeInference(program.model)
        self._own_weights: dict[int, tuple[Operand, ...]] = {}  # by a node's identity
        self._attribute_names = AttributeNames()
        self._flow = Flow()
        self._weights: list[Weight] = []
        self._unowned: list[Tensor] = []  # parameters that no layer owns
        self._scales: dict[tuple[DType, tuple[int, ...], bytes], Tensor] = {}
        self._memories: dict[tuple[str, str, int, StorageKind], Storage] = {}  # by their places in files beside it
        self._met: dict[tuple[Body, str], Tensor] = {}
        self.nodes_in_bodies = 0
        self._runs = 0
        self._graph = program.graph
        self._kinds = StoredKinds(program.graph, untrained)
        self._inputs = program.inputs
        self._symbols = self._symbols_of_inputs()
        self._numbers = numbers
        self._open_numbers = open_numbers

    def graph(self) -> Graph:
        """The graph of the whole model. Raises SourceError where it is no valid program."""
        frame = Frame(self._graph)
        inputs = tuple(self._input(name, frame) for name in self._inputs)
        bind_numbers(frame, self._numbers)
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
            self._flow.notes.append(unbound(self._symbols))
        self._flow.notes.extend(_notes_on_shapes(frame, self.shapes.decided))
        if self._unowned:  # constants of the program that count as parameters, as they may have been trained
            elements, several = sum(each.elements for each in self._unowned), len(self._unowned) > 1
            named = some_of(f"'{each.name}' ({'x'.join(map(str, each.shape))})" for each in self._unowned)
            note = f"params has {elements:,} from constant{'s' * several} that no layer owns: {named}"
            self._flow.notes.append(note)
        states = tuple([tensor for tensor in self._flow.states if tensor.storage.is_activation])
        ops, forks = tuple(self._flow.ops), tuple(self._flow.forks)
        return Graph(ops, inputs, outputs, tuple(self._weights), forks=forks, states=states)

    @property
    def notes(self) -> list[str]:
        return self._flow.notes

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
        frame.tensors[name] = fresh(name, known, why)
        return frame.tensors[name]

    def _unbound(self, symbols: Iterable[str]) -> str:
        """The sentence that names the unbound symbols of inputs; "" without any."""
        named = {symbol: self._symbols[symbol] for symbol in symbols if symbol in self._symbols}
        return unbound(named) if named else ""

    def _behind(self, node: Node, frame: Frame) -> str:
        """The open symbols of inputs that a node's results come from: they hide what is made with a size."""
        symbols: dict[str, None] = {}
        for name, home in _origins(node.reads, frame) if self._symbols else ():
            symbols.update(dict.fromkeys(home.type(name).symbols))
        return self._unbound(name for name in self._symbols if name in symbols)

    def choice(self, names: Iterable[str], frame: Frame) -> str:
        """The end of a sentence on what data decide: which inputs do it alone, where dims may bind all of these."""
        origins = list(_origins(names, frame))
        found = {name: None for name, home in origins if name in home.body.inputs and name not in home.body.stored}
        makers = (home.body.makers.get(name) for name, home in origins)
        is_drawn = any(maker and maker.rule and maker.rule.kind == RANDOM for maker in makers)
        if is_drawn or not found or not found.keys() <= set(self._open_numbers):
            return ""
        return f" ({', '.join(found)} in dims decides it)"

    def next_run(self) -> int:
        """The number of one more run of a body, for its operations."""
        self._runs += 1
        return self._runs

    def read(self, frame: Frame) -> None:
        """Read every node of a frame's graph, in the order of the file. Raises SourceError where one does not fit."""
        for node in frame.body.nodes:
            operator = node.signature.operator
            if operator in CONTROL_FLOW:
                self._take(CONTROL_FLOW[operator](node, frame, self), frame)
            elif operator != CONSTANT:
                self._operation(node, frame)

    def read_body(self, inside: Frame, scope: str) -> Flow:
        """Read a body, with what is known of its inputs: what it runs and gives, and nothing of what is around it."""
        self.nodes_in_bodies += len(inside.body.nodes)
        around, self._flow = self._flow, Flow()
        try:
            self.read(inside)
            results = {name: (self.operand(name, scope, inside), inside.type(name)) for name in inside.body.outputs}
            return replace(self._flow, results=results)
        finally:
            self._flow = around

    def _take(self, flow: Flow, frame: Frame) -> None:
        """Let a node run a flow, whose results are the node's."""
        self._flow.add(flow)
        for name, value in flow.results.items():
            if name:
                frame.place(name, *value)

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
        met = self._met.get((frame.body, name))
        if met is not None:  # in an earlier run of this body
            frame.place(name, met, stored.read_as)
            return met
        assert known.sizes is not None, "what is stored has a shape"
        kind = self._kinds.kind(stored)
        path = weight_name(name, place)
        memory = self._memory(stored, Storage(path, known.nbytes, kind))
        tensor = fresh(path, known, storage=memory) if known.is_plain else dense(path, known.sizes, known.dtype, memory)
        frame.place(name, tensor, stored.read_as)
        self._met[frame.body, name] = tensor
        is_parameter = kind is StorageKind.PARAMETER
        packed = self._kinds.packed(stored) if is_parameter else None
        reader = self._kinds.unknown_reader(stored) if kind is StorageKind.CONSTANT else None
        self._weights.append(Weight(tensor, is_parameter, bool(known.sizes), packed, reader))
        if is_parameter and tensor.elements > 1 and self._kinds.is_unowned(stored):
            self._unowned.append(replace(tensor, name=name))
        return tensor

    def _memory(self, stored: StoredTensor, memory: Storage) -> Storage:
        """The memory of a stored tensor; where another one of as many bytes begins in the same place, that one's."""
        place = stored.place
        return self._memories.setdefault((*place, memory.nbytes, memory.kind), memory) if place else memory

    def _operation(self, node: Node, frame: Frame) -> None:
        """One ordinary node as one operation."""
        scope, signature = node.scope, node.signature
        operands = self._operands(node, scope, frame)
        if signature.attributes and signature.rule:
            inputs = len(signature.rule.roles[signature.operator]) - len(signature.attributes)
            absent = (None,) * (inputs - len(operands))
            operands = (*operands, *absent, *self._attribute_weights(node))
        types = self.shapes.types(node, frame)
        if signature.operator in CHECKS:
            known = [frame.type(name) if name else NOTHING_KNOWN for name in node.inputs]
            check_fit(node, known, types, lambda at: self.shapes.value(node.inputs[at], frame))
        refuse_negative(node, types)
        outputs = self._results(node, operands, types, frame)
        op = Op(signature.operator, operands, outputs, node.attributes, scope, frame.times, run=frame.run)
        # It writes a slice of a stacked result of which it reads another one: no view of it.
        is_slice = any(place in op.outputs and place not in op.fresh_outputs for place in frame.placed.values())
        self._flow.ops.append(replace(op, mutates=True) if is_slice else op)
        if signature.rule is None:
            self._take_unknown_attributes(node)
        if node.bodies:
            self._flow.forks.extend(unknown_branches(node))

    def _attribute_weights(self, node: Node) -> tuple[Operand, ...]:
        """The weights in attributes of a node, by the roles of its rule; None for an attribute that it leaves out."""
        if id(node) not in self._own_weights:  # a loop may run it again
            weights = (self._attribute_weight(node, role) for role in node.signature.attributes)
            self._own_weights[id(node)] = tuple(weights)
        return self._own_weights[id(node)]

    def _attribute_weight(self, node: Node, role: Role) -> Tensor | None:
        """A list or a tensor among a node's attributes as a weight of the graph; text has no width."""
        weight = attribute_weight(node, role.attribute)
        if weight is None:
            return None
        kind = StorageKind.PARAMETER if role.weight else StorageKind.CONSTANT
        tensor = self._attribute_tensor(node, role.attribute, weight[0], kind)
        self._weights.append(Weight(tensor, role.weight))
        return tensor

    def _attribute_tensor(self, node: Node, attribute: str, known: ValueType, kind: StorageKind) -> Tensor:
        """The tensor of a weight in an attribute."""
        path = self._attribute_names.name(node, attribute)
        return dense(path, known.sizes or (), known.dtype, Storage(path, known.nbytes, kind))

    def _take_unknown_attributes(self, node: Node) -> None:
        """What an operator without a rule stores in its attributes, which may be its weights."""
        for attribute in node.tensors:
            protos = {TENSOR: [attribute.t], TENSORS: attribute.tensors, SPARSE: [attribute.sparse_tensor.values]}
            for at, proto in enumerate(protos.get(attribute.type, ())):
                if proto.dims:
                    name = f"{attribute.name}{at or ''}"
                    tensor = self._attribute_tensor(node, name, tensor_type(proto), StorageKind.CONSTANT)
                    self._weights.append(Weight(tensor, unknown_reader=Reader(node.operator, "")))

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
        quantised = operands[0] if operands and signature.kind in GRIDS else None
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
            elif (place := frame.placed.get(name)) is not None and place.shape == known.sizes:
                tensor = place
            else:
                tensor = fresh(name, known, why)
            frame.tensors[name] = tensor
            results.append(tensor)
        return tuple(results)

    def _viewed(self, node: Node, operands: tuple[Operand, ...], frame: Frame) -> Tensor | None:
        """The operand whose memory the first result is, if no flag of the node says otherwise."""
        viewed, flag = node.signature.viewed, node.signature.flag
        if flag >= 0 and node.inputs[flag]:
            value = self.shapes.value(node.inputs[flag], frame)
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
        sizes = [node.inputs[at] for at in node.signature.sizing]
        undecided = f"the shape of its result is decided by the data{self.choice(sizes, frame)}"
        return f"{node.operator} '{place}': {undecided if node.rule else NO_SHAPE}"

    def unmeasured(self, node: Node, frame: Frame, why: str) -> Flow:
        """A node whose body cannot be read: one operation with unknown results."""
        scope = node.scope
        reason = self._behind(node, frame) or f"{node.operator} '{node.place}': {why}"
        operands = tuple(self.operand(name, scope, frame) if name else None for name in node.inputs)
        results = {}
        for name in filter(None, node.outputs):
            declared = frame.type(name).or_declared(frame.body.types[name])
            known, storage = ValueType(declared.code), Storage(name, 0, StorageKind.ACTIVATION, reason)
            results[name] = unsized(name, known.dtype, storage, reason, declared.declared), known
        outputs = tuple([tensor for tensor, _ in results.values()])
        op = Op(node.operator, operands, outputs, {}, scope, times=frame.times, run=frame.run)
        return Flow([op], results=results)

    def _take_bodies(self, node: Node, frame: Frame, scope: str) -> None:
        """What bodies store that are not written out, or do not read it: the file holds it all the same."""
        for body in node.bodies.values():
            inside = frame.inside(body)
            for name, stored in body.stored.items():
                if (body, name) not in self._met:
                    self._stored(stored, inside, scope)
            for inner in body.nodes:
                self._attribute_weights(inner)
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
        raise InputError("an ONNX file brings its own inputs: leave inputs out, and bind symbols with dims")
    return loaded_model(read_model(path, rules), path.name, source.dims)


def loaded_model(model: ReadModel, file: str, dims: Mapping[str, int]) -> LoadedModel:
    """The graph of a model without weights, which is written to: its dims are bound."""
    program = model.program
    refuse_invalid(program, file)
    numbers, open_numbers = bind_dims(program, dims, file)
    if dims or any(None in (program.graph.types[name].shape or ()) for name in program.inputs):
        program = Program(program.model, program.rules)  # with the names and sizes that are written into it now
    reader = GraphReader(program, model.untrained, numbers, open_numbers)
    sets = [f"{domain} opset {version}".lstrip() for domain, version in program.opsets.items()]
    versions, graph = ", ".join([f"IR version {program.model.ir_version}", *sets]), reader.graph()
    return LoadedModel(graph, "onnx", versions, notes=(*model.notes, *dict.fromkeys(reader.notes)))


def measured_graph(program: Program, name: str, dims: Mapping[str, int]) -> LoadedModel:
    """The graph of a model in memory, read as a file of that name would be."""
    return loaded_model(weightless_model(program, name), name, dims)
