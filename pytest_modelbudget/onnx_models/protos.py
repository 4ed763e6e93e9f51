"""ONNX's own messages: what exporters call their parts, graphs inside them, and copies that differ in one thing."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

STANDARD = frozenset({"", "ai.onnx"})  # the names of ONNX's own domain
OF_RUNTIME = "com.microsoft"  # the domain of ONNX Runtime's own
VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def domain_of(written: str) -> str:
    """A domain under its one name; ONNX's own is ""."""
    return "" if written in STANDARD else written


def op_name(node: NodeProto) -> str:
    """The name of a node's operator as rules spell it: ``onnx::Conv``."""
    return operator_name(node.domain, node.op_type)


def operator_name(domain: str, name: str) -> str:
    """The same of an operator of a domain."""
    return f"onnx::{name}" if domain in STANDARD else f"{domain}::{name}"


Callee = tuple[str, str, str]  # the domain, the name and the overload of a function


def callee_of(proto: NodeProto | onnx.FunctionProto) -> Callee:
    """The function that a node calls, if a file has it, or that a function is; overloads share a name."""
    name = proto.op_type if isinstance(proto, NodeProto) else proto.name
    return domain_of(proto.domain), name, proto.overload


@lru_cache(maxsize=4096)
def has_schema(name: str, domain: str, version: int) -> bool:
    """Whether onnx has an operator in this version of its set."""
    try:
        onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return False
    return True


def opsets_of(model: onnx.ModelProto) -> Mapping[str, int]:
    """Version of each operator set that a model uses, by domain; the standard one is ""."""
    return {domain_of(opset.domain): opset.version for opset in model.opset_import}


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that a model uses."""
    return opsets_of(model).get("", 0)


NOTHING_WRITTEN: Mapping[str, str] = MappingProxyType({})


def place_of(tensor: TensorProto) -> Mapping[str, str]:
    """What a stored tensor says of the file next to the model with its values: ``location``, ``offset`` and more.

    Of a key that stands twice, the last one is true, as for onnx.
    """
    entries = tensor.external_data[:]  # a slice: protobuf iterates slowly
    return {entry.key: entry.value for entry in entries} if entries else NOTHING_WRITTEN


def all_graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    """A graph and every graph inside its nodes."""
    yield graph
    yield from graphs_in(graph.node)


def graphs_in(nodes: Iterable[NodeProto]) -> Iterable[onnx.GraphProto]:
    """Every graph inside some nodes, and inside those of these graphs."""
    for node in nodes:
        for attribute in node.attribute:
            kind = attribute.type
            if kind == AttributeProto.GRAPH:
                yield from all_graphs(attribute.g)
            elif kind == AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    yield from all_graphs(inner)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor that a model stores: in its graph, in bodies and functions, and in attributes of nodes."""
    yield from _stored_in(model.graph)
    for holder in (model.graph, *model.functions):
        yield from tensors_in(holder.node)


def tensors_in(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every tensor in attributes of some nodes, and in their bodies."""
    graphs = [*graphs_in(nodes)]
    for graph in graphs:
        yield from _stored_in(graph)
    for node in chain(nodes, *(graph.node for graph in graphs)):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors
            elif attribute.type == AttributeProto.SPARSE_TENSOR:
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)


def _stored_in(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from chain.from_iterable((sparse.values, sparse.indices) for sparse in graph.sparse_initializer)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of every body inside them."""
    yield from nodes
    yield from (node for graph in graphs_in(nodes) for node in graph.node)


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Names that these nodes read, and those that their bodies read from outside."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                body = attribute.g
                own = {value.name for value in (*body.input, *body.initializer)}
                own.update(name for each in body.node for name in each.output)
                names |= (names_read(body.node) | {value.name for value in body.output}) - own
    return names


def symbols_of(graph: onnx.GraphProto) -> set[str]:
    """Names by which dims may bind the sizes of inputs that are still open."""
    return {
        symbol_of(size) or f"{value.name}.{axis}"
        for value in graph.input
        for axis, size in enumerate(value.type.tensor_type.shape.dim)
        if is_open(size)
    }


WHOLE = frozenset({
    TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
})  # fmt: skip


def numbers_of(graph: onnx.GraphProto, dims: Mapping[str, int]) -> set[str]:
    """Inputs that are one whole number or flag: dims may bind their values, which decide branches, loops and sizes.

    Also those of which these dims make it one. Not those that go by the name of a size.
    """
    stored = {tensor.name for tensor in graph.initializer}
    types = {value.name: value.type.tensor_type for value in graph.input if value.name not in stored}
    whole = {name: known for name, known in types.items() if known.elem_type in WHOLE and known.HasField("shape")}
    single = {name for name, known in whole.items() if all(size == 1 for size in _sizes(name, known, dims))}
    return single - symbols_of(graph) if single else single


def _sizes(name: str, known: onnx.TypeProto.Tensor, dims: Mapping[str, int]) -> Iterator[int | None]:
    """The sizes of an input, open ones as dims bind them; None for one that is left open."""
    for axis, size in enumerate(known.shape.dim):
        yield dims.get(symbol_of(size) or f"{name}.{axis}") if is_open(size) else size.dim_value


def is_open(size: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether a dimension has no size; a negative one is none, as files of Paddle have it, to runtimes too."""
    return not size.HasField("dim_value") or size.dim_value < 0


def symbol_of(size: onnx.TensorShapeProto.Dimension) -> str:
    """The name of an open dimension, "" for none; a question mark names nothing, and stands for several."""
    return "" if size.dim_param == "?" else str(size.dim_param)


def name_open_axes(graph: onnx.GraphProto) -> None:
    """Call an input's dimension that has neither a name nor a size "input.axis"."""
    for value in graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if is_open(size) and not symbol_of(size):
                size.dim_param = f"{value.name}.{axis}"


def write_sizes(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    """Write sizes in place of symbols."""
    if not dims:
        return
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in dims:
                size.dim_value = dims[size.dim_param]


def forget_fixed_shapes(graph: onnx.GraphProto) -> None:
    """Let results declare no shape without symbols: it was that of other inputs than those that are bound now."""
    for each in all_graphs(graph):
        for value in (*each.value_info, *each.output):
            if value.type.HasField("tensor_type") and not any(map(is_open, value.type.tensor_type.shape.dim)):
                value.type.tensor_type.ClearField("shape")


def bound(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A copy whose inputs and outputs have sizes in place of symbols."""
    made = with_graph(model, model.graph.node, model.graph.initializer)
    bind(made.graph, dims)
    return made


def bind(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    """Name the open sizes of a graph's inputs, and write sizes in place of symbols."""
    name_open_axes(graph)
    write_sizes(graph, dims)


def with_values(tensor: TensorProto, array: Any) -> TensorProto:
    """A stored tensor with other values, under its name and metadata."""
    made = numpy_helper.from_array(array, tensor.name)
    made.metadata_props.extend(tensor.metadata_props)
    return made


def strip_values(tensor: TensorProto) -> TensorProto:
    """A stored tensor's name, type, shape and metadata, without its values."""
    light = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    light.metadata_props.extend(tensor.metadata_props)
    return light


def with_graph(model: onnx.ModelProto, nodes: Iterable[NodeProto], stored: Iterable[TensorProto]) -> onnx.ModelProto:
    """A copy of a model whose outermost graph has other nodes and other initialisers.

    All the rest (inputs, outputs, functions, metadata) stays as it is. What is replaced is never
    copied, so that the weights of a large model are copied once.
    """
    made = onnx.ModelProto()
    for part, content in model.ListFields():
        if part.name != "graph":
            _copy(made, part.name, content)
    for part, content in model.graph.ListFields():
        if part.name not in {"node", "initializer"}:
            _copy(made.graph, part.name, content)
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
