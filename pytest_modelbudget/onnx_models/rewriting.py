"""Nodes that take the place of one node of an ONNX graph, under its name and scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx
from onnx import AttributeProto, NodeProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from pytest_modelbudget.onnx_models.program import (
    CARRIERS,
    FLOATING,
    NAME_SCOPES,
    StoredTensors,
    all_graphs,
    attribute_values,
    constants_among,
    names_read,
    op_name,
    scope_of,
)
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.ops.table import OpTable


class Names:
    """The names of values that a model uses already; a fresh one is none of them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._taken = set(_names(model))

    def stem(self, name: str, end: str) -> str:
        """A beginning, made of one name and an end, with which no value's name starts yet."""
        stem = f"{name}{end}"
        while any(each.startswith(stem) for each in self._taken):
            stem += "_"
        self._taken.add(stem)
        return stem


def _names(model: onnx.ModelProto) -> Iterator[str]:
    for graph in all_graphs(model.graph):
        yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
        yield from (tensor.name for tensor in graph.initializer)
        for node in graph.node:
            yield from node.input
            yield from node.output


class Replacement:
    """What takes the place of one node: more nodes, and tensors for them to read.

    The nodes stand in the module that the node stood in, whatever its exporter wrote down.
    """

    def __init__(self, node: NodeProto, stem: str) -> None:
        self.replaced = node
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []
        self._stem = stem
        self._scope = scope_of(node)
        self._path = node.name if "/" in node.name else f"{node.name or node.output[0]}/"
        self._keeps_scope = False

    def node(self, operator: str, inputs: Sequence[str], part: str, **attributes: Any) -> str:
        """One more node with one result; its name says which part it is."""
        return self.split_node(operator, inputs, (part,), **attributes)[0]

    def split_node(
        self, operator: str, inputs: Sequence[str], parts: Sequence[str], **attributes: Any
    ) -> tuple[str, ...]:
        """One more node with a result for each part."""
        outputs = tuple(f"{self._stem}.{part}" for part in parts)
        node = NodeProto(
            op_type=operator, name=f"{self._path}.{parts[0]}", input=inputs, output=outputs
        )
        for name, value in attributes.items():
            node.attribute.append(onnx.helper.make_attribute(name, value))
        self._keep_scope(node)
        self.nodes.append(node)
        return outputs

    def _keep_scope(self, node: NodeProto) -> None:
        if self.replaced.metadata_props:
            node.metadata_props.extend(self.replaced.metadata_props)
        if not self._keeps_scope and scope_of(node) != self._scope:
            del node.metadata_props[:]
            node.metadata_props.add(key=NAME_SCOPES, value=str(["", self._scope, ""]))

    def store_part(self, array: Any, part: str, stem: str, whole: TensorProto) -> str:
        """One more stored tensor that is a part of another, under that one's name and metadata."""
        name = self._store(array, f"{stem}{part}")
        self.stored[-1].metadata_props.extend(whole.metadata_props)
        return name

    def store(self, array: Any, part: str) -> str:
        """One more stored tensor."""
        return self._store(array, f"{self._stem}.{part}")

    def _store(self, array: Any, name: str) -> str:
        tensor = TensorProto(
            name=name,
            dims=array.shape,
            data_type=np_dtype_to_tensor_dtype(array.dtype),
            raw_data=_little_endian(array).tobytes(),
        )
        self.stored.append(tensor)
        return tensor.name

    def integers(self, values: Sequence[int], part: str) -> str:
        """One more stored list of int64, such as a shape."""
        return self.store(_int64(values), part)

    def finish(self, result: str) -> None:
        """Give a result the name that the replaced node's had, so that its readers find it."""
        last = next(node for node in reversed(self.nodes) if result in node.output)
        del last.output[:]
        last.output.append(self.replaced.output[0])


def _little_endian(array: Any) -> Any:
    """The same values in the byte order that files have."""
    return array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))


def _int64(values: Sequence[int]) -> Any:
    import numpy as np

    return np.array(values, np.int64)


def without_spent(
    nodes: Sequence[NodeProto], spent: Iterable[str], outputs: frozenset[str]
) -> tuple[list[NodeProto], frozenset[str]]:
    """Nodes without those that only led to values which nobody reads now, and all such values.

    Only what may lie between a stored tensor and its reader is taken away.
    """
    reads = Counter(name for node in nodes for name in names_read((node,)))
    gone = {name for name in spent if not reads[name]} - outputs
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if node.op_type in CARRIERS and gone.issuperset(node.output):
            reads.subtract(names_read((node,)))
            gone.update(name for name in node.input if not reads[name] and name not in outputs)
        else:
            kept.append(node)
    return kept[::-1], frozenset(gone)


Found = TypeVar("Found")
IsOne = Callable[[NodeProto, AbstractSet[str]], bool]


@dataclass(frozen=True, slots=True)
class WholeOperation:
    """An operation that cannot be rewritten, and why."""

    node: NodeProto
    why: str


def multiplying_weights(overs: Collection[Over], rules: OpTable) -> IsOne:
    """Whether a node contracts over one of these, and with a weight: its rule says so.

    What stands in the role of a weight is one wherever it comes from; another operand is one where
    it depends on stored tensors alone.
    """

    def multiplies_weight(node: NodeProto, constants: AbstractSet[str]) -> bool:
        name, names = op_name(node), node.input
        rule = rules.get(name)
        if rule is None or rule.contraction is None:
            return False
        attributes = attribute_values(node)
        return any(
            names[position] and (role.weight or names[position] in constants)
            for over in overs
            for position, role in rule.multiplied(name, over, attributes, len(names))
        )

    return multiplies_weight


def found_operations(
    model: onnx.ModelProto,
    stored: StoredTensors,
    is_one: IsOne,
    operation: Callable[[NodeProto, StoredTensors], Found | WholeOperation],
) -> Iterator[Found | WholeOperation]:
    """Every operation of some kind, in the order of the file.

    is_one says whether a node is one, where these values depend on stored tensors alone; operation
    says what a node of the outermost graph is.
    """
    functions = {f"{each.domain}::{each.name}": each for each in model.functions}
    inside = _Inside(is_one, functions)
    for node in model.graph.node:
        if is_one(node, stored.constants):
            yield operation(node, stored)
        yield from inside.of_node(node, op_name(node), stored.constants)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Looks for operations where none can be rewritten: in bodies and in a model's functions."""

    is_one: IsOne
    functions: Mapping[str, onnx.FunctionProto]

    def of_node(
        self, node: NodeProto, owner: str, constants: AbstractSet[str]
    ) -> Iterator[WholeOperation]:
        """What a call and the bodies of a node hold, where some values are constants."""
        if self._is_one_in_call(node, constants):
            why = f"it calls the model's own function {op_name(node)}: inline that first"
            yield WholeOperation(node, why)
        for body in _bodies(node):
            known = constants | {tensor.name for tensor in body.initializer}
            yield from self._of_body(body.node, owner, constants_among(body.node, known))

    def _of_body(
        self, nodes: Iterable[NodeProto], owner: str, constants: AbstractSet[str]
    ) -> Iterator[WholeOperation]:
        for node in nodes:
            if self.is_one(node, constants):
                yield WholeOperation(node, f"it stands in a body of {owner}")
            yield from self.of_node(node, owner, constants)

    def _is_one_in_call(self, node: NodeProto, constants: AbstractSet[str]) -> bool:
        """Whether a function that a node calls, or one that it calls, holds an operation."""
        function = self.functions.get(op_name(node))
        if function is None:
            return False
        given = {
            own for own, fed in zip(function.input, node.input, strict=False) if fed in constants
        }
        known = constants_among(function.node, given)
        return next(self._of_body(function.node, "", known), None) is not None


def _bodies(node: NodeProto) -> Iterator[onnx.GraphProto]:
    for each in node.attribute:
        if each.type == AttributeProto.GRAPH:
            yield each.g


def why_unusable(name: str, stored: StoredTensors) -> str:
    """Why a stored tensor cannot be cut into parts; "" where it can."""
    if name in stored.replaceable:
        return f"its weight '{name}' is an input too, which a caller may replace"
    if stored.tensors[name].data_type not in FLOATING:
        return f"its weight '{name}' is not floating"
    return ""
