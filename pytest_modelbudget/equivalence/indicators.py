"""Products that are a choice of rows: a factor of zeros and ones reads no more of the other than where it is not zero.

``one_hot(indices) @ table`` reads the rows that ``table[indices]`` would; written out for three words::

    [[0, 1, 0],     table (3, 8)      reads rows 0 and 1
     [1, 0, 0]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values


def chosen_places(values: Values, axis: int, *, is_counted: bool) -> Values | None:
    """The places along an axis of an indicator, shape (..., k, ...), that it is anything but zero at.

    An indicator has zeros and one other value in each row along the axis, or is computed from integers alone
    (is_counted), such as the share of each word in a text. None of any other values: the zeros that a ReLU leaves
    hide weights of units that a right change may round or fold in its own way.
    """
    import numpy as np

    rows = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    if not rows.size or rows[0].all():
        return None
    is_chosen = rows != 0
    if not is_counted:
        weight = rows[np.arange(len(rows)), is_chosen.argmax(1)]
        if not (is_chosen <= (rows == weight[:, None])).all():
            return None
    return np.flatnonzero(is_chosen.any(0)) if is_chosen.any() else None


def summed_axes(equation: str) -> tuple[int, int] | None:
    """Where the two factors of an einsum have the one letter that it sums over; None of any other sum.

    "blv,vd->bld" sums v: (2, 0).
    """
    wanted, arrow, kept = equation.replace(" ", "").partition("->")
    factors = wanted.split(",")
    if len(factors) != 2 or not arrow or "." in wanted:
        return None
    summed = (set(factors[0]) & set(factors[1])) - set(kept)
    if len(summed) != 1:
        return None
    (letter,) = summed
    return factors[0].index(letter), factors[1].index(letter)
