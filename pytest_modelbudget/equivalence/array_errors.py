"""How far one array is from another: relative to its size, and per element."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

ALGEBRA = 1e-10  # the relative error that step 1 allows float64 runs of the same function


def reals(values: Values) -> Values:
    """Values as float64, complex ones as pairs, and NaN or Inf, which are judged apart, as 0."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    wide = values.astype(np.float64, copy=False)
    return wide if np.isfinite(wide).all() else np.where(np.isfinite(wide), wide, 0.0)


def odd_kinds(values: Values) -> Values:
    """1 for NaN, 2 for Inf, 3 for -Inf, and 0 for numbers; complex values as pairs."""
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack((values.real, values.imag), -1)
    kinds = np.isnan(values).astype(np.int8)
    kinds[np.isposinf(values)], kinds[np.isneginf(values)] = 2, 3
    return kinds


def relative_error(reference: Values, found: Values) -> float:
    """‖found - reference‖ / ‖reference‖; 0 where both are zero.

    inf where only the reference is zero, where NaN is on the way, and for other shapes.
    """
    import numpy as np

    if reference.shape != found.shape:
        return inf
    error = float(np.linalg.norm((1.0 * found - reference).ravel()))
    size = float(np.linalg.norm(reference.ravel()))
    if not size or error != error:
        return inf if error else 0.0
    return error / size


def rms(values: Values) -> float:
    """Root of the mean square; 0 of nothing."""
    import numpy as np

    return float(np.sqrt(np.mean(values * values))) if values.size else 0.0


def rmse(reference: Values, found: Values) -> float:
    """Root of the mean square error, NaN and Inf left out."""
    return rms(reals(found) - reference)
