"""Stored tensors of an ONNX graph by the name under which nodes read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.frontends.onnx_steps import STANDARD
from pytest_modelbudget.frontends.onnx_types import all_graphs

FLOATING = frozenset({
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
})  # fmt: skip
# What may stand between a stored tensor and the node that uses it.
CARRIERS = frozenset({"Constant", "Identity", "Transpose"})
FIRST_WITHOUT_INPUTS = 4  # IR version from which a stored tensor need not be an input too


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """What a graph stores, in initialisers and Constant nodes, and what makes each other value.

    constants names all values that depend on nothing else, too. replaceable holds the names that a
    caller may feed in place of what is stored.
    """

    tensors: Mapping[str, TensorProto]
    makers: Mapping[str, NodeProto]
    reads: Mapping[str, int]
    replaceable: frozenset[str]
    constants: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def array(self, name: str) -> Any:
        """The values of one tensor, as numpy has them."""
        return numpy_helper.to_array(self.tensors[name])

    def origin(self, name: str) -> str:
        """The name that a value has where it is stored: exporters hand shared ones on."""
        while name not in self.tensors:
            node = self.makers.get(name)
            if node is None or node.op_type != "Identity":
                break
            name = node.input[0]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].dims)

    def readers(self, name: str) -> int:
        """How many operands are this value or one on its way from what is stored; at the most."""
        most = self.reads.get(name, 0)
        while name not in self.tensors:
            name = self.makers[name].input[0]
            most = max(most, self.reads.get(name, 0))
        return most


def stored_tensors(model: onnx.ModelProto) -> StoredTensors:
    """The stored tensors of a model's outermost graph."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        value = constant_of(node)
        if value is not None:
            tensors[node.output[0]] = value
    inputs = (value.name for value in graph.input)
    named = frozenset(inputs) & tensors.keys()
    replaceable = named if model.ir_version >= FIRST_WITHOUT_INPUTS else frozenset()
    reads = Counter(chain(_reads(graph), (value.name for value in graph.output)))
    constants = constants_among(graph.node, tensors)
    return StoredTensors(tensors, makers, reads, replaceable, constants)


def constants_among(nodes: Iterable[NodeProto], stored: Iterable[str]) -> frozenset[str]:
    """Names of values that depend on nothing but stored tensors, which are among them.

    Nodes stand behind those whose results they read, as in every file.
    """
    found = set(stored)
    for node in nodes:
        read = names_read((node,)) - {""}
        is_stored = node.op_type == "Constant" and node.domain in STANDARD
        if is_stored or (read and read <= found):
            found.update(filter(None, node.output))
    return frozenset(found)


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    """Every operand of a graph and of those inside it, as often as it is read."""
    for each in all_graphs(graph):
        for node in each.node:
            yield from node.input


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Names that these nodes read, and those that their bodies read from outside."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for each in node.attribute:
            if each.type == AttributeProto.GRAPH:
                names |= _read_from_outside(each.g)
    return names


def _read_from_outside(body: onnx.GraphProto) -> set[str]:
    own = {each.name for each in (*body.input, *body.initializer)}
    own.update(name for node in body.node for name in node.output)
    return (names_read(body.node) | {value.name for value in body.output}) - own


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that a model uses."""
    return next((each.version for each in model.opset_import if each.domain in STANDARD), 0)


def constant_of(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node that holds one; None for anything else."""
    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    return next((each.t for each in node.attribute if each.type == AttributeProto.TENSOR), None)


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """The value of one attribute, or its default."""
    for each in node.attribute:
        if each.name == name:
            return onnx.helper.get_attribute_value(each)
    return default


def floating_arrays(model: onnx.ModelProto) -> Mapping[str, Callable[[], Any]]:
    """What reads the values of every stored floating tensor, by name."""
    return {
        tensor.name: partial(numpy_helper.to_array, tensor)
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATING
    }


def bound(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A copy whose inputs and outputs have sizes in place of symbols."""
    made = with_graph(model, model.graph.node, model.graph.initializer)
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in dims:
                size.dim_value = dims[size.dim_param]
    return made


def with_graph(
    model: onnx.ModelProto,
    nodes: Iterable[NodeProto],
    stored: Iterable[TensorProto],
) -> onnx.ModelProto:
    """A copy of a model whose outermost graph has other nodes and other initialisers.

    All the rest (inputs, outputs, functions, metadata) stays as it is. What is replaced is never
    copied, so that the weights of a large model are copied once.
    """
    made = onnx.ModelProto()
    for field, content in model.ListFields():
        if field.name == "graph":
            continue
        _copy(made, field.name, content)
    for field, content in model.graph.ListFields():
        if field.name not in {"node", "initializer"}:
            _copy(made.graph, field.name, content)
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(stored)
    return made


def _copy(into: Any, name: str, content: Any) -> None:
    if isinstance(content, (int, float, str, bytes)):
        setattr(into, name, content)
    elif hasattr(content, "CopyFrom"):
        getattr(into, name).CopyFrom(content)
    else:
        getattr(into, name).extend(content)
