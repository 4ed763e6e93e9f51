"""Where a model rounds more than it must: the first layer that breaks the limit of step 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.array_errors import relative_error, rms, rmse
from pytest_modelbudget.equivalence.divergence import Divergence, Watched, worst_element
from pytest_modelbudget.equivalence.judgement import ROUNDING, precision_limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]


def first_rounding(
    reference: Watched, original: Watched, transformed: Watched, dtype: str, partial_sums: int
) -> Divergence | None:
    """The first layer of both models whose error is above what step 2 allows outputs.

    reference and original are the first model's layers in float64 and in dtype, transformed those
    of the second in dtype. Layers are matched by name, and by how often it has come before.
    """
    if dtype not in ROUNDING:
        return None
    exact, found = _by_call(reference), _by_call(transformed)
    for call, own in _by_call(original).items():
        if call not in exact or call not in found:
            continue
        right, other = exact[call], found[call]
        if right.dtype.kind != "f" or not right.shape == own.shape == other.shape:
            continue
        allowed = precision_limit(rms(right), rmse(right, own), dtype, partial_sums)
        if rmse(right, other) > allowed:
            return Divergence(call[0], relative_error(right, other), worst_element(right, other))
    return None


def _by_call(layers: Watched) -> Mapping[tuple[str, int], Values]:
    seen: Counter[str] = Counter()
    found = {}
    for scope, values in layers:
        found[scope, seen[scope]] = values
        seen[scope] += 1
    return found
