"""The locked numbers that a session's checks are compared with; each file is read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_modelbudget.budget.compared_revision import BaseError, BaseRevision, short, text_at
from pytest_modelbudget.budget.lock_file import (
    UPDATE,
    Baseline,
    Lock,
    LockError,
    lock_path,
    read_lock,
)


@dataclass(frozen=True, slots=True)
class FoundLock:
    """A lock that was looked for: what it holds; or None, and why. is_there tells no file."""

    lock: Lock | None
    is_there: bool = False
    problem: str = ""


class Baselines:
    """The locks of a session's budgets: those of the working tree, and those of the base."""

    def __init__(self, root: Path, base: BaseRevision | None = None) -> None:
        self.root = root
        self.base = base
        self._here: dict[Path, FoundLock] = {}
        self._there: dict[Path, FoundLock] = {}

    def of(self, budget: Path, model: str, check: str) -> Baseline:
        """What one check of a budget file is compared with.

        That is the base's number. A model, or a limit, that the base does not know is compared
        with the working tree's: what is new has not grown.
        """
        base = self.base
        if base is not None and not base.commit:
            return Baseline(why_none=f"the base is not known: {base.why_not}")
        if base is not None:
            there = self.at_base(budget)
            if there.problem:
                return Baseline(why_none=there.problem)
            locked = there.lock.value(model, check) if there.lock else None
            if locked is not None:
                return Baseline(locked, revision=base.commit)
        here = self.in_working_tree(budget)
        locked = here.lock.value(model, check) if here.lock else None
        if locked is not None:
            return Baseline(locked)
        return Baseline(why_none=here.problem or self._missing(budget, model, check, here))

    def knows(self, budget: Path, model: str) -> bool:
        """Whether any lock holds a number of this model, which growth could be told from."""
        found = [self.in_working_tree(budget)]
        if self.base is not None and self.base.commit:
            found.append(self.at_base(budget))
        return any(each.lock is not None and model in each.lock.models for each in found)

    def in_working_tree(self, budget: Path) -> FoundLock:
        """The lock file beside a budget file."""
        if budget not in self._here:
            path = lock_path(budget)
            try:
                text = path.read_bytes().decode("utf-8-sig")
                self._here[budget] = FoundLock(read_lock(text, self.shown(path)), True)
            except FileNotFoundError:
                self._here[budget] = FoundLock(None)
            except LockError as error:
                self._here[budget] = FoundLock(None, True, str(error))
            except (OSError, UnicodeDecodeError) as error:
                problem = f"{self.shown(path)} cannot be read: {error}"
                self._here[budget] = FoundLock(None, True, problem)
        return self._here[budget]

    def at_base(self, budget: Path) -> FoundLock:
        """The lock file that stood beside a budget file at the base, which must be known."""
        assert self.base is not None  # only asked for where there is one
        if budget not in self._there:
            path = lock_path(budget)
            try:
                text = text_at(self.base, path)
                name = f"{self.shown(path)} at {short(self.base)}"
                lock = None if text is None else read_lock(text, name)
                self._there[budget] = FoundLock(lock, lock is not None)
            except (LockError, BaseError) as error:
                self._there[budget] = FoundLock(None, True, str(error))
        return self._there[budget]

    def shown(self, path: Path) -> str:
        """A path from the project's root."""
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else path.as_posix()

    def _missing(self, budget: Path, model: str, check: str, here: FoundLock) -> str:
        file = self.shown(lock_path(budget))
        lacks = f"{file} has no {check} of {model}" if here.is_there else f"there is no {file}"
        return f"{lacks}: {UPDATE}=create writes it"
