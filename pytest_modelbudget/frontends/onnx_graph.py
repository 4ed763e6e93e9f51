"""ONNX nodes as operations of the one graph: operands, results, views, and what stays unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod

import onnx
from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.onnx_control_flow import CONTROL_FLOW
from pytest_modelbudget.frontends.onnx_folding import Folding
from pytest_modelbudget.frontends.onnx_frames import Frame
from pytest_modelbudget.frontends.onnx_scopes import metadata_of, scope_of, weight_name
from pytest_modelbudget.frontends.onnx_shapes import declared_types
from pytest_modelbudget.frontends.onnx_steps import Body, Step, read_body
from pytest_modelbudget.frontends.onnx_tensors import constant_tensor, fresh, shape_tensor, view
from pytest_modelbudget.frontends.onnx_types import (
    ValueType,
    dtype_of,
    is_floating,
    value_type,
)
from pytest_modelbudget.frontends.onnx_uses import SHAPE_ROLES, shape_values, uses_of
from pytest_modelbudget.frontends.onnx_weights import StoredKinds
from pytest_modelbudget.ir.graph import Graph, Op, Operand, Weight
from pytest_modelbudget.ir.tensor import Storage, StorageKind, Tensor, dense, nbytes_of, unsized
from pytest_modelbudget.ops.op_table import OpTable

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
        self._proto = proto.graph
        self._symbols = symbols_of_inputs(proto.graph)
        body = read_body(proto.graph, rules)
        shapes = shape_values(body)
        self._uses = uses_of(body)
        self._outputs = frozenset(output.name for output in proto.graph.output)
        self._kinds = StoredKinds(self._uses, frozenset(_stored_names(body)), masks, shapes)
        self._frame = Frame(body, declared_types(proto.graph), shapes)

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

    def _stored(self, proto: TensorProto, name: str, frame: Frame, reader: str) -> Tensor:
        """A stored tensor as a weight of the graph."""
        dtype = dtype_of(proto.data_type)
        sizes = tuple(proto.dims)
        kind = self._kinds.kind(
            name,
            floating=is_floating(dtype),
            metadata=metadata_of(proto),
            rank=len(sizes),
        )
        path = weight_name(name, reader)
        tensor = dense(path, sizes, dtype, Storage(path, nbytes_of(prod(sizes), dtype), kind))
        frame.tensors[name] = tensor
        frame.types[name] = ValueType(proto.data_type, sizes)
        is_parameter = kind is StorageKind.PARAMETER
        packed = self._kinds.packed(name) if is_parameter else None
        self._weights.append(Weight(tensor, is_parameter, persistent=bool(sizes), packed=packed))
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
            if role in SHAPE_ROLES and tensor and tensor.storage.kind is not StorageKind.SHAPE:
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
        for name, role in zip(step.inputs, step.roles, strict=True):
            if role == "training" and name:
                training = self.folding.value(name, frame)
                if training is None or onnx.numpy_helper.to_array(training).any():
                    return None
        operand = operands[step.roles.index(rule.shares_storage_of)]
        return operand if isinstance(operand, Tensor) else None

    def _is_read(self, name: str) -> bool:
        return name in self._uses or name in self._outputs

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
