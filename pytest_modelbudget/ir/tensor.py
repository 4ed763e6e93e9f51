"""Values and the memory they live in: what they cost, never what they contain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.ir.region import (
    Region,
    contiguous_strides,
    distinct_elements,
    region,
)


@dataclass(frozen=True, slots=True)
class DType:
    """An element type by its field name (``float32``) and its stored width in bits."""

    name: str
    bits: int


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


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Memory that is paid for once, however many tensors view it. Two storages are never equal."""

    name: str
    nbytes: int
    kind: StorageKind

    @property
    def is_activation(self) -> bool:
        return self.kind is StorageKind.ACTIVATION


@dataclass(frozen=True, eq=False)
class Tensor:
    """One value in a graph: what it costs, never what it contains.

    shape is in elements, outermost first; () is a scalar. offset and strides count elements of
    the storage. Tensors on one storage (views, in-place results, tied weights) share memory and
    are paid for once; dimensions of stride 0 are touched once. Two tensors are never equal.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    offset: int
    strides: tuple[int, ...]

    @cached_property
    def elements(self) -> int:
        """Logical elements, broadcast ones included."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the logical elements, rounded up."""
        return nbytes_of(self.elements, self.dtype)

    @cached_property
    def region(self) -> Region:
        """The elements of its storage that it touches."""
        return region(self.offset, self.shape, self.strides)

    @cached_property
    def touched_nbytes(self) -> int:
        """Bytes of its storage that it touches, broadcast elements once."""
        return nbytes_of(self.region.elements, self.dtype)

    @property
    def is_immediate(self) -> bool:
        """Whether this is a rank-0 constant, which an instruction carries within itself."""
        return not self.shape and self.storage.kind is StorageKind.CONSTANT


def dense(name: str, shape: tuple[int, ...], dtype: DType, storage: Storage) -> Tensor:
    """A row-major tensor that starts at the beginning of its storage."""
    if any(size < 0 for size in shape):
        raise GraphError(f"tensor {name} has a negative dimension: {shape}")
    return Tensor(name, shape, dtype, storage, 0, contiguous_strides(shape))


def distinct_nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that these tensors touch together, each byte once."""
    return sum(nbytes_by_storage(tensors).values())


def nbytes_by_storage(tensors: Iterable[Tensor]) -> dict[Storage, int]:
    """Bytes that these tensors touch of each storage, each byte once."""
    groups: dict[tuple[Storage, int], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.storage, tensor.dtype.bits), []).append(tensor)
    nbytes: dict[Storage, int] = {}
    for (storage, _), group in groups.items():
        if len(group) == 1:
            touched = group[0].touched_nbytes
        else:
            elements = distinct_elements(tensor.region for tensor in group)
            touched = nbytes_of(elements, group[0].dtype)
        nbytes[storage] = nbytes.get(storage, 0) + touched
    return nbytes
