"""Two models run on the same inputs, in both steps, and what they gave handed to the judge.

Nothing here knows a framework: a model is whatever runs on named arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
from pytest_modelbudget.equivalence.divergence import Divergence, worst_element
from pytest_modelbudget.equivalence.figures import ALGEBRA, odd_kinds, reals, relative_error
from pytest_modelbudget.equivalence.inputs import (
    SCALES,
    Batch,
    Returned,
    Row,
    Runs,
    Specs,
    UnstackableError,
    batch_of,
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
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.graph.tensor import least_precise

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
            row[0].name for row in rows if row[0].values.ndim and not any(each.values.any() for each in row)
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
        drawn = [batch_of(each, rows, scale, stacks=stacks) for each in resized(specs, claim.batches)]
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
            pairs = zip((found[each] for each in batch.firsts), found[len(batch.alone) :], strict=True)
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


DRAWN, LOADED = "drawn, seed 0", "as loaded"  # what a report says of the weights of a run
MOST_ROUNDINGS = 64  # of a weight, through all layers of a network
Search = Callable[[Mapping[str, "Values"]], Divergence | None]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both models, and what is known of them.

    dtype is the least precise floating type that the original stores. divergence looks
    for the first layer that differs in float64 on some inputs, rounding for the first one that
    rounds more than step 2 allows. differences name what already
    distinguishes the two without a run, and disagreements what runs of the second have executed
    otherwise than its graph says. other_weights tells whether the second stores other values
    than the first, which may have been rounded on another way. wrong_layers are rewritten layers
    that the float64 runs found to differ: an activation behind one may hide it from all outputs.
    """

    original: Runs
    transformed: Runs
    dtype: str
    divergence: Search
    rounding: Search
    partial_sums: Callable[[], int] = lambda: 1
    differences: tuple[str, ...] = ()
    disagreements: Callable[[], Iterable[str]] = tuple
    other_weights: Callable[[], bool] = lambda: False
    wrong_layers: Callable[[], Sequence[OutputPair]] = tuple
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both models on all inputs of a claim, after the first has been run."""

    claim: Claim
    sides: Sides
    before: OriginalRuns

    def equivalence(self, weights: str, *, constant: frozenset[str] = frozenset()) -> Equivalence:
        """Run the second model, and judge.

        constant are outputs that no weights would make move, so that their values say it all.
        Where another one is zero throughout, it may be for the weights that it has.
        """
        still, names = self.before.still(), self.before.names
        unseen = still if still == names else (still & self.before.zero()) - constant
        if still == names or (self.claim.kind is Kind.EXACT_ALGEBRA and unseen):
            words = f"{_these(unseen, names)} not move with its inputs: nothing could be seen"
            return Equivalence(Outcome.UNKNOWN, self.claim.kind, words, weights, seeds=self.claim.seeds)
        after = self._second_runs()
        wrong = self._wrong_layers(after)
        sides = self.sides
        pairs, noted = without_rounded_weights((*self._pairs(after), *wrong), sides.dtype, sides.other_weights)
        told = (f"{_these(still, names)} not move with its inputs",) if still else ()
        found = judged(
            self.claim,
            pairs,
            structure=after.structure,
            weights=weights,
            basis=Basis.NETWORK if all(p.algebra is not None for p in pairs) else Basis.NOTHING,
            partial_sums=sides.partial_sums(),
            notes=(*sides.notes, *self.before.notes, *told, *after.notes, *noted),
        )
        if found.outcome is not Outcome.OVER or after.structure:
            return found
        return replace(found, first_divergence=self._first_difference(found, wrong))

    def _second_runs(self) -> SecondRuns:
        """Run the second model, unless it is known to be another one already."""
        sides, before = self.sides, self.before
        if sides.differences:
            return SecondRuns((), None, sides.differences)
        stored = [each.run(sides.transformed, float64=False) for each in before.batches]
        structure = [*_unlike(before.stored, stored, types=True)]
        exact: Results | None = None
        notes: tuple[str, ...] = ()
        if self.claim.kind is Kind.EXACT_ALGEBRA:
            exact, notes = self._exact_runs()
            structure += _unlike(before.exact, exact or before.exact, types=False)
        structure += sides.disagreements()
        return SecondRuns(stored, exact, tuple(dict.fromkeys(structure)), notes)

    def _exact_runs(self) -> tuple[Results | None, tuple[str, ...]]:
        """The second model in float64; None, and why, where it cannot run so."""
        try:
            runs = [each.run(self.sides.transformed, float64=True) for each in self.before.batches]
        except TransformError as error:
            return None, (f"precision only: {error}",)
        return runs, ()

    def _wrong_layers(self, after: SecondRuns) -> Sequence[OutputPair]:
        """Rewritten layers that step 1 finds wrong, in the order of execution."""
        if self.claim.kind is not Kind.EXACT_ALGEBRA or after.structure:
            return ()
        return self.sides.wrong_layers()

    def _pairs(self, after: SecondRuns) -> Iterator[OutputPair]:
        """Outputs of all runs, pooled by name and family; none where their structure differs."""
        if after.structure:
            return
        before = self.before
        for index, output in enumerate(before.stored[0][0].outputs):
            dtype = least_precise((self.sides.dtype, output.dtype)) or output.dtype
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
        """The layer where two models part: in float64, else by what they round."""
        over = [record for record in found.outputs if record.outcome is Outcome.OVER]
        if all(each.algebra is not None and each.algebra <= ALGEBRA for each in over):
            return self._searched(self.sides.rounding)
        is_hidden = all(each.family == ALL_FAMILIES for each in over)
        seen = None if is_hidden else self._searched(self.sides.divergence)
        return seen or next(map(divergence_of, wrong), None)

    def _searched(self, search: Search) -> Divergence | None:
        """What a search finds on the first inputs that show something."""
        try:
            found = (search(inputs) for batch in self.before.batches for inputs in batch.calls())
            return next(filter(None, found), None)
        except TransformError:  # a side that runs as a whole and not layer by layer
            return None


@dataclass(frozen=True, slots=True)
class SecondRuns:
    """What the second model gave: as it is stored, and in float64 where it could run so.

    structure names every difference between the outputs' names, types, shapes and order.
    """

    stored: Results
    exact: Results | None
    structure: tuple[str, ...]
    notes: tuple[str, ...] = ()


def comparison(claim: Claim, sides: Sides, specs: Specs, *, stacks: bool) -> Comparison:
    """Run the first of two models, as ``original_runs`` does."""
    return Comparison(claim, sides, original_runs(claim, sides.original, specs, stacks=stacks))


def telling(loaded: Comparison, drawn: Callable[[], Comparison]) -> Equivalence:
    """The judgement on weights as they are, or on drawn ones where those make more outputs move."""
    still = loaded.before.still()
    if not still:
        return loaded.equivalence(LOADED)
    redrawn = drawn()
    if redrawn.before.still() >= still:
        return loaded.equivalence(LOADED, constant=still)
    return redrawn.equivalence(DRAWN, constant=redrawn.before.still())


def divergence_of(pair: OutputPair) -> Divergence:
    """A layer that step 1 finds wrong, as the place where two models part."""
    assert pair.algebra is not None, "a layer is judged by its float64 runs"
    worst = worst_element(pair.reference, pair.algebra)
    return Divergence(pair.name, algebra_error(pair), worst)


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


def differences(before: Returned, after: Returned, *, types: bool = True) -> Iterator[str]:
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
