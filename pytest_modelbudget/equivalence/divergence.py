"""Where two models part: the first layer whose outputs differ, and the worst element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.figures import ALGEBRA, relative_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


Watched = Sequence[tuple[str, "Values"]]  # (scope, output) in execution order


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer gave; reads_last tells whether the layer before it was what it was fed."""

    scope: str
    values: Values
    reads_last: bool = False


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off: its index, and what each model gives there."""

    index: tuple[int, ...]
    original: float
    transformed: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first layer whose float64 outputs differ, by how much of their size, and where most."""

    scope: str
    error: float
    worst: Worst | None
    repeat: str = ""

    def repeated_by(self, command: str) -> Divergence:
        """The same, with a command that shows it again."""
        return replace(self, repeat=command)


def worst_element(original: Values, transformed: Values) -> Worst | None:
    """Where two arrays of one shape are furthest apart; None where nothing differs.

    Nothing is further off than a NaN or an Inf where the other has none, or one of another kind.
    The last index of a complex element is 0 for its real part, 1 for the imaginary one.
    """
    import numpy as np

    before, after = _parts(original), _parts(transformed)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(before - after)
    error = np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
    if not error.size or not error.any():
        return None
    index = np.unravel_index(int(error.argmax()), error.shape)
    place = tuple(int(each) for each in index)
    return Worst(place, float(before[index]), float(after[index]))


def _parts(values: Values) -> Values:
    """Values as float64, complex ones as pairs; NaN and Inf stay what they are."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    return values.astype(np.float64, copy=False)


def first_divergence(original: Sequence[Layer], transformed: Watched) -> Divergence | None:
    """The first layer of the original whose output no layer of the transformed model has.

    Layers are matched by name, else by value, so that names may have changed. A layer whose
    difference the next one, which reads it, has already lost was only laid out otherwise (a
    convolution into which a batch norm was folded) and is no divergence.
    """
    named = dict(transformed)
    gaps = [_gap(layer.scope, layer.values, named, transformed) for layer in original]
    for position, (error, worst) in enumerate(gaps):
        is_read = position + 1 < len(gaps) and original[position + 1].reads_last
        if not error <= ALGEBRA and not (is_read and gaps[position + 1][0] <= ALGEBRA):
            return Divergence(original[position].scope, error, worst)
    return None


def _gap(scope: str, values: Values, named: dict[str, Values], transformed: Watched) -> tuple[float, Worst | None]:
    """How far the transformed model is from one layer's output, wherever it comes closest."""
    partner = named.get(scope)
    candidates = [] if partner is None else [partner]
    errors = [relative_error(values, each) for each in candidates]
    if not errors or errors[0] > ALGEBRA:
        others = [other for _, other in transformed if other is not partner]
        if any(relative_error(values, other) <= ALGEBRA for other in others):
            return 0.0, None
    if not candidates or candidates[0].shape != values.shape:
        return float("inf"), None
    return errors[0], worst_element(values, candidates[0])
