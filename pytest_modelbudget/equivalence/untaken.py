"""Ways that values choose and that no run has gone: whether they are the same in both models.

Outputs say nothing of a branch that no input takes. One that has the same operators, attributes,
wiring and constants in both models, and reads the same values from outside, needs no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, zip_longest
from math import dist, sqrt
from typing import Any

from pytest_modelbudget.equivalence.figures import bands, odd_kinds, real_type, reals
from pytest_modelbudget.equivalence.judgement import ROUNDING
from pytest_modelbudget.formats.model import Brief, Way
from pytest_modelbudget.units import some_of

MOST_NAMED = 2
NEAR = 0.5  # of the size of a value: what may lose something, as four bits do, is as far off, another value is farther
FINEST = 2.0**-53  # unit roundoff of float64
UNLIKE = count()
TEXT, WHOLE = "OSU", "biu"  # kinds of numpy
SPARE = 64  # powers of two by which sums may be larger than what they add up
SUMS = 16  # that stand for a value: two of them are about as far apart as their values are


def untaken(first: Sequence[Way], second: Sequence[Way]) -> tuple[str, tuple[str, ...]]:
    """Why two models that agree in all runs are not known to be the same, "" if they are, and notes.

    The notes are about ways of which the runs do not tell whether any has gone them.
    """
    never = [*_apart(first, second, lambda way: way.taken is False)]
    unseen = [*_apart(first, second, lambda way: way.taken is None)]
    reason = f"no run took {_named(never)}: give 'inputs' that take it" if never else ""
    notes = (f"it is not seen whether a run took {_named(unseen)}",) if unseen else ()
    return reason, notes


def _apart(first: Sequence[Way], second: Sequence[Way], is_asked: Callable[[Way], bool]) -> Iterator[Way]:
    """Such ways of either model that are not the same in the other one: under one name, else in their order."""
    mine, theirs = ([*_without_twin(*sides, is_asked)] for sides in ((first, second), (second, first)))
    for way, other in zip_longest(mine, theirs):
        if way is None or other is None:
            yield way or other
        elif not _is_same(way, other):
            yield way


def _without_twin(ways: Sequence[Way], others: Sequence[Way], is_asked: Callable[[Way], bool]) -> Iterator[Way]:
    """Such ways that are not those of their names in the other model, in which no run has shown what both do."""
    named: dict[tuple[str, str], list[Way]] = {}
    for other in others:
        named.setdefault((other.key, other.name), []).append(other)
    for way in filter(is_asked, ways):
        twins = named.get((way.key, way.name), [])
        if not any(_is_same(way, twin) or _ran_elsewhere(way, twin, ways, named) for twin in twins):
            yield way


def _ran_elsewhere(way: Way, twin: Way, ways: Sequence[Way], named: Mapping[tuple[str, str], Sequence[Way]]) -> bool:
    """Whether both models went a way of one other place that does what these two do, so that outputs have shown it."""
    return way.enters() == twin.enters() and any(
        other.taken and other.does(True) == twin.does(True)
        for each in ways
        if each.taken and each.does(True) == way.does(True)
        for other in named.get((each.key, each.name), ())
    )


def _is_same(way: Way, other: Way) -> bool:
    """Whether two ways have the same operators, attributes, wiring and constants."""
    is_named_the_same = way.does(True) == other.does(True) and way.enters() == other.enters()
    return is_named_the_same or way.does(False) == other.does(False)


def _named(ways: Sequence[Way]) -> str:
    """Ways that differ, as the object of a sentence."""
    places = dict.fromkeys(f"{way.name} of {way.place}" for way in ways)
    return f"{some_of(places, MOST_NAMED)}, which is not the same in both models"


@dataclass(frozen=True, eq=False)
class Entering:
    """A value that a branch reads, by its name and what it was in each run: equal where both models have it.

    near is how far apart it may be there, of its size; a value that is rounded to less in its own type may be farther.
    Whole numbers and truths lose nothing that is rounded.
    """

    name: object
    values: tuple[Brief, ...]
    near: float = NEAR

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entering) or self.name != other.name:
            return False
        return all(map(self._is_near, self.values, other.values))  # one of them may have been run once more

    __hash__ = None  # type: ignore[assignment]  # it is only nearly equal

    def _is_near(self, mine: Brief, its: Brief) -> bool:
        if mine.form != its.form or len(mine.sizes) != len(its.sizes):
            return False
        if self.near < NEAR and mine.whole:
            return mine.whole == its.whole
        near = max(self.near, sqrt(min(mine.roundoff, its.roundoff)))
        sizes = (near * max(each) for each in zip(mine.sizes, its.sizes, strict=True))
        return all(dist(*each) <= most for *each, most in zip(mine.sums, its.sums, sizes, strict=True))


def nearness(roundoff: float, *, is_exact: bool) -> float:
    """How far apart values of two models may be that are the same, of their size, under an exact claim or another."""
    return min(sqrt(roundoff), NEAR) if is_exact else NEAR


def unlike_any() -> object:
    """Stands for a value that nothing tells from those of another model: it is the same as none of them."""
    return "unlike any", next(UNLIKE)


def in_brief(value: Any, dtype: str = "") -> Brief:
    """A value of a run in few numbers, its orders of size apart: what a mask writes hides nothing beside it.

    dtype is the type that it was rounded in, where that is another one than its own.
    """
    import numpy as np

    flat, shape = np.ravel(value), np.shape(value)
    kind = flat.dtype.kind
    if kind in TEXT:
        return Brief((kind, shape, _digest(repr(flat.tolist()).encode())), "", (), ())
    wide, odd = reals(flat).ravel(), odd_kinds(flat)
    whole = _digest(flat.astype(np.int64).tobytes()) if kind in WHOLE else ""
    form = kind if whole else "", shape, _digest(odd.tobytes()) if odd.any() else ""
    spared = np.ldexp(wide, -SPARE)
    signs = np.random.default_rng(0).integers(0, 2, wide.size) * 2 - 1
    sizes, sums = [], []
    for band in bands(wide):
        part = np.zeros_like(spared)
        part[band] = spared[band]
        largest = float(np.abs(part).max(initial=0.0)) or 1.0
        sizes.append(largest * float(np.linalg.norm(part / largest)))
        sums.append(tuple(map(float, np.bincount(np.arange(wide.size) % SUMS, part * signs, SUMS))))
    roundoff, _ = ROUNDING.get(real_type(dtype or flat.dtype.name), (FINEST, 0.0))
    return Brief(form, whole, tuple(sizes), tuple(sums), roundoff)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
