"""Values and the memory they live in: what they cost, never what they contain; no byte is counted twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.errors import GraphError

if TYPE_CHECKING:
    kept = property  # to a checker it is one
else:

    class kept:  # noqa: N801  # a decorator, named like the built-in property
        """Keeps what the method returns in the instance, where later look-ups find it first, without a lock."""

        def __init__(self, method: Callable[[Any], Any]) -> None:
            self._method, self._name = method, method.__name__
            self.__doc__ = method.__doc__

        def __get__(self, instance: object | None, owner: type) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._method(instance)
            return value


@dataclass(frozen=True, slots=True)
class DType:
    """An element type by its field name (``float32``) and its stored width in bits.

    A fraction of bits is the share of an element in all that a wrapper tensor is kept in. values are those that lie
    in one element: two of torch's float4_e2m1fn_x2.
    """

    name: str
    bits: int | Fraction
    values: int = 1

    @property
    def width(self) -> int | Fraction:
        """Bits of one value."""
        return self.bits if self.values == 1 else Fraction(self.bits, self.values)

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers, and no truths."""
        return self.name.startswith(("int", "uint"))


def least_precise(names: Collection[str]) -> str:
    """The floating type with the fewest significant digits; "" where none is floating."""
    order = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in order if name in names), "")


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that shapes have together, aligned at their last axes; a size of 0 stays 0."""
    aligned = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(max(sizes) if all(sizes) else 0 for sizes in aligned)[::-1]


def nbytes_of(elements: int, dtype: DType) -> int:
    """Bytes that ``elements`` values take, rounded up: 3 x int4 take 2 bytes."""
    return -(-elements * dtype.bits // 8)


class StorageKind(str, Enum):
    """What memory is for; it decides which metrics count it."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    QUANTISER = "quantiser"  # scales and zero points of a quantised parameter: bytes, no params
    BUFFER = "buffer"
    GRADIENT = "gradient"  # of a parameter; what a training step holds, as the next one
    OPTIMIZER = "optimizer"
    CONSTANT = "constant"
    SHAPE = "shape"  # what shapes alone decide, known before the run: neither memory nor traffic


ACTIVATION, SHAPE = StorageKind.ACTIVATION, StorageKind.SHAPE  # named once: Python 3.11 is slow to look up a member
IMMEDIATE_AT_RANK_0 = frozenset({StorageKind.CONSTANT, StorageKind.QUANTISER})


@dataclass(frozen=True, eq=False, init=False)
class Storage:
    """Memory that is paid for once, however many tensors view it. Two storages are never equal.

    unsized says why its size is not known ("dimension batch of input x is not bound"), and is
    empty for all others; nbytes is then 0 and no claim.
    """

    name: str
    nbytes: int
    kind: StorageKind
    unsized: str = ""

    def __init__(self, name: str, nbytes: int, kind: StorageKind, unsized: str = "") -> None:
        fields = self.__dict__  # as those of a Tensor
        fields["name"], fields["nbytes"], fields["kind"], fields["unsized"] = name, nbytes, kind, unsized

    @kept
    def is_activation(self) -> bool:
        return self.kind is ACTIVATION


@dataclass(frozen=True, eq=False, init=False)
class Tensor:
    """One value in a graph: what it costs, never what it contains.

    shape is in elements, outermost first; () is a scalar. offset and strides count elements of
    the storage. Tensors on one storage (views, in-place results, tied weights) share memory and
    are paid for once; dimensions of stride 0 are touched once. Two tensors are never equal.
    unsized says why the shape is not known, and is empty for all others; shape is then () and no
    claim, and declared is what a file says of it: sizes, names of symbols, "?". Of a slice that
    stands for all slices which the runs of a body read, sweeps is the whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    storage: Storage
    offset: int
    strides: tuple[int, ...]
    unsized: str = ""
    sweeps: Tensor | None = None
    declared: tuple[int | str, ...] = ("...",)

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: DType, storage: Storage, offset: int, strides: tuple[int, ...],
        unsized: str = "", sweeps: Tensor | None = None, declared: tuple[int | str, ...] = ("...",),
    ) -> None:  # fmt: skip
        fields = self.__dict__  # a frozen dataclass calls a function for each, and a model has thousands of these
        fields["name"], fields["shape"], fields["dtype"], fields["storage"] = name, shape, dtype, storage
        fields["offset"], fields["strides"] = offset, strides
        fields["unsized"], fields["sweeps"], fields["declared"] = unsized, sweeps, declared

    @property
    def shown_shape(self) -> tuple[int | str, ...]:
        """The shape for eyes: names of symbols, and "..." where nothing is known."""
        return self.declared if self.unsized else self.shape

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no elements."""
        return not self.unsized and not self.elements

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
        return nbytes_of(touched_elements(self.shape, self.strides), self.dtype)

    @property
    def is_immediate(self) -> bool:
        """Whether an instruction carries it within itself: rank-0 constants, and shapes."""
        kind = self.storage.kind
        if kind is ACTIVATION:
            return False
        return kind is SHAPE or (not self.shape and kind in IMMEDIATE_AT_RANK_0)


def dense(name: str, shape: tuple[int, ...], dtype: DType, storage: Storage) -> Tensor:
    """A row-major tensor that starts at the beginning of its storage.

    Raises GraphError for a negative dimension.
    """
    if shape and min(shape) < 0:
        raise GraphError(f"tensor {name} has a negative dimension: {shape}")
    return Tensor(name, shape, dtype, storage, 0, contiguous_strides(shape))


def unsized(name: str, dtype: DType, storage: Storage, why: str, declared: tuple[int | str, ...] = ("...",)) -> Tensor:
    """A tensor whose shape is not known; what reads or writes it is unmeasured."""
    return Tensor(name, (), dtype, storage, 0, (), why, declared=declared)


UNBOUND = "not bound by dims: "  # how a reason begins that sizes in dims take away


def unbound(inputs: Mapping[str, Iterable[str]]) -> str:
    """The reason for a size that symbols hide, with the inputs of each: "not bound by dims: batch (of x, y)"."""
    return UNBOUND + ", ".join(f"{symbol} (of {', '.join(names)})" for symbol, names in inputs.items())


def unbound_symbols(why: str) -> list[str]:
    """The symbols that such a reason names; none where the reason is another."""
    listed = why.removeprefix(UNBOUND)
    return [] if listed == why else re.findall(r"(?:^|, )(.+?) \(of .*?\)(?=, |$)", listed)


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
    return nbytes | {storage: _union_nbytes(group) for storage, group in shared.items()}


def _union_nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors on one storage touch together, whatever types they see it as.

    What a wrapper shows is no place in its memory where its elements are a fraction of bits: it is added.
    """
    by_width = _by_width(tensors)
    whole = [tensor for width, group in by_width.items() if width == int(width) for tensor in group]
    shown = (group for width, group in by_width.items() if width != int(width))
    fractions = (nbytes_of(distinct_elements(one.region for one in group), group[0].dtype) for group in shown)
    return sum(fractions) + -(-_union_bits(whole) // 8)


def _by_width(tensors: Iterable[Tensor]) -> dict[int | Fraction, list[Tensor]]:
    """Tensors by the bits of their values, the smallest first."""
    groups: dict[int | Fraction, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype.width, []).append(tensor)
    return dict(sorted(groups.items()))


def _union_bits(tensors: Collection[Tensor]) -> int:
    """Bits that tensors of whole widths touch together, counted in the largest unit that measures all of them."""
    unit = gcd(*(int(tensor.dtype.bits) for tensor in tensors))
    return unit * distinct_elements(tensor.region.in_units(int(tensor.dtype.bits) // unit) for tensor in tensors)


def distinct_values(tensors: Iterable[Tensor]) -> int:
    """Values that tensors on one storage hold together; memory that is seen as two types has those of the smaller."""
    by_width = _by_width(tensors)
    if any(width != int(width) for width in by_width):
        return sum(distinct_elements(tensor.region for tensor in group) for group in by_width.values())
    values, counted, before = 0, list[Tensor](), 0
    for width, group in by_width.items():
        counted += group
        bits = _union_bits(counted)
        values, before = values + -(-(bits - before) // int(width)), bits
    return values


# Regions: the elements of a storage that a tensor touches.

MOST_INTERVALS = 1 << 18  # beyond that, a union of strided regions is bounded by its span


@dataclass(frozen=True, slots=True)
class Region:
    """The elements a tensor touches, whatever the order in which it walks them.

    runs are (stride, size) pairs by rising stride, without broadcast dimensions and with adjacent
    dimensions joined: x, x.T and x.view(-1) of a dense x are all ((1, n),).
    """

    offset: int
    runs: tuple[tuple[int, int], ...]
    elements: int

    @property
    def length(self) -> int:
        """Elements of each of its unbroken intervals."""
        return self.runs[0][1] if self.runs and self.runs[0][0] == 1 else 1

    @property
    def outer(self) -> tuple[tuple[int, int], ...]:
        """The runs that step from interval to interval."""
        return self.runs[1:] if self.runs and self.runs[0][0] == 1 else self.runs

    @property
    def intervals(self) -> int:
        """How many unbroken intervals it consists of."""
        return prod(size for _, size in self.outer)

    def in_units(self, units: int) -> Region:
        """The same memory in smaller units, of which an element has so many."""
        if units == 1 or not self.elements:
            return self
        is_dense = bool(self.runs) and self.runs[0][0] == 1
        innermost = (1, self.runs[0][1] * units if is_dense else units)
        outer = tuple((stride * units, size) for stride, size in self.outer)
        return Region(self.offset * units, (innermost, *outer), self.elements * units)

    @property
    def starts(self) -> list[int]:
        """The first elements of its unbroken intervals."""
        starts = [self.offset] if self.elements else []
        for stride, size in self.outer:
            starts = [start + i * stride for start in starts for i in range(size)]
        return starts


def region(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Region:
    """The region of a tensor; overlapping windows (as_strided) are bounded by their span."""
    elements = prod(shape)
    if elements == 0:
        return Region(offset, (), 0)
    if strides == contiguous_strides(shape):
        return Region(offset, ((1, elements),) if elements > 1 else (), elements)
    steps = sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1 and stride != 0)
    runs: list[tuple[int, int]] = []
    touched = 1
    for stride, size in steps:
        touched *= size
        if runs and runs[-1][0] * runs[-1][1] == stride:
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((stride, size))
    return Region(offset, tuple(runs), min(touched, 1 + sum(stride * (size - 1) for stride, size in runs)))


@lru_cache(maxsize=4096)  # shapes repeat from layer to layer
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major tensor of this shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)  # as shapes do
def touched_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements that a tensor touches, wherever in its storage it starts."""
    return region(0, shape, strides).elements


def distinct_elements(regions: Iterable[Region]) -> int:
    """Elements of one storage that at least one of these regions holds.

    Exact, up to a number of intervals that only finely strided giants exceed; those are added up
    and bounded by their common span.
    """
    distinct = set(regions)
    if len(distinct) == 1:
        return next(iter(distinct)).elements
    if sum(one.intervals for one in distinct) > MOST_INTERVALS:
        ends = (one.offset + 1 + sum(stride * (size - 1) for stride, size in one.runs) for one in distinct)
        span = max(ends) - min(one.offset for one in distinct)
        return min(sum(one.elements for one in distinct), span)
    lengths: dict[int, int] = {}  # by start: the longest interval of all that begin there
    for one in sorted(distinct, key=lambda one: one.length):
        lengths.update(dict.fromkeys(one.starts, one.length))
    total = reached = 0
    for start in sorted(lengths):
        end = start + lengths[start]
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
