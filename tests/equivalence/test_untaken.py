"""Values that enter a branch, in brief: another value is told apart, and one that was rounded is not."""

from __future__ import annotations

import itertools

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


@pytest.mark.parametrize("near", [LOSSY, EXACT])
@pytest.mark.parametrize("fill", [-1e9, -1e4, float(np.finfo(np.float32).min), np.finfo(np.float64).min, -np.inf])
def test_what_a_mask_writes_hides_nothing_beside_it(fill: float, near: float) -> None:
    """As in outputs, each order of size is held for itself."""
    scores = np.random.default_rng(1).uniform(-1, 1, 64)

    def masked(values: object) -> Entering:
        return entering(np.where(np.arange(64) % 3 == 0, fill, values), near=near)

    assert masked(scores) == masked(scores.astype(np.float32))
    assert masked(scores) != masked(3 * scores)


@pytest.mark.parametrize("size", [1e-200, 1e300, np.finfo(np.float64).max])
def test_squares_of_what_is_small_or_large_neither_vanish_nor_overflow(size: float) -> None:
    values = size * np.random.default_rng(1).uniform(0.5, 1, 40)
    assert entering(values, near=EXACT) == entering(values * (1 - 1e-7), near=EXACT)
    assert entering(values, near=EXACT) != entering(values * 0.9, near=EXACT)


def test_an_order_of_whole_numbers_is_one_of_its_own() -> None:
    """Two that lie as many apart as there are sums, and one that float64 does not hold."""
    places = np.arange(64)
    for first, second in itertools.combinations(range(64), 2):
        other = places.copy()
        other[[first, second]] = other[[second, first]]
        assert entering(places, near=EXACT) != entering(other, near=EXACT)
    assert entering(places + 2**60, near=EXACT) != entering(places + 2**60 + (places == 3), near=EXACT)


@pytest.mark.parametrize("near", [LOSSY, EXACT])
@pytest.mark.parametrize(
    "other", [np.ones((8, 2)), np.ones((2, 8), np.int64), np.full((2, 8), "1.0"), np.ones((2, 8), bool)],
    ids=["shape", "whole numbers", "text", "truths"],
)  # fmt: skip
def test_what_has_another_shape_or_kind_is_another_value(other: object, near: float) -> None:
    """A branch divides whole numbers otherwise, and goes along other axes."""
    assert entering(np.ones((2, 8)), near=near) != entering(other, near=near)
    assert entering(other, near=near) == entering(other, near=near)


def test_text_is_what_it_says() -> None:
    assert entering(np.array(["a", "b"], object)) == entering(np.array(["a", "b"], object))
    assert entering(np.array(["a", "b"], object)) != entering(np.array(["a", "c"], object))


def test_both_parts_of_a_complex_value_are_told() -> None:
    value = np.random.default_rng(1).uniform(-1, 1, 16) * (1 + 2j)
    assert entering(value, near=EXACT) == entering(value.astype(np.complex64), near=EXACT)
    assert entering(value, near=EXACT) != entering(value.conj(), near=EXACT)


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-12), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_a_value_is_rounded_in_its_own_type(dtype: str, off: float) -> None:
    """In a model that stores another one, or no floating weights at all."""
    values = np.random.default_rng(1).uniform(-1, 1, 100)
    for stored in (0.0, 2.0**-53):
        near = nearness(stored, is_exact=True)
        first, second, other = (Entering("y", (in_brief(values * (1 + by), dtype),), near) for by in (0, off, 0.3))
        assert first == second
        assert first != other
    assert in_brief(np.ones(1, np.float16)).roundoff == 2.0**-11
