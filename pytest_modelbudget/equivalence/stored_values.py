"""Whether one model stores values that another one does not, in whatever tensors and order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


def stores_other_values(first: Iterable[Values], second: Iterable[Values]) -> bool:
    """Whether floating tensors of a second model hold what those of the first do not.

    They do not where the first has every one of them, turned or reshaped, and neither where all of
    them together hold the same values, cut and joined otherwise. Values are told by sums over
    their bits, to which zeros, with which edges are filled up, add nothing.
    """
    known, mine = ([_mark(values) for values in each] for each in (first, second))
    if set(mine) <= set(known):
        return False
    return sum(mine) % 2**64 != sum(known) % 2**64


def _mark(values: Values) -> int:
    """A number that all orders of the same values share."""
    import numpy as np

    wide = values.astype(np.float64, order="C", copy=False) + 0.0  # there is one zero
    bits = wide.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))
