"""What the first of two models gives on all inputs of a claim, and what those can show of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.batches import Batch, Returned, Row, Runs, Specs, resized
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.input_families import SCALES, families_of, runs_of, scale_note

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

Results = Sequence[Sequence[Returned]]  # of every batch, for each of its rows


@dataclass(frozen=True, slots=True)
class OriginalRuns:
    """A model on every row of every batch: in float64, and as it is stored.

    notes say what was particular about the inputs.
    """

    rows: Sequence[Row]
    batches: Sequence[Batch]
    exact: Results
    stored: Results
    notes: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """All outputs."""
        return frozenset(each.name for each in self.exact[0][0].outputs)

    def still(self) -> frozenset[str]:
        """Outputs that no input moves; those of integers only if nothing else moves."""
        moving = {name for results in self.exact for name in _moving(results)}
        outputs = self.exact[0][0].outputs
        if moving:
            outputs = tuple(each for each in outputs if each.values.dtype.kind not in "biuO")
        return frozenset(each.name for each in outputs if each.name not in moving)

    def zero(self) -> frozenset[str]:
        """Arrays with no element, or none other than zero."""
        results = [found for batch in self.exact for found in batch]
        rows = zip(*(found.outputs for found in results), strict=False)
        return frozenset(
            row[0].name
            for row in rows
            if row[0].values.ndim and not any(each.values.any() for each in row)
        )


def original_runs(claim: Claim, model: Runs, specs: Specs, *, stacks: bool) -> OriginalRuns:
    """Run a model on inputs as large as its own type stands.

    specs are the inputs' types and shapes. stacks says that the first axis of all of them is one
    that the model takes in any size. Raises TransformError where the model does not run.
    """
    rows = [Row(*each) for each in runs_of(families_of(list(specs.values())), claim.seeds)]
    for scale in SCALES:
        batches = [
            Batch(each, rows, scale, stacks=stacks) for each in resized(specs, claim.batches)
        ]
        exact = [each.run(model, float64=True) for each in batches]
        stored = [each.run(model, float64=False) for each in batches]
        if not _overflows(exact, stored):
            break
    return OriginalRuns(rows, batches, exact, stored, scale_note(scale))


def _overflows(exact: Results, stored: Results) -> bool:
    """Whether a model overflows in its own type where it does not in float64."""
    return any(
        bool((~_is_finite(y.values) & _is_finite(x.values)).any())
        for before, after in zip(exact, stored, strict=True)
        for wide, own in zip(before, after, strict=True)
        for x, y in zip(wide.outputs, own.outputs, strict=True)
        if y.values.dtype.kind not in "biuO"
    )


def _is_finite(values: Values) -> Values:
    import numpy as np

    known: Values = values if values.dtype.kind in "fc" else values.astype(np.float64)
    return np.asarray(np.isfinite(known))


def _moving(results: Sequence[Returned]) -> Iterator[str]:
    """Outputs that differ between two rows by more than rounding, or are NaN or Inf."""
    first = results[0]
    for other in results[1:]:
        for x, y in zip(first.outputs, other.outputs, strict=False):
            if _is_other(x.values, y.values):
                yield x.name


def _is_other(values: Values, than: Values) -> bool:
    import numpy as np

    if values.shape != than.shape:
        return True
    size = float(np.abs(than).max()) if than.size else 0.0
    return not (np.abs(values - 1.0 * than) <= 1e-9 * size).all()
