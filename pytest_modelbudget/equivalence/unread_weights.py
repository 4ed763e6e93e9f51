"""Stored tensors of which no run has read all: held directly to those of the other model.

A row of a table that no index asked for, or an expert that no input reached, shows in no output. Such elements of both
models are compared where they lie; where there is nothing to compare them with, how many were read is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import Divergence, worst_element
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.units import several, some_of

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Coverage, Values

    Tables = Mapping[str, Callable[[], Values]]

TIMES = 4.0  # as far off as the rows that were read, at the most, an unread one may be
REWRITTEN = 0.5  # of its size: a table that differs by as much is kept in another way
MOST_NAMED = 2


@dataclass(frozen=True, slots=True)
class Unread:
    """What unread parts of stored tensors say: an outcome other than within, or notes alone."""

    outcome: Outcome = Outcome.WITHIN
    reason: str = ""
    divergence: Divergence | None = None
    notes: tuple[str, ...] = ()

    def added_to(self, result: Equivalence) -> Equivalence:
        """A judgement so far, with its reservations."""
        result = replace(result, notes=(*result.notes, *self.notes))
        if self.outcome is Outcome.WITHIN:
            return result
        return replace(result, outcome=self.outcome, reason=self.reason, first_divergence=self.divergence)


def unread(mine: Coverage, theirs: Coverage, first: Tables, second: Tables, *, is_exact: bool) -> Unread:
    """Compare what no run has read of the tensors that two models store.

    mine and theirs say what runs have read of first and second. A partner has the same name and shape but for the
    number of rows, or another name and the same values where they were read. An element that was not read is wrong
    where it is off by more than four times what any that was read is off, both in itself and beside the size of its
    row. A tensor that was not read at all and differs makes an exact claim unknown: nobody can say whether inputs may
    reach it. So does a row that the second model lacks.
    """
    parts = list(_partial(mine, first))
    met = {part.name for part in parts}
    pairs = [(part, _partner(part, second), False) for part in parts]
    others = (part for part in _partial(theirs, second) if part.name not in met)
    pairs += [(part, _partner(part, first), True) for part in others]
    alone: list[str] = []
    apart: list[str] = []
    lost: list[str] = []
    for whole, found, is_second in pairs:
        part, partner = whole.beside(found) if found is not None else (whole, None)
        lost += [whole.lost(part)] * (part.rows < whole.rows and not is_second)
        gap = None if partner is None else part.gap(partner)
        if gap is None or partner is None:
            alone += [whole.count] * bool(part.mask.any())
        elif not part.mask.any() and gap.any():
            apart.append(part.name)
        elif (part.errors(gap, part.mask)[1] > REWRITTEN).any():  # what was read is another table
            alone += [whole.count] * bool(gap[~part.mask].any())
        elif wrong := part.wrong_rows(gap):
            sides = (partner, part.values) if is_second else (part.values, partner)
            return Unread(Outcome.OVER, _differ(wrong, whole), part.divergence(*sides))
    notes = tuple(_notes(alone, apart, lost))
    if (apart or lost) and is_exact:
        return Unread(Outcome.UNKNOWN, f"{notes[-1]}: give 'inputs' that reach them, or remove them", notes=notes[:-1])
    return Unread(notes=notes)


def _differ(wrong: int, whole: _Partial) -> str:
    """That so many rows are wrong, as a sentence."""
    what = f"{several(wrong, 'row')} of '{whole.name}' that no run has read"
    return f"{what} {'differs' if wrong == 1 else 'differ'}: {whole.count} were read"


def _notes(alone: list[str], apart: list[str], lost: list[str]) -> Iterator[str]:
    if alone:
        yield f"{some_of(alone, MOST_NAMED)} were read, and the other model has none to compare the rest with"
    if apart:
        yield f"stored tensors that no output shows differ: {some_of(map(repr, apart), MOST_NAMED)}"
    if lost:
        yield f"rows that no run has read are not in the other model: {some_of(lost, MOST_NAMED)}"


@dataclass(frozen=True, slots=True)
class _Partial:
    """A stored tensor that runs have read in part, or not at all."""

    name: str
    mask: Values
    values: Values

    @property
    def axis(self) -> int:
        """The axis along which rows were read or not; the first one that has any where parts of all were."""
        sizes = self.values.shape
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
        others = {axis: tuple(other for other in range(len(sizes)) if other != axis) for axis in axes}
        return next((axis for axis in axes if not self.mask.any(others[axis]).all()), axes[0] if axes else 0)

    @property
    def rows(self) -> int:
        return int(self.values.shape[self.axis])

    def is_kin(self, values: Values) -> bool:
        """Whether an array has its shape, but for the number of rows."""
        mine, others = list(self.values.shape), list(values.shape)
        if len(mine) == len(others):
            others[self.axis] = mine[self.axis]
        return mine == others

    def beside(self, partner: Values) -> tuple[_Partial, Values]:
        """It and its partner, each without the last rows that the other has not."""
        if partner.shape == self.values.shape:
            return self, partner
        count = min(self.rows, partner.shape[self.axis])
        first = (*[slice(None)] * self.axis, slice(count))
        return replace(self, mask=self.mask[first], values=self.values[first]), partner[first]

    def lost(self, left: _Partial) -> str:
        """How many rows are left of it: "899 of 900 rows of 'e.weight' are left"."""
        return f"{left.rows:,} of {self.rows:,} rows of '{self.name}' are left"

    def by_row(self, values: Values) -> Values:
        """Values with the rows first, all else of a row behind one another."""
        import numpy as np

        return np.moveaxis(values, self.axis, 0).reshape(values.shape[self.axis], -1)

    @property
    def count(self) -> str:
        """How much was read: "36 of 30,522 rows of 'e.weight'"."""
        read = int(self.by_row(self.mask).any(1).sum())
        return f"{read:,} of {self.rows:,} rows of '{self.name}'"

    def gap(self, partner: Values) -> Values:
        """The absolute error of each element; inf where NaN or Inf are others."""
        import numpy as np

        before, after = self.values, partner
        is_same = (before == after) | ((before != before) & (after != after))
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(1.0 * after - before)
        return np.where(is_same, 0.0, np.where(np.isfinite(gap), gap, np.inf))

    def errors(self, gap: Values, chosen: Values) -> tuple[Values, Values]:
        """Of each row the largest error among chosen elements, and their error with their size."""
        import numpy as np

        gaps, sizes = (self.by_row(np.where(chosen, each, 0.0)) for each in (gap, np.abs(1.0 * self.values)))
        with np.errstate(invalid="ignore", divide="ignore"):
            beside = np.linalg.norm(gaps, axis=1) / np.linalg.norm(sizes, axis=1)
        return gaps.max(1), np.where(gaps.any(1), beside, 0.0)

    def wrong_rows(self, gap: Values) -> int:
        """How many rows are off where they were not read, and further than where they were."""
        (off, beside), (unread_off, unread_beside) = (self.errors(gap, chosen) for chosen in (self.mask, ~self.mask))
        return int(((unread_off > TIMES * off.max()) & (unread_beside > TIMES * beside.max())).sum())

    def divergence(self, original: Values, transformed: Values) -> Divergence:
        """The tensor, as the place where two models part."""
        import numpy as np

        before, after = (np.where(self.mask, 0, each) for each in (original, transformed))
        size, error = float(np.linalg.norm(before)), float(np.linalg.norm(1.0 * after - before))
        return Divergence(self.name, error / size if size else float("inf"), worst_element(before, after))


def _partial(coverage: Coverage, tables: Tables) -> Iterator[_Partial]:
    import numpy as np

    for name, mask in coverage.masks.items():
        if name in tables and not mask.all():
            yield _Partial(name, np.atleast_1d(mask), np.atleast_1d(tables[name]()))


def _partner(part: _Partial, tables: Tables) -> Values | None:
    """The other model's tensor of that name, else one with the same values where they were read."""
    import numpy as np

    if part.name in tables:
        values = np.atleast_1d(tables[part.name]())
        return values if part.is_kin(values) else None
    if not part.mask.any():
        return None
    for read in tables.values():
        values = read()
        if values.shape == part.values.shape and np.array_equal(values[part.mask], part.values[part.mask]):
            return values
    return None
