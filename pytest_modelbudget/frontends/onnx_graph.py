"""ONNX nodes as operations of the one graph: operands, results, views, and what stays unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.onnx_control_flow import CONTROL_FLOW
from pytest_modelbudget.frontends.onnx_folding import Folding
from pytest_modelbudget.frontends.onnx_frames import Frame
from pytest_modelbudget.frontends.onnx_scopes import scope_of, weight_name
from pytest_modelbudget.frontends.onnx_shapes import declared_types
from pytest_modelbudget.frontends.onnx_types import (
    ValueType,
    attribute_values,
    dtype_of,
    is_floating,
    tensor_type,
    value_type,
)
from pytest_modelbudget.frontends.onnx_uses import (
    SHAPE_ROLES,
    op_name,
    roles_of,
    shape_values,
    uses_of,
)
from pytest_modelbudget.frontends.onnx_weights import StoredKinds
from pytest_modelbudget.ir.graph import Graph, Op, Operand, Weight
from pytest_modelbudget.ir.tensor import (
    DType,
    Storage,
    StorageKind,
    Tensor,
    dense,
    nbytes_of,
    unsized,
)
from pytest_modelbudget.ops.op_rule import OpRule
from pytest_modelbudget.ops.op_table import OpTable


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
        self.folding = Folding(opsets)
        self.ops: list[Op] = []
        self.notes: list[str] = []
        self._weights: list[Weight] = []
        self._graph = proto.graph
        self._symbols = symbols_of_inputs(proto.graph)
        shapes = shape_values(proto.graph, rules)
        self.uses = uses_of(proto.graph, rules)
        stored = frozenset(_stored_names(proto.graph))
        self._kinds = StoredKinds(self.uses, stored, masks, shapes)
        self._outputs = frozenset(output.name for output in proto.graph.output)
        self._frame = Frame(proto.graph, declared_types(proto.graph), shapes)
        self.opset = opsets.get("", 1)

    def frame(self, body: onnx.GraphProto, outer: Frame, *, times: int) -> Frame:
        """A frame for a body inside another graph, with its stored tensors known."""
        shapes = shape_values(body, self.rules)
        frame = Frame(body, declared_types(body), shapes, outer, times, outer.prefix)
        self.take_stored(frame)
        return frame

    def find_types(self, frame: Frame) -> None:
        """Work out the types of a body's values before its results are placed."""
        for node in frame.graph.node:
            if node.op_type not in CONTROL_FLOW and node.op_type != "Constant":
                self.result_types(node, frame)
            elif node.op_type == "Constant":
                self._constant(node, frame)

    def opaque(self, node: NodeProto, frame: Frame, why: str) -> None:
        """A node whose body cannot be written out: one operation with unknown results."""
        scope = frame.prefix + scope_of(node)
        reason = f"{op_name(node)} '{scope}': {why}"
        operands = tuple(
            self.operand(name, scope, frame) if name else None for name in node.input
        )
        outputs = []
        for name in node.output:
            known = frame.type(name)
            dtype = dtype_of(known.code)
            storage = Storage(name, 0, StorageKind.ACTIVATION, reason)
            outputs.append(unsized(name, dtype, storage, reason))
            frame.types[name] = ValueType(known.code)
        frame.tensors.update(zip(node.output, outputs, strict=True))
        self.ops.append(Op(op_name(node), operands, tuple(outputs), {}, scope, times=frame.times))

    def graph(self) -> Graph:
        """The graph of the whole model. Raises SourceError where it is no valid program."""
        frame = self._frame
        self.take_stored(frame)
        inputs = tuple(
            self._input(value, frame)
            for value in self._graph.input
            if value.name not in frame.stored
        )
        self.read(frame)
        outputs = tuple(
            self.operand(output.name, "the graph's outputs", frame)
            for output in self._graph.output
        )
        for name, proto in frame.stored.items():
            if name not in frame.tensors:
                self.stored(proto, name, frame, "")
        return Graph(tuple(self.ops), inputs, outputs, tuple(self._weights))

    def take_stored(self, frame: Frame) -> None:
        """Make the stored tensors of a frame's graph known; their kind waits for the first use."""
        frame.stored.update((tensor.name, tensor) for tensor in frame.graph.initializer)
        for sparse in frame.graph.sparse_initializer:
            frame.stored[sparse.values.name] = sparse.values

    def _input(self, value: onnx.ValueInfoProto, frame: Frame) -> Tensor:
        known = value_type(value.type)
        tensor = self.fresh(value.name, known, why=self._unknown_input(value.name, known))
        frame.tensors[value.name] = tensor
        return tensor

    def _unknown_input(self, name: str, known: ValueType) -> str:
        if known.container:
            return f"input {name} is a {known.container}, whose size the data decide"
        return self.unbound(known) or f"input {name} has no shape"

    def unbound(self, known: ValueType) -> str:
        """The sentence that names a type's unbound symbols and where they come from."""
        symbols = [size for size in known.shape or () if isinstance(size, str)]
        named = [symbol for symbol in dict.fromkeys(symbols) if symbol in self._symbols]
        if not named:
            return ""
        places = (f"{each} (of {', '.join(self._symbols[each])})" for each in named)
        return f"not bound by dims: {', '.join(places)}"

    def read(self, frame: Frame) -> None:
        """Read every node of a frame's graph, in the order of the file."""
        for node in frame.graph.node:
            special = CONTROL_FLOW.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
            if node.op_type == "Constant" and node.domain in {"", "ai.onnx"}:
                self._constant(node, frame)
            elif special is not None:
                special(self, node, frame)
            else:
                self.operation(node, frame)

    def operand(self, name: str, reader: str, frame: Frame) -> Tensor:
        """The tensor of a value, stored ones made on first use."""
        tensor = frame.tensor(name)
        if tensor is not None:
            return tensor
        home = frame.home(name)
        if home is None or name not in home.stored:
            raise SourceError(_undefined(name, reader, home))
        return self.stored(home.stored[name], name, home, reader)

    def stored(self, proto: TensorProto, name: str, frame: Frame, reader: str) -> Tensor:
        """A stored tensor as a weight of the graph."""
        dtype = dtype_of(proto.data_type)
        metadata = {each.key: each.value for each in proto.metadata_props}
        kind = self._kinds.kind(
            name, floating=is_floating(dtype), metadata=metadata, rank=len(proto.dims)
        )
        full_name = weight_name(name, reader)
        sizes = tuple(proto.dims)
        storage = Storage(full_name, nbytes_of(_product(sizes), dtype), kind)
        tensor = dense(full_name, sizes, dtype, storage)
        frame.tensors[name] = tensor
        frame.types.setdefault(name, tensor_type(proto))
        self._weights.append(
            Weight(
                tensor,
                trainable=kind is StorageKind.PARAMETER,
                persistent=bool(sizes),
                packed=self._kinds.packed(name) if kind is StorageKind.PARAMETER else None,
            )
        )
        return tensor

    def _constant(self, node: NodeProto, frame: Frame) -> None:
        proto = _constant_tensor(node)
        frame.stored[node.output[0]] = proto
        frame.types[node.output[0]] = tensor_type(proto)

    def operation(self, node: NodeProto, frame: Frame) -> None:
        """One ordinary node as one operation."""
        name = op_name(node)
        rule = self.rules.get(name)
        scope = frame.prefix + scope_of(node)
        operands = tuple(self._operands(node, rule, scope, frame))
        types = self.result_types(node, frame)
        outputs = tuple(self._results(node, rule, operands, types, frame))
        self.ops.append(
            Op(name, operands, outputs, attribute_values(node), scope, times=frame.times)
        )

    def _operands(
        self, node: NodeProto, rule: OpRule | None, scope: str, frame: Frame
    ) -> Iterable[Operand]:
        """Operands in order; what only says how large or where is left out."""
        for name, role in zip(node.input, roles_of(node, rule), strict=True):
            tensor = self.operand(name, scope, frame) if name else None
            known_before = tensor is None or tensor.storage.kind is StorageKind.SHAPE
            yield tensor if known_before or role not in SHAPE_ROLES else None

    def result_types(self, node: NodeProto, frame: Frame) -> tuple[ValueType, ...]:
        """Types of a node's results: as declared, or worked out where that leaves them open."""
        declared = tuple(frame.type(name) for name in node.output)
        if all(not name or known.sizes is not None for name, known in zip(node.output, declared, strict=True)):
            return declared
        found = self.folding.types(node, frame)
        types = tuple(
            known if known.sizes is not None or not other.code else other
            for known, other in zip(declared, found, strict=True)
        )
        frame.types.update(zip(node.output, types, strict=True))
        return types

    def _results(
        self,
        node: NodeProto,
        rule: OpRule | None,
        operands: tuple[Operand, ...],
        types: tuple[ValueType, ...],
        frame: Frame,
    ) -> Iterable[Tensor]:
        viewed = _viewed(node, rule, operands, self.folding, frame)
        for position, (name, known) in enumerate(zip(node.output, types, strict=True)):
            if not name or (viewed and position and not self.is_read(name)):
                continue
            why = "" if known.sizes is not None else self._why(node, known, operands)
            if viewed and not position:
                tensor = view(name, viewed, known, why)
            elif name in frame.shapes:
                tensor = _shape_tensor(name, known)
            else:
                tensor = self.fresh(name, known, why=why, storage=frame.placed.get(name))
            frame.tensors[name] = tensor
            yield tensor

    def is_read(self, name: str) -> bool:
        """Whether anybody reads a value."""
        return name in self.uses or name in self._outputs

    def _why(self, node: NodeProto, known: ValueType, operands: tuple[Operand, ...]) -> str:
        """Why a result's shape is not known: an operand's reason, a symbol, or the node itself."""
        for operand in operands:
            if isinstance(operand, Tensor) and operand.unsized:
                return operand.unsized
        if known.container:
            return f"{op_name(node)} gives a {known.container}, whose size the data decide"
        place = node.name or (node.output[0] if node.output else "")
        return self.unbound(known) or f"{op_name(node)} '{place}': its data decide the shape of its result"

    def fresh(
        self, name: str, known: ValueType, *, why: str = "", storage: Storage | None = None
    ) -> Tensor:
        """A result on memory of its own, or on the memory given."""
        dtype = dtype_of(known.code)
        sizes = known.sizes
        if sizes is None or not dtype.bits or known.container:
            fixed = sizes is None or known.container
            reason = why if fixed else f"{name} holds {dtype.name}s, which have no fixed size"
            home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
            return unsized(name, dtype, home, reason)
        home = storage or Storage(name, nbytes_of(_product(sizes), dtype), StorageKind.ACTIVATION)
        return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype: DType = dtype_of(known.code) if known.code else base.dtype
    if known.sizes is None:
        return unsized(name, dtype, base.storage, why or base.unsized)
    if known.sizes == base.shape:
        return Tensor(name, base.shape, dtype, base.storage, base.offset, base.strides)
    made = dense(name, known.sizes, dtype, base.storage)
    return Tensor(name, made.shape, dtype, base.storage, base.offset, made.strides)


def _viewed(
    node: NodeProto,
    rule: OpRule | None,
    operands: tuple[Operand, ...],
    folding: Folding,
    frame: Frame,
) -> Tensor | None:
    """The operand whose memory the first result is, if the node is a view."""
    if rule is None or rule.shares_storage_of is None:
        return None
    if rule.kind == "dropout" and len(node.input) > 2 and node.input[2]:
        training = folding.value(node.input[2], frame)
        if training is None or onnx.numpy_helper.to_array(training).any():
            return None
    position = rule.names[op_name(node)].index(rule.shares_storage_of)
    operand = operands[position] if position < len(operands) else None
    return operand if isinstance(operand, Tensor) else None


def _shape_tensor(name: str, known: ValueType) -> Tensor:
    """A value that only leads to shapes: it takes no memory, known or not."""
    storage = Storage(name, 0, StorageKind.SHAPE)
    return dense(name, known.sizes or (), dtype_of(known.code), storage)


def symbols_of_inputs(graph: onnx.GraphProto) -> Mapping[str, list[str]]:
    """The inputs that each unbound symbol comes from."""
    symbols: dict[str, list[str]] = {}
    for value in graph.input:
        for size in value_type(value.type).shape or ():
            if isinstance(size, str) and value.name not in symbols.setdefault(size, []):
                symbols[size].append(value.name)
    return symbols


def _stored_names(graph: onnx.GraphProto) -> Iterable[str]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (node.output[0] for node in graph.node if node.op_type == "Constant")


def _constant_tensor(node: NodeProto) -> TensorProto:
    """The value of a Constant node, whichever of its attributes holds it."""
    attribute = node.attribute[0]
    name = node.output[0]
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor.values
    code, entries = {
        AttributeProto.INT: (TensorProto.INT64, [attribute.i]),
        AttributeProto.INTS: (TensorProto.INT64, attribute.ints),
        AttributeProto.FLOAT: (TensorProto.FLOAT, [attribute.f]),
        AttributeProto.FLOATS: (TensorProto.FLOAT, attribute.floats),
        AttributeProto.STRING: (TensorProto.STRING, [attribute.s]),
        AttributeProto.STRINGS: (TensorProto.STRING, attribute.strings),
    }[attribute.type]
    listed = attribute.type in {AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS}
    return onnx.helper.make_tensor(name, code, (len(entries),) if listed else (), entries)


def _product(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _undefined(name: str, reader: str, home: Frame | None) -> str:
    if home is not None:
        return (
            f"{reader} reads '{name}' before the node that makes it: the nodes form a cycle, or "
            "are not in the order in which they run"
        )
    return f"{reader} reads '{name}', which no input, stored tensor or node gives"
