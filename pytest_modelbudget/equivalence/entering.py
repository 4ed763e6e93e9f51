"""Values that enter a branch from outside: in brief, run by run, to be told from others in another model."""

from __future__ import annotations

from dataclasses import dataclass
from math import dist
from typing import Any

import numpy as np

NEAR = 0.5  # of the size of a value: what loses something, as four bits do, may be as far off, another value is farther
SUMS = 16  # that stand for a value: two of them are about as far apart as their values are


@dataclass(frozen=True, eq=False)
class Entering:
    """A value that a branch reads, by its name and what it was in each run: equal where both models have it."""

    name: object
    values: tuple[tuple[float, ...], ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entering) or self.name != other.name:
            return False
        pairs = zip(self.values, other.values, strict=False)  # one of them may have been run once more
        return all(dist(mine[1:], its[1:]) <= NEAR * max(mine[0], its[0]) for mine, its in pairs)

    __hash__ = None  # type: ignore[assignment]  # it is only nearly equal


def in_brief(value: Any) -> tuple[float, ...]:
    """The size of a value, and sums of its elements under drawn signs; zeros of no numbers."""
    if getattr(value, "dtype", np.dtype(object)).kind not in "biuf":
        return (0.0,) * (1 + SUMS)
    flat = np.nan_to_num(np.ravel(value).astype(np.float64), posinf=0.0, neginf=0.0)
    signs = np.random.default_rng(0).integers(0, 2, flat.size) * 2 - 1
    sums = np.bincount(np.arange(flat.size) % SUMS, flat * signs, SUMS)
    return (float(np.linalg.norm(flat)), *map(float, sums))
