"""What one model stores and another does not: rounded anew, in whatever tensors, or changed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.equivalence.figures import stores_other_values

A = np.arange(12, dtype="float32").reshape(3, 4) / 7
B = np.linspace(-1, 1, 5, dtype="float16")
CHANGED = np.where(A[1, 2] == A, np.nextafter(A[1, 2], np.float32(9)), A)


@pytest.mark.parametrize(
    ("second", "is_other"),
    [
        pytest.param([A, B], False, id="the same"),
        pytest.param([B, A], False, id="another order"),
        pytest.param([A], False, id="one of them"),
        pytest.param([A, A], False, id="one of them twice"),
        pytest.param([A.T, B[::-1]], False, id="turned"),
        pytest.param([A.astype("float64")], False, id="a wider type"),
        pytest.param([A[:, :1], A[:, 1:], B], False, id="cut"),
        pytest.param([np.concatenate([A.ravel(), B])], False, id="joined"),
        pytest.param([A[:1], np.pad(A[1:], 2), B], False, id="cut and padded with zeros"),
        pytest.param([-np.zeros(3), A, B], False, id="zeros of either sign"),
        pytest.param([CHANGED, B], True, id="one value rounded otherwise"),
        pytest.param([A[:1], A[1:] * 2, B], True, id="cut and scaled"),
        pytest.param([A[:1]], True, id="a part"),
        pytest.param([A, -B[:-1]], True, id="another sign"),
    ],
)
def test_other_values(second: list[Any], is_other: bool) -> None:
    """Only values count: an element that is one unit in the last place off makes another model."""
    assert stores_other_values(named([A, B], "first"), named(second, "second")) is is_other


def named(tensors: list[Any], prefix: str) -> Any:
    """Tensors as a model holds them: what reads each, by name."""
    return {f"{prefix} {place}": partial(np.array, each) for place, each in enumerate(tensors)}


def nudged(values: Any, count: int) -> Any:
    """Values of which the first few are the next number that their type has."""
    made = values.copy()
    made.flat[:count] = np.nextafter(values.flat[:count], values.dtype.type(9))
    return made


LARGE = np.linspace(1, 2, 1000, dtype="float32").reshape(20, 50)
PRUNED = np.pad(LARGE, ((0, 1980), (0, 0)))  # 1 % of it is not zero
UNKNOWN = np.where(LARGE < 1.1, np.float32(np.nan), LARGE)


@pytest.mark.parametrize(
    ("first", "second", "is_other"),
    [
        pytest.param(LARGE, nudged(LARGE, 1), False, id="one of 1000"),
        pytest.param(LARGE, nudged(LARGE, 9), False, id="fewer than 1 %"),
        pytest.param(LARGE, nudged(LARGE, 10), True, id="1 %"),
        pytest.param(LARGE, nudged(LARGE, 1000), True, id="all by a unit in the last place"),
        pytest.param(LARGE, nudged(LARGE, 1).T, True, id="another shape"),
        pytest.param(LARGE[:1], nudged(LARGE[:1], 1), True, id="too few elements to tell"),
        pytest.param(PRUNED, nudged(PRUNED, 1000), True, id="all that are not zero"),
        pytest.param(PRUNED, nudged(PRUNED, 1), False, id="one that is not zero"),
        pytest.param(UNKNOWN, nudged(UNKNOWN, 1000), True, id="all that are numbers"),
    ],
)
def test_a_few_changed_values_are_no_rounding(first: Any, second: Any, is_other: bool) -> None:
    """Of tensors with one name and one shape; another pair, rounded anew, hides none of them."""
    alone = {"w": partial(np.array, first)}, {"w": partial(np.array, second)}
    assert stores_other_values(*alone) is is_other
    known, mine = ({**each, "b": partial(np.array, a)} for each, a in zip(alone, (B, B * 3), strict=True))
    assert stores_other_values(known, mine) is is_other
