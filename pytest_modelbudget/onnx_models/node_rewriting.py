"""Nodes that take the place of one node of an ONNX graph, under its name and scope."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from pytest_modelbudget.onnx_models import exporter_names, protos
from pytest_modelbudget.onnx_models import program as programs
from pytest_modelbudget.onnx_models.value_types import FLOATING
from pytest_modelbudget.ops.rule import Over


class Names:
    """The names of values that a model uses already; a fresh one is none of them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken = set(_names(model))

    def stem(self, name: str, end: str) -> str:
        """A beginning, made of one name and an end, with which no value's name starts yet."""
        stem = f"{name}{end}"
        while any(taken.startswith(stem) for taken in self._taken):
            stem += "_"
        self._taken.add(stem)
        return stem


def _names(model: onnx.ModelProto) -> Iterator[str]:
    for graph in protos.all_graphs(model.graph):
        yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
        yield from (tensor.name for tensor in graph.initializer)
        for node in graph.node:
            yield from node.input
            yield from node.output


class Replacement:
    """What takes the place of one node: more nodes, and tensors for them to read.

    The nodes stand in the module that the node stood in, whatever its exporter wrote down.
    """

    def __init__(self, node: programs.Node, stem: str) -> None:
        self.replaced = node.proto
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []
        self._stem = stem
        self._scope = node.scope
        self._path = node.proto.name if "/" in node.proto.name else f"{node.proto.name or node.proto.output[0]}/"

    def named(self, part: str) -> "Replacement":
        """The same replacement, for nodes whose names say which part of it they are."""
        other = copy(self)
        other._stem, other._path = f"{self._stem}.{part}", f"{self._path}.{part}"
        return other

    def node(self, operator: str, inputs: Sequence[str], part: str, **attributes: Any) -> str:
        """One more node with one result; its name says which part it is."""
        return self.split_node(operator, inputs, (part,), **attributes)[0]

    def split_node(
        self, operator: str, inputs: Sequence[str], parts: Sequence[str], **attributes: Any
    ) -> tuple[str, ...]:
        """One more node with a result for each part."""
        outputs = tuple(f"{self._stem}.{part}" for part in parts)
        node = NodeProto(op_type=operator, name=f"{self._path}.{parts[0]}", input=inputs, output=outputs)
        for name, value in attributes.items():
            node.attribute.append(onnx.helper.make_attribute(name, value))
        if self.replaced.metadata_props:
            node.metadata_props.extend(self.replaced.metadata_props)
        if exporter_names.scope_of(node) != self._scope:
            del node.metadata_props[:]
            exporter_names.name_scope(node, self._scope)
        self.nodes.append(node)
        return outputs

    def store_part(self, array: Any, part: str, stem: str, whole: TensorProto | None) -> str:
        """One more stored tensor that is a part of another, under that one's name and metadata."""
        name = self._store(array, f"{stem}{part}")
        self.stored[-1].metadata_props.extend(whole.metadata_props if whole else ())
        return name

    def store(self, array: Any, part: str) -> str:
        return self._store(array, f"{self._stem}.{part}")

    def _store(self, array: Any, name: str) -> str:
        if array.dtype.byteorder == ">":  # files have the other one
            array = array.astype(array.dtype.newbyteorder("<"))
        code = np_dtype_to_tensor_dtype(array.dtype)
        self.stored.append(TensorProto(name=name, dims=array.shape, data_type=code, raw_data=array.tobytes()))
        return name

    def integers(self, values: Sequence[int], part: str) -> str:
        """One more stored list of int64, such as a shape."""
        return self.store(np.array(values, np.int64), part)

    def finish(self, result: str, at: int = 0) -> None:
        """Give a result the name that the replaced node's result at a place had, so that its readers find it."""
        last = next(node for node in reversed(self.nodes) if result in node.output)
        del last.output[:]
        last.output.append(self.replaced.output[at])


def with_nodes(
    program: programs.Program, nodes: Sequence[NodeProto], tensors: Iterable[TensorProto]
) -> onnx.ModelProto:
    """The model with these nodes in place of its own, more stored tensors, and without what is no longer read.

    Of nodes only what may lie between a stored tensor and its reader is taken away.
    """
    graph = program.model.graph
    declared = {value.name for value in (*graph.input, *graph.output)}
    reads = Counter(name for node in nodes for name in protos.names_read((node,)))
    gone = {name for name in protos.names_read(graph.node) if not reads[name]} - declared
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if gone.issuperset(node.output) and _gives_what_is_stored(programs.read_node(node, program.rules)):
            reads.subtract(protos.names_read((node,)))
            gone.update(name for name in node.input if not reads[name] and name not in declared)
        else:
            kept.append(node)
    stored = (tensor for tensor in graph.initializer if tensor.name not in gone)
    return protos.with_graph(program.model, kept[::-1], (*stored, *tensors))


def _gives_what_is_stored(node: programs.Node) -> bool:
    """Whether a node gives a stored tensor, as it is or in another form."""
    return node.operator == programs.CONSTANT or bool(node.hands_on)


Operation = TypeVar("Operation")
IsOne = Callable[[programs.Node, AbstractSet[str]], bool]


@dataclass(frozen=True, slots=True)
class WholeOperation:
    """An operation that cannot be rewritten, and why."""

    node: programs.Node
    why: str


def multiplies_weight(*overs: Over) -> IsOne:
    """Whether a node contracts over one of these, and with a weight: its rule says so.

    What stands in the role of a weight is one wherever it comes from, also where the node holds it itself; another
    operand is one where it depends on stored tensors alone.
    """

    def is_one(node: programs.Node, constants: AbstractSet[str]) -> bool:
        rule, names, attributes = node.rule, node.inputs, node.attributes
        if rule is None or rule.contraction is None:
            return False
        count = len(names) + len(node.signature.attributes)
        return any(
            role.attribute in attributes
            if role.attribute
            else names[position] and (role.weight or names[position] in constants)
            for over in overs
            for position, role in rule.multiplied(node.operator, over, attributes, count)
        )

    return is_one


def operations_of(
    program: programs.Program,
    is_one: IsOne,
    operation_of: Callable[[programs.Node, programs.Program], Operation | WholeOperation],
) -> Iterator[Operation | WholeOperation]:
    """Every operation of some kind, in the order of the file.

    is_one says whether a node is one, where these values depend on stored tensors alone;
    operation_of what a node of the outermost graph is. Those in bodies and functions stay whole.
    """
    inside = _Inside(program, is_one)
    constants = program.graph.constants
    for node in program.graph.nodes:
        if is_one(node, constants):
            yield operation_of(node, program)
        yield from inside.of_node(node, node.operator, constants)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Looks for operations where none can be rewritten: in bodies and in a model's functions."""

    program: programs.Program
    is_one: IsOne

    def of_node(self, node: programs.Node, owner: str, constants: AbstractSet[str]) -> Iterator[WholeOperation]:
        """What a call and the bodies of a node hold, where some values are constants."""
        if self._calls_one(node, constants):
            why = f"it calls the model's own function {node.operator}: inline that first"
            yield WholeOperation(node, why)
        for body in node.bodies.values():
            yield from self._of_body(body, owner, constants)

    def _of_body(self, body: programs.Body, owner: str, outer: AbstractSet[str]) -> Iterator[WholeOperation]:
        constants = body.constants_with(outer)
        for node in body.nodes:
            if self.is_one(node, constants):
                yield WholeOperation(node, f"it is in a body of {owner}")
            yield from self.of_node(node, owner, constants)

    def _calls_one(self, node: programs.Node, constants: AbstractSet[str]) -> bool:
        """Whether a function that a node calls, or one that it calls, holds an operation."""
        function = self.program.functions.get(protos.callee_of(node.proto))
        if function is None:
            return False
        pairs = zip(function.inputs, node.inputs, strict=False)
        known = {inside for inside, outside in pairs if outside in constants}
        return next(self._of_body(function, "", known), None) is not None


def why_unusable(name: str, program: programs.Program) -> str:
    """Why a stored tensor cannot be replaced by others; "" where it can."""
    tensor = program.graph.stored[name]
    if name in program.replaceable:
        return f"its weight '{name}' is an input too, which a caller may replace"
    if tensor.is_sparse:
        return f"its weight '{name}' is stored sparse"
    if tensor.proto.data_type not in FLOATING:
        return f"its weight '{name}' is not floating"
    return ""
