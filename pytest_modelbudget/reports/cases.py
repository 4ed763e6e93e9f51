"""Every check of a report as its readers meet it: with its place, and whose it is.

The checks of a model, of its transforms and a transform's equivalence are all cases alike::

    Case(check=Check(id="budgets/a.yaml::net::tiled::macs", line=9, ...),
         owner=TransformReport(name="tiled", metrics={...}, ...),
         model=ModelReport(id="budgets/a.yaml::net", ...))
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.budget.address import Address
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.reports.record import (
    Check,
    EquivalenceReport,
    LockReport,
    LoosenedLimit,
    MeasuredMetric,
    ModelReport,
    RedefinedModel,
    Report,
    ScopeShare,
    TransformReport,
)
from pytest_modelbudget.units import room, several

NOTHING = "nothing measured"
LOOSENED, REDEFINED = "loosened", "redefined"
CHANGES = (LOOSENED, REDEFINED)  # what a change since the base does to budgets
NO_EVIDENCE = EquivalenceReport(outcome=Outcome.UNKNOWN, kind="")


class Case(NamedTuple):
    """One check; owner is what its metric is part of: a model, or a transform."""

    check: Check
    owner: ModelReport | TransformReport
    model: ModelReport

    @property
    def id(self) -> str:
        """The node id: "budgets/a.yaml::net::tiled::macs"."""
        return self.check.id

    @property
    def address(self) -> Address:
        """The node id in parts."""
        return self.check.address

    @property
    def file(self) -> str:
        """Path of the budget, as seen from rootdir."""
        return self.address.file

    @property
    def line(self) -> int:
        """Line of the limit, from 1; the file's first where its item was lost."""
        return self.check.line or self.model.line or 1

    @property
    def place(self) -> str:
        """Its file and line, for readers: "budgets/a.yaml:8"."""
        return f"{self.file}:{self.line}"

    @property
    def subject(self) -> str:
        """Model, and variant or transform: "net / tiled"."""
        return self.address.above.title

    @property
    def name(self) -> str:
        """The limit among those of its subject: "macs", "params@layer4.*"."""
        return self.address.name

    @property
    def measurement(self) -> MeasuredMetric | None:
        """Its metric, None where nothing was measured."""
        return self.owner.measured(self.check.metric)

    @property
    def shares(self) -> tuple[ScopeShare, ...]:
        """The parts of its metric, as far as anybody knows."""
        return self.measurement.shares if self.measurement else ()

    @property
    def evidence(self) -> EquivalenceReport:
        """The comparison of its transform's outputs; empty where they were not compared."""
        owner = self.owner
        return (isinstance(owner, TransformReport) and owner.equivalence) or NO_EVIDENCE

    @property
    def outcome(self) -> str:
        """One of over, warn, within, unknown: over at level warn is "warn"."""
        return "warn" if self.check.warns else self.check.outcome.value


def cases(report: Report) -> Iterator[Case]:
    """All checks, file by file and model by model, transforms after their model."""
    for model in report.models:
        yield from cases_of(model)


def cases_of(model: ModelReport) -> Iterator[Case]:
    """The checks of one model, then those of its transforms."""
    yield from (Case(check, model, model) for check in model.checks)
    for transform in model.transforms:
        yield from (Case(check, transform, model) for check in transform.checks)


def counts(report: Report) -> dict[str, int]:
    """The number of checks that are over, to be warned of, within and unknown; always all four."""
    counted = dict.fromkeys(("over", "warn", "within", "unknown"), 0)
    for case in cases(report):
        counted[case.outcome] += 1
    return counted


def unmeasured(report: Report) -> str:
    """A sentence where limits were skipped or never came to their turn, or there are none.

    "" where every limit has its answer, or was left out by those who ran the session.
    """
    if report.unanswered:
        return f"{several(report.unanswered, 'limit')} skipped or stopped, and so not measured"
    is_empty = not report.broken and next(cases(report), None) is None
    return NOTHING if is_empty and not report.selected else ""


def failing_locks(report: Report) -> list[LockReport]:
    """Lock files that are not what was measured, where a session fails for it."""
    return [lock for lock in report.lock if lock.fails]


def changes(report: Report) -> Iterator[tuple[str, LoosenedLimit | RedefinedModel]]:
    """All that a change since the base does to budgets, each with the word for it."""
    yield from ((LOOSENED, limit) for limit in report.loosened)
    yield from ((REDEFINED, model) for model in report.redefined)


def changes_counted(report: Report) -> list[str]:
    """The number of such changes, in words: ["2 loosened", "1 redefined"]."""
    numbers = {LOOSENED: len(report.loosened), REDEFINED: len(report.redefined)}
    return [f"{number} {word}" for word, number in numbers.items() if number]


def worst_first(some: list[Case]) -> list[Case]:
    """Unknown before over, and what is over by its share of the limit."""
    return sorted(some, key=_severity)


def maximum(check: Check) -> Fraction | None:
    """The most that a check lets pass: its limit, or what it may have grown to, if that is less."""
    if check.is_claim:  # whose allowed is a share of the outputs' size
        return None
    ends = (check.limit, check.allowed)
    return min((Fraction(end) for end in ends if end is not None), default=None)


def is_lower_bound(check: Check) -> bool:
    """Whether a number may be larger than it says: accepted so, or unknown for that reason."""
    return check.lower_bound or (check.outcome is Outcome.UNKNOWN and not check.complete)


def headroom(check: Check) -> Fraction | None:
    """The distance of a number from its nearer bound, as a share of that bound; negative when over.

    None where nobody knows: a lower bound may be anywhere above what it says.
    """
    if check.actual is None or check.outcome is Outcome.UNKNOWN:
        return None
    actual = Fraction(check.actual)
    distances = []
    if most := maximum(check):
        distances.append((most - actual) / most)
    if check.min:
        distances.append((actual - check.min) / Fraction(check.min))
    return min(distances, default=None)


def headroom_text(check: Check) -> str:
    """A headroom for eyes: "6.2%", or "" where nobody knows."""
    left = headroom(check)
    return "" if left is None else room(left)


def _severity(case: Case) -> tuple[bool, bool, Fraction]:
    left = headroom(case.check)
    return (case.outcome != "unknown", left is not None, left or Fraction(0))
