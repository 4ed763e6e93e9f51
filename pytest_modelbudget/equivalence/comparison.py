"""Two models run on the same inputs, in both steps, and what they gave handed to the judge.

Nothing here knows a framework: a model is whatever runs on named arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.equivalence.array_errors import ALGEBRA
from pytest_modelbudget.equivalence.batches import (
    Batch,
    Returned,
    Row,
    Runs,
    Specs,
    joined,
    resized,
)
from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.divergence import Divergence, worst_element
from pytest_modelbudget.equivalence.input_families import SCALES, families_of, runs_of, scale_note
from pytest_modelbudget.equivalence.judgement import (
    ALL_FAMILIES,
    ROUNDING,
    Basis,
    Equivalence,
    OutputPair,
    algebra_error,
    judged,
)
from pytest_modelbudget.equivalence.outcome import Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.ir.tensor import least_precise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

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


class Comparison:
    """Both models on all inputs of a claim; the original runs at once.

    specs are the inputs' types and shapes. stacks says that the first axis of all of them is one
    that the model takes in any size.
    """

    def __init__(self, claim: Claim, sides: Sides, specs: Specs, *, stacks: bool) -> None:
        self.claim = claim
        self.sides = sides
        families = families_of(list(specs.values()))
        self.rows = [Row(*each) for each in runs_of(families, claim.seeds)]
        self.structure = list(sides.differences)
        for scale in SCALES:
            self.batches = [
                Batch(each, self.rows, scale, stacks=stacks)
                for each in resized(specs, claim.batches)
            ]
            self.exact = [each.run(sides.original, float64=True) for each in self.batches]
            self.stored = [each.run(sides.original, float64=False) for each in self.batches]
            if not _overflows(self.exact, self.stored):
                break
        self.notes = [*sides.notes, *scale_note(scale)]

    def still(self) -> frozenset[str]:
        """Outputs of the original that no input moves; of integers only if nothing else moves."""
        moving = {name for results in self.exact for name in _moving(results)}
        outputs = self.exact[0][0].outputs
        if moving:
            outputs = tuple(each for each in outputs if each.values.dtype.kind not in "biuO")
        return frozenset(each.name for each in outputs if each.name not in moving)

    def _zero(self) -> frozenset[str]:
        """Arrays that the original returns with no element, or none other than zero."""
        results = [found for batch in self.exact for found in batch]
        rows = zip(*(found.outputs for found in results), strict=False)
        return frozenset(
            row[0].name
            for row in rows
            if row[0].values.ndim and not any(each.values.any() for each in row)
        )

    def equivalence(self, weights: str, *, constant: frozenset[str] = frozenset()) -> Equivalence:
        """The judgement over everything that was run.

        constant are outputs that no weights would make move, so that their values say it all.
        Where another one is zero throughout, it may be for the weights that it has.
        """
        still, zero = self.still(), self._zero()
        names = {each.name for each in self.exact[0][0].outputs}
        unseen = still if still == names else (still & zero) - constant
        if still == names or (self.claim.kind is Kind.EXACT_ALGEBRA and unseen):
            words = f"{_these(unseen, names)} not move with its inputs: nothing could be seen"
            return Equivalence(
                Outcome.UNKNOWN, self.claim.kind, words, weights, seeds=self.claim.seeds
            )
        if still:
            self.notes.append(f"{_these(still, names)} not move with its inputs")
        pairs, noted = without_rounded_weights(
            (*self._pairs(), *self._wrong_layers()), self.sides.dtype, self.sides.other_weights
        )
        self.notes.extend(noted)
        basis = Basis.NETWORK if all(p.algebra is not None for p in pairs) else Basis.NOTHING
        found = judged(
            self.claim,
            pairs,
            structure=tuple(dict.fromkeys(self.structure)),
            weights=weights,
            basis=basis,
            partial_sums=self.sides.partial_sums(),
            notes=tuple(self.notes),
        )
        if found.outcome is not Outcome.OVER or self.structure:
            return found
        return replace(found, first_divergence=self._first_difference(found))

    def _first_difference(self, found: Equivalence) -> Divergence | None:
        """The layer where two models part: in float64, else by what they round."""
        over = [record for record in found.outputs if record.outcome is Outcome.OVER]
        if all(each.algebra is not None and each.algebra <= ALGEBRA for each in over):
            return self._searched(self.sides.rounding)
        is_hidden = all(each.family == ALL_FAMILIES for each in over)
        seen = None if is_hidden else self._searched(self.sides.divergence)
        return seen or next(map(divergence_of, self._wrong_layers()), None)

    def _wrong_layers(self) -> Sequence[OutputPair]:
        """Rewritten layers that step 1 finds wrong, in the order of execution."""
        if self.claim.kind is not Kind.EXACT_ALGEBRA or self.structure:
            return ()
        return self.sides.wrong_layers()

    def _pairs(self) -> Iterator[OutputPair]:
        """Outputs of all runs, pooled by name and family; none where their structure differs."""
        if self.structure:
            return
        transformed = [each.run(self.sides.transformed, float64=False) for each in self.batches]
        self._hold_structure(self.stored, transformed, types=True)
        algebra = self._algebra() if self.claim.kind is Kind.EXACT_ALGEBRA else None
        self.structure.extend(self.sides.disagreements())
        if self.structure:
            return
        for index, output in enumerate(self.stored[0][0].outputs):
            dtype = least_precise((self.sides.dtype, output.dtype)) or output.dtype
            for family in dict.fromkeys(row.family for row in self.rows):
                chosen = [i for i, row in enumerate(self.rows) if row.family == family]
                yield OutputPair(
                    output.name,
                    family,
                    dtype,
                    _pooled(self.exact, chosen, index),
                    None if algebra is None else _pooled(algebra, chosen, index),
                    _pooled(self.stored, chosen, index),
                    _pooled(transformed, chosen, index),
                )

    def _algebra(self) -> list[list[Returned]] | None:
        """The transformed model in float64; None where it cannot run so."""
        try:
            found = [each.run(self.sides.transformed, float64=True) for each in self.batches]
        except TransformError as error:
            self.notes.append(f"precision only: {error}")
            return None
        self._hold_structure(self.exact, found, types=False)
        return found

    def _hold_structure(
        self, before: list[list[Returned]], after: list[list[Returned]], *, types: bool
    ) -> None:
        for was, now in zip(before, after, strict=True):
            for x, y in zip(was, now, strict=True):
                self.structure.extend(differences(x, y, types=types))

    def _searched(self, search: Search) -> Divergence | None:
        """What a search finds on the first inputs that show something."""
        try:
            found = (search(inputs) for batch in self.batches for inputs in batch.calls())
            return next(filter(None, found), None)
        except TransformError:  # a side that runs as a whole and not layer by layer
            return None


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


def _overflows(exact: list[list[Returned]], stored: list[list[Returned]]) -> bool:
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


def telling(loaded: Comparison, drawn: Callable[[], Comparison]) -> Equivalence:
    """The judgement on weights as they are, or on drawn ones where those make more outputs move."""
    still = loaded.still()
    if not still:
        return loaded.equivalence(LOADED)
    redrawn = drawn()
    if redrawn.still() >= still:
        return loaded.equivalence(LOADED, constant=still)
    return redrawn.equivalence(DRAWN, constant=redrawn.still())


def _these(names: frozenset[str], every: set[str]) -> str:
    """Outputs of the original as the beginning of a sentence."""
    if names == every:
        return "the original's outputs do"
    told = ", ".join(f"'{name}'" for name in sorted(names))
    return f"the original's output {told} does" if len(names) == 1 else (
        f"the original's outputs {told} do")  # fmt: skip


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


def _pooled(batches: Sequence[Sequence[Returned]], rows: Sequence[int], index: int) -> Values:
    """One output over all runs of a family, rows first."""
    return joined([results[row].outputs[index].values for results in batches for row in rows])
