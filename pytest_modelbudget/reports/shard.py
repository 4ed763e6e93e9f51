"""The entries that only a part of a run has: which shard of which run it is, and what merging needs of it.

{"number": 2, "of": 3, "commit": "1a2b...", "collection": "9f86...", "limits": 12, "answered": 4, "exit": 1}

A state of a lock file is said of all its numbers, so a part has no such words yet but what they are made from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_modelbudget.reports.typed_json import EMPTY, Entry, rare


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedNumber(Entry):
    """A measured number beside the locked one: difference is "" where they are the same.

    is_locked tells whether the lock has it; drift names frameworks, and their versions, that it was locked with and
    that are others today.
    """

    difference: str = rare("")
    is_locked: bool = rare(True)
    drift: tuple[str, ...] = rare(())


@dataclass(frozen=True, slots=True, kw_only=True)
class LockComparison(Entry):
    """One lock file beside the numbers that a session measured, which are listed by node id.

    problem says why the lock cannot be read, base_problem the same of the base's. moved has the locks of the base that
    a model is compared with, where these are others.
    """

    budget: str
    file: str
    is_there: bool
    problem: str = rare("")
    numbers: Mapping[str, LockedNumber] = rare(EMPTY)
    is_at_base: bool = rare(False)
    base_problem: str = rare("")
    moved: Mapping[str, str] = rare(EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Entry):
    """A part of a run that was cut over machines: the one of that number, from 1, "of" so many.

    uncommitted is a SHA-256 of what was changed beside the commit, or "not told" where git could not compare.
    collection is one over the sorted ids of all the limits that were cut, one a line, and their budgets; answered of
    these many limits this part has measured. exit is its session's exit code. checks_locks says that lock files are to
    be judged, root where the project stands in its checkout, for annotations.
    """

    number: int
    of: int
    commit: str
    uncommitted: str = rare("")
    collection: str
    limits: int
    answered: int
    exit: int
    checks_locks: bool = rare(False)
    root: str = rare("")
    locks: tuple[LockComparison, ...] = ()

    @property
    def name(self) -> str:
        """The shard as people write it: "2/3"."""
        return f"{self.number}/{self.of}"
