"""The entries that only a part of a run has: which shard of which run it is, and what merging needs of it.

{"number": 2, "of": 3, "commit": "1a2b...", "collection": "9f86...", "limits": 12, "answered": 4, "exit": 1}

A state of a lock file is said of all its numbers, so a part has no such words yet but what they are made from.
"""

from collections.abc import Mapping

from msgspec import field

from pytest_modelbudget.reports.json_records import Record, always


class LockedNumber(Record, frozen=True, kw_only=True):
    """A measured number beside the locked one: difference is "" where they are the same.

    is_locked tells whether the lock has it; drift names frameworks, and their versions, that it was locked with and
    that are others today.
    """

    difference: str = ""
    is_locked: bool = True
    drift: tuple[str, ...] = ()


class LockComparison(Record, frozen=True, kw_only=True):
    """One lock file beside the numbers that a session measured, which are listed by node id.

    problem says why the lock cannot be read, base_problem the same of the base's. moved has the locks of the base that
    a model is compared with, where these are others.
    """

    budget: str
    file: str
    is_there: bool
    problem: str = ""
    numbers: Mapping[str, LockedNumber] = field(default_factory=dict)
    is_at_base: bool = False
    base_problem: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)


class Shard(Record, frozen=True, kw_only=True):
    """A part of a run that was cut over machines: the one of that number, from 1, "of" so many.

    uncommitted is a SHA-256 of what was changed beside the commit, or "not told" where git could not compare.
    collection is one over the sorted ids of all the limits that were cut, one a line, and their budgets; answered of
    these many limits this part has measured. exit is its session's exit code. checks_locks says that lock files are to
    be judged, root where the project stands in its checkout, for annotations.
    """

    number: int
    of: int
    commit: str
    uncommitted: str = ""
    collection: str
    limits: int
    answered: int
    exit: int
    checks_locks: bool = False
    root: str = ""
    locks: tuple[LockComparison, ...] = always(())

    @property
    def name(self) -> str:
        """The shard as people write it: "2/3"."""
        return f"{self.number}/{self.of}"
