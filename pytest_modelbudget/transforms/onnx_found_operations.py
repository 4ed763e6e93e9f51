"""Every operation of one kind in an ONNX graph, those in bodies and functions included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

import onnx
from onnx import AttributeProto, NodeProto

from pytest_modelbudget.equivalence.onnx_stored import FLOATING, StoredTensors
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
    where it stores what they read.
    """
    functions = {f"{each.domain}::{each.name}": each for each in model.functions}
    for node in model.graph.node:
        found = operation(node, stored) if op_name(node) in names else None
        if found is not None:
            yield found
        if _calls(op_name(node), names, functions) and any(name in stored for name in node.input):
            why = f"it calls the model's own function {op_name(node)}: inline that first"
            yield WholeOperation(node, why)
        for body in _bodies(node):
            yield from _inside(body, op_name(node), names, weighted)


def _calls(name: str, names: AbstractSet[str], functions: Mapping[str, onnx.FunctionProto]) -> bool:
    """Whether a function of the model, or one that it calls, holds one of the operations."""
    if name not in functions:
        return False
    called = {op_name(node) for node in functions[name].node}
    return not called.isdisjoint(names) or any(_calls(each, names, functions) for each in called)


def _bodies(node: NodeProto) -> Iterator[onnx.GraphProto]:
    for each in node.attribute:
        if each.type == AttributeProto.GRAPH:
            yield each.g


def _inside(
    body: onnx.GraphProto, owner: str, names: AbstractSet[str], weighted: AbstractSet[str]
) -> Iterator[WholeOperation]:
    stored = {tensor.name for tensor in body.initializer}
    for node in body.node:
        reads_weight = op_name(node) in weighted or not stored.isdisjoint(node.input)
        if op_name(node) in names and reads_weight:
            yield WholeOperation(node, f"it stands in a body of {owner}")
        for inner in _bodies(node):
            yield from _inside(inner, owner, names, weighted)


def why_unusable(name: str, stored: StoredTensors) -> str:
    """Why a stored tensor cannot be cut into parts; "" where it can."""
    if name in stored.replaceable:
        return f"its weight '{name}' is an input too, which a caller may replace"
    if stored.tensors[name].data_type not in FLOATING:
        return f"its weight '{name}' is not floating"
    return ""
