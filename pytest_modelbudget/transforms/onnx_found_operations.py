"""Every operation of one kind in an ONNX graph, those in bodies and functions included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import AttributeProto, NodeProto

from pytest_modelbudget.equivalence.onnx_stored import FLOATING, StoredTensors, constants_among
from pytest_modelbudget.frontends.onnx_steps import op_name

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class WholeOperation:
    """An operation that cannot be rewritten, and why."""

    node: NodeProto
    why: str


def found_operations(
    model: onnx.ModelProto,
    stored: StoredTensors,
    names: AbstractSet[str],
    operation: Callable[[NodeProto, StoredTensors], Found | WholeOperation | None],
    weighted: AbstractSet[str] = frozenset(),
) -> Iterator[Found | WholeOperation]:
    """Every operation of some names, in the order of the file.

    operation says what a node of the outermost graph is, and None where that is none of them.
    weighted are the names that multiply by a weight wherever they stand; others do so in a body
    or a function where they read what depends on stored tensors alone.
    """
    functions = {f"{each.domain}::{each.name}": each for each in model.functions}
    inside = _Inside(names, weighted, functions)
    for node in model.graph.node:
        found = operation(node, stored) if op_name(node) in names else None
        if found is not None:
            yield found
        yield from inside.of_node(node, op_name(node), stored.constants)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Looks for operations where none can be rewritten: in bodies and in a model's functions."""

    names: AbstractSet[str]
    weighted: AbstractSet[str]
    functions: Mapping[str, onnx.FunctionProto]

    def of_node(
        self, node: NodeProto, owner: str, constants: AbstractSet[str]
    ) -> Iterator[WholeOperation]:
        """What a call and the bodies of a node hold, where some values are constants."""
        if self._is_weighted_call(node, constants):
            why = f"it calls the model's own function {op_name(node)}: inline that first"
            yield WholeOperation(node, why)
        for body in _bodies(node):
            known = constants | {tensor.name for tensor in body.initializer}
            yield from self._of_body(body.node, owner, constants_among(body.node, known))

    def _of_body(
        self, nodes: Iterable[NodeProto], owner: str, constants: AbstractSet[str]
    ) -> Iterator[WholeOperation]:
        for node in nodes:
            if self._is_weighted(node, constants):
                yield WholeOperation(node, f"it stands in a body of {owner}")
            yield from self.of_node(node, owner, constants)

    def _is_weighted(self, node: NodeProto, constants: AbstractSet[str]) -> bool:
        """Whether a node is one of the operations, and not one of activations alone."""
        reads_weight = op_name(node) in self.weighted or not constants.isdisjoint(node.input)
        return op_name(node) in self.names and reads_weight

    def _is_weighted_call(self, node: NodeProto, constants: AbstractSet[str]) -> bool:
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
