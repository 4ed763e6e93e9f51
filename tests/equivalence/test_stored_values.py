"""What one model stores and another does not, told without regard to tensors and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.equivalence.stored_values import stores_other_values

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
    assert stores_other_values([A, B], second) is is_other
