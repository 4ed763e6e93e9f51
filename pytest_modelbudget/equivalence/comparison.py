"""Whether two models compute the same: which weights can prove it, the runs, and the judgement.

The one driver. It knows no framework: a model is whatever runs on named arrays, and a change is
whatever makes a second model of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.changed import Changed, Remake
from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
from pytest_modelbudget.equivalence.divergence import Divergence
from pytest_modelbudget.equivalence.figures import ALGEBRA, odd_kinds, reals, relative_error, stores_other_values
from pytest_modelbudget.equivalence.inputs import (
    FAMILIES,
    SCALES,
    Batch,
    Row,
    Runner,
    UnstackableError,
    batch_of,
    drawn,
    families_of,
    joined,
    resized,
    runs_of,
    scale_note,
)
from pytest_modelbudget.equivalence.judgement import (
    ALL_FAMILIES,
    ROUNDING,
    Basis,
    Equivalence,
    OutputPair,
    algebra_error,
    judged,
)
from pytest_modelbudget.equivalence.layers import Search, WrongLayers, divergence_of, first_divergence, first_rounding
from pytest_modelbudget.equivalence.products import disagreement, keeps
from pytest_modelbudget.errors import InputError, ModelBudgetError, SourceError, TransformError
from pytest_modelbudget.formats.model import (
    DRAWN,
    NOTHING_SHARED,
    LayerOutput,
    LayerPair,
    Model,
    Run,
    RunnableModel,
    Shared,
    Watch,
    must_run,
    no_layers,
)
from pytest_modelbudget.graph.tensor import least_precise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_modelbudget.formats.model import Arrays

    Values = NDArray[Any]


def compare(original: Model, remake: Remake, claim: Claim) -> Equivalence:
    """Hold what a change makes of a model to a claim, on weights that can prove something.

    remake makes the change to the model as it is loaded, and to redrawn and float64 copies of it.
    What cannot be run is unknown. Raises SourceError where the original cannot be loaded, and
    TransformError for models that do not run at all, or lack weights that must be their own.
    """
    first = must_run(original)
    changed = remake(first)
    second = must_run(changed.model)
    missing = "" if changed.follows else first.missing or second.missing
    if missing:
        raise TransformError(missing)

    def judge(claim: Claim) -> Equivalence:
        return Verification(claim, Pair(first, changed, remake)).result()

    try:
        return changed.floor.verify(claim, judge) if changed.floor else judge(claim)
    finally:
        first.release()
        second.release()


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

    @cached_property
    def exact(self) -> RunnableModel:
        """The original in float64."""
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

    def stores_other_weights(self) -> bool:
        """Whether the second stores values that were rounded on another way than the first's."""
        if not self.changed.made_apart:
            return False
        second = self.exact_second.stored()
        if self.changed.by_position:  # scalars are constants that an exporter wrote
            second = {name: read for name, read in second.items() if read().size > 1}
        return stores_other_values(self.original.stored(), second)


class Verification:
    """Finds the weights that can prove something, and judges on those."""

    def __init__(self, claim: Claim, pair: Pair) -> None:
        self._claim = claim
        self._pair = pair
        self._may_draw = pair.changed.follows and pair.original.can_be_redrawn

    def result(self) -> Equivalence:
        """The judgement; what cannot be run is unknown."""
        try:
            return self._judged()
        except SourceError:
            raise  # the original itself cannot be loaded
        except ModelBudgetError as error:
            weights, seeds = self._pair.original.weights, self._claim.seeds
            kind = self._claim.kind
            return Equivalence(Outcome.UNKNOWN, kind, str(error), weights, seeds=seeds)

    def _judged(self) -> Equivalence:
        """On weights as they are, or on drawn ones where those make more outputs move."""
        inputs = self._pair.original.inputs
        if self._pair.changed.by_position and inputs.no_arrays:
            raise TransformError(f"{inputs.no_arrays[0]}: ONNX Runtime takes no such input")
        if self._may_draw and self._pair.original.draws_its_weights():
            self._pair = self._pair.redrawn()
        try:
            comparison = again = self._comparison()
            still = comparison.before.still()
            is_drawn = self._pair.original.weights == DRAWN
            if still and self._may_draw and not is_drawn:
                self._pair = self._pair.redrawn()
                again = self._comparison()
        except TransformError as error:  # the original itself does not run
            return self._by_layers(error)
        if not self._may_draw and not is_drawn:
            return comparison.equivalence()
        if again.before.still() >= still:
            self._pair = comparison.pair
            return comparison.equivalence(constant=still)
        return again.equivalence(constant=again.before.still())

    def _comparison(self) -> Comparison:
        """The original, run."""
        return Comparison(self._claim, self._pair, original_runs(self._claim, self._pair))

    def _by_layers(self, error: TransformError) -> Equivalence:
        """The judgement on the changed layers alone, where the network does not run."""
        if self._claim.kind is not Kind.EXACT_ALGEBRA or self._pair.shared.pairs is no_layers:
            raise error
        layers = self._layer_runs()
        if not all(layer.moves for layer in layers) and self._pair.original.weights != DRAWN:
            self._pair = self._pair.redrawn()
            layers = self._layer_runs()
        found = judged(
            self._claim,
            (pair for layer in layers for pair in layer.pairs),
            structure=self._pair.second.differences_from(self._pair.original),
            weights=self._pair.original.weights,
            basis=Basis.LAYERS,
            notes=(f"layers only: {error}",),
        )
        still = next((layer.scope for layer in layers if not layer.moves), None)
        if still is not None and found.outcome is Outcome.WITHIN:
            words = f"layer '{still}' does not move with its inputs: nothing could be seen"
            return replace(found, outcome=Outcome.UNKNOWN, reason=words)
        wrong = next((each for each in found.outputs if each.outcome is Outcome.OVER), None)
        if wrong is None or wrong.algebra is None:
            return found
        divergence = Divergence(wrong.name, wrong.algebra, wrong.worst)
        return replace(found, first_divergence=divergence)

    def _layer_runs(self) -> list[LayerRuns]:
        dtype = self._pair.original.dtype
        return [layer_runs(pair, self._claim, dtype) for pair in self._pair.shared.pairs()]


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """One changed layer's runs in both models, a pair for each family of inputs.

    moves says that the original gives something else on other inputs, or is fed nothing at all.
    """

    scope: str
    moves: bool
    pairs: tuple[OutputPair, ...]


def layer_runs(layer: LayerPair, claim: Claim, dtype: str) -> LayerRuns:
    """Float64 outputs of one layer alone, on inputs drawn in its true shapes."""
    specs = {**layer.original.inputs.specs, **layer.changed.inputs.specs}
    rows = [Row(*each) for each in runs_of(families_of(list(specs.values())), claim.seeds)]
    inputs = [drawn(specs, row, SCALES[0]) for row in rows]
    before, after = (
        [_only(model.run(values), layer.scope) for values in inputs] for model in (layer.original, layer.changed)
    )
    moves = not specs or any(relative_error(x, y) > ALGEBRA for x, y in pairwise(before))
    pairs = []
    for family in dict.fromkeys(row.family for row in rows):
        was, now = (
            joined([values for values, row in zip(runs, rows, strict=True) if row.family == family])
            for runs in (before, after)
        )
        if was.shape != now.shape:
            words = f"layer '{layer.scope}' gives {now.shape} in place of {was.shape}"
            raise TransformError(words)
        pairs.append(OutputPair(layer.scope, family, dtype, was, now, None, None))
    return LayerRuns(layer.scope, moves, tuple(pairs))


def _only(run: Run, scope: str) -> Values:
    """The one value that a layer gives. Raises TransformError where that is no tensor."""
    if len(run.outputs) != 1:
        raise TransformError(f"layer '{scope}' gives a sequence, which is not compared alone")
    return run.outputs[0].values


Results = Sequence[Sequence[Run]]  # of every batch, for each of its rows


@dataclass(frozen=True, slots=True)
class OriginalRuns:
    """A model on every row of every batch: in float64, and as it is stored.

    Results stand in the order of their batch's rows. notes say what was particular about inputs.
    shared are the float64 values on the way that the second model is given, by the inputs' id.
    """

    batches: Sequence[Batch]
    exact: Results
    stored: Results
    notes: tuple[str, ...]
    shared: SharedValues

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
        runs = [run for batch in self.exact for run in batch]
        rows = zip(*(run.outputs for run in runs), strict=False)
        return frozenset(
            row[0].name for row in rows if row[0].values.ndim and not any(each.values.any() for each in row)
        )


@dataclass(frozen=True, slots=True)
class SharedValues:
    """Runs a model in float64, and keeps what the second model is given until that reads it."""

    model: RunnableModel
    names: tuple[str, ...]
    _kept: dict[int, tuple[Arrays, Mapping[str, Any]]] = field(default_factory=dict)

    def run(self, inputs: Arrays) -> Run:
        """All outputs; values on the way are kept."""
        run = self.model.run(inputs, Watch(names=self.names))
        if self.names:
            self._kept[id(inputs)] = inputs, run.values
        return replace(run, values={})

    def take(self, inputs: Arrays) -> Mapping[str, Any]:
        """What was kept of a run on these inputs, which is made again where nothing was."""
        if self.names and id(inputs) not in self._kept:
            self.run(inputs)
        return self._kept.pop(id(inputs))[1] if self.names else {}


def original_runs(claim: Claim, pair: Pair) -> OriginalRuns:
    """Run the first of two models on inputs as large as its own type stands.

    Rows may be run as one in exact algebra alone: the second model of another claim may round all
    of them on one scale. Raises TransformError where the model does not run.
    """
    is_exact, inputs = claim.kind is Kind.EXACT_ALGEBRA, pair.original.inputs
    if claim.batches and not inputs.resizes:
        raise InputError("batch: the file fixes the first axis of its inputs: export a symbol")
    specs = inputs.specs
    rows = [Row(*each) for each in runs_of(families_of(list(specs.values())), claim.seeds)]
    stacks = inputs.stacks and pair.changed.stacks and is_exact
    shared = pair.shared if is_exact else NOTHING_SHARED
    names = tuple(dict.fromkeys((*shared.given, *shared.layers)))
    for scale in SCALES:
        values = SharedValues(pair.exact, names)  # those of the scale before go
        sized = resized(specs, claim.batches)
        drawn_batches = [batch_of(each, rows, scale, stacks=stacks) for each in sized]
        batches, exact = zip(*(_exact(batch, values.run) for batch in drawn_batches), strict=True)
        stored = [batch.run(pair.original.run) for batch in batches]
        if not _overflows(exact, stored):
            break
    return OriginalRuns(batches, exact, stored, scale_note(scale), values)


def _exact(batch: Batch, runner: Runner) -> tuple[Batch, list[Run]]:
    """Float64 results, and the batch: stacked only where each row gives what it gives alone."""
    if batch.stacked is not None:
        try:
            runs = batch.run_together(runner)
            pairs = zip((runs[each] for each in batch.firsts), runs[len(batch.alone) :], strict=True)
            if all(_agree(together, alone) for together, alone in pairs):
                return batch, runs
        except (TransformError, UnstackableError):
            pass
        batch = batch.one_by_one()
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
    size = float(np.abs(than).max()) if than.size else 0.0
    return not (np.abs(values - 1.0 * than) <= 1e-9 * size).all()


MOST_ROUNDINGS = 64  # of a weight, through all layers of a network


class Comparison:
    """Both models on all inputs of a claim, after the first has been run."""

    def __init__(self, claim: Claim, pair: Pair, before: OriginalRuns) -> None:
        self.pair = pair
        self.before = before
        self._claim = claim
        self._replaced, self._remade = (WrongLayers(pair.original.dtype) for _ in range(2))

    def equivalence(self, *, constant: frozenset[str] = frozenset()) -> Equivalence:
        """Run the second model, and judge.

        constant are outputs that no weights would make move, so that their values say it all.
        Where another one is zero throughout, it may be for the weights that it has.
        """
        claim, weights = self._claim, self.pair.original.weights
        still, names = self.before.still(), self.before.names
        unseen = still if still == names else (still & self.before.zero()) - constant
        if still == names or (claim.kind is Kind.EXACT_ALGEBRA and unseen):
            words = f"{_these(unseen, names)} not move with its inputs: nothing could be seen"
            return Equivalence(Outcome.UNKNOWN, claim.kind, words, weights, seeds=claim.seeds)
        after = self._second_runs()
        wrong = self._wrong_layers(after)
        pairs, rounded = without_rounded_weights(
            (*self._pairs(after), *wrong), self.pair.original.dtype, self.pair.stores_other_weights
        )
        unmoved = (f"{_these(still, names)} not move with its inputs",) if still else ()
        notes = (*self.pair.original.inputs.notes, *self.pair.changed.notes, *self.before.notes)
        found = judged(
            claim,
            pairs,
            structure=after.structure,
            weights=weights,
            basis=Basis.NETWORK if all(p.algebra is not None for p in pairs) else Basis.NOTHING,
            partial_sums=self.pair.measured.partial_sums,
            notes=(*notes, *unmoved, *after.notes, *rounded),
        )
        if found.outcome is not Outcome.OVER or after.structure:
            return found
        return replace(found, first_divergence=self._first_difference(found, wrong))

    def _second_runs(self) -> SecondRuns:
        """Run the second model, unless it is known to be another one already."""
        pair, before = self.pair, self.before
        differences = pair.second.differences_from(pair.original)
        if differences:
            return SecondRuns((), None, differences)
        stored = [batch.run(self._run_stored) for batch in before.batches]
        structure = [*_unlike(before.stored, stored, types=True)]
        exact: Results | None = None
        notes: tuple[str, ...] = ()
        if self._claim.kind is Kind.EXACT_ALGEBRA:
            exact, notes = self._exact_runs()
            structure += _unlike(before.exact, exact or before.exact, types=False)
        structure += (*self._disagreements(stored), *self._replaced.shapes())
        return SecondRuns(stored, exact, tuple(dict.fromkeys(structure)), notes)

    def _run_stored(self, inputs: Arrays) -> Run:
        watch = Watch(counts=self.pair.measured.promised is not None)
        return self._run_second(self.pair.second, inputs, watch)

    def _run_second(self, model: RunnableModel, inputs: Arrays, watch: Watch) -> Run:
        """A run of the second model, whose inputs and outputs may have names of their own."""
        if not self.pair.changed.by_position:
            return model.run(inputs, watch)
        own = model.inputs.specs
        if len(own) != len(inputs):
            words = f"the second model takes {len(own)} inputs, the first {len(inputs)}"
            raise TransformError(words)
        run = model.run(dict(zip(own, inputs.values(), strict=True)), watch)
        outputs = self.before.stored[0][0].outputs
        if len(run.outputs) != len(outputs):
            return run
        renamed = (replace(mine, name=theirs.name) for mine, theirs in zip(run.outputs, outputs, strict=True))
        return replace(run, outputs=tuple(renamed), structure="")

    def _exact_runs(self) -> tuple[Results | None, tuple[str, ...]]:
        """The second model in float64; None, and why, where it cannot run so."""
        try:
            runs = [batch.run(self._run_exact) for batch in self.before.batches]
        except TransformError as error:
            return None, (f"precision only: {error}",)
        return runs, ()

    def _run_exact(self, inputs: Arrays) -> Run:
        """A float64 run, in which every layer that was changed is held to what it was."""
        shared, kept = self.pair.shared, self.before.shared.take(inputs)
        given = {name: kept[name] for name in shared.given}
        watch = Watch(names=tuple(shared.layers), given=given, compare=self._replaced.compare)
        run = self._run_second(self.pair.exact_second, inputs, watch)
        for name, scope in shared.layers.items():
            for before, after in zip(_tensors(kept[name]), _tensors(run.values[name]), strict=False):
                if before.shape == after.shape:  # else one name for two things
                    self._remade.compare(scope, before, after)
        return replace(run, values={})

    def _disagreements(self, stored: Results) -> Iterator[str]:
        """What runs have multiplied otherwise than the graph says.

        A model may loop over its rows: where no run so far kept the promise, inputs of the very
        shapes that the graph was measured on decide.
        """
        promised = self.pair.measured.promised
        runs = [run.executed for batch in stored for run in batch if run.executed is not None]
        if promised is None or not runs or any(keeps(run, promised) for run in runs):
            return
        inputs = drawn(self.pair.original.inputs.specs, Row(FAMILIES[0], 0), SCALES[0])
        executed = self._run_stored(inputs).executed
        assert executed is not None, "a model that counted what it multiplies does so again"
        words = disagreement(executed, promised)
        if words:
            yield words

    def _wrong_layers(self, after: SecondRuns) -> Sequence[OutputPair]:
        """Changed layers that step 1 finds wrong, in the order of execution."""
        if self._claim.kind is not Kind.EXACT_ALGEBRA or after.structure:
            return ()
        return (*self._replaced.pairs(), *self._remade.pairs())

    def _pairs(self, after: SecondRuns) -> Iterator[OutputPair]:
        """Outputs of all runs, pooled by name and family; none where their structure differs."""
        if after.structure:
            return
        before, own = self.before, self.pair.original.dtype
        for index, output in enumerate(before.stored[0][0].outputs):
            dtype = least_precise((own, output.dtype)) or output.dtype
            for family in dict.fromkeys(row.family for row in before.batches[0].rows):
                pooled = partial(_pooled, before.batches, family, index)
                yield OutputPair(
                    output.name,
                    family,
                    dtype,
                    pooled(before.exact),
                    None if after.exact is None else pooled(after.exact),
                    pooled(before.stored),
                    pooled(after.stored),
                )

    def _first_difference(self, found: Equivalence, wrong: Sequence[OutputPair]) -> Divergence | None:
        """The layer where two models part: in float64, else by what they round.

        An operation that was compared in place, on the input of the one that stood there, decides.
        """
        over = [record for record in found.outputs if record.outcome is Outcome.OVER]
        if all(each.algebra is not None and each.algebra <= ALGEBRA for each in over):
            return self._searched(self.rounding)
        is_hidden = all(each.family == ALL_FAMILIES for each in over)
        in_place = is_hidden or self._replaced.pairs()
        seen = None if in_place else self._searched(self.divergence)
        return seen or next(map(divergence_of, wrong), None)

    def _searched(self, search: Search) -> Divergence | None:
        """What a search finds on the first inputs that show something."""
        try:
            calls = (inputs for batch in self.before.batches for inputs in batch.calls())
            return next(filter(None, map(search, calls)), None)
        except TransformError:  # a side that runs as a whole and not layer by layer
            return None

    def divergence(self, inputs: Arrays) -> Divergence | None:
        """The first layer that differs in float64."""
        before = _layers(self.pair.exact.run, inputs)
        second = partial(self._run_second, self.pair.exact_second)
        return first_divergence(before, _layers(second, inputs, [each.name for each in before]))

    def rounding(self, inputs: Arrays) -> Divergence | None:
        """The first layer that rounds more than step 2 allows."""
        exact, stored = (_layers(m.run, inputs) for m in (self.pair.exact, self.pair.original))
        second = partial(self._run_second, self.pair.second)
        after = _layers(second, inputs, [each.name for each in stored])
        sums = self.pair.measured.partial_sums
        return first_rounding(exact, stored, after, self.pair.original.dtype, sums)


def _layers(
    run: Callable[[Arrays, Watch], Run], inputs: Arrays, names: Collection[str] = ()
) -> tuple[LayerOutput, ...]:
    return run(inputs, Watch(layers=names)).layers


def _tensors(value: Any) -> Iterator[Any]:
    """A tensor, or those of a sequence."""
    if isinstance(value, list):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "dtype"):
        yield value


@dataclass(frozen=True, slots=True)
class SecondRuns:
    """What the second model gave: as it is stored, and in float64 where it could run so.

    structure names every difference between the outputs' names, types, shapes and order.
    """

    stored: Results
    exact: Results | None
    structure: tuple[str, ...]
    notes: tuple[str, ...] = ()


def without_rounded_weights(
    pairs: tuple[OutputPair, ...], dtype: str, other_weights: Callable[[], bool]
) -> tuple[tuple[OutputPair, ...], tuple[str, ...]]:
    """The pairs for step 2 alone, and a note, where rounded weights explain what step 1 sees.

    Two models that were made on different ways hold weights rounded on different ways: then float64
    runs differ by as much as the type rounds, and no more.
    """
    errors = [algebra_error(pair) for pair in pairs]
    allowed = MOST_ROUNDINGS * ROUNDING.get(dtype, (0.0, 0.0))[0]
    if all(error <= ALGEBRA for error in errors) or max(errors) > allowed or not other_weights():
        return pairs, ()
    note = "precision only: the second model stores other weights than the first"
    alone = tuple(replace(pair, algebra=None) for pair in pairs if pair.original is not None)
    return alone, (note,)


def differences(before: Run, after: Run, *, types: bool = True) -> Iterator[str]:
    """How the outputs of two runs differ in containers, number, names, order, shapes and types."""
    if before.structure and after.structure and before.structure != after.structure:
        yield f"{after.structure} in place of {before.structure}"
        return
    was, now = ([output.name for output in each.outputs] for each in (before, after))
    if was != now:
        yield f"{', '.join(now) or 'nothing'} in place of {', '.join(was) or 'nothing'}"
        return
    for x, y in zip(before.outputs, after.outputs, strict=True):
        if types and x.dtype != y.dtype:
            yield f"output '{x.name}' is {y.dtype} and was {x.dtype}"
        if x.values.shape != y.values.shape:
            yield f"output '{x.name}' is {list(y.values.shape)} and was {list(x.values.shape)}"


def _unlike(before: Results, after: Results, *, types: bool) -> Iterator[str]:
    for was, now in zip(before, after, strict=True):
        for x, y in zip(was, now, strict=True):
            yield from differences(x, y, types=types)


def _these(names: frozenset[str], every: frozenset[str]) -> str:
    """Outputs of the original as the beginning of a sentence."""
    if names == every:
        return "the original's outputs do"
    told = ", ".join(f"'{name}'" for name in sorted(names))
    return f"the original's output {told} does" if len(names) == 1 else (
        f"the original's outputs {told} do")  # fmt: skip


def _pooled(batches: Sequence[Batch], family: str, index: int, results: Results) -> Values:
    """One output over all runs of a family, rows first."""
    return joined([
        found.outputs[index].values
        for batch, each in zip(batches, results, strict=True)
        for row, found in zip(batch.rows, each, strict=True)
        if row.family == family
    ])  # fmt: skip
