"""Two models run on the same inputs, in both steps, and what they gave handed to the judge.

Nothing here knows a framework: a model is whatever runs on named arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.model_source import TensorSpec
from pytest_modelbudget.ir.tensor import least_precise
from pytest_modelbudget.transforms.claim import Claim, Kind
from pytest_modelbudget.transforms.divergence import Divergence, worst_element
from pytest_modelbudget.transforms.equivalence import (
    ALGEBRA,
    ROUNDING,
    Basis,
    Equivalence,
    OutputPair,
    judged,
    relative_error,
)
from pytest_modelbudget.transforms.input_families import (
    SCALES,
    Scale,
    drawn_values,
    families_of,
    runs_of,
    scale_note,
)
from pytest_modelbudget.transforms.outcome import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]

DRAWN, LOADED = "drawn, seed 0", "as loaded"  # what a report says of the weights of a run
MOST_ROUNDINGS = 64  # of a weight, through all layers of a network
ALL_FAMILIES = "all"  # of what is pooled over every family: a layer on the way
Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a run: its name, the type that the model gives it, and its values."""

    name: str
    dtype: str
    values: Values


Outputs = tuple[Output, ...]


class Runs(Protocol):
    """A model that runs on arrays by name, in its own types or upcast to float64."""

    def run(self, inputs: Mapping[str, Values], *, float64: bool) -> Outputs:
        """All outputs in their order. Raises TransformError where the model cannot run."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Both models, and what is known of them.

    dtype is the least precise floating type that the original stores. divergence looks
    for the first layer that differs on some inputs; differences name what already
    distinguishes the two without a run. other_weights tells whether the second stores other values
    than the first, which may have been rounded on another way. layers are the rewritten layers as
    the float64 runs met them: an activation behind one may hide from all outputs what is wrong.
    """

    original: Runs
    transformed: Runs
    dtype: str
    divergence: Callable[[Mapping[str, Values]], Divergence | None]
    partial_sums: int = 1
    differences: tuple[str, ...] = ()
    other_weights: Callable[[], bool] = lambda: False
    layers: Callable[[], Sequence[OutputPair]] = tuple


@dataclass(frozen=True, slots=True)
class Row:
    """Which family of inputs, and which seed."""

    family: str
    seed: int


class Batch:
    """The inputs of all rows under one set of specs; run as one where the model takes that."""

    def __init__(self, specs: Specs, rows: Sequence[Row], scale: Scale, *, stacks: bool) -> None:
        self._alone = [drawn(specs, row, scale) for row in rows]
        self._stacked = _stacked(self._alone) if stacks and len(rows) > 1 else None

    def alone(self, row: int) -> Mapping[str, Values]:
        return self._alone[row]

    def run(self, model: Runs, *, float64: bool) -> list[Outputs]:
        """The outputs for each row."""
        if self._stacked is not None:
            try:
                stacked = model.run(self._stacked, float64=float64)
                return list(_unstacked(stacked, len(self._alone)))
            except (TransformError, ValueError):
                self._stacked = None
        return [model.run(inputs, float64=float64) for inputs in self._alone]


def drawn(specs: Specs, row: Row, scale: Scale) -> Mapping[str, Values]:
    """Inputs of one family and seed, in the types that the specs name."""
    import numpy as np

    return {
        name: drawn_values(spec, name, row.family, row.seed, scale=scale).astype(
            np.dtype(spec.dtype)
        )
        for name, spec in specs.items()
    }


def _stacked(rows: Sequence[Mapping[str, Values]]) -> Mapping[str, Values]:
    import numpy as np

    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _unstacked(outputs: Outputs, rows: int) -> Iterator[Outputs]:
    """The outputs of each row; raises ValueError where one has no part for each."""
    import numpy as np

    for output in outputs:
        if output.values.ndim == 0 or output.values.shape[0] % rows:
            raise ValueError(f"output {output.name} has no row for each input")
    parts = [np.split(output.values, rows) for output in outputs]
    for row in range(rows):
        yield tuple(
            replace(output, values=part[row]) for output, part in zip(outputs, parts, strict=True)
        )


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
                for each in _resized(specs, claim.batches)
            ]
            self.exact = [each.run(sides.original, float64=True) for each in self.batches]
            self.stored = [each.run(sides.original, float64=False) for each in self.batches]
            if not overflows(self.exact, self.stored):
                break
        self.notes = list(scale_note(scale))

    def moves(self) -> bool:
        """Whether any output of the original depends on its input."""
        return any(_moves(results) for results in self.exact)

    def equivalence(self, weights: str) -> Equivalence:
        """The judgement over everything that was run."""
        if not self.moves():
            words = "the original's outputs do not move with its inputs: nothing could be seen"
            return Equivalence(
                Outcome.UNKNOWN, self.claim.kind, words, weights, seeds=self.claim.seeds
            )
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
            partial_sums=self.sides.partial_sums,
            notes=tuple(self.notes),
        )
        if found.outcome is not Outcome.OVER or self.structure:
            return found
        over = (record for record in found.outputs if record.outcome is Outcome.OVER)
        is_hidden = all(record.family == ALL_FAMILIES for record in over)
        divergence = None if is_hidden else self._divergence()
        if divergence is None:
            divergence = next(map(_divergence_of, self._wrong_layers()), None)
        return replace(found, first_divergence=divergence)

    def _wrong_layers(self) -> tuple[OutputPair, ...]:
        """Rewritten layers that step 1 finds wrong, in the order of execution."""
        if self.claim.kind is not Kind.EXACT_ALGEBRA or self.structure:
            return ()
        return tuple(pair for pair in self.sides.layers() if _algebra_error(pair) > ALGEBRA)

    def _pairs(self) -> Iterator[OutputPair]:
        """Outputs of all runs, pooled by name and family; none where their structure differs."""
        if self.structure:
            return
        transformed = [each.run(self.sides.transformed, float64=False) for each in self.batches]
        self._hold_structure(self.stored, transformed, types=True)
        algebra = self._algebra() if self.claim.kind is Kind.EXACT_ALGEBRA else None
        if self.structure:
            return
        for index, output in enumerate(self.stored[0][0]):
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

    def _algebra(self) -> list[list[Outputs]] | None:
        """The transformed model in float64; None where it cannot run so."""
        try:
            found = [each.run(self.sides.transformed, float64=True) for each in self.batches]
        except TransformError as error:
            self.notes.append(f"precision only: {error}")
            return None
        self._hold_structure(self.exact, found, types=False)
        return found

    def _hold_structure(
        self, before: list[list[Outputs]], after: list[list[Outputs]], *, types: bool
    ) -> None:
        for was, now in zip(before, after, strict=True):
            for x, y in zip(was, now, strict=True):
                self.structure.extend(differences(x, y, types=types))

    def _divergence(self) -> Divergence | None:
        """The first layer that differs in float64, on the first inputs that show one."""
        rows = range(len(self.rows))
        try:
            found = (
                self.sides.divergence(batch.alone(row)) for batch in self.batches for row in rows
            )
            return next(filter(None, found), None)
        except TransformError:  # a side that runs as a whole and not layer by layer
            return None


def overflows(exact: list[list[Outputs]], stored: list[list[Outputs]]) -> bool:
    """Whether a model overflows in its own type where it does not in float64."""
    import numpy as np

    return any(
        bool((~np.isfinite(y.values.astype(np.float64)) & np.isfinite(x.values)).any())
        for before, after in zip(exact, stored, strict=True)
        for wide, own in zip(before, after, strict=True)
        for x, y in zip(wide, own, strict=True)
        if y.values.dtype.kind not in "biuO"
    )


def without_rounded_weights(
    pairs: tuple[OutputPair, ...], dtype: str, other_weights: Callable[[], bool]
) -> tuple[tuple[OutputPair, ...], tuple[str, ...]]:
    """The pairs for step 2 alone, and a note, where rounded weights explain what step 1 sees.

    Two models that were made on different ways hold weights rounded on different ways: then float64
    runs differ by as much as the type rounds, and no more.
    """
    errors = [_algebra_error(pair) for pair in pairs]
    allowed = MOST_ROUNDINGS * ROUNDING.get(dtype, (0.0, 0.0))[0]
    if all(error <= ALGEBRA for error in errors) or max(errors) > allowed or not other_weights():
        return pairs, ()
    note = "precision only: the second model stores other weights than the first"
    alone = tuple(replace(pair, algebra=None) for pair in pairs if pair.original is not None)
    return alone, (note,)


def _divergence_of(pair: OutputPair) -> Divergence:
    """A layer that step 1 finds wrong, as the place where two models part."""
    assert pair.algebra is not None, "a layer is judged by its float64 runs"
    worst = worst_element(pair.reference, pair.algebra)
    return Divergence(pair.name, _algebra_error(pair), worst)


def _algebra_error(pair: OutputPair) -> float:
    """What step 1 sees of one pair; 0 where it does not look."""
    if pair.algebra is None or pair.reference.dtype.kind != "f":
        return 0.0
    error = relative_error(pair.reference, pair.algebra)
    return error if error == error else inf


def _resized(specs: Specs, batches: tuple[int, ...]) -> list[Specs]:
    """The specs as they are, or with each of these sizes as first dimension."""
    if not batches:
        return [specs]
    return [
        {name: replace(spec, shape=(size, *spec.shape[1:])) for name, spec in specs.items()}
        for size in batches
    ]


def differences(before: Outputs, after: Outputs, *, types: bool = True) -> Iterator[str]:
    """How the outputs of two runs differ in number, names, order, shapes and types."""
    was, now = ([output.name for output in each] for each in (before, after))
    if was != now:
        yield f"{', '.join(now) or 'nothing'} in place of {', '.join(was) or 'nothing'}"
        return
    for x, y in zip(before, after, strict=True):
        if types and x.dtype != y.dtype:
            yield f"output '{x.name}' is {y.dtype} and was {x.dtype}"
        if x.values.shape != y.values.shape:
            yield f"output '{x.name}' is {list(y.values.shape)} and was {list(x.values.shape)}"


def _moves(results: Sequence[Outputs]) -> bool:
    """Whether any output differs between two rows by more than rounding."""
    import numpy as np

    first = results[0]
    for other in results[1:]:
        for x, y in zip(first, other, strict=False):
            if x.values.shape != y.values.shape:
                return True
            size = float(np.abs(y.values).max()) if y.values.size else 0.0
            if x.values.size and (np.abs(x.values - 1.0 * y.values) > 1e-9 * size).any():
                return True
    return False


def _pooled(batches: Sequence[Sequence[Outputs]], rows: Sequence[int], index: int) -> Values:
    """One output over all runs of a family, rows first."""
    return joined([results[row][index].values for results in batches for row in rows])


def joined(parts: Sequence[Values]) -> Values:
    """Results of several runs, one after the other; floating values as float64."""
    import numpy as np

    parts = [part if part.dtype.kind in "biuc" else part.astype(np.float64) for part in parts]
    if len({part.shape[1:] for part in parts}) == 1 and parts[0].ndim:
        return np.concatenate(parts)
    return np.concatenate([part.ravel() for part in parts])
