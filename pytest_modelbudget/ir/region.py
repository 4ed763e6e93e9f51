"""Which elements of a storage a tensor touches, so that no byte is counted twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_modelbudget.ir.tensor import Storage, Tensor, nbytes_of


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
        return not self.runs or (len(self.runs) == 1 and self.runs[0][0] == 1)

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.offset + 1 + sum(stride * (size - 1) for stride, size in self.runs)


def region_of(tensor: Tensor) -> Region:
    """The region of one tensor; overlapping windows (as_strided) are bounded by their span."""
    if tensor.elements == 0:
        return Region(tensor.offset, ((1, 0),), 0)
    steps = sorted(
        (stride, size)
        for stride, size in zip(tensor.strides, tensor.shape, strict=True)
        if size > 1 and stride != 0
    )
    runs: list[tuple[int, int]] = []
    elements = 1
    for stride, size in steps:
        elements *= size
        if runs and runs[-1][0] * runs[-1][1] == stride:
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((stride, size))
    span = 1 + sum(stride * (size - 1) for stride, size in runs)
    return Region(tensor.offset, tuple(runs), min(elements, span))


def distinct_elements(tensors: Iterable[Tensor]) -> int:
    """Elements of one storage that at least one of these tensors touches.

    Dense regions are joined exactly. A strided region that lies inside a dense one adds nothing;
    strided regions that overlap one another in part are added up, bounded by their common span.
    """
    regions = {region_of(tensor) for tensor in tensors}
    if len(regions) == 1:
        return next(iter(regions)).elements
    intervals = _joined(sorted((r.offset, r.end) for r in regions if r.is_dense and r.elements))
    strided = [
        r
        for r in regions
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


def distinct_nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that these tensors touch together, each byte once."""
    groups: dict[tuple[Storage, int], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.storage, tensor.dtype.bits].append(tensor)
    return sum(
        nbytes_of(distinct_elements(group), group[0].dtype) for group in groups.values()
    )
