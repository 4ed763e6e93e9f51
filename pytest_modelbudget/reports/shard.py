"""The part of a run that one shard leaves to ``modelbudget merge``: what its items said, and what its session found.

{"schema": "model-budget-part/1", "number": 2, "run": {"number_of_shards": 3, "commit": "1a2b...", ...}, "exit": 1,
 "results": [{"check": {"id": "budgets/a.yaml::net::macs", ...}, "model": {...}, ...}, ...], "session": {...}}
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import field

from pytest_modelbudget.reports.build import Statement
from pytest_modelbudget.reports.json_records import Record, json_text
from pytest_modelbudget.reports.record import Report


class Version(Enum):
    """Versions of a part's format."""

    ONE = "model-budget-part/1"


class LockedNumber(Record, frozen=True, kw_only=True):
    """A measured number compared with the locked one: difference is "" where they are the same."""

    difference: str = ""
    is_locked: bool = True
    drift: tuple[str, ...] = ()


class LockComparison(Record, frozen=True, kw_only=True):
    """One lock file compared with the numbers that a session measured, which are listed by node id.

    problem says why the lock cannot be read, base_problem the same of the base's. is_at_base: the base has it, or has a
    number of one of its models elsewhere.
    """

    budget: str
    file: str
    is_there: bool
    problem: str = ""
    numbers: Mapping[str, LockedNumber] = field(default_factory=dict)
    is_at_base: bool = False
    base_problem: str = ""


class CutRun(Record, frozen=True, kw_only=True):
    """The run that was cut, which all of its parts name alike.

    collection is a SHA-256 of the ids of all limits that were cut, and of their budgets. root is where the project
    stands in its checkout. exceptions_on is the day that exceptions were held against, None where a part has none.
    """

    number_of_shards: int
    commit: str
    base: str
    environment: Mapping[str, str]
    root: str
    lock_check: bool
    number_of_limits: int
    collection: str
    exceptions_on: str | None = None


class Part(Record, frozen=True, kw_only=True):
    """One shard of a run: the results of its items as they came, and a report of its session without any."""

    schema: Version
    number: int
    run: CutRun
    exit: int
    results: tuple[Statement, ...]
    session: Report
    locks: tuple[LockComparison, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number}/{self.run.number_of_shards}"


def part_text(part: Part) -> str:
    """``--model-budget-report=json`` of a shard."""
    return json_text(part) + "\n"
