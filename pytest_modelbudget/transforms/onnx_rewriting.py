"""Nodes that take the place of one node of an ONNX graph, under its name and scope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype

from pytest_modelbudget.frontends.onnx_scopes import NAME_SCOPES, scope_of
from pytest_modelbudget.frontends.onnx_types import all_graphs


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
