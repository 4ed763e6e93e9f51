"""Values and the memory they live in: what they cost, never what they contain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import prod
from typing import Any, Generic, TypeVar, overload

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.region import Region, contiguous_strides, distinct_elements, region

Value = TypeVar("Value")


class kept(Generic[Value]):  # noqa: N801  # a decorator, named like the built-in property
    """Keeps what the method returns in the instance, where later look-ups find it first."""

    def __init__(self, method: Callable[[Any], Value]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> kept[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> kept[Value] | Value:
        """The value; the first look-up stores it under the property's own name."""
        if instance is None:
            return self
        value = self._method(instance)
        instance.__dict__[self._name] = value
        return value


@dataclass(frozen=True, slots=True)
class DType:
    """An element type by its field name (``float32``) and its stored width in bits.

    A fraction of bits is the share of an element in all that a wrapper tensor is kept in.
    """

    name: str
    bits: int | Fraction


def least_precise(names: Collection[str]) -> str:
    """The floating type with the fewest significant digits; "" where none is floating."""
    order = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in order if name in names), "")


def nbytes_of(elements: int, dtype: DType) -> int:
    """Bytes that ``elements`` values take, rounded up: 3 x int4 take 2 bytes."""
    return -(-elements * dtype.bits // 8)


class StorageKind(str, Enum):
    """What memory is for; it decides which metrics count it."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    QUANTISER = "quantiser"  # scales and zero points of a quantised parameter: bytes, no params
    BUFFER = "buffer"
    CONSTANT = "constant"
    SHAPE = "shape"  # what shapes alone decide, known before the run: neither memory nor traffic


IMMEDIATE_AT_RANK_0 = frozenset({StorageKind.CONSTANT, StorageKind.QUANTISER})


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Memory that is paid for once, however many tensors view it. Two storages are never equal.

    unsized says why its size is not known ("dimension batch of input x is not bound"), and is
    empty for all others; nbytes is then 0 and no claim.
    """

    name: str
    nbytes: int
    kind: StorageKind
    unsized: str = ""

    @property
    def is_activation(self) -> bool:
        return self.kind is StorageKind.ACTIVATION


@dataclass(frozen=True, eq=False)
class Tensor:
    """One value in a graph: what it costs, never what it contains.

    shape is in elements, outermost first; () is a scalar. offset and strides count elements of
    the storage. Tensors on one storage (views, in-place results, tied weights) share memory and
    are paid for once; dimensions of stride 0 are touched once. Two tensors are never equal.
    unsized says why the shape is not known, and is empty for all others; shape is then () and no
    claim. Of a slice that stands for all slices which the runs of a body read, sweeps is the whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    offset: int
    strides: tuple[int, ...]
    unsized: str = ""
    sweeps: Tensor | None = None

    @kept
    def elements(self) -> int:
        """Logical elements, broadcast ones included."""
        return prod(self.shape)

    @kept
    def nbytes(self) -> int:
        """Bytes of the logical elements, rounded up."""
        return nbytes_of(self.elements, self.dtype)

    @kept
    def region(self) -> Region:
        """The elements of its storage that it touches."""
        return region(self.offset, self.shape, self.strides)

    @kept
    def touched_nbytes(self) -> int:
        """Bytes of its storage that it touches, broadcast elements once."""
        if self.strides == contiguous_strides(self.shape):
            return self.nbytes
        return nbytes_of(self.region.elements, self.dtype)

    @property
    def is_immediate(self) -> bool:
        """Whether an instruction carries it within itself: rank-0 constants, and shapes."""
        kind = self.storage.kind
        if kind is StorageKind.ACTIVATION:
            return False
        return kind is StorageKind.SHAPE or (not self.shape and kind in IMMEDIATE_AT_RANK_0)


def dense(name: str, shape: tuple[int, ...], dtype: DType, storage: Storage) -> Tensor:
    """A row-major tensor that starts at the beginning of its storage.

    Raises GraphError for a negative dimension.
    """
    if shape and min(shape) < 0:
        raise GraphError(f"tensor {name} has a negative dimension: {shape}")
    return Tensor(name, shape, dtype, storage, 0, contiguous_strides(shape))


def unsized(name: str, dtype: DType, storage: Storage, why: str) -> Tensor:
    """A tensor whose shape is not known; what reads or writes it is unmeasured."""
    return Tensor(name, (), dtype, storage, 0, (), why)


def distinct_nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that these tensors touch together, each byte once."""
    return sum(nbytes_by_storage(tensors).values())


def nbytes_by_storage(tensors: Iterable[Tensor]) -> dict[Storage, int]:
    """Bytes that these tensors touch of each storage, each byte once."""
    first: dict[Storage, Tensor] = {}
    shared: dict[Storage, list[Tensor]] = {}
    for tensor in tensors:
        before = first.setdefault(tensor.storage, tensor)
        if before is not tensor:
            shared.setdefault(tensor.storage, [before]).append(tensor)
    nbytes = {storage: tensor.touched_nbytes for storage, tensor in first.items()}
    for storage, group in shared.items():
        nbytes[storage] = _union_nbytes(group)
    return nbytes


def _union_nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors on one storage touch together; types of one width are compared."""
    by_width: dict[int | Fraction, list[Tensor]] = {}
    for tensor in tensors:
        by_width.setdefault(tensor.dtype.bits, []).append(tensor)
    return sum(
        nbytes_of(distinct_elements(tensor.region for tensor in group), group[0].dtype) for group in by_width.values()
    )
