"""One item per limit, and what all items of the plugin share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn, Protocol

import pytest

from pytest_modelbudget.budget.baselines import Baselines
from pytest_modelbudget.budget.budget import AnyLimit, Place
from pytest_modelbudget.budget.lock_file import value_record
from pytest_modelbudget.check.measuring import MeasuredModels, checked, lockable
from pytest_modelbudget.check.tables import tables
from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.pytest_options import BASE, SWITCH, UPDATE, report_files
from pytest_modelbudget.reports.failure_text import failure_lines, one_line
from pytest_modelbudget.reports.report import MeasuredModel, Record, check_record
from pytest_modelbudget.verdict import Verdict

MARKER = "model_budget"
PROPERTY = "model_budget"

BASELINES = pytest.StashKey[Baselines]()
_MODELS = pytest.StashKey[MeasuredModels]()


def models_of(config: pytest.Config) -> MeasuredModels:
    """The models of this session, measured with all installed and given extensions.

    Raises ExtensionError, at every call, where an extension is broken.
    """
    if _MODELS not in config.stash:
        with user_code("the hook pytest_model_budget_extensions", ExtensionError):
            given = config.hook.pytest_model_budget_extensions(config=config)
            using = tables(_flat(given))
        profiled = any(report.needs_profile for report, _ in report_files(config))
        config.stash[_MODELS] = MeasuredModels(using, root=config.rootpath, profiled=profiled)
    return config.stash[_MODELS]


def baselines_of(config: pytest.Config) -> Baselines:
    """The lock files that checks are compared with."""
    return config.stash.setdefault(BASELINES, Baselines(config.rootpath))


def keeps_parts(config: pytest.Config, path: Path, budget_path: str) -> bool:
    """Whether the parts of a model's numbers are needed: a lock knows it, or is to be written."""
    is_compared = baselines_of(config).knows(path, budget_path)
    return is_compared or bool(config.getoption(UPDATE))


def _flat(given: Iterable[object]) -> Iterator[object]:
    for each in given:
        if isinstance(each, (list, tuple)):
            yield from each
        elif each is not None:
            yield each


class BrokenLimitError(Exception):
    """Raised by an item to fail; lines are what the reader sees, the first one is the summary."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class BudgetItem(pytest.Item):
    """Anything that the plugin adds to a session; place is where it stands in its file.

    title heads a failure: "net / tiled / macs". statement is what it tells the report, set once
    it ran.
    """

    def __init__(self, *, place: Place, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place
        self.title = " / ".join(self.nodeid.split("::")[1:])
        self.statement: str | None = None
        self.add_marker(MARKER)

    def reportinfo(self) -> tuple[Any, int, str]:
        """File, line counted from 0, and the heading above a failure."""
        return self.path, self.place.line - 1, f"model budget: {self.title}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failure as lines, with the budget's own line as its place."""
        error = excinfo.value
        if isinstance(error, BrokenLimitError):
            return self._shown(excinfo, error.lines)
        if self.config.getoption("fulltrace"):
            return super().repr_failure(excinfo)
        text = f"{self.title} unknown: {type(error).__name__}: {one_line(str(error))}"
        way_out = "raised by a hook, a plugin or pytest-modelbudget itself: see --full-trace"
        return self._shown(excinfo, (f"{text}   {self.place}", way_out))

    def _shown(self, excinfo: pytest.ExceptionInfo[BaseException], lines: Sequence[str]) -> Any:
        shown = excinfo.getrepr(style="value")
        entry = shown.reprtraceback.reprentries[0]
        entry.lines = list(lines)
        if shown.reprcrash is not None:
            shown.reprcrash.path = self.place.file
            shown.reprcrash.lineno = self.place.line
            shown.reprcrash.message = lines[0].removesuffix(f"   {self.place}")
        return shown

    def _note(self, check: Record) -> None:
        """Let pytest's own JUnit file have the check."""
        self.user_properties[:] = [each for each in self.user_properties if each[0] != PROPERTY]
        self.user_properties.append((PROPERTY, json.dumps(check)))

    def _fail(self, lines: Sequence[str]) -> NoReturn:
        raise BrokenLimitError(lines) from None


class Budgeted(Protocol):
    """What stands above limits: a model, a variant, or a model after a transform."""

    nodeid: str

    @property
    def budget_path(self) -> str:
        """Its name within the file: "detector", "detector::batch8", "detector::tiled"."""

    def measured(self) -> MeasuredModel:
        """The numbers, measured at the first call in this process."""

    def statement(self, check: Record, number: Record | None = None) -> str:
        """What an item tells the report: its check, and what nobody has told yet."""


class LimitItem(BudgetItem):
    """One limit of one model."""

    def __init__(self, *, limit: AnyLimit, parent: Budgeted, **kwargs: Any) -> None:
        super().__init__(place=limit.place, parent=parent, **kwargs)
        self.limit = limit
        self.model = parent

    def runtest(self) -> None:
        """Measure the model if nobody has, judge the limit, and fail if it is broken."""
        measured = self.model.measured()
        baseline = baselines_of(self.config).of(self.path, self.model.budget_path, self.name)
        verdict = checked(self.limit, measured, baseline)
        self.ihook.pytest_model_budget_judged(item=self, verdict=verdict)
        check = check_record(self.nodeid, verdict)
        self.statement = self.model.statement(check, self._number(verdict))
        self._note(check)
        if verdict.fails:
            self._fail(failure_lines(verdict, accept=self._accepting(verdict)))

    def _number(self, verdict: Verdict) -> Record | None:
        """What was measured, as a lock file has it, and of which budget file.

        Its parts are with it only where a lock is to be written.
        """
        model = self.model.measured()
        is_written = bool(self.config.getoption(UPDATE))
        versions = models_of(self.config).using.versions(model.format)
        number = lockable(verdict, model if is_written else None, versions)
        return None if number is None else {"budget": str(self.path), **value_record(number)}

    def _accepting(self, verdict: Verdict) -> str:
        """The command that makes the limit what was measured, from the current directory.

        It names the base that growth was told from, which on GitHub nobody had to ask for.
        """
        start, base = self.config.invocation_params.dir, baselines_of(self.config).base
        path = Path(os.path.relpath(self.path, start)).as_posix()
        names = "::".join((path, *self.nodeid.split("::")[1:]))
        is_told = base is not None and verdict.allowed is not None and verdict.baseline.revision
        against = f" {BASE}={quote(base.asked)}" if base and is_told else ""
        return f"pytest {SWITCH} {UPDATE}=fix{against} {quote(names)}"
