"""What nodes of an ONNX model hold themselves, as classical learners do: lists and tensors among their attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.onnx_models.value_types import ValueType, tensor_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_modelbudget.formats.model import Values
    from pytest_modelbudget.onnx_models.program import Body, Node


class HeldNames:
    """Names of what nodes hold: under their scope, "forest.nodes_values"; with the result of the node where two do."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, node: Node, attribute: str) -> str:
        """The name of one list, asked once for each, in the order in which nodes are read."""
        path = ".".join(filter(None, (node.scope, attribute)))
        path = f"{path} of {node.result}" if path in self._taken else path
        self._taken.add(path)
        return path


def held_list(node: Node, attribute: str) -> tuple[float, ...]:
    """A list of numbers among a node's attributes; () without one, and of text."""
    value = node.attributes.get(attribute)
    return value if isinstance(value, tuple) and value and not isinstance(value[0], str) else ()


def held_tensor(node: Node, attribute: str) -> TensorProto | None:
    """A tensor among a node's attributes that has elements."""
    return next((each.t for each in node.held if each.name == attribute and prod(each.t.dims)), None)


def held_type(node: Node, attribute: str) -> ValueType | None:
    """The type of such a list or tensor; None where there is neither."""
    if values := held_list(node, attribute):
        return ValueType(TensorProto.FLOAT if isinstance(values[0], float) else TensorProto.INT64, (len(values),))
    proto = held_tensor(node, attribute)
    return None if proto is None else tensor_type(proto)


def held_arrays(graph: Body) -> Mapping[str, Callable[[], Values]]:
    """What reads the values of all that rules know nodes to hold, by the name that it has among weights."""
    names = HeldNames()
    return {
        names.name(node, role.attribute): partial(_array, node, role.attribute)
        for node in _in_order(graph)
        for role in node.signature.attributes
        if held_type(node, role.attribute)
    }


def _in_order(graph: Body) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in node.bodies.values():
            yield from _in_order(body)


def _array(node: Node, attribute: str) -> Values:
    values, proto = held_list(node, attribute), held_tensor(node, attribute)
    if proto is not None and not values:
        return numpy_helper.to_array(proto)
    return np.asarray(values, np.float32 if isinstance(values[0], float) else np.int64)
