"""Values that enter a branch, in brief: another value is told apart, and one that was rounded is not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_modelbudget.equivalence.untaken import Entering, in_brief


def entering(*values: object) -> Entering:
    return Entering("y", tuple(map(in_brief, values)))


@pytest.mark.parametrize("size", range(1, 65))
def test_other_values_are_told_apart_in_any_size(size: int) -> None:
    """Drawn signs may add up to 0, by which a constant would be equal to each other one."""
    ones = np.ones(size, np.float32)
    assert entering(ones) != entering(-ones)
    assert entering(ones) != entering(np.zeros(size))
    assert entering(ones, ones) != entering(ones, -ones)


@pytest.mark.parametrize("size", [7, 16, 1000])
def test_what_four_bits_make_of_a_value_is_still_that_value(size: int) -> None:
    values = np.random.default_rng(1).uniform(-1, 1, size)
    assert entering(values) == entering(np.round(values * 7) / 7)
    assert entering(values) != Entering("x", entering(values).values)
