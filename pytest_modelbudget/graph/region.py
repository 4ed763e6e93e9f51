"""Which elements of a storage a tensor touches, so that no byte is counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

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

    def walk(self) -> Iterator[tuple[int, int]]:
        """Its unbroken intervals, as (first element, one past the last)."""
        if not self.elements:
            return
        starts = [self.offset]
        for stride, size in self.outer:
            starts = [start + i * stride for start in starts for i in range(size)]
        for start in starts:
            yield start, start + self.length


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
    span = 1 + sum(stride * (size - 1) for stride, size in runs)
    return Region(offset, tuple(runs), min(touched, span))


@lru_cache(maxsize=4096)  # shapes repeat from layer to layer
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major tensor of this shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def distinct_elements(regions: Iterable[Region]) -> int:
    """Elements of one storage that at least one of these regions holds.

    Exact, up to a number of intervals that only finely strided giants exceed; those are added up
    and bounded by their common span.
    """
    distinct = set(regions)
    if len(distinct) == 1:
        return next(iter(distinct)).elements
    if sum(each.intervals for each in distinct) > MOST_INTERVALS:
        return _bounded(distinct)
    return _union(sorted(interval for each in distinct for interval in each.walk()))


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Total length of intervals that come in rising order."""
    total = reached = 0
    for start, end in intervals:
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _bounded(regions: Iterable[Region]) -> int:
    ends = [each.offset + 1 + sum(s * (n - 1) for s, n in each.runs) for each in regions]
    span = max(ends) - min(each.offset for each in regions)
    return min(sum(each.elements for each in regions), span)
