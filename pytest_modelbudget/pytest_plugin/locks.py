"""A session's lock files: what checks are compared with, what is said of them, what is written."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget import lock_file, revision
from pytest_modelbudget.budget.budget import Loosen
from pytest_modelbudget.budget.read_budget import SUFFIXES, is_budget, read_budget
from pytest_modelbudget.budget.update import UpdateMode
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.gate.locks import budget_changes, lock_reports, measured_numbers, written
from pytest_modelbudget.pytest_plugin.items import BASELINES, models_of
from pytest_modelbudget.pytest_plugin.options import BASE, LOCK, UPDATE
from pytest_modelbudget.reports import cases, record

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
        asked = revision.asked_base(config.getoption(BASE), os.environ)
        self.base = revision.base_revision(asked, config.rootpath) if asked else None
        self.baselines = config.stash[BASELINES] = lock_file.Baselines(config.rootpath, self.base)
        self.remarks: list[str] = []
        self.fails = False

    def compared(
        self, report: record.Report, numbers: Mapping[str, Mapping[str, Any]], files: Iterable[Path], *,
        gone_from: Iterable[Path],
    ) -> record.Report:  # fmt: skip
        """The report with what became of locks and limits; writes what an update asks for.

        gone_from are the paths under which budgets may have stood at the base.
        """
        budgets = sorted(set(files))
        if self.mode:
            self.remarks.extend(self._updated(self.mode, numbers, budgets))
            self.baselines = lock_file.Baselines(self.config.rootpath, self.base)  # as they are now
        is_checked = self.config.getoption(LOCK) == "check"
        locks = tuple(
            replace(lock, fails=is_checked and lock.state in UNFIT)
            for lock in lock_reports(report, numbers, budgets, self.baselines, all_needed=is_checked)
        )
        report = replace(report, base=(self.base and self.base.commit) or None, lock=locks)
        if self.base is not None:
            report = self._with_changes(report, self.base, budgets, gone_from)
        else:
            self.remarks.extend(self._unheld(budgets))
        self.fails |= any(lock.fails for lock in locks)
        self.fails |= any(change.forbidden for _, change in cases.changes(report))
        self.remarks.extend(self._lines(report))
        return report

    def _with_changes(
        self, report: record.Report, base: revision.BaseRevision, budgets: list[Path], gone_from: Iterable[Path]
    ) -> record.Report:
        """The report with what the change since the base loosens, and what it redefines."""
        gone = tuple(self._gone(base, gone_from)) if base.commit else ()
        try:
            registry = models_of(self.config).registry
        except ModelBudgetError as error:  # a broken extension: no budget could be read
            self.fails = True
            self.remarks.append(f"budgets were not compared with {revision.short(base)}: {error}")
            return report
        loosened, redefined = budget_changes(budgets, gone, base, registry, root=self.config.rootpath)
        return replace(report, loosened=loosened, redefined=redefined)

    def _unheld(self, budgets: list[Path]) -> Iterator[str]:
        """Budgets whose ban on loosening nobody could hold, for want of a base."""
        for path in budgets:
            if b"loosen" not in path.read_bytes():  # spares reading every budget once more
                continue
            with suppress(ModelBudgetError):  # what cannot be read fails by itself
                budget = read_budget(path, models_of(self.config).registry, root=self.config.rootpath)
                if budget.loosen is Loosen.FORBID:
                    yield f"loosen: forbid of {budget.file} is not held without {BASE}"

    def _gone(self, base: revision.BaseRevision, paths: Iterable[Path]) -> Iterator[Path]:
        """Budget files of the base that the working tree no longer has."""
        for path in paths:
            try:
                for file in revision.files_at(base, path):
                    is_gone = file.suffix in SUFFIXES and not file.exists()
                    if is_gone and is_budget(revision.text_at(base, file) or ""):
                        yield file
            except revision.BaseError as error:
                self.remarks.append(f"budgets at {revision.short(base)} were not listed: {error}")

    def _updated(
        self, mode: UpdateMode, numbers: Mapping[str, Mapping[str, Any]], budgets: list[Path]
    ) -> Iterator[str]:
        """Carries the update out, file by file; a line for each change."""
        count = 0
        for path in budgets:
            measured = measured_numbers(numbers, path)
            try:
                for line in written(mode, path, measured, self.baselines, models_of(self.config).registry):
                    count += 1
                    yield line
            except (ModelBudgetError, OSError) as error:
                self.fails = True
                yield f"{self.baselines.shown(path)} not written: {getattr(error, 'strerror', None) or error}"
        yield "run again: this session judged the limits as they were" if count else f"nothing to {mode.value}"

    def _lines(self, report: record.Report) -> Iterator[str]:
        if self.base is not None and self.base.commit:
            yield f"compared with {revision.short(self.base)}"
        yield from (lock.text for lock in report.lock if not lock.is_fresh)
        for word, some in ((cases.LOOSENED, report.loosened), (cases.REDEFINED, report.redefined)):
            for change in some[:MOST_LINES]:
                forbidden = " (forbidden)" if change.forbidden else ""
                yield f"{change.text}{forbidden}   {change.file}:{change.line}"
            if len(some) > MOST_LINES:
                yield f"{len(some) - MOST_LINES} more {word}"
