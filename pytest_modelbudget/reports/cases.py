"""Every check of a report as its readers meet it: with its place, and whose it is.

The checks of a model, of its transforms and a transform's equivalence are all cases alike::

    Case(check=Check(id="budgets/a.yaml::net::tiled::macs", line=9, ...),
         owner=TransformReport(name="tiled", metrics={...}, ...),
         model=ModelReport(id="budgets/a.yaml::net", ...))
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.budget.budget import EQUIVALENCE, Address
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.changes import LoosenedLimit, RedefinedModel
from pytest_modelbudget.reports.equivalence import EquivalenceReport
from pytest_modelbudget.units import several

NOTHING = "nothing measured"
LOOSENED, REDEFINED = "loosened", "redefined"
CHANGES = (LOOSENED, REDEFINED)  # what a change since the base does to budgets
EXCEPTIONS = ("accepted", "unused")  # outcomes of limits with exceptions
NO_EVIDENCE = EquivalenceReport(outcome=Outcome.UNKNOWN, kind="")


class Case(NamedTuple):
    """One check; owner is what its metric is part of: a model, a transform, or a model on a device."""

    check: record.Check
    owner: record.ModelReport | record.TransformReport | record.DeploymentReport
    model: record.ModelReport

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
        """Line of the limit, or of what failed before it, from 1; the file's first where its item was lost."""
        return self.owner.error_line or self.check.line or self.model.line or 1

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
    def measurement(self) -> record.MeasuredMetric | None:
        """Its metric, None where nothing was measured."""
        return self.owner.measured(self.check.metric)

    @property
    def shares(self) -> Sequence[record.ScopeShare]:
        """The parts of its metric, as far as anybody knows."""
        return self.measurement.shares if self.measurement else ()

    @property
    def evidence(self) -> EquivalenceReport:
        """The comparison of its transform's outputs; empty where they were not compared."""
        owner = self.owner
        return (isinstance(owner, record.TransformReport) and owner.equivalence) or NO_EVIDENCE

    @property
    def outputs_differ(self) -> bool:
        """Whether it is a claim about outputs that does not hold, or that nobody could try."""
        return self.check.metric == EQUIVALENCE and self.outcome != "within"

    @property
    def outcome(self) -> str:
        """One of over, unused, warn, accepted, within, unknown: what is only to be warned of is "warn"."""
        return "warn" if self.check.warns else self.check.outcome.value


def cases(report: record.Report) -> Iterator[Case]:
    """All checks, file by file and model by model, transforms and deployments after their model."""
    for model in report.models:
        yield from cases_of(model)


def cases_of(model: record.ModelReport) -> Iterator[Case]:
    """The checks of one model, then those of its transforms and deployments."""
    for subject in model.subjects():
        yield from (Case(check, subject, model) for check in subject.checks)


def counts(report: record.Report) -> dict[str, int]:
    """The number of checks that are over, to be warned of, within and unknown; of exceptions where there are any."""
    outcomes = Counter(case.outcome for case in cases(report))
    always = {outcome: outcomes[outcome] for outcome in ("over", "warn", "within", "unknown")}
    return always | {outcome: outcomes[outcome] for outcome in EXCEPTIONS if outcomes[outcome]}


def unmeasured(report: record.Report) -> str:
    """A sentence where limits were skipped or never came to their turn, or there are none.

    "" where every limit has its answer, or was left out by those who ran the session.
    """
    if report.unanswered:
        return f"{several(report.unanswered, 'limit')} skipped or stopped, and so not measured"
    is_empty = not report.broken and next(cases(report), None) is None
    return NOTHING if is_empty and not report.selected else ""


def changes(report: record.Report) -> Iterator[tuple[str, LoosenedLimit | RedefinedModel]]:
    """All that a change since the base does to budgets, each with the word for it."""
    yield from ((LOOSENED, limit) for limit in report.loosened)
    yield from ((REDEFINED, model) for model in report.redefined)


def changes_counted(report: record.Report) -> list[str]:
    """The number of such changes, in words: ["2 loosened", "1 redefined"]."""
    return [f"{number} {word}" for word, number in Counter(word for word, _ in changes(report)).items()]


def worst_first(some: list[Case]) -> list[Case]:
    """Unknown before over, and what is over by its share of the limit."""

    def severity(case: Case) -> tuple[bool, bool, Fraction]:
        left = case.check.headroom
        return (case.outcome != "unknown", left is not None, left or Fraction(0))

    return sorted(some, key=severity)
