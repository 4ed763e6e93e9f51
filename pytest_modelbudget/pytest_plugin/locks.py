"""A session's lock files: what checks are compared with, what is said of them, what is written."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget import git, revision
from pytest_modelbudget.budget.base_inventory import Baselines, text_at
from pytest_modelbudget.budget.budget import Loosen, path_of
from pytest_modelbudget.budget.read_budget import read_budget, yaml_files
from pytest_modelbudget.budget.update import UpdateMode
from pytest_modelbudget.errors import ModelBudgetError, SourceError
from pytest_modelbudget.gate import locks as gate_locks
from pytest_modelbudget.gate.project import project_around
from pytest_modelbudget.pytest_plugin import options
from pytest_modelbudget.pytest_plugin.options import BASE, LOCK, UPDATE, asked_shard
from pytest_modelbudget.pytest_plugin.session_models import BASELINES, adds_locks, models_of
from pytest_modelbudget.reports import record, terminal
from pytest_modelbudget.reports.annotations import LOOSEN
from pytest_modelbudget.reports.findings import CHANGES, ERROR, Finding, findings
from pytest_modelbudget.reports.shard import LockComparison
from pytest_modelbudget.transforms.transform import IS_WRITTEN
from pytest_modelbudget.units import several


class CollectedBudgets(NamedTuple):
    """The collected budget files, the paths under which they were looked for, and those that were not collected."""

    files: tuple[Path, ...]
    roots: tuple[Path, ...]
    uncollected: frozenset[Path]
    is_whole: bool


class SessionLocks:
    """The lock files of a session; in workers only what checks are compared with.

    Raises pytest.UsageError for an update under CI, and for a revision that is an option, or empty.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        mode = config.getoption(UPDATE)
        self.mode = UpdateMode(mode) if mode else None
        if self.mode and revision.is_ci():
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
        self.base = revision.base_revision(asked, config.rootpath, os.environ) if asked else None
        self.baselines = config.stash[BASELINES] = Baselines(config.rootpath, self.base)
        self.checks_locks = config.getoption(LOCK) == "check"
        self.adds = adds_locks(config)
        self.remarks: list[str] = []
        self.written: list[str] = []  # a line for each change, and behind the verdicts one for each file
        self.to_review: list[str] = []
        self.fails = False
        self.comparisons: list[LockComparison] = []

    def compared(
        self, report: record.Report, numbers: gate_locks.Numbers, collected: CollectedBudgets
    ) -> record.Report:
        """The report with what became of locks and limits; writes what an update asks for."""
        budgets = gate_locks.measured_budgets(report, numbers, sorted(set(collected.files)), self.config.rootpath)
        if self.mode:
            for budget in budgets:
                self._update(self.mode, budget)
            claims = (each.equivalence for model in report.models for each in model.transforms if each.equivalence)
            self.written += [note for claim in claims for note in claim.notes if note.endswith(IS_WRITTEN)]
            if not (self.written or self.fails):
                self.remarks.append(f"nothing to {self.mode.value}")
        else:
            self._add_missing(report, numbers, [budget.path for budget in budgets])
        self.baselines = Baselines(self.config.rootpath, self.base)  # as the files are now
        report = self._with_locks(report, budgets)
        if self.base is None:
            self.remarks.extend(self._unheld(collected.files))
        else:
            report = self._with_changes(report, self.base, budgets, collected)
        self.fails |= bool(report.failing_locks) or any(change.forbidden for change in report.changes)
        self.remarks.extend(terminal.change_lines(report))
        return report

    def _with_locks(self, report: record.Report, budgets: Sequence[gate_locks.MeasuredBudget]) -> record.Report:
        """The report with the state of every lock file; a shard knows too few numbers, and says nothing of them."""
        self.comparisons = [gate_locks.lock_comparison(budget, self.baselines) for budget in budgets]
        if (base := self.base) is not None:
            unreachable = () if base.commit else (gate_locks.unknown_base(base.why_not),)
            known = {"base": base.commit or None, "base_name": base.asked, "head": base.measured}
            report = replace(report, **known, lock=unreachable)
        comparisons = [] if asked_shard(self.config) else self.comparisons
        return gate_locks.with_locks(report, comparisons, is_checked=self.checks_locks)

    def _with_changes(
        self, report: record.Report, base: revision.BaseRevision, budgets: Sequence[gate_locks.MeasuredBudget],
        collected: CollectedBudgets,
    ) -> record.Report:  # fmt: skip
        """The report with what the change since the base loosens, and what it redefines."""
        try:
            others: set[Path] = set()
            dropped: list[Path] = []
            if base.commit:
                others = {*yaml_files(options.configured_paths(self.config)), *collected.uncollected}
                dropped = self._dropped(base, collected)
            compared = gate_locks.ComparedBudgets(self.baselines, models_of(self.config).registry, budgets, others)
            loosened, redefined = compared.changes(report, dropped)
        except ModelBudgetError as error:  # of git, or of an extension
            unknown = gate_locks.unknown_base(f"budgets at {revision.short(base)} cannot be read: {error}")
            return replace(report, lock=(unknown, *report.lock))
        return replace(report, loosened=loosened, redefined=redefined)

    def _unheld(self, budgets: Iterable[Path]) -> Iterator[str]:
        """Budgets whose ban on loosening could not be checked, for want of a base."""
        for path in budgets:
            with suppress(ModelBudgetError, OSError):  # what cannot be read fails by itself
                if b"loosen" not in path.read_bytes():  # spares reading every budget once more
                    continue
                budget = read_budget(path, models_of(self.config).registry, root=self.config.rootpath)
                if budget.loosen is Loosen.FORBID:
                    yield f"loosen: forbid of {budget.file} is not checked without {BASE}"

    def _dropped(self, base: revision.BaseRevision, collected: CollectedBudgets) -> list[Path]:
        """The budget files of the base that are none any more, or that settings of the change leave out."""
        inventory = self.baselines.inventory
        assert inventory is not None  # only asked for where the base is here
        tops = {*collected.roots, *options.configured_paths(self.config), *self._paths_at(base)}
        is_whole = collected.is_whole and not options.chooses_budgets(self.config)
        dropped = [*inventory.dropped(tops, {*collected.files, *collected.uncollected}, is_whole=is_whole)]
        for path in (path for path in dropped if path.exists()):
            files = ", ".join(inventory.changed_settings)
            self.remarks.append(f"{self.baselines.shown(path)} is dropped: not collected since the change of {files}")
        return dropped

    def _paths_at(self, base: revision.BaseRevision) -> tuple[Path, ...]:
        """The paths under which the settings of the base looked for budgets; none where nobody can read them."""

        def read(path: Path) -> str | None:
            with suppress(git.BaseError):  # of another repository, or not compared
                return text_at(base, path)
            return None

        try:
            return project_around(self.config.rootpath, read).budgets
        except SourceError:
            return ()

    def _add_missing(self, report: record.Report, numbers: gate_locks.Numbers, paths: Iterable[Path]) -> None:
        """Add the numbers of limits that are within to locks that lack them; in CI a line says that some do."""
        within = {case.id for case in report.cases() if case.outcome == "within"}
        fitting = {node_id: number for node_id, number in numbers.items() if node_id in within}
        budgets = gate_locks.measured_budgets(report, fitting, paths, self.config.rootpath)
        if self.adds:
            self.remarks.extend(gate_locks.numbers_added(budgets, self.baselines))
        elif revision.is_ci() and not self.config.getoption(LOCK):
            lacking = [budget for budget in budgets if gate_locks.lacking_numbers(budget, self.baselines)]
            self.remarks.extend([gate_locks.NOT_ADDED.format(several(len(lacking), "budget"))] if lacking else [])

    def _update(self, mode: UpdateMode, budget: gate_locks.MeasuredBudget) -> None:
        """Carry the update of one budget out."""
        file, changes = self.baselines.shown(budget.path), []
        try:
            for change in gate_locks.write_update(mode, budget, self.baselines, models_of(self.config).registry):
                changes.append(change)
                self.written.append(change.text)
        except (ModelBudgetError, OSError) as error:
            self.fails = True
            self.remarks.append(f"{file} not written: {getattr(error, 'strerror', None) or error}")
            return
        if changes:
            self.to_review.append(gate_locks.to_review(mode, changes, file))

    def failures(self, report: record.Report) -> Iterator[tuple[str, int, list[str]]]:
        """What fails and is no limit, as an item: its node id, the line in its file, and what a reader is told."""
        forbidden: dict[str, list[Finding]] = {}
        for finding in findings(report):
            if finding.kind in CHANGES and finding.level == ERROR:
                forbidden.setdefault(finding.file, []).append(finding)
        for file, changes in forbidden.items():
            lines = [f"{change.message}   {change.file}:{change.line}" for change in changes]
            yield path_of(file, LOOSEN), changes[0].line, [*lines, *changes[0].lines[1:]]
        for lock in report.failing_locks:
            yield lock.id, 1, [lock.text]
