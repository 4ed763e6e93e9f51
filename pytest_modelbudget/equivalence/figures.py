"""How far two outputs are apart: max abs, MSE, SQNR, cosine, top-1, always reported; and where two models part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_modelbudget.formats.model import Values

    Reals = NDArray[np.float64]
    Stored = Mapping[str, Callable[[], Values]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Distances between an output and its reference.

    sqnr is in dB, inf where nothing differs. cosine is 1 where both are zero. Both are the least of ``bands``. top1 is
    the share of rows whose largest element is the same one; None where a row has fewer than two elements, or results
    are no rows: one number each, or of several shapes. p99_abs is the 99 % quantile of the absolute error.
    """

    max_abs: float
    mse: float
    sqnr: float
    cosine: float
    top1: float | None
    p99_abs: float


def figures(reference: Reals, values: Reals) -> Figures:
    """Distances over all elements; the last dimension is the one that top-1 looks along."""
    import numpy as np

    error = np.abs(values - reference)
    if not error.size:
        return Figures(0.0, 0.0, float("inf"), 1.0, None, 0.0)
    each = bands(reference)
    return Figures(
        max_abs=float(error.max()),
        mse=float(np.mean(error * error)),
        sqnr=min(_sqnr(reference[band], error[band]) for band in each),
        cosine=min(cosine(reference[band], values[band]) for band in each),
        top1=top1(reference, values),
        p99_abs=float(np.quantile(error, 0.99)),
    )


def _sqnr(reference: Values, error: Values) -> float:
    import numpy as np

    return decibels(float(np.mean(reference * reference)), float(np.mean(error * error)))


def decibels(power: float, noise: float) -> float:
    """10·log10(power / noise)."""
    if not noise:
        return inf
    return 10 * log10(power / noise) if power else -inf


def cosine(reference: Reals, values: Reals) -> float:
    """The cosine of the angle between two outputs taken as vectors."""
    import numpy as np

    lengths = float(np.linalg.norm(reference) * np.linalg.norm(values))
    if not lengths:
        return 1.0 if not reference.any() and not values.any() else 0.0
    return float(np.vdot(reference, values) / lengths)


def top1(reference: Reals, values: Reals) -> float | None:
    """The share of rows whose largest element is the same one in both."""
    import numpy as np

    if reference.ndim < 2 or reference.shape[-1] < 2:
        return None
    return float(np.mean(reference.argmax(-1) == values.argmax(-1)))


ALGEBRA = 1e-10  # the relative error that step 1 allows float64 runs of the same function


def reals(values: Values) -> Values:
    """Values as float64, complex ones as pairs, and NaN or Inf, which are judged apart, as 0."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    wide = values.astype(np.float64, copy=False)
    return wide if np.isfinite(wide).all() else np.where(np.isfinite(wide), wide, 0.0)


def real_type(dtype: str) -> str:
    """The type of both parts of a complex number, in which it is rounded; of others their own."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def odd_kinds(values: Values) -> Values:
    """1 for NaN, 2 for Inf, 3 for -Inf, and 0 for numbers; complex values as pairs."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    kinds = np.isnan(values).astype(np.int8)
    kinds[np.isposinf(values)], kinds[np.isneginf(values)] = 2, 3
    return kinds


def relative_error(reference: Values, values: Values) -> float:
    """‖values - reference‖ / ‖reference‖, the largest of ``bands``; 0 where both are zero.

    inf where only the reference is zero, where NaN is on the way, and for other shapes. What is the same Inf in both,
    as a causal mask is, differs by nothing.
    """
    import numpy as np

    if reference.shape != values.shape:
        return inf
    is_same = np.isinf(reference) & (values == reference)
    if is_same.any():
        reference, values = reference[~is_same], values[~is_same]
    return max((_relative(reference[band], values[band]) for band in bands(reference)), default=0.0)


def _relative(reference: Values, values: Values) -> float:
    """The same of one band; squares of what is very small or large neither vanish nor overflow."""
    import numpy as np

    gap = 1.0 * values - reference
    size = float(np.abs(reference).max(initial=0.0))
    if not size or not size < inf:
        return inf if (gap != 0).any() else 0.0
    error = float(np.linalg.norm((gap / size).ravel()) / np.linalg.norm((reference / size).ravel()))
    return error if error == error else inf


# What masks write, such as -1e9 for a word that is banned, would hide what stands beside it.
WIDE = 10  # powers of two without an element between two bands: 1,024 times as large and more
NARROW = 3  # powers of two without an element below what a mask has written or was added to: -1e4 beside scores of 600
FILL = 13  # powers of two that a band above another one has at least: 8,192; saturated functions give 1
FEWEST = 8  # elements of a band below another one, at least: of fewer one is near zero by chance
ONE_VALUE = 2.0**-16  # by which several elements of one value differ at most, of their size: no chance makes those


def bands(reference: Values) -> tuple[Any, ...]:
    """Indices of elements of one order of size; all as one where nothing dwarfs the others."""
    import numpy as np

    sizes = np.abs(1.0 * reference)
    largest = float(sizes.max(initial=0.0))
    if not 2.0**FILL <= largest < inf:
        return (...,)
    powers = np.where(sizes == 0, LEAST_POWER, np.frexp(sizes)[1])
    counts = np.bincount((powers[sizes > 0] - LEAST_POWER).ravel())
    cuts, below, last = [], 0, 0
    for power in np.flatnonzero(counts).tolist():
        if below and power - last > NARROW and power + LEAST_POWER > FILL:
            is_wide = below >= FEWEST and power - last > WIDE
            if is_wide or _is_masked(sizes[powers >= power + LEAST_POWER], 2.0 ** (last + LEAST_POWER)):
                cuts.append(power + LEAST_POWER)
                below = 0
        below, last = below + int(counts[power]), power
    places = np.digitize(powers, cuts)
    return tuple(places == place for place in range(len(cuts) + 1)) if cuts else (...,)


def _is_masked(sizes: Values, below: float) -> bool:
    """Whether several elements are one number, or many are one that a mask added to what is smaller than below."""
    width = float(sizes.max() - sizes.min())
    is_one_value = sizes.size > 1 and width <= ONE_VALUE * float(sizes.max())
    return bool(is_one_value or (sizes.size >= FEWEST and width <= 2 * below))


LEAST_POWER = -1100  # below that of every number but zero


def rms(values: Values) -> float:
    """Root of the mean square; 0 of nothing."""
    import numpy as np

    return float(np.sqrt(np.mean(values * values))) if values.size else 0.0


def rmse(reference: Values, values: Values) -> float:
    """Root of the mean square error, without NaN and Inf."""
    return rms(reals(values) - reference)


FEWEST_STORED = 100  # elements of a tensor of which few can differ
ROUNDED_ANEW = 0.01  # of its elements, at the least, differ then


def stores_other_values(first: Stored, second: Stored) -> bool:
    """Whether floating tensors of a second model hold what rounding made of those of the first.

    They do not where the first has every one of them, turned or reshaped, and neither where all of them together hold
    the same values, cut and joined otherwise. Values are told by sums over their bits, to which zeros, with which edges
    are filled up, add nothing. And they do not where a tensor of both, by name and shape, differs in fewer than 1 % of
    its elements, 100 or more that are not zero in both: rounding anew meets most of them, so this one was changed.
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
    return count >= FEWEST_STORED and 0 < differ < ROUNDED_ANEW * count


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off: its index, and what each model gives there."""

    index: tuple[int, ...]
    original: float
    transformed: float


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far a changed model is from one layer of its original.

    of_its_size is the length of the error as a share of that of the values, inf where the other
    model has nothing of that size; sqnr is in dB, max_abs the largest error of an element. Both are
    None of a layer that is not there: it was fused into another one, or is gone.
    """

    scope: str
    of_its_size: float
    sqnr: float | None
    max_abs: float | None
    worst: Worst | None = None

    @property
    def is_missing(self) -> bool:
        return self.sqnr is None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The layer where two models part, by how much of its size, and where most.

    reservation says what stands against it being the wrong one, "" where nothing does.
    """

    scope: str
    error: float
    worst: Worst | None
    repeat: str = ""
    reservation: str = ""

    def repeated_by(self, command: str) -> Divergence:
        """The same, with a command that shows it again."""
        return replace(self, repeat=command)


def worst_element(original: Values, transformed: Values) -> Worst | None:
    """Where two arrays of one shape are furthest apart; None where nothing differs.

    Nothing is further off than a NaN or an Inf where the other has none, or one of another kind.
    The last index of a complex element is 0 for its real part, 1 for the imaginary one.
    """
    import numpy as np

    before, after = _as_reals(original), _as_reals(transformed)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(before - after)
    error = np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
    if not error.size or not error.any():
        return None
    index = np.unravel_index(int(error.argmax()), error.shape)
    place = tuple(int(each) for each in index)
    return Worst(place, float(before[index]), float(after[index]))


def _as_reals(values: Values) -> Values:
    """Values as float64, complex ones as pairs; NaN and Inf stay what they are."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    return values.astype(np.float64, copy=False)
