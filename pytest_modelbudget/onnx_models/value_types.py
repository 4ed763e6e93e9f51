"""What is known of ONNX values before a run, element types and shapes, and the tensors of what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Union

import onnx
from onnx import TensorProto
from onnx.helper import make_tensor_type_proto

from pytest_modelbudget.graph.tensor import (
    DType,
    Storage,
    StorageKind,
    Tensor,
    contiguous_strides,
    dense,
    kept,
    nbytes_of,
    unsized,
)
from pytest_modelbudget.onnx_models.protos import is_open, symbol_of

Dimension = Union[int, str, None]
LARGEST = 2**63 - 1  # runtimes count in 64 bits

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
    "FLOAT6E2M3": ("float6_e2m3fn", 6),
    "FLOAT6E3M2": ("float6_e3m2fn", 6),
    "FLOAT4E2M1": ("float4_e2m1fn", 4),
    "COMPLEX64": ("complex64", 64),
    "COMPLEX128": ("complex128", 128),
    "BOOL": ("bool", 8),
    "STRING": ("string", 0),
} | {f"{sign.upper()}INT{bits}": (f"{sign}int{bits}", bits) for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)}
_UNKNOWN = DType("unknown", 0)
NEWER = ("FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2", "FLOAT6E2M3", "FLOAT6E3M2")  # codes 23 to 28, since onnx 1.18
TYPE_CODES = {**dict(zip(NEWER, range(23, 29), strict=True)), **dict(TensorProto.DataType.items())}
_DTYPES = {code: DType(*_WIDTHS[name]) for name, code in TYPE_CODES.items() if name in _WIDTHS}
FLOATING = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def dtype_of(code: int) -> DType:
    """The element type of a TensorProto code."""
    return _DTYPES.get(code, _UNKNOWN)


@dataclass(frozen=True)
class ValueType:
    """What is known of a value before the run.

    code is its element type; shape holds sizes, names of symbols and None for what is not known, and is itself None
    where not even the rank is. container says "sequence", "optional" or "map" for what is no tensor.
    """

    code: int = 0
    shape: tuple[Dimension, ...] | None = None
    container: str = ""

    @kept
    def dtype(self) -> DType:
        return dtype_of(self.code)

    @kept
    def is_floating(self) -> bool:
        """Whether its elements are real or complex numbers."""
        return self.dtype.name.startswith(("float", "bfloat", "complex"))

    @kept
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, where every dimension is known."""
        if self.shape is None:
            return None
        known = tuple([size for size in self.shape if type(size) is int])
        return known if len(known) == len(self.shape) else None

    @kept
    def elements(self) -> int:
        """How many it holds; 1 where its shape is not known."""
        return prod(self.sizes or ())

    @kept
    def nbytes(self) -> int:
        return nbytes_of(self.elements, self.dtype)

    @kept
    def strides(self) -> tuple[int, ...]:
        """Strides, in elements, of a dense tensor of the known sizes."""
        return contiguous_strides(self.sizes or ())

    @kept
    def is_plain(self) -> bool:
        """Whether it is a tensor of known sizes, of elements that have a width."""
        sizes = self.sizes
        return sizes is not None and not self.container and bool(self.dtype.bits) and min(sizes, default=0) >= 0

    @property
    def may_hold_sizes(self) -> bool:
        """Whether it is a whole number, or a row of such."""
        return self.code in (TensorProto.INT32, TensorProto.INT64) and len(self.shape or ()) <= 1

    def or_declared(self, other: ValueType) -> ValueType:
        """What a file declares of the same value, where that says more and nothing else."""
        if self.sizes is not None or self.container or other.shape is None:
            return self
        sizes = self.shape if self.shape is not None else other.shape
        agrees = len(sizes) == len(other.shape) and all(
            mine == theirs or not isinstance(mine, int) for mine, theirs in zip(sizes, other.shape, strict=True)
        )
        return ValueType(self.code or other.code, other.shape) if agrees else self

    @property
    def symbols(self) -> list[str]:
        return list(dict.fromkeys(size for size in self.shape or () if isinstance(size, str)))

    @property
    def declared(self) -> tuple[int | str, ...]:
        """The shape for eyes: sizes, names of symbols, "?" for a size and "..." for a shape that nothing says."""
        if self.shape is None:
            return ("...",)
        return tuple("?" if size is None or str(size).startswith(INVENTED) else size for size in self.shape)


NOTHING_KNOWN = ValueType()
INVENTED = "unk__"  # how onnx's inference calls sizes of which it only knows that they are equal


def value_type(proto: onnx.TypeProto) -> ValueType:
    """The type that a file declares for a value."""
    return _value_type(proto.SerializeToString())


@lru_cache(maxsize=4096)  # layers repeat: DenseNet-121 has 1,746 values of 60 types
def _value_type(written: bytes) -> ValueType:
    proto = onnx.TypeProto.FromString(written)
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        return ValueType(container=kind.removesuffix("_type") if kind else "")
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return ValueType(tensor.elem_type)
    sizes = [symbol_of(size) or None if is_open(size) else size.dim_value for size in tensor.shape.dim]
    return ValueType(tensor.elem_type, tuple(sizes))


@lru_cache(maxsize=4096)
def type_proto(known: ValueType) -> onnx.TypeProto:
    """The message of a tensor's type."""
    return make_tensor_type_proto(known.code, known.shape)


@lru_cache(maxsize=4096)
def sized_type(code: int, sizes: tuple[int, ...]) -> ValueType:
    """The type of a tensor that is known."""
    return ValueType(code, sizes)


def tensor_type(tensor: TensorProto) -> ValueType:
    """The type of a stored tensor."""
    return sized_type(tensor.data_type, tuple(tensor.dims[:]))  # a slice: protobuf iterates slowly


Types = Mapping[str, ValueType]


class ScopedTypes(dict[str, ValueType]):
    """Types of values of one graph; of others, those of the graph around it, and without one, nothing known."""

    def __init__(self, known: Iterable[tuple[str, ValueType]] = (), around: Types | None = None) -> None:
        super().__init__(known)
        self._around = around

    def __missing__(self, name: str) -> ValueType:
        return NOTHING_KNOWN if self._around is None else self._around[name]


def declared_types(graph: onnx.GraphProto) -> ScopedTypes:
    """The types in one graph, without those of bodies inside it."""
    values = [value for values in (graph.value_info, graph.output, graph.input) for value in values[:]]
    return ScopedTypes([(value.name, value_type(value.type)) for value in values])


def fresh(name: str, known: ValueType, why: str = "", storage: Storage | None = None) -> Tensor:
    """A result on memory of its own, or on the memory given; why says what hides its shape."""
    dtype, sizes = known.dtype, known.sizes
    if known.is_plain and sizes is not None:
        home = storage or Storage(name, known.nbytes, StorageKind.ACTIVATION)
        return Tensor(name, sizes, dtype, home, 0, known.strides)
    if sizes is None or known.container or not dtype.bits:
        hidden = sizes is None or bool(known.container)
        reason = why if hidden else f"{name} holds {dtype.name}s, which have no fixed size"
        home = storage or Storage(name, 0, StorageKind.ACTIVATION, reason)
        return unsized(name, dtype, home, reason, known.declared)
    home = storage or Storage(name, nbytes_of(prod(sizes), dtype), StorageKind.ACTIVATION)
    return dense(name, sizes, dtype, home)


def view(name: str, base: Tensor, known: ValueType, why: str) -> Tensor:
    """A tensor's memory under another name and shape."""
    dtype = known.dtype if known.code else base.dtype
    if known.sizes is None or base.storage.unsized:
        return unsized(name, dtype, base.storage, why or base.unsized, known.declared)
    strides = base.strides
    if known.sizes != base.shape:
        strides = dense(name, known.sizes, dtype, base.storage).strides
    return Tensor(name, known.sizes, dtype, base.storage, base.offset, strides, sweeps=base.sweeps)
