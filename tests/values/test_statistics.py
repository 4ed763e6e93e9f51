"""Streamed statistics against numpy over all the data at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.values.statistics import Int8Range, Moments, Ranks, Statistics

RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.standard_normal((60, 5, 7, 3)).astype(np.float32)
DATA = {
    "normal": NORMAL,
    "behind a ReLU": np.maximum(NORMAL, 0),
    "far from zero": (1e6 + NORMAL).astype(np.float32),
    "a heavy tail": np.exp(4 * NORMAL),
    "a scale of 1e-30": NORMAL * np.float32(1e-30),
    "half precision": NORMAL.astype(np.float16),
    "whole numbers": RANDOM.integers(-128, 128, (60, 5)),
    "one value": np.full((60, 5), 0.1, np.float32),
    "zeros of both signs": np.where(NORMAL > 0, np.float32(0), np.float32(-0.0)),
    "rows of four": NORMAL.reshape(-1)[:240].reshape(60, 4),
}
WAYS = {"all at once": [60], "one by one": [1] * 60, "uneven": [1, 30, 2, 27]}


def streamed(batches: Iterable[Any], *, axis: int | None = 1, sigmas: float = 3.0) -> Statistics:
    """The statistics of batches, which are gone through twice."""
    batches = list(batches)
    moments = Moments(axis)
    for batch in batches:
        moments.add(batch)
    ranks = Ranks(moments, sigmas=sigmas)
    for batch in batches:
        ranks.add(batch)
    return ranks.statistics()


@pytest.mark.parametrize("sizes", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_they_equal_numpy(data: Any, sizes: list[int]) -> None:
    """Acceptance: 1e-6 relative for sums of values, and every count and rank exactly."""
    found = streamed(np.split(data, np.cumsum(sizes)[:-1]))
    exact = data.astype(np.float64)
    assert found.mean == pytest.approx(exact.mean(), rel=1e-6, abs=1e-300)
    assert found.variance == pytest.approx(exact.var(), rel=1e-6, abs=1e-20 * exact.max() ** 2)
    assert found.mean_abs == pytest.approx(np.abs(exact).mean(), rel=1e-6, abs=1e-300)
    assert (found.count, found.min, found.max) == (data.size, exact.min(), exact.max())
    assert found.zeros == (exact == 0).sum()
    assert found.quantiles == tuple(
        (share, np.quantile(exact, float(share), method="inverted_cdf")) for share, _ in found.quantiles
    )
    for one in (found.by_range, found.by_sigma, found.by_quantile):
        assert one.saturation == ((exact < one.low) | (exact > one.high)).mean()
    others = (0, *range(2, data.ndim))
    assert found.largest == tuple(np.abs(exact).max(axis=others))


def test_a_range_of_deviations_reaches_no_further_than_values() -> None:
    """Mean 2, deviation 1: two deviations are [0, 4], of which values fill [1, 3]; half a deviation is [1.5, 2.5]."""
    values = np.array([[1.0, 3.0]])
    wide, narrow = (streamed([values], sigmas=sigmas).by_sigma for sigmas in (2.0, 0.5))
    assert (wide.low, wide.high, wide.saturation) == (1.0, 3.0, 0.0)
    assert (narrow.low, narrow.high, narrow.saturation) == (1.5, 2.5, 1.0)


GRIDS = [
    # (low, high) -> (high - low, zero among them) / 255, and round(-128 - low / scale)
    pytest.param(-1.0, 1.55, 0.01, -28, id="both signs"),
    pytest.param(0.0, 2.55, 0.01, -128, id="behind a ReLU"),
    pytest.param(1.0, 2.55, 0.01, -128, id="zero is on every grid"),
    pytest.param(-5.1, -1.0, 0.02, 127, id="negative alone"),
    pytest.param(0.0, 0.0, 0.0, 0, id="nothing but zero"),
]


@pytest.mark.parametrize(("low", "high", "scale", "zero_point"), GRIDS)
def test_int8(low: float, high: float, scale: float, zero_point: int) -> None:
    """The grid of ``quantize`` where it is not symmetric."""
    grid = Int8Range(low, high, 0.0)
    assert grid.scale == pytest.approx(scale)
    assert grid.zero_point == zero_point


def test_dead_channels() -> None:
    """One that is zero in every batch; one that is in a few is not dead."""
    first, second = np.ones((2, 3, 4)), np.ones((2, 3, 4))
    first[:, 0], second[:, 0], second[:, 2] = 0, 0, 0
    found = streamed([first, second])
    assert (found.channels, found.dead) == (3, (0,))


NO_CHANNELS = [
    pytest.param([np.ones(4)], 1, id="a row"),
    pytest.param([np.ones((2, 3))], 2, id="no such axis"),
    pytest.param([np.ones((1, 4, 2, 2)), np.ones((1, 4, 3, 2))], 2, id="other numbers from call to call"),
]


@pytest.mark.parametrize(("batches", "axis"), NO_CHANNELS)
def test_no_channels(batches: list[Any], axis: int) -> None:
    """None are told where nobody can say which they are: no channel is then called alive."""
    assert streamed(batches, axis=axis).channels == 0


def test_what_is_not_finite_is_counted_apart() -> None:
    """The mean of 1 and 3; a channel of NaN is not a dead one."""
    found = streamed([np.array([[1.0, np.nan]]), np.array([[3.0, np.inf]])])
    assert (found.count, found.not_finite, found.mean, found.max) == (2, 2, 2.0, 3.0)
    assert found.dead == ()


def test_nothing_at_all() -> None:
    """No value has no statistics that anybody could take for some."""
    assert streamed([np.empty((0, 3))]).count == 0


FIRST = np.linspace(1.0, 2.0, 4096).reshape(2, 2048)
LAST_BIT = FIRST.copy()
LAST_BIT[1, 7] = np.nextafter(LAST_BIT[1, 7], 2.0)
SECOND = [
    pytest.param([LAST_BIT], id="last bit of one value"),
    pytest.param([FIRST * 1.0001], id="all by a little"),
    pytest.param([FIRST[:1]], id="fewer"),
    pytest.param([FIRST, FIRST], id="more"),
    pytest.param([], id="never"),
]


@pytest.mark.parametrize("second", SECOND)
def test_other_values_in_the_second_pass_are_refused(second: list[Any]) -> None:
    """A quantile would be that of neither."""
    moments = Moments()
    moments.add(FIRST)
    ranks = Ranks(moments, sigmas=3)
    for batch in second:
        ranks.add(batch)
    with pytest.raises(TransformError, match="other values when it is run again"):
        ranks.statistics()


def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    """40 batches hold what 4 do: an eighth of a batch more at the most."""
    batch = RANDOM.standard_normal((8, 16, 32, 32))

    def peak(batches: int) -> int:
        moments = Moments(1)
        tracemalloc.start()
        for _ in range(batches):
            moments.add(batch * 1.0)
        ranks = Ranks(moments, sigmas=3.0)
        for _ in range(batches):
            ranks.add(batch * 1.0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(40) <= peak(4) + batch.nbytes // 8


def test_a_large_tensor_is_not_copied_whole() -> None:
    """Of 2**23 floats, 32 MiB: less than twice that beside them, and the same figures as numpy's over all of them."""
    values = np.random.default_rng(1).standard_normal((2, 2**22), dtype=np.float32)
    values[1, -1], values[0, 0] = -9, 0  # in the last block, and in the first one
    tracemalloc.start()
    found = streamed([values], axis=0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * values.nbytes
    assert (found.count, found.zeros, found.min) == (2**23, (values == 0).sum(), -9.0)
    assert found.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-6)
    assert found.variance == pytest.approx(values.var(dtype=np.float64), rel=1e-6)
    assert found.largest == (float(np.abs(values[0]).max()), 9.0)
    ranks = {share: float(np.quantile(values, float(share), method="inverted_cdf")) for share, _ in found.quantiles}
    assert dict(found.quantiles) == ranks
