"""The answer to one limit: within, over or unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from pytest_modelbudget.budget.budget import AnyLimit, Level, Limit
from pytest_modelbudget.metrics.measurement import Measurement, Number, UnmeasuredOp


class Outcome(str, Enum):
    """What is known about a limit; unknown is never green."""

    WITHIN = "within"
    OVER = "over"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit held against a measurement.

    reason is one line for people: what is over by how much, or why nothing is known.
    marked says that the number is an accepted lower bound (allow_unmeasured).
    """

    limit: AnyLimit
    outcome: Outcome
    measurement: Measurement | None
    reason: str
    marked: bool = False

    @property
    def fails(self) -> bool:
        """Whether the gate must be red: over at level error, or unknown at any level."""
        return self.outcome is Outcome.UNKNOWN or (
            self.outcome is Outcome.OVER and self.limit.level is Level.ERROR
        )
