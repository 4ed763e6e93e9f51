"""A model and a changed one, and the runs of the first: on every row, in float64 and as it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence import inputs as draws
from pytest_modelbudget.equivalence.changed import Changed, Remake
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.figures import (
    ALGEBRA,
    bands,
    odd_kinds,
    real_type,
    reals,
    relative_error,
    stores_other_values,
)
from pytest_modelbudget.equivalence.judgement import ROUNDING
from pytest_modelbudget.equivalence.user_inputs import given_rows
from pytest_modelbudget.errors import InputError, TransformError
from pytest_modelbudget.formats.model import (
    NOTHING_SHARED,
    Coverage,
    Run,
    RunnableModel,
    Shared,
    Watch,
    must_run,
    no_layers,
)
from pytest_modelbudget.graph.tensor import least_precise

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values

    Rows = Sequence[Arrays]


class Pair:
    """A model and a changed one, as they are stored and in float64.

    measured is the change to the model as it was loaded, whose graph was measured.
    """

    def __init__(
        self, original: RunnableModel, changed: Changed, remake: Remake, measured: Changed | None = None
    ) -> None:
        self.original = original
        self.changed = changed
        self.second = must_run(changed.model)
        self.measured = measured or changed
        self._remake = remake

    def redrawn(self) -> Pair:
        """The same change to a model with drawn weights."""
        original = self.original.redrawn()
        return Pair(original, self._remake(original), self._remake, self.measured)

    @property
    def dtype(self) -> str:
        """The real type that the original stores and computes in."""
        return real_type(self.original.dtype)

    def rounded_in(self, output: str) -> str:
        """The real type that an output of a type is rounded in: that of inputs where no weight and no output is."""
        entering = [real_type(spec.dtype) for spec in self.original.inputs.specs.values()]
        return least_precise((self.dtype, real_type(output))) or least_precise(entering) or output

    @cached_property
    def exact(self) -> RunnableModel:
        return self.original.in_float64()

    @cached_property
    def exact_second(self) -> RunnableModel:
        """The change made in float64. Raises TransformError where it cannot be."""
        if self.changed.upcasts:
            return self.second.in_float64()
        return must_run(self._remake(self.exact).model)

    @cached_property
    def shared(self) -> Shared:
        """What the two share in float64. Layers of models made apart only happen to be alike."""
        try:
            shared = self.exact_second.shared_with(self.exact)
        except TransformError:
            if self.changed.by_position:
                raise
            return NOTHING_SHARED
        made_apart = self.changed.made_apart
        return replace(shared, layers={}, pairs=no_layers) if made_apart else shared

    @cached_property
    def given_stored(self) -> tuple[str, ...]:
        """Names of values that both have in their own types, which the first hands to the second."""
        return self.second.shared_with(self.original).given

    def stores_other_weights(self) -> bool:
        """Whether the second stores values that were rounded on another way than the first's."""
        if not self.changed.made_apart:
            return False
        second = self.exact_second.stored()
        if self.changed.by_position:  # scalars are constants that an exporter wrote
            second = {name: read for name, read in second.items() if read().size > 1}
        return stores_other_values(self.original.stored(), second)


Results = Sequence[Sequence[Run]]  # of every batch, for each of its rows


@dataclass(frozen=True, slots=True)
class OriginalRuns:
    """A model on every row of every batch: in float64, and as it is stored.

    Results stand in the order of their batch's rows. notes say what was particular about inputs.
    shared and shared_stored are the values on the way that the second model is given, in float64 and as they are
    stored. coverage says what runs have reached.
    """

    batches: Sequence[draws.Batch]
    exact: Results
    stored: Results
    notes: tuple[str, ...]
    shared: SharedValues
    shared_stored: SharedValues
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def names(self) -> frozenset[str]:
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
        runs = [run for batch in self.exact for run in batch]
        rows = zip(*(run.outputs for run in runs), strict=False)
        return frozenset(
            row[0].name for row in rows if row[0].values.ndim and not any(each.values.any() for each in row)
        )


@dataclass(frozen=True, slots=True)
class SharedValues:
    """Runs a model, and keeps what the second model is given, by the inputs' id, until that reads it."""

    model: RunnableModel
    names: tuple[str, ...]
    coverage: Coverage | None = None
    _kept: dict[int, tuple[Arrays, Mapping[str, Any]]] = field(default_factory=dict)

    def run(self, inputs: Arrays) -> Run:
        """All outputs; values on the way are kept."""
        run = self.rerun(inputs)
        if self.names:
            self._kept[id(inputs)] = inputs, run.values
        return replace(run, values={})

    def rerun(self, inputs: Arrays) -> Run:
        """A run of which nothing is kept, made as the others are."""
        return self.model.run(inputs, Watch(names=self.names, coverage=self.coverage))

    def take(self, inputs: Arrays) -> Mapping[str, Any]:
        """What was kept of a run on these inputs, which is made again where nothing was."""
        if self.names and id(inputs) not in self._kept:
            self.run(inputs)
        return self._kept.pop(id(inputs))[1] if self.names else {}


def original_runs(claim: Claim, pair: Pair) -> OriginalRuns:
    """Run the first of two models on inputs as large as its own type allows.

    Rows may be run as one in exact algebra alone: the second model of another claim may round all
    of them on one scale. Raises TransformError where the model does not run.
    """
    inputs = pair.original.inputs
    if claim.batches and not inputs.resizes:
        raise InputError("batch: the file fixes the first axis of its inputs: export a symbol")
    specs = inputs.specs
    families = draws.families_of(list(specs.values()), claim.run_families)
    calls = draws.calls_for(claim.rows, specs) if claim.rows else 0
    given: Rows = ()
    notes: tuple[str, ...] = ()
    if claim.given and draws.GIVEN in claim.run_families:
        given, notes = given_rows(claim.given, draws.resized(specs, claim.batches)[0])
    runs = _original_runs(claim, pair, draws.runs_of(families, claim.seeds, specs, calls), given)
    if claim.rows is None and families and _is_piecewise_constant(runs, pair.dtype):
        rows = draws.affordable_rows(specs)
        calls = draws.calls_for(rows, specs)
        if calls > len(claim.seeds):
            runs = _original_runs(claim, pair, draws.runs_of(families, claim.seeds, specs, calls), given)
        notes += (f"outputs are constant in steps: {max(calls, len(claim.seeds)):,} calls a family; 'rows' sets more",)
    return replace(runs, notes=(*runs.notes, *notes))


def _is_piecewise_constant(runs: OriginalRuns, dtype: str) -> bool:
    """Whether no output moves with the last bits of the first inputs: the leaves of trees, labels.

    They are the last bits of what the model stores or gives, which may round more than its inputs do. What moves in
    the model's own type does, and is not run in float64 for that.
    """
    batch = runs.batches[0]
    inputs = batch.alone[0]
    if batch.rows[0].family == draws.ZEROS or all(values.dtype.kind != "f" for values in inputs.values()):
        return False
    given = (real_type(output.dtype) for output in runs.stored[0][0].outputs)
    roundoff = ROUNDING.get(least_precise((dtype, *given)), (0.0, 0.0))[0]
    nudged = {name: draws.nudged(values, roundoff) for name, values in inputs.items()}
    alone = next((at for at, row in enumerate(batch.rows) if at >= len(batch.alone) and row == batch.rows[0]), 0)
    own = replace(runs.shared_stored, coverage=Coverage()).rerun(nudged)
    return _gave_equal(runs.stored[0][alone], own) and _gave_equal(runs.exact[0][alone], runs.shared.rerun(nudged))


def _gave_equal(run: Run, other: Run) -> bool:
    import numpy as np

    return all(np.array_equal(x.values, y.values) for x, y in zip(run.outputs, other.outputs, strict=False))


def _original_runs(claim: Claim, pair: Pair, rows: Sequence[tuple[str, int]], given: Rows) -> OriginalRuns:
    """The runs on these drawn rows, and on the given ones."""
    is_exact, inputs = claim.kind is Kind.EXACT_ALGEBRA, pair.original.inputs
    stacks = inputs.stacks and pair.changed.stacks and is_exact
    shared = pair.shared if is_exact else NOTHING_SHARED
    names = tuple(dict.fromkeys((*shared.given, *shared.layers)))
    drawn_rows = [draws.Row(*each) for each in rows]
    for scale in draws.SCALES:
        values = SharedValues(pair.exact, names)  # those of the scale before go
        drawn_batches = [
            draws.batch_of(specs, drawn_rows, scale, stacks=stacks, given=() if at else given)
            for at, specs in enumerate(draws.resized(inputs.specs, claim.batches))
        ]
        batches, exact = zip(*(_exact(batch, values.run) for batch in drawn_batches), strict=True)
        coverage = Coverage()
        values_stored = SharedValues(pair.original, pair.given_stored if is_exact else (), coverage)
        stored = [batch.run(values_stored.run) for batch in batches]
        if not _overflows(exact, stored):
            break
    return OriginalRuns(batches, exact, stored, draws.scale_note(scale), values, values_stored, coverage)


def _exact(batch: draws.Batch, runner: draws.Runner) -> tuple[draws.Batch, list[Run]]:
    """Float64 results, and the batch: stacked only where each row gives what it gives alone."""
    if batch.stacked is not None:
        try:
            runs = batch.run_together(runner)
            pairs = zip((runs[each] for each in batch.firsts), runs[len(batch.alone) :], strict=True)
            if all(_agree(together, alone) for together, alone in pairs):
                return batch, runs
        except (TransformError, draws.UnstackableError):
            pass
        batch = replace(batch, stacked=None)
    return batch, batch.run(runner)


def _agree(together: Run, alone: Run) -> bool:
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


def _moving(results: Sequence[Run]) -> Iterator[str]:
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
    return any(
        not (np.abs(values[band] - 1.0 * than[band]) <= 1e-9 * np.abs(than[band]).max(initial=0.0)).all()
        for band in bands(than)
    )
