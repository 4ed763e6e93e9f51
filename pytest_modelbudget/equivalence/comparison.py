"""Whether two models compute the same: which weights can prove it, the runs, and the judgement.

The one driver. It knows no framework: a model is whatever runs on named arrays, and a change is
whatever makes a second model of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence import judgement
from pytest_modelbudget.equivalence.changed import Remake
from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
from pytest_modelbudget.equivalence.figures import ALGEBRA, Divergence, relative_error
from pytest_modelbudget.equivalence.inputs import FAMILIES, SCALES, Batch, Row, drawn, families_of, joined, runs_of
from pytest_modelbudget.equivalence.layers import (
    UNSEEN,
    LayersApart,
    WrongLayers,
    compared_layers,
    divergence_of,
    first_divergence,
    first_rounding,
    is_beyond_rounding,
    largest_loss,
    layer_error,
)
from pytest_modelbudget.equivalence.runs import OriginalRuns, Pair, Results, original_runs
from pytest_modelbudget.equivalence.unexecuted import untaken
from pytest_modelbudget.equivalence.unread_weights import unread
from pytest_modelbudget.errors import ModelBudgetError, SourceError, TransformError
from pytest_modelbudget.formats import model as models

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Arrays, Values


def compare(original: models.Model, remake: Remake, claim: Claim) -> judgement.Equivalence:
    """Hold what a change makes of a model to a claim, on weights that can prove something.

    remake makes the change to the model as it is loaded, and to redrawn and float64 copies of it.
    What cannot be run is unknown. Raises SourceError where the original cannot be loaded, and
    TransformError for models that do not run at all, or lack weights that must be their own.
    """
    first = models.must_run(original)
    changed = remake(first)
    second = models.must_run(changed.model)
    missing = "" if changed.follows else first.missing or second.missing
    if missing:
        raise TransformError(missing)

    def judge(claim: Claim, first: models.RunnableModel = first) -> judgement.Equivalence:
        return Verification(claim, Pair(first, changed, remake)).result()

    try:
        verify = changed.held_to or (changed.floor and changed.floor.verify)
        return verify(claim, judge) if verify else judge(claim)
    finally:
        first.release()
        second.release()


NOT_COMPILED = "compiled code was not run"  # and so was run as it is written
COMPILED_FIRST = f"{NOT_COMPILED}: it is the first model's: compare the model before it is compiled, as the first"


class Verification:
    """Finds the weights that can prove something, and judges on those."""

    def __init__(self, claim: Claim, pair: Pair) -> None:
        self._claim = claim
        self._pair = pair
        self._may_draw = pair.changed.follows and pair.original.can_be_redrawn

    def result(self) -> judgement.Equivalence:
        """The judgement; what cannot be run is unknown."""
        try:
            return self._judged()
        except SourceError:
            raise  # the original itself cannot be loaded
        except ModelBudgetError as error:
            weights, seeds = self._pair.original.weights, self._claim.seeds
            kind = self._claim.kind
            return judgement.Equivalence(Outcome.UNKNOWN, kind, str(error), weights, seeds=seeds)

    def _judged(self) -> judgement.Equivalence:
        """On weights as they are, or on drawn ones where those make more outputs move."""
        inputs = self._pair.original.inputs
        if self._pair.changed.by_position and inputs.no_arrays:
            raise TransformError(f"{inputs.no_arrays[0]}: ONNX Runtime takes no such input")
        if self._may_draw and self._pair.original.draws_its_weights():
            self._pair = self._pair.redrawn()
        try:
            comparison = again = self._comparison()
            still = comparison.before.still()
            is_drawn = self._pair.original.weights == models.DRAWN
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
        return Comparison(self._claim, self._pair, original_runs(self._claim, self._pair))

    def _by_layers(self, error: TransformError) -> judgement.Equivalence:
        """The judgement on the changed layers alone, where the network does not run."""
        if self._claim.kind is not Kind.EXACT_ALGEBRA or self._pair.shared.pairs is models.no_layers:
            raise error
        layers = self._layer_runs()
        is_drawn = self._pair.original.weights == models.DRAWN
        if self._may_draw and not is_drawn and not all(layer.moves for layer in layers):
            self._pair = self._pair.redrawn()
            layers = self._layer_runs()
        result = judgement.judged(
            self._claim,
            (pair for layer in layers for pair in layer.pairs),
            structure=self._pair.second.differences_from(self._pair.original),
            weights=self._pair.original.weights,
            basis=judgement.Basis.LAYERS,
            notes=(f"layers only: {error}",),
        )
        still = next((layer.scope for layer in layers if not layer.moves), None)
        if still is not None and result.outcome is Outcome.WITHIN:
            words = f"layer '{still}' does not move with its inputs: nothing could be seen"
            return replace(result, outcome=Outcome.UNKNOWN, reason=words)
        wrong = next((each for each in result.outputs if each.outcome is Outcome.OVER), None)
        if wrong is None or wrong.algebra is None:
            return result
        divergence = Divergence(wrong.name, wrong.algebra, wrong.worst)
        return replace(result, first_divergence=divergence)

    def _layer_runs(self) -> list[LayerRuns]:
        dtype = self._pair.dtype
        return [layer_runs(pair, self._claim, dtype) for pair in self._pair.shared.pairs()]


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """One changed layer's runs in both models, a pair for each family of inputs.

    moves says that the original gives something else on other inputs, or is fed nothing at all.
    """

    scope: str
    moves: bool
    pairs: tuple[judgement.OutputPair, ...]


def layer_runs(layer: models.LayerPair, claim: Claim, dtype: str) -> LayerRuns:
    """Float64 outputs of one layer alone, on inputs drawn in its true shapes."""
    specs = {**layer.original.inputs.specs, **layer.changed.inputs.specs}
    families = families_of(list(specs.values()), claim.run_families) or FAMILIES
    rows = [Row(*each) for each in runs_of(families, claim.seeds, specs)]
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
        pairs.append(judgement.OutputPair(layer.scope, family, dtype, was, now, None, None))
    return LayerRuns(layer.scope, moves, tuple(pairs))


def _only(run: models.Run, scope: str) -> Values:
    """The one value that a layer gives. Raises TransformError where that is no tensor, or code is compiled."""
    if run.is_compiled:
        raise TransformError(f"layer '{scope}': {NOT_COMPILED}: compare the models before they are compiled")
    if len(run.outputs) != 1:
        raise TransformError(f"layer '{scope}' gives a sequence, which is not compared alone")
    return run.outputs[0].values


MOST_ROUNDINGS = 64  # of a weight, through all layers of a network


class Comparison:
    """Both models on all inputs of a claim, after the first has been run."""

    def __init__(self, claim: Claim, pair: Pair, before: OriginalRuns) -> None:
        self.pair = pair
        self.before = before
        self._claim = claim
        self._coverage = models.Coverage()  # of the second model
        self._replaced, self._remade = (WrongLayers(pair.dtype) for _ in range(2))

    def equivalence(self, *, constant: frozenset[str] = frozenset()) -> judgement.Equivalence:
        """Run the second model, and judge.

        constant are outputs that no weights would make move, so that their values say it all.
        Where another one is zero throughout, it may be for the weights that it has.
        """
        claim, weights = self._claim, self.pair.original.weights
        still, names = self.before.still(), self.before.names
        unseen = still if still == names else (still & self.before.zero()) - constant
        if still == names or (claim.kind is Kind.EXACT_ALGEBRA and unseen):
            words = f"{_these(unseen, names)} not move with its inputs: nothing could be seen"
            return judgement.Equivalence(Outcome.UNKNOWN, claim.kind, words, weights, seeds=claim.seeds)
        after = self.second_runs()
        is_apart = claim.kind is not Kind.EXACT_ALGEBRA or after.structure
        wrong = () if is_apart else (*self._replaced.pairs(), *self._remade.pairs())  # by step 1, in order
        unmoved = (f"{_these(still, names)} not move with its inputs",) if still else ()
        notes = (*self.pair.original.inputs.notes, *self.pair.changed.notes, *self.before.notes)
        result = self._judged(after, (*notes, *unmoved, *after.notes), wrong)
        if after.structure:
            return result
        if result.outcome is Outcome.OVER or claim.kind is not Kind.EXACT_ALGEBRA:
            result = self._with_layers(result, wrong)
        if result.outcome is Outcome.WITHIN:
            result = self._with_compiled(result, after)
        result = self._with_unread(result) if result.outcome is Outcome.WITHIN else result
        return self._with_untaken(result) if result.outcome is Outcome.WITHIN else result

    def _judged(
        self, after: SecondRuns, notes: tuple[str, ...], wrong: Sequence[judgement.OutputPair] = ()
    ) -> judgement.Equivalence:
        """The judgement on the outputs of these runs, and on layers that are known to be wrong."""
        pairs, rounded = without_rounded_weights(
            (*self.pairs(after), *wrong), self.pair.dtype, self.pair.stores_other_weights
        )
        return judgement.judged(
            self._claim,
            pairs,
            structure=after.structure,
            weights=self.pair.original.weights,
            basis=judgement.Basis.NETWORK if all(p.algebra is not None for p in pairs) else judgement.Basis.NOTHING,
            partial_sums=self.pair.measured.partial_sums,
            notes=(*notes, *rounded),
        )

    def _with_compiled(self, result: judgement.Equivalence, after: SecondRuns) -> judgement.Equivalence:
        """A judgement that holds of eager runs; where the second model has compiled code, that on compiled runs.

        Unknown where that code does not run, and where the first model has some, which may be off itself.
        """
        sides = (self.before.stored, after.stored)
        is_compiled = [any(run.is_compiled for batch in runs for run in batch) for runs in sides]
        if is_compiled[0]:
            return replace(result, outcome=Outcome.UNKNOWN, reason=COMPILED_FIRST)
        if not is_compiled[1]:
            return result
        run = partial(self._run_second, self.pair.second, watch=models.Watch(compiles=True))
        try:
            runs = [batch.run(run) for batch in self.before.batches]
        except TransformError as error:
            return replace(result, outcome=Outcome.UNKNOWN, reason=f"{NOT_COMPILED}: {error}")
        structure = tuple(dict.fromkeys(_unlike(self.before.stored, runs, types=True)))
        judged = self._judged(replace(after, stored=runs, structure=structure), result.notes)
        return replace(judged, reason=f"as compiled, {judged.reason}") if judged.reason else judged

    def _with_untaken(self, result: judgement.Equivalence) -> judgement.Equivalence:
        """A judgement that holds, and what is known of the branches that values have not chosen."""
        first, second = self.pair.original.branches(self.before.coverage), self.pair.second.branches(self._coverage)
        reason, notes = untaken(first, second)
        result = replace(result, notes=(*result.notes, *notes))
        return replace(result, outcome=Outcome.UNKNOWN, reason=reason) if reason else result

    def _with_unread(self, result: judgement.Equivalence) -> judgement.Equivalence:
        """A judgement that holds, and what is known of the stored tensors that no run has read whole."""
        mine, theirs = self.before.coverage, self._coverage
        tables = self.pair.original.tables(), self.pair.second.tables()
        is_exact = self._claim.kind is Kind.EXACT_ALGEBRA
        return unread(mine, theirs, *tables, is_exact=is_exact).added_to(result)

    def second_runs(self) -> SecondRuns:
        """Run the second model, unless it is known to be another one already."""
        pair, before = self.pair, self.before
        differences = pair.second.differences_from(pair.original)
        if differences:
            return SecondRuns((), None, differences)
        exact: Results | None = None
        notes: tuple[str, ...] = ()
        with ThreadPoolExecutor(1) as pool:
            is_exact = self._claim.kind is Kind.EXACT_ALGEBRA
            begun = pool.submit(self._exact_runs) if is_exact and pair.second.runs_apart else None
            stored = [batch.run(self._run_stored) for batch in before.batches]
            if is_exact:
                exact, notes = begun.result() if begun else self._exact_runs()
        structure = [*_unlike(before.stored, stored, types=True)]
        structure += _unlike(before.exact, exact or before.exact, types=False)
        structure += self._replaced.shapes()
        return SecondRuns(stored, exact, tuple(dict.fromkeys(structure)), notes)

    def _run_stored(self, inputs: Arrays) -> models.Run:
        """A run in the model's own type."""
        watch = models.Watch(given=self.before.shared_stored.take(inputs), coverage=self._coverage)
        return self._run_second(self.pair.second, inputs, watch)

    def _run_second(self, model: models.RunnableModel, inputs: Arrays, watch: models.Watch) -> models.Run:
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

    def _run_exact(self, inputs: Arrays) -> models.Run:
        """A float64 run that compares every changed layer with the original one."""
        shared, kept = self.pair.shared, self.before.shared.take(inputs)
        given = {name: kept[name] for name in shared.given}
        watch = models.Watch(names=tuple(shared.layers), given=given, compare=self._replaced.compare)
        run = self._run_second(self.pair.exact_second, inputs, watch)
        for name, scope in shared.layers.items():
            for before, after in zip(_tensors(kept[name]), _tensors(run.values[name]), strict=False):
                if before.shape == after.shape:  # else one name for two things
                    self._remade.compare(scope, before, after)
        return replace(run, values={})

    def pairs(self, after: SecondRuns) -> Iterator[judgement.OutputPair]:
        """Outputs of all runs, pooled by name and family; none where their structure differs."""
        if after.structure:
            return
        before = self.before
        for index, output in enumerate(before.stored[0][0].outputs):
            dtype = self.pair.rounded_in(output.dtype)
            for family in dict.fromkeys(row.family for row in before.batches[0].rows):
                pooled = partial(_pooled, before.batches, family, index)
                yield judgement.OutputPair(
                    output.name,
                    family,
                    dtype,
                    pooled(before.exact),
                    None if after.exact is None else pooled(after.exact),
                    pooled(before.stored),
                    pooled(after.stored),
                )

    def _with_layers(
        self, result: judgement.Equivalence, wrong: Sequence[judgement.OutputPair]
    ) -> judgement.Equivalence:
        """The result with the layer where two models part, and the error of each layer.

        An operation that was compared in place, on the input of the one that stood there, decides.
        """
        over = [record for record in result.outputs if record.outcome is Outcome.OVER]
        in_place = self._replaced.pairs() or all(each.family == judgement.ALL_FAMILIES for each in over)
        if over and in_place and self._search(result) != self.rounding:
            errors = tuple(
                layer_error(each.name, each.reference, each.algebra) for each in wrong if each.algebra is not None
            )
            return replace(result, first_divergence=next(map(divergence_of, wrong), None), layers=errors)
        why = "every layer that both have is right"
        try:
            divergence, layers = self._searched(self._search(result), {record.family for record in over})
        except TransformError as error:  # a side that runs as a whole and not layer by layer
            divergence, layers, why = None, (), str(error)
        else:
            why = why if layers else "no layer of it can be looked into"
        if not over:
            return replace(result, layers=layers)
        divergence = divergence or next(map(divergence_of, wrong), None)
        notes = result.notes if divergence else (*result.notes, f"which layer is wrong is not known: {why}")
        return replace(result, first_divergence=divergence, layers=layers, notes=notes)

    def _search(self, result: judgement.Equivalence) -> Search:
        """How the layers are compared: as losing something, by what they round, or by their algebra."""
        if self._claim.kind is not Kind.EXACT_ALGEBRA:
            return self.loss
        over = (record for record in result.outputs if record.outcome is Outcome.OVER)
        if all(each.algebra is not None and each.algebra <= ALGEBRA for each in over):
            return self.rounding
        return self.divergence

    def _searched(self, search: Search, over: Collection[str]) -> LayersApart:
        """What a search finds without reservation, else what it finds first; families that are over come first."""
        first = LayersApart()
        for inputs in islice(self._calls(over), MOST_SEARCHED):
            apart = search(inputs)
            if (
                not apart.errors
                or not over
                or (apart.wrong and apart.wrong.reservation.partition(":")[0] in ("", UNSEEN))
            ):
                return apart
            first = first if first.wrong else apart
        return first

    def _calls(self, over: Collection[str]) -> Iterator[Arrays]:
        """Inputs of every batch, a row of each family before a second one, then all rows as one."""
        for batch in self.before.batches:
            seeds = list(dict.fromkeys(row.seed for row in batch.drawn_rows))
            calls = zip(batch.drawn_rows, batch.alone, strict=True)
            for _, inputs in sorted(calls, key=lambda call: (call[0].family not in over, seeds.index(call[0].seed))):
                yield inputs
        yield from (batch.stacked for batch in self.before.batches if batch.stacked is not None)

    def divergence(self, inputs: Arrays) -> LayersApart:
        """The first layer that is wrong in float64, by more than other roundings of its weights explain.

        Where float64 does not run, by more than those of its own type.
        """
        roundoff = judgement.ROUNDING.get(self.pair.dtype, (0.0, 0.0))[0]
        rounded = MOST_ROUNDINGS * roundoff
        try:
            before, after = self._both(self.pair.exact, self.pair.exact_second, inputs)
        except TransformError:
            before, after = self._both(self.pair.original, self.pair.second, inputs)
            return first_divergence(before, after, rounded)
        exactly = first_divergence(before, after)
        if not self.pair.changed.made_apart:
            return exactly
        anew = first_divergence(before, after, rounded)
        if is_beyond_rounding(anew, rounded) or not exactly.wrong:
            return anew
        return LayersApart(replace(exactly.wrong, reservation=AS_ROUNDED), exactly.errors)

    def rounding(self, inputs: Arrays) -> LayersApart:
        """The first layer that rounds more than step 2 allows."""
        exact = _layers(self.pair.exact.run, inputs)
        stored, after = self._both(self.pair.original, self.pair.second, inputs)
        sums = self.pair.measured.partial_sums
        return LayersApart(first_rounding(exact, stored, after, self.pair.dtype, sums), compared_layers(exact, after))

    def loss(self, inputs: Arrays) -> LayersApart:
        """The layer that loses most, in the models' own types."""
        return largest_loss(*self._both(self.pair.original, self.pair.second, inputs))

    def _both(
        self, first: models.RunnableModel, second: models.RunnableModel, inputs: Arrays
    ) -> tuple[tuple[models.LayerOutput, ...], tuple[models.LayerOutput, ...]]:
        """The layers of two models on the same inputs."""
        before = _layers(first.run, inputs)
        return before, _layers(partial(self._run_second, second), inputs, [each.name for each in before])


AS_ROUNDED = "rounding its weights again may be off by as much"
MOST_SEARCHED = 16  # sets of inputs on which layers are looked at
Search = Callable[["Arrays"], LayersApart]  # on one set of inputs


def _layers(
    run: Callable[[Arrays, models.Watch], models.Run], inputs: Arrays, names: Collection[str] = ()
) -> tuple[models.LayerOutput, ...]:
    return run(inputs, models.Watch(layers=names)).layers


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
    pairs: tuple[judgement.OutputPair, ...], dtype: str, other_weights: Callable[[], bool]
) -> tuple[tuple[judgement.OutputPair, ...], tuple[str, ...]]:
    """The pairs for step 2 alone, and a note, where rounded weights explain what step 1 sees.

    Two models that were made on different ways hold weights rounded on different ways: then float64
    runs differ by as much as the type rounds, and no more.
    """
    errors = [judgement.algebra_error(pair) for pair in pairs]
    allowed = MOST_ROUNDINGS * judgement.ROUNDING.get(dtype, (0.0, 0.0))[0]
    if all(error <= ALGEBRA for error in errors) or max(errors) > allowed or not other_weights():
        return pairs, ()
    note = "precision only: the second model stores other weights than the first"
    alone = tuple(replace(pair, algebra=None) for pair in pairs if pair.original is not None)
    return alone, (note,)


def differences(before: models.Run, after: models.Run, *, types: bool = True) -> Iterator[str]:
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
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    return f"the original's output {listed} does" if len(names) == 1 else f"the original's outputs {listed} do"


def _pooled(batches: Sequence[Batch], family: str, index: int, results: Results) -> Values:
    """One output over all runs of a family, rows first."""
    return joined([
        run.outputs[index].values
        for batch, each in zip(batches, results, strict=True)
        for row, run in zip(batch.rows, each, strict=True)
        if row.family == family
    ])  # fmt: skip
