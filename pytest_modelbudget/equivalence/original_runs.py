"""What the first of two models gives on all inputs of a claim, and what those can show of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.array_errors import ALGEBRA, odd_kinds, reals, relative_error
from pytest_modelbudget.equivalence.batches import (
    Batch,
    Returned,
    Row,
    Runs,
    Specs,
    UnstackableError,
    batch_of,
    resized,
)
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.input_families import SCALES, families_of, runs_of, scale_note
from pytest_modelbudget.errors import TransformError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

Results = Sequence[Sequence[Returned]]  # of every batch, for each of its rows


@dataclass(frozen=True, slots=True)
class OriginalRuns:
    """A model on every row of every batch: in float64, and as it is stored.

    Results stand in the order of their batch's rows. notes say what was particular about inputs.
    """

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

    specs are the inputs' types and shapes. stacks says that rows may be run as one, which only
    exact algebra does: the second model of another claim may round all rows on one scale. Raises
    TransformError where the model does not run.
    """
    rows = [Row(*each) for each in runs_of(families_of(list(specs.values())), claim.seeds)]
    stacks = stacks and claim.kind is Kind.EXACT_ALGEBRA
    for scale in SCALES:
        drawn = [
            batch_of(each, rows, scale, stacks=stacks) for each in resized(specs, claim.batches)
        ]
        batches, exact = zip(*(_exact(batch, model) for batch in drawn), strict=True)
        stored = [each.run(model, float64=False) for each in batches]
        if not _overflows(exact, stored):
            break
    return OriginalRuns(batches, exact, stored, scale_note(scale))


def _exact(batch: Batch, model: Runs) -> tuple[Batch, list[Returned]]:
    """Float64 results, and the batch: stacked only where each row gives what it gives alone."""
    if batch.stacked is not None:
        try:
            found = batch.run_together(model, float64=True)
            pairs = zip(
                (found[each] for each in batch.firsts), found[len(batch.alone) :], strict=True
            )
            if all(_agree(together, alone) for together, alone in pairs):
                return batch, found
        except (TransformError, UnstackableError):
            pass
        batch = batch.one_by_one()
    return batch, batch.run(model, float64=True)


def _agree(together: Returned, alone: Returned) -> bool:
    """Whether two float64 runs gave the same: numbers up to their rounding."""
    return together.structure == alone.structure and all(
        _are_close(x.values, y.values) for x, y in zip(together.outputs, alone.outputs, strict=True)
    )


def _are_close(values: Values, others: Values) -> bool:
    if values.shape != others.shape:
        return False
    if values.dtype.kind not in "fc":
        return bool((values == others).all())
    return bool((odd_kinds(values) == odd_kinds(others)).all()) and (
        relative_error(reals(others), reals(values)) <= ALGEBRA
    )


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
