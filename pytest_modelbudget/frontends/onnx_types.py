"""Element types, shapes and attributes of ONNX values as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Union

import onnx
from onnx import AttributeProto, TensorProto

from pytest_modelbudget.ir.kept import kept
from pytest_modelbudget.ir.tensor import DType

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
