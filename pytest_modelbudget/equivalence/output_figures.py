"""How far two outputs are apart: max abs, MSE, SQNR, cosine, top-1; always reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Distances between an output and its reference.

    sqnr is in dB, inf where nothing differs. cosine is 1 where both are zero. top1 is the share of
    rows whose largest element is the same one; None where a row has fewer than two elements, or
    results are no rows: one number each, or of several shapes.
    p99_abs is the 99 % quantile of the absolute error.
    """

    max_abs: float
    mse: float
    sqnr: float
    cosine: float
    top1: float | None
    p99_abs: float


def figures(reference: Reals, found: Reals) -> Figures:
    """Distances over all elements; the last dimension is the one that top-1 looks along."""
    import numpy as np

    error = np.abs(found - reference)
    if not error.size:
        return Figures(0.0, 0.0, float("inf"), 1.0, None, 0.0)
    mse = float(np.mean(error * error))
    power = float(np.mean(reference * reference))
    return Figures(
        max_abs=float(error.max()),
        mse=mse,
        sqnr=decibels(power, mse),
        cosine=cosine(reference, found),
        top1=top1(reference, found),
        p99_abs=float(np.quantile(error, 0.99)),
    )


def decibels(power: float, noise: float) -> float:
    """10·log10(power / noise)."""
    from math import inf, log10

    if not noise:
        return inf
    return 10 * log10(power / noise) if power else -inf


def cosine(reference: Reals, found: Reals) -> float:
    """The cosine of the angle between two outputs taken as vectors."""
    import numpy as np

    lengths = float(np.linalg.norm(reference) * np.linalg.norm(found))
    if not lengths:
        return 1.0 if not reference.any() and not found.any() else 0.0
    return float(np.vdot(reference, found) / lengths)


def top1(reference: Reals, found: Reals) -> float | None:
    """The share of rows whose largest element is the same one in both."""
    import numpy as np

    if reference.ndim < 2 or reference.shape[-1] < 2:
        return None
    return float(np.mean(reference.argmax(-1) == found.argmax(-1)))
