"""Every check of a report as its readers meet it: with its file, its line, and whose it is.

The checks of a model, of its transforms and a transform's equivalence are all cases alike::

    Case(check={"id": "budgets/a.yaml::net::tiled::macs", "line": 9, ...},
         owner={"name": "tiled", "metrics": {...}, ...},
         model={"id": "budgets/a.yaml::net", ...})
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.budget.budget import EQUIVALENCE
from pytest_modelbudget.reports.record import Record, fails, numberless_check, warns
from pytest_modelbudget.units import room, several

NOTHING = "nothing measured"
LOOSENED, REDEFINED = "loosened", "redefined"
CHANGES = (LOOSENED, REDEFINED)  # what a change since the base does to budgets


class Case(NamedTuple):
    """One check; owner is the record that its metric is part of: a model, or a transform."""

    check: Record
    owner: Record
    model: Record

    @property
    def id(self) -> str:
        """The node id: "budgets/a.yaml::net::tiled::macs"."""
        return str(self.check["id"])

    @property
    def file(self) -> str:
        """Path of the budget, as seen from rootdir."""
        return self.id.partition("::")[0]

    @property
    def line(self) -> int:
        """Line of the limit, from 1; the file's first where its item was lost."""
        return self.check["line"] or self.model["line"] or 1

    @property
    def place(self) -> str:
        """Its file and line, for readers: "budgets/a.yaml:8"."""
        return f"{self.file}:{self.line}"

    @property
    def subject(self) -> str:
        """Model, and variant or transform: "net / tiled"."""
        return " / ".join(self.id.split("::")[1:-1])

    @property
    def name(self) -> str:
        """The limit among those of its subject: "macs", "params@layer4.*"."""
        return self.id.rpartition("::")[2]

    @property
    def measurement(self) -> Record:
        """The record of its metric, empty where nothing was measured."""
        found: Record = self.owner["metrics"].get(self.check["metric"], {})
        return found

    @property
    def outcome(self) -> str:
        """One of over, warn, within, unknown: over at level warn is "warn"."""
        return "warn" if warns(self.check) else str(self.check["outcome"])

    @property
    def is_claim(self) -> bool:
        """Whether it is an equivalence, which no one number is held to."""
        return str(self.check["metric"]) == EQUIVALENCE

    @property
    def fails(self) -> bool:
        """Whether it makes the gate red."""
        return fails(self.check)


def cases(report: Record) -> Iterator[Case]:
    """All checks, file by file and model by model, transforms after their model."""
    for model in report["models"]:
        yield from cases_of(model)


def cases_of(model: Record) -> Iterator[Case]:
    """The checks of one model, then those of its transforms."""
    yield from (Case(check, model, model) for check in model["checks"])
    for transform in model["transforms"]:
        yield from (Case(check, transform, model) for check in _checks(transform, model))


def counts(report: Record) -> dict[str, int]:
    """How many checks are over, to be warned of, within and unknown; always all four."""
    told = dict.fromkeys(("over", "warn", "within", "unknown"), 0)
    for case in cases(report):
        told[case.outcome] += 1
    return told


def unmeasured(report: Record) -> str:
    """What is said where limits were skipped or never came to their turn, or there are none.

    "" where every limit has its answer, or was left out by those who ran the session.
    """
    count = report.get("unanswered", 0)
    if count:
        return f"{several(count, 'limit')} skipped or stopped, and so not measured"
    is_empty = not report["broken"] and next(cases(report), None) is None
    return NOTHING if is_empty and not report["selected"] else ""


def failing_locks(report: Record) -> list[Record]:
    """Lock files that are not what was measured, where a session fails for it."""
    return [lock for lock in report.get("lock", ()) if lock.get("fails")]


def changes(report: Record) -> Iterator[tuple[str, Record]]:
    """All that a change since the base does to budgets: the word for it, and its record."""
    for word in CHANGES:
        yield from ((word, change) for change in report.get(word, ()))


def changes_counted(report: Record) -> list[str]:
    """How much that is, in words: ["2 loosened", "1 redefined"]."""
    return [f"{len(report[word])} {word}" for word in CHANGES if report.get(word)]


def worst_first(some: list[Case]) -> list[Case]:
    """Unknown before over, and what is over by its share of the limit."""
    return sorted(some, key=_severity)


def maximum(check: Record) -> Fraction | None:
    """The most that a check lets pass: its limit, or what it may have grown to, if that is less."""
    if check.get("metric") == EQUIVALENCE:  # whose allowed is a share of the outputs' size
        return None
    ends = (check["limit"], check.get("allowed"))
    return min((Fraction(end) for end in ends if end is not None), default=None)


def is_lower_bound(check: Record) -> bool:
    """Whether a number may be larger than it says: accepted so, or unknown for that reason."""
    is_in_part = check["outcome"] == "unknown" and not check.get("complete", False)
    return bool(check.get("lower_bound")) or is_in_part


def headroom(check: Record) -> Fraction | None:
    """How far a number is from its nearer bound, as a share of that bound; negative when over.

    None where nobody knows: a lower bound may be anywhere above what it says.
    """
    if check["actual"] is None or check.get("outcome") == "unknown":
        return None
    actual = Fraction(check["actual"])
    distances = []
    if most := maximum(check):
        distances.append((most - actual) / most)
    if check.get("min") is not None and (least := Fraction(check["min"])):
        distances.append((actual - least) / least)
    return min(distances, default=None)


def headroom_text(check: Record) -> str:
    """A headroom for eyes: "6.2%", or "" where nobody knows."""
    left = headroom(check)
    return "" if left is None else room(left)


def _severity(case: Case) -> tuple[bool, bool, Fraction]:
    left = headroom(case.check)
    return (case.outcome != "unknown", left is not None, left or Fraction(0))


def _checks(transform: Record, model: Record) -> Iterator[Record]:
    """A transform's limits, and its equivalence in the form of a check."""
    yield from transform["checks"]
    told = transform.get(EQUIVALENCE)
    if told and not any(check["metric"] == EQUIVALENCE for check in transform["checks"]):
        yield numberless_check(
            f"{model['id']}::{transform['name']}::{EQUIVALENCE}",
            EQUIVALENCE,
            told["outcome"],
            told.get("reason") or told["kind"],
            line=told.get("line"),
            level=told.get("level", "error"),
        )
