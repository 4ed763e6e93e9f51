"""Whether one model stores values that another one does not, in whatever tensors and order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    # Floating tensors by name, each read when it is asked for: all at once may not fit.
    Stored = Mapping[str, Callable[[], Values]]

FEWEST = 100  # elements of a tensor of which few can differ
ROUNDED_ANEW = 0.01  # of its elements, at the least, differ then


def stores_other_values(first: Stored, second: Stored) -> bool:
    """Whether floating tensors of a second model hold what rounding made of those of the first.

    They do not where the first has every one of them, turned or reshaped, and neither where all of
    them together hold the same values, cut and joined otherwise. Values are told by sums over
    their bits, to which zeros, with which edges are filled up, add nothing. And they do not
    where a tensor of both, by name and shape, differs in fewer than 1 % of its elements, 100 or
    more that are not zero in both: rounding anew meets most of them, so this one was changed.
    """
    known, mine = ([_mark(read()) for read in each.values()] for each in (first, second))
    if set(mine) <= set(known) or sum(mine) % 2**64 == sum(known) % 2**64:
        return False
    return not any(_was_changed(first[name](), second[name]()) for name in first if name in second)


def _mark(values: Values) -> int:
    """A number that all orders of the same values share."""
    import numpy as np

    wide = values.astype(np.float64, order="C", copy=False) + 0.0  # there is one zero
    bits = wide.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))


def _was_changed(before: Values, after: Values) -> bool:
    """Whether few elements differ of those that are not zero in both; a NaN equals a NaN."""
    import numpy as np

    if before.shape != after.shape:
        return False
    was, now = (values.astype(np.float64, copy=False) for values in (before, after))
    count = int(((was != 0) | (now != 0)).sum())
    differ = int(((was != now) & ~(np.isnan(was) & np.isnan(now))).sum())
    return count >= FEWEST and 0 < differ < ROUNDED_ANEW * count
