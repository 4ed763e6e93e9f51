"""Which elements of a storage a tensor touches, so that no byte is counted twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod


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
    def is_dense(self) -> bool:
        """Whether the elements are one unbroken interval."""
        return not self.runs or (len(self.runs) == 1 and self.runs[0][0] == 1)

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.offset + 1 + sum(stride * (size - 1) for stride, size in self.runs)


def region(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Region:
    """The region of a tensor; overlapping windows (as_strided) are bounded by their span."""
    elements = prod(shape)
    if elements == 0:
        return Region(offset, ((1, 0),), 0)
    if strides == contiguous_strides(shape):
        return Region(offset, ((1, elements),) if elements > 1 else (), elements)
    steps = sorted(
        (stride, size)
        for stride, size in zip(strides, shape, strict=True)
        if size > 1 and stride != 0
    )
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

    Dense regions are joined exactly. A strided region that lies inside a dense one adds nothing;
    strided regions that overlap one another in part are added up, bounded by their common span.
    """
    distinct = set(regions)
    if len(distinct) == 1:
        return next(iter(distinct)).elements
    intervals = _joined(sorted((r.offset, r.end) for r in distinct if r.is_dense and r.elements))
    strided = [
        r
        for r in distinct
        if not r.is_dense and not any(a <= r.offset and r.end <= b for a, b in intervals)
    ]
    counted = sum(end - start for start, end in intervals) + sum(r.elements for r in strided)
    everything = [*intervals, *((r.offset, r.end) for r in strided)]
    if not everything:
        return 0
    span = max(end for _, end in everything) - min(start for start, _ in everything)
    return min(counted, span)


def _joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in intervals:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
