"""Values that enter a branch, in brief: another value is told apart, and one that was rounded is not."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_modelbudget.equivalence.untaken import Entering, in_brief, nearness

LOSSY = nearness(2.0**-24, is_exact=False)
EXACT = nearness(2.0**-24, is_exact=True)


def entering(*values: object, near: float = LOSSY) -> Entering:
    return Entering("y", tuple(map(in_brief, values)), near)


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


def test_an_exact_claim_takes_what_is_rounded_and_no_more() -> None:
    """float32 rounds by some 6e-8 of a value, layer by layer; twice or 1.01 times a value is another one."""
    values = np.random.default_rng(1).uniform(-1, 1, 100)
    assert entering(values, near=EXACT) == entering(values.astype(np.float32), near=EXACT)
    for factor in (1.5, 1.01):
        assert entering(values, near=EXACT) != entering(values * factor, near=EXACT)
    assert entering(values) == entering(values * 1.01)


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_whole_numbers_are_not_rounded(kind: type) -> None:
    """An index is another one, large as it may be; under a lossy claim it may be a quantised value."""
    first, second = np.full(8, 200, kind), np.full(8, 201, kind)
    assert entering(first, near=EXACT) != entering(second, near=EXACT)
    assert entering(first, near=EXACT) == entering(first, near=EXACT)
    assert entering(first) == entering(second)


@pytest.mark.parametrize("entry", [-np.inf, np.inf, np.nan])
def test_what_is_no_finite_number_is_no_zero(entry: float) -> None:
    """A mask shuts out, or it does not."""
    mask = np.where(np.arange(32) % 3 == 0, entry, 0.0)
    for near in (LOSSY, EXACT):
        assert entering(mask, near=near) == entering(mask, near=near)
        assert entering(mask, near=near) != entering(np.zeros(32), near=near)
        assert entering(mask, near=near) != entering(np.where(np.arange(32) % 3 == 1, entry, 0.0), near=near)
