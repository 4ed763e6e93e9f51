"""The place where two models part: the layer whose outputs differ, and its worst element."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values


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
