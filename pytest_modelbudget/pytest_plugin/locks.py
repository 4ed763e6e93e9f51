"""A session's lock files: what checks are compared with, what is said of them, what is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_modelbudget.budget.budget import Loosen
from pytest_modelbudget.budget.lock_file import Baselines
from pytest_modelbudget.budget.read_budget import SUFFIXES, is_budget
from pytest_modelbudget.budget.revision import (
    BaseError,
    BaseRevision,
    asked_base,
    base_revision,
    files_at,
    short,
    text_at,
)
from pytest_modelbudget.budget.update import UpdateMode
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.gate.budgets import read
from pytest_modelbudget.gate.locks import change_records, lock_records, measured_numbers, written
from pytest_modelbudget.pytest_plugin.items import BASELINES, models_of
from pytest_modelbudget.pytest_plugin.options import BASE, LOCK, UPDATE
from pytest_modelbudget.reports.cases import CHANGES, changes
from pytest_modelbudget.reports.record import Record

CI_VARIABLES = ("CI", "BUILD_NUMBER", "TF_BUILD")
NOT_SET = ("", "0", "false")
MOST_LINES = 20  # of loosened limits, or of redefined models, that a terminal shows
UNFIT = ("stale", "missing", "broken")  # states that fail where locks are checked


def is_ci() -> bool:
    """Whether this machine only checks what people wrote."""
    return any(os.environ.get(name, "").lower() not in NOT_SET for name in CI_VARIABLES)


class SessionLocks:
    """The lock files of a session; in workers only what checks are compared with.

    Raises pytest.UsageError for an update under CI, and for a revision that is an option, or empty.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        mode = config.getoption(UPDATE)
        self.mode = UpdateMode(mode) if mode else None
        if self.mode and is_ci():
            raise pytest.UsageError(
                f"{UPDATE}={mode} writes budgets, and CI only reads them: run it on your own "
                "machine and commit what it writes"
            )
        if config.getoption(BASE) == "":
            raise pytest.UsageError(
                f"{BASE} is empty: name a revision, or leave the option out to compare with the "
                "working tree's lock files"
            )
        asked = asked_base(config.getoption(BASE), os.environ)
        self.base = base_revision(asked, config.rootpath) if asked else None
        self.baselines = config.stash[BASELINES] = Baselines(config.rootpath, self.base)
        self.remarks: list[str] = []
        self.fails = False

    def tell(
        self, record: Record, numbers: dict[str, Record], files: Iterable[Path], *,
        gone_from: Iterable[Path],
    ) -> None:  # fmt: skip
        """Write what an update asks for, and let the record say what became of locks and limits.

        gone_from are the paths under which budgets may have stood at the base.
        """
        budgets = sorted(set(files))
        if self.mode:
            self.remarks.extend(self._updated(self.mode, numbers, budgets))
            self.baselines = Baselines(self.config.rootpath, self.base)  # as they are now
        is_checked = self.config.getoption(LOCK) == "check"
        record["base"] = self.base.commit or None if self.base else None
        record["lock"] = lock_records(
            record, numbers, budgets, self.baselines, all_needed=is_checked
        )
        for each in record["lock"]:
            each["fails"] = is_checked and each["state"] in UNFIT
            self.fails |= each["fails"]
        if self.base is not None:
            record |= self._changes(self.base, budgets, gone_from)
        else:
            self.remarks.extend(self._unheld(budgets))
        self.fails |= any(change["forbidden"] for _, change in changes(record))
        self.remarks.extend(self._lines(record))

    def _changes(
        self, base: BaseRevision, budgets: list[Path], gone_from: Iterable[Path]
    ) -> dict[str, list[Record]]:
        """What the change since the base loosens, and what it redefines."""
        gone = tuple(self._gone(base, gone_from)) if base.commit else ()
        try:
            using = models_of(self.config).using
        except ModelBudgetError as error:  # a broken extension: no budget could be read
            self.fails = True
            self.remarks.append(f"budgets were not compared with {short(base)}: {error}")
            return {}
        return change_records(budgets, gone, base, using, root=self.config.rootpath)

    def _unheld(self, budgets: list[Path]) -> Iterator[str]:
        """Budgets whose ban on loosening nobody could hold, for want of a base."""
        for path in budgets:
            if b"loosen" not in path.read_bytes():  # spares reading every budget once more
                continue
            with suppress(ModelBudgetError):  # what cannot be read fails by itself
                budget = read(path, models_of(self.config).using, root=self.config.rootpath)
                if budget.loosen is Loosen.FORBID:
                    yield f"loosen: forbid of {budget.file} is not held without {BASE}"

    def _gone(self, base: BaseRevision, paths: Iterable[Path]) -> Iterator[Path]:
        """Budget files of the base that the working tree no longer has."""
        for path in paths:
            try:
                for file in files_at(base, path):
                    is_gone = file.suffix in SUFFIXES and not file.exists()
                    if is_gone and is_budget(text_at(base, file) or ""):
                        yield file
            except BaseError as error:
                self.remarks.append(f"budgets at {short(base)} were not listed: {error}")

    def _updated(
        self, mode: UpdateMode, numbers: dict[str, Record], budgets: list[Path]
    ) -> Iterator[str]:
        """Carries the update out, file by file; a line for each change."""
        count = 0
        for path in budgets:
            file = self.baselines.shown(path)
            measured = measured_numbers(numbers, path)
            try:
                using = models_of(self.config).using
                for line in written(mode, path, measured, self.baselines, using):
                    count += 1
                    yield line
            except ModelBudgetError as error:
                self.fails = True
                yield f"{file} not written: {error}"
            except OSError as error:
                self.fails = True
                yield f"{file} not written: {error.strerror or error}"
        if count:
            yield "run again: this session judged the limits as they were"
        else:
            yield f"nothing to {mode.value}"

    def _lines(self, record: Record) -> Iterator[str]:
        if self.base is not None and self.base.commit:
            yield f"compared with {short(self.base)}"
        for each in record["lock"]:
            if each["state"] != "fresh":
                yield each["text"]
        for word in CHANGES:
            some = record[word]
            for each in some[:MOST_LINES]:
                forbidden = " (forbidden)" if each["forbidden"] else ""
                yield f"{each['text']}{forbidden}   {each['file']}:{each['line']}"
            if len(some) > MOST_LINES:
                yield f"{len(some) - MOST_LINES} more {word}"
