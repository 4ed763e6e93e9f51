"""Element types, shapes and attributes of ONNX values as plain data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, Union

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.graph.tensor import DType, kept
from pytest_modelbudget.ops.role import UNDECLARED, Role
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable

Dimension = Union[int, str, None]

# Name and width of every element type; strings have no fixed width and stand as 0.
# Source: TensorProto.DataType in onnx.proto.
_WIDTHS = {
    "FLOAT": ("float32", 32),
    "DOUBLE": ("float64", 64),
    "FLOAT16": ("float16", 16),
    "BFLOAT16": ("bfloat16", 16),
    "FLOAT8E4M3FN": ("float8_e4m3fn", 8),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "FLOAT8E5M2": ("float8_e5m2", 8),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "FLOAT8E8M0": ("float8_e8m0fnu", 8),
    "FLOAT4E2M1": ("float4_e2m1fn", 4),
    "COMPLEX64": ("complex64", 64),
    "COMPLEX128": ("complex128", 128),
    "BOOL": ("bool", 8),
    "STRING": ("string", 0),
} | {
    f"{sign.upper()}INT{bits}": (f"{sign}int{bits}", bits)
    for sign in ("", "u")
    for bits in (2, 4, 8, 16, 32, 64)
}
_UNKNOWN = DType("unknown", 0)
_DTYPES = {
    code: DType(*_WIDTHS[name]) for name, code in TensorProto.DataType.items() if name in _WIDTHS
}


def dtype_of(code: int) -> DType:
    """The element type of a TensorProto code."""
    return _DTYPES.get(code, _UNKNOWN)


def is_floating(dtype: DType) -> bool:
    """Whether values of this type are real or complex numbers."""
    return dtype.name.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True)
class ValueType:
    """What is known of a value before the run.

    code is its element type; shape holds sizes, names of symbols and None for what is not known,
    and is itself None where not even the rank is. container says "sequence", "optional" or "map"
    for what is no tensor.
    """

    code: int = 0
    shape: tuple[Dimension, ...] | None = None
    container: str = ""

    @kept
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, where every dimension is known."""
        if self.shape is None:
            return None
        known = tuple([size for size in self.shape if type(size) is int])
        return known if len(known) == len(self.shape) else None


NOTHING_KNOWN = ValueType()


def value_type(proto: onnx.TypeProto) -> ValueType:
    """The type that a file declares for a value."""
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        return ValueType(container=kind.removesuffix("_type") if kind else "")
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return ValueType(tensor.elem_type)
    return ValueType(
        tensor.elem_type, tuple(each.dim_value or _dimension(each) for each in tensor.shape.dim)
    )


def _dimension(proto: onnx.TensorShapeProto.Dimension) -> Dimension:
    """A dimension that is no positive size: 0, a symbol, or nothing."""
    return 0 if proto.HasField("dim_value") else str(proto.dim_param) or None


def type_proto(known: ValueType) -> onnx.TypeProto:
    """The type of a tensor in ONNX's own form."""
    return onnx.helper.make_tensor_type_proto(known.code, known.shape)


def tensor_type(tensor: TensorProto) -> ValueType:
    """The type of a stored tensor."""
    return ValueType(tensor.data_type, tuple(tensor.dims))


def elements_of(tensor: TensorProto) -> int:
    """Elements of a stored tensor."""
    return prod(tensor.dims)


def attribute_values(node: onnx.NodeProto) -> dict[str, object]:
    """Plain attributes of a node by name; tensors and bodies are left out."""
    return {
        each.name: value for each in node.attribute if (value := attribute_value(each)) is not None
    }


def attribute_value(attribute: AttributeProto) -> object:
    """A plain value: int, float, text or a tuple of these; None for anything else."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats)
    if kind == AttributeProto.STRING:
        return _text(attribute.s)
    if kind == AttributeProto.STRINGS:
        return tuple(_text(each) for each in attribute.strings)
    return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def all_graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    """A graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            kind = attribute.type
            if kind == AttributeProto.GRAPH:
                yield from all_graphs(attribute.g)
            elif kind == AttributeProto.GRAPHS:
                for each in attribute.graphs:
                    yield from all_graphs(each)


STANDARD = frozenset({"", "ai.onnx"})  # the names of ONNX's own domain


class Step(NamedTuple):
    """One node: its operator as rules spell it, its rule (None without one), and what it reads.

    roles are one per operand, undeclared where no rule names it. attributes are its plain ones,
    bodies the graphs that it holds.
    """

    node: NodeProto
    name: str
    rule: OpRule | None
    inputs: tuple[str, ...]
    roles: tuple[Role, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]
    bodies: Mapping[str, Body]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A graph and its nodes in order."""

    proto: onnx.GraphProto
    steps: tuple[Step, ...]

    def everything(self) -> Iterator[Body]:
        """This graph, and every graph inside its nodes."""
        yield self
        for step in self.steps:
            for body in step.bodies.values():
                yield from body.everything()


NO_BODIES: Mapping[str, Body] = {}


def read_body(graph: onnx.GraphProto, rules: OpTable) -> Body:
    """A graph with its nodes as plain data."""
    return Body(graph, tuple(_step(node, rules) for node in graph.node))


def _step(node: NodeProto, rules: OpTable) -> Step:
    name = op_name(node)
    rule = rules.get(name)
    inputs = tuple(node.input)
    roles = rule.roles_of(name, len(inputs)) if rule else (UNDECLARED,) * len(inputs)
    attributes: dict[str, object] = {}
    bodies = NO_BODIES
    for each in node.attribute:
        value = attribute_value(each)
        if value is not None:
            attributes[each.name] = value
        elif each.type == AttributeProto.GRAPH:
            bodies = {**bodies, each.name: read_body(each.g, rules)}
    return Step(node, name, rule, inputs, roles, tuple(node.output), attributes, bodies)


def op_name(node: NodeProto) -> str:
    """The name of a node's operator as rules spell it: ``onnx::Conv``."""
    domain = node.domain
    return f"onnx::{node.op_type}" if domain in STANDARD else f"{domain}::{node.op_type}"


NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"
NOTHING_WRITTEN: Mapping[str, str] = MappingProxyType({})


def metadata_of(proto: onnx.NodeProto | onnx.TensorProto) -> Mapping[str, str]:
    """What an exporter wrote beside a node or a stored tensor."""
    entries = proto.metadata_props
    return {entry.key: entry.value for entry in entries} if entries else NOTHING_WRITTEN


def scope_of(node: onnx.NodeProto) -> str:
    """The module path of a node, or the best name there is for the place.

    torch's exporter writes ``['', 'features', 'features.0', 'conv2d']`` or
    ``: Net/features: Sequential/features.0: Conv2d/conv2d: aten.conv2d.default``; the one before
    it, and tf2onnx, name the node ``/features/features.0/Conv``. A node without any of these is
    a layer of its own, under its name or that of its first result.
    """
    written = metadata_of(node)
    if NAME_SCOPES in written:
        scopes = written[NAME_SCOPES][2:-2].split("', '")
        return scopes[-2] if len(scopes) > 1 else ""
    if NAMESPACE in written:
        paths = [part.partition(":")[0] for part in written[NAMESPACE].split("/")]
        return paths[-2] if len(paths) > 1 else ""
    name = node.name
    if "/" in name:
        return path_of(name.strip("/").split("/")[:-1])
    return name or (node.output[0] if node.output else "")


def path_of(parts: list[str]) -> str:
    """One path of parts that may repeat their parent: layer1, layer1.0, conv → layer1.0.conv."""
    path: list[str] = []
    for part in parts:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def weight_name(name: str, scope: str) -> str:
    """A stored tensor's name under a module: its own, or that of the node that reads it.

    Exporters keep a parameter's path ("fc.weight"); what they folded has a name of theirs.
    """
    is_path = "." in name and "/" not in name and ":" not in name
    return name if is_path or not scope else f"{scope}.{name}"


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


class Use(NamedTuple):
    """One operand of one node, and the role in which it is read."""

    step: Step
    role: Role

    @property
    def carries_into(self) -> tuple[str, ...]:
        """The results that are this value handed on."""
        if not self.role.carried:
            return ()
        return self.step.outputs if self.role.into_all else self.step.outputs[:1]


def uses_of(body: Body) -> Mapping[str, list[Use]]:
    """Every use of every value, those inside bodies included."""
    uses: dict[str, list[Use]] = defaultdict(list)
    for each in body.everything():
        for step in each.steps:
            for name, role in zip(step.inputs, step.roles, strict=True):
                if name:
                    uses[name].append(Use(step, role))
    return uses


def handed_on(body: Body) -> Mapping[str, list[str]]:
    """Names under which values go into bodies of a graph's nodes, and come out of them.

    A Loop hands its states on behind its count and its condition, a Scan all that it reads.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for each in body.everything():
        for step in each.steps:
            for inner in step.bodies.values():
                inside = [value.name for value in inner.proto.output]
                outside = list(step.outputs)
                shift = len(inside) - len(outside)  # a Loop's body gives its condition too
                for name, result in zip(inside[max(shift, 0) :], outside):  # noqa: B905
                    names[name].append(result)
                own = [value.name for value in inner.proto.input]
                for name, result in zip(step.inputs[::-1], own[::-1]):  # noqa: B905  # from behind
                    names[name].append(result)
    return names


def shape_values(body: Body) -> frozenset[str]:
    """Values of a graph that only lead to shapes of others, and are worked out before the run.

    Shape → Gather → Concat → Reshape is the usual chain. A value that nobody reads is none.
    """
    read = {output.name for output in body.proto.output}
    shaping: set[str] = set()
    for step in reversed(body.steps):
        for inner in step.bodies.values():
            read.update(_names_read(inner))
        only_shapes = (
            not step.bodies
            and not shaping.isdisjoint(step.outputs)
            and read.isdisjoint(step.outputs)
        )
        if only_shapes:
            shaping.update(step.inputs)
            continue
        for name, role in zip(step.inputs, step.roles, strict=True):
            (shaping if role.shape else read).add(name)
    return frozenset(shaping - read)


def _names_read(body: Body) -> Iterator[str]:
    """Every name that a body, or one inside it, mentions."""
    for each in body.everything():
        for step in each.steps:
            yield from step.inputs
        yield from (output.name for output in each.proto.output)
