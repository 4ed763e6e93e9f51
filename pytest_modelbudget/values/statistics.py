"""Statistics of any number of values, in memory that does not grow with them.

Values come in batches, all of them twice: the first pass counts, the second one looks closer::

    moments = Moments(channel_axis=1)
    for batch in batches: moments.add(batch)
    ranks = Ranks(moments)
    for batch in batches: ranks.add(batch)
    ranks.statistics()   # Statistics(count=..., mean=..., ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, sqrt
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from pytest_modelbudget.errors import TransformError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_modelbudget.formats.model import Values

QUANTILES = tuple(Fraction(share) for share in ("0.001", "0.01", "0.5", "0.99", "0.999"))
HALVES = 2**16  # of the 32 bits of a value
BLOCK = 2**20  # values that are looked at together: what is made of them on the way takes some 50 MB
LOWEST, HIGHEST = -128, 127  # of int8
NOT_REPEATED = "it gives other values when it is run again: make it deterministic"


@dataclass(frozen=True, slots=True)
class Int8Range:
    """The int8 grid that spans a range and zero: x = scale * (q - zero_point), q from -128 to 127.

    scale = (max(high, 0) - min(low, 0)) / 255, zero_point = round(-128 - min(low, 0) / scale), as ``quantize``
    has it where it is not symmetric. saturation is the share of all values that lie outside of [low, high].
    """

    low: float
    high: float
    saturation: float

    @property
    def scale(self) -> float:
        """The step between two integers; 0 where all values are zero."""
        return (max(self.high, 0.0) - min(self.low, 0.0)) / (HIGHEST - LOWEST)

    @property
    def zero_point(self) -> int:
        return round(LOWEST - min(self.low, 0.0) / self.scale) if self.scale else 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of all values of one layer, or of one stored tensor.

    Of finite values alone; not_finite counts the others. variance is that of a population (divided by count). A
    quantile q is the least value that at least q of all values do not exceed (numpy's "inverted_cdf"): exact for
    values that float32 holds, and of others that of their rounding to float32. outside_sigma counts values out of
    by_sigma, which is mean ± sigmas deviations and reaches no further than values do. largest is the largest absolute
    value of each channel, () where values have no such axis.
    """

    count: int
    not_finite: int
    mean: float
    variance: float
    mean_abs: float
    min: float
    max: float
    zeros: int
    quantiles: tuple[tuple[Fraction, float], ...]
    sigmas: float
    by_range: Int8Range
    by_sigma: Int8Range
    by_quantile: Int8Range
    outside_sigma: int
    largest: tuple[float, ...] = ()

    @property
    def channels(self) -> int:
        """How many channels there are; 0 where values have no such axis."""
        return len(self.largest)

    @property
    def dead(self) -> tuple[int, ...]:
        return tuple(at for at, largest in enumerate(self.largest) if not largest)

    @property
    def deviation(self) -> float:
        return sqrt(self.variance)

    @property
    def max_abs(self) -> float:
        return max(abs(self.min), abs(self.max))

    @property
    def share_of_zeros(self) -> float:
        return self.zeros / self.count if self.count else 0.0


@dataclass(slots=True)
class Moments:
    """The first pass: count, mean, variance, range, zeros, and how often each upper half of a value comes.

    Batches, and the blocks of large ones, are merged as Chan, Golub and LeVeque do: with d the difference of two
    means, M2 = M2a + M2b + d² * na * nb / (na + nb). channel_axis is the axis whose positions are channels; None where
    there are none.
    """

    channel_axis: int | None = None
    count: int = 0
    not_finite: int = 0
    mean: float = 0.0
    m2: float = 0.0
    mean_abs: float = 0.0
    min: float = np.inf
    max: float = -np.inf
    zeros: int = 0
    checksum: int = 0
    uppers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HALVES, np.int64))
    largest: NDArray[np.float64] | None = None

    def add(self, values: Values) -> None:
        """Take in one batch, of any shape and real type."""
        self._add_channels(values)
        self.checksum = _checksum(values, self.checksum)
        for block in _blocks(values):
            finite = _finite(block)
            self.not_finite += block.size - finite.size
            if finite.size:
                self._merge(finite)

    def _merge(self, finite: Values) -> None:
        exact = finite.astype(np.float64, copy=False)
        mean, share = float(exact.mean()), finite.size / (self.count + finite.size)
        apart = mean - self.mean
        self.m2 += float(np.square(exact - mean).sum()) + apart * apart * self.count * share
        self.mean += apart * share
        self.mean_abs += (float(np.abs(exact).mean()) - self.mean_abs) * share
        self.count += finite.size
        self.min, self.max = min(self.min, float(exact.min())), max(self.max, float(exact.max()))
        self.zeros += finite.size - int(np.count_nonzero(exact))
        self.uppers += np.bincount(_keys(exact) >> 16, minlength=HALVES)

    def _add_channels(self, values: Values) -> None:
        axis = self.channel_axis
        if axis is None or not -values.ndim <= axis < values.ndim or values.ndim < 2:
            return
        others = tuple(at for at in range(values.ndim) if at != axis % values.ndim)
        high, low = (np.asarray(each(axis=others, initial=0), np.float64) for each in (values.max, values.min))
        largest = np.maximum(high, -low)
        if self.largest is None or self.largest.shape == largest.shape:
            self.largest = largest if self.largest is None else np.maximum(self.largest, largest)
        else:  # calls with other numbers of channels have none in common
            self.largest, self.channel_axis = None, None

    @property
    def variance(self) -> float:
        return self.m2 / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """The value at a rank, and how many values lie below and above it."""

    value: float
    below: int
    above: int


class Ranks:
    """The second pass: the values at the quantiles, and how many values lie outside of each range.

    The upper half of the value at a rank is known from the first pass; of values with that half the lower halves are
    counted here, and one of them is at the rank. So a quantile is exact, and takes 2**16 counters.
    """

    def __init__(self, moments: Moments, *, sigmas: float, quantiles: Sequence[Fraction] = ()) -> None:
        self._moments, self._sigmas = moments, sigmas
        upto = np.cumsum(moments.uppers)
        self._upto = upto
        shares = sorted({*QUANTILES, *quantiles}) if moments.count else ()
        self._rank = {share: max(ceil(share * moments.count), 1) for share in shares}
        self._upper = {share: int(np.searchsorted(upto, rank)) for share, rank in self._rank.items()}
        self._lowers = {half: np.zeros(HALVES, np.int64) for half in self._upper.values()}
        spread = sigmas * sqrt(moments.variance)
        self._by_sigma = max(moments.mean - spread, moments.min), min(moments.mean + spread, moments.max)
        self._outside = self._checksum = 0

    def add(self, values: Values) -> None:
        """Take in the same batch once more."""
        self._checksum = _checksum(values, self._checksum)
        low, high = self._by_sigma
        for block in _blocks(values):
            finite = _finite(block).astype(np.float64, copy=False)
            keys = _keys(finite)
            uppers = keys >> 16
            for half, lowers in self._lowers.items():
                lowers += np.bincount(keys[uppers == half] & (HALVES - 1), minlength=HALVES)
            self._outside += int(np.count_nonzero((finite < low) | (finite > high)))

    def statistics(self) -> Statistics:
        """All of it. Raises TransformError where the second pass met other values than the first."""
        moments = self._moments
        if self._checksum != moments.checksum:
            raise TransformError(NOT_REPEATED)
        ranked = {share: self._ranked(share) for share in self._upper}
        first, last = (ranked.get(share, Ranked(0.0, 0, 0)) for share in (QUANTILES[0], QUANTILES[-1]))
        whole = max(moments.count, 1)
        low, high = (moments.min, moments.max) if moments.count else (0.0, 0.0)
        by_sigma = self._by_sigma if moments.count else (0.0, 0.0)
        return Statistics(
            moments.count, moments.not_finite, moments.mean, moments.variance, moments.mean_abs, low, high,
            moments.zeros, tuple((share, each.value) for share, each in ranked.items()), self._sigmas,
            by_range=Int8Range(low, high, 0.0),
            by_sigma=Int8Range(*by_sigma, self._outside / whole),
            by_quantile=Int8Range(first.value, last.value, (first.below + last.above) / whole),
            outside_sigma=self._outside,
            largest=() if moments.largest is None else tuple(moments.largest.tolist()),
        )  # fmt: skip

    def _ranked(self, share: Fraction) -> Ranked:
        half = self._upper[share]
        before = int(self._upto[half] - self._moments.uppers[half])
        upto = before + np.cumsum(self._lowers[half])
        lower = int(np.searchsorted(upto, self._rank[share]))
        below = int(upto[lower] - self._lowers[half][lower])
        return Ranked(_value((half << 16) | lower), below, self._moments.count - int(upto[lower]))


def _checksum(values: Values, before: int) -> int:
    """Of the bytes of some values, and of all that came before."""
    return crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, before)


def _blocks(values: Values) -> Iterator[Values]:
    """All values in rows of no more than BLOCK."""
    flat = values.ravel()
    return (flat[start : start + BLOCK] for start in range(0, flat.size, BLOCK))


def _finite(flat: Values) -> Values:
    """The finite ones of a row of values."""
    return flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat


def _keys(values: Values) -> Values:
    """Whole numbers of 32 bits, in the order of the float32 values that they are made of."""
    with np.errstate(over="ignore"):  # what float32 does not reach is beyond all others there, too
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 is 0
    keys: Values = (bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))).astype(np.int64)
    return keys


def _value(key: int) -> float:
    """The value that a key stands for."""
    bits = key ^ (0x80000000 if key >> 31 else 0xFFFFFFFF)
    return float(np.array(bits, np.uint32).view(np.float32))
