"""The session's hooks while ``--model-budget`` is given: collect, listen, report."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.budget import Address
from pytest_modelbudget.budget.read_budget import yaml_files
from pytest_modelbudget.errors import ExtensionError, ModelBudgetError, user_code
from pytest_modelbudget.gate.locks import with_history
from pytest_modelbudget.gate.report_files import remove_reports, write_report
from pytest_modelbudget.gate.watch import Watch
from pytest_modelbudget.pytest_plugin import items, locks, options, session_models, shards
from pytest_modelbudget.pytest_plugin.collect import BudgetPaths
from pytest_modelbudget.registry import environment
from pytest_modelbudget.reports import build, findings, record, table, terminal
from pytest_modelbudget.reports.checkout import checkout
from pytest_modelbudget.reports.json_records import from_json, to_json
from pytest_modelbudget.reports.messages import SEE
from pytest_modelbudget.reports.shard import Part
from pytest_modelbudget.reports.table import FileReport
from pytest_modelbudget.reports.text import folded, printable, printed_line
from pytest_modelbudget.units import several

NO_BREAK = "\N{NO-BREAK SPACE}"  # where a line of the terminal may not end
PYTESTS = ("python", "pytest-modelbudget")  # versions that pytest's own header has
STATEMENT = "model_budget_statement"  # attribute of a test report that carries an item's words; text in transit
COUNTS = "model_budget_counts"  # what a worker tells the controller at its end
NEVER_STARTED = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)


class Gate:
    """The session's hooks while ``--model-budget`` is given."""

    def __init__(self, config: pytest.Config) -> None:
        options.require_packages(config)
        options.require_amounts(config)
        options.require_day(config)
        self.config = config
        config.stash[session_models.WATCH] = Watch()
        self.paths = BudgetPaths(config)
        self.locks = locks.SessionLocks(config)
        if not config.getoption("collectonly"):
            session_models.preload(config, yaml_files(self.paths.roots))
        asked = options.asked_shard(config)
        self.shard = shards.SessionShard(config, asked) if asked else None
        self.assembly = build.Assembly(keeps_results=asked is not None)
        self.cut = shards.CutCollection()
        self.open = items.OpenItems(())
        self.budgets: list[str] = []  # files that were collected, here or in a worker
        self.is_collected = False  # here or in a worker, to the end
        self.declared = self.collected = 0
        self.idle = 0  # selected limits on timed runs, without the option that measures them
        self.remarks = [*filter(None, [self.paths.outside])]
        self.unavailable = ""  # why a worker of xdist measured in its own process
        self.report: record.Report | None = None
        self.is_finished = False  # the session came to its end, whatever it then says
        self.failed: list[pytest.TestReport] = []  # all of them, while pytest shows those that have a text of their own
        self.closing: pytest.TestReport | None = None  # of an item that fails when all have run, while it is told

    # Finding budgets.

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> Any:
        """A budget file, if it is one of ours."""
        if self.paths.claims(file_path):
            self.budgets.append(str(file_path))
            return items.BudgetFile.from_parent(parent, path=file_path)
        return None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is left after all selection."""
        self.is_collected = True
        ours = {item.nodeid: item for item in session.items if isinstance(item, items.BudgetItem)}  # some may run twice
        self.idle = sum(item.is_idle for item in ours.values())
        self.collected = len(ours) - self.idle
        if self.idle:
            self.paths.remarks.append(f"{several(self.idle, 'limit')} on timed runs skipped: give {options.RUNTIME}")
        self.cut = self.shard.cut if self.shard else self.cut
        self.declared = sum(items.read_files(self.config).values()) - self.cut.elsewhere
        if not self.config.getoption("lf", False):  # which passes by files that did not fail
            self.budgets = [file for file in self.budgets if file in items.read_files(self.config)]
        self.open = items.OpenItems(session.items)
        items.plan(session)

    # Listening to items, in whichever process they run.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let go of what is no longer needed."""
        ran = yield
        self.open.close(item)
        return ran

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let an item's report carry its words to the controller, and the line that says what failed."""
        report = yield
        failure = call.excinfo and call.excinfo.value
        if isinstance(failure, items.BrokenLimitError) and failure.place:
            file, _, heading = report.location
            report.location = (file, failure.place.line - 1, heading)
        if isinstance(item, items.BudgetItem) and item.statement:
            if call.when == "call":
                setattr(report, STATEMENT, str(item.statement))
            item.statement = None  # also of a run that another plugin repeated without a report
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in an item's words; a budget's item that fails without any is unknown."""
        if hasattr(self.config, "workerinput"):
            return
        if text := vars(report).pop(STATEMENT, ""):
            self.assembly.add(build.Statement.parse(text))
        elif (
            report.failed
            and self.report is None
            and self.paths.claims(self.config.rootpath / Address.parse(report.nodeid).file)
        ):
            words = (line.strip() for line in report.longreprtext.split("\n"))
            self.assembly.lose(report.nodeid, next(filter(None, words), f"failed in {report.when}"))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """An item that fails when all have run is counted, without a letter behind the last one's 100%."""
        return ("failed", "", "") if report is self.closing else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Learn from an xdist worker how much there was to select from."""
        counts = getattr(node, "workeroutput", {}).get(COUNTS)
        if counts:
            self.is_collected = True
            self.budgets, self.declared, self.collected, self.idle, unavailable, self.paths.remarks, cut = counts
            self.unavailable = self.unavailable or unavailable
            self.cut = shards.CutCollection(*cut)

    # The end of the session.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports, and see to it that a session without a verdict is not green."""
        if hasattr(self.config, "workerinput"):
            counted = (self.budgets, self.declared, self.collected, self.idle)
            counts = (*counted, self._without_processes, self.paths.remarks, tuple(self.cut))
            self.config.workeroutput[COUNTS] = counts  # type: ignore[attr-defined]  # xdist's own
            return
        is_started = self.assembly.answered or exitstatus not in NEVER_STARTED
        if self.config.getoption("collectonly") or not is_started:
            return
        unanswered = max(self.collected - self.assembly.answered, 0)
        if self._is_whole(exitstatus) and not self.config.getoption("lf", False):  # which reads files that failed
            self.paths.note_uncollected(self.budgets)
        broken = tuple(self.paths.broken())
        is_selected = self.declared > self.assembly.answered or bool(options.selection(self.config))
        known = build.session_report(selected=is_selected, unanswered=unanswered, broken=broken)
        self.report = self._compared(self.assembly.report(known), exitstatus)
        for node_id, line, lines in self.locks.failures(self.report):
            self._fail(node_id, line, lines)
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = self._exit_status(exitstatus)
        if unavailable := self.unavailable or self._without_processes:
            self.remarks.append(f"{unavailable}: models were measured in the session's process, one after another")
        if unanswered:
            self.remarks.append(findings.unmeasured(self.report))
        if self.shard:
            limits = several(self.cut.limits, "limit")
            self.remarks.append(
                f"shard {self.shard.name}: {self.collected} of {limits}, and modelbudget merge judges the whole"
            )
        session.exitstatus = self._write_reports(self.report, int(session.exitstatus)) or session.exitstatus
        self._fold_failures()
        self.is_finished = True

    @property
    def _without_processes(self) -> str:
        """Why models were measured in this process though others were asked for, "" if they were not."""
        pool = session_models.pool_of(self.config)
        return pool.unavailable if pool.workers else ""

    def _fail(self, node_id: str, line: int, lines: list[str]) -> None:
        """Let everybody hear of an item that fails, for what only the whole session could tell."""
        address = Address.parse(node_id)
        try:
            raise items.BrokenLimitError(lines)
        except items.BrokenLimitError:
            place = budgets.Place(address.file, line)
            shown = items.shown_failure(pytest.ExceptionInfo.from_current(), lines, place)
        where = address.file, line - 1, f"model budget: {address.title}"
        self.closing = pytest.TestReport(node_id, where, {items.MARKER: 1}, "failed", shown, "call")
        self.config.hook.pytest_runtest_logreport(report=self.closing)
        self.closing = None

    def _compared(self, report: record.Report, exitstatus: int) -> record.Report:
        """The report with what became of lock files and limits; carries out an update."""
        self.locks.adds &= exitstatus != pytest.ExitCode.INTERRUPTED
        if exitstatus == pytest.ExitCode.INTERRUPTED and self.locks.mode:
            self.locks.mode = None
            self.remarks.append("nothing written: the session was interrupted")
        files = tuple(map(Path, self.budgets))
        uncollected, is_whole = frozenset(self.paths.uncollected), self._is_whole(exitstatus)
        collected = locks.CollectedBudgets(files, self.paths.roots, uncollected, is_whole)
        report = self.locks.compared(report, self.assembly.numbers, collected)
        self.remarks.extend(self.locks.remarks)
        has_page = self.shard or any(asked.profile for asked, _ in options.report_files(self.config))
        if not has_page:
            return report
        root = self.config.rootpath
        return with_history(replace(report, checkout=checkout(root, os.environ)), files, root)

    def _is_whole(self, exitstatus: int) -> bool:
        return self.is_collected and exitstatus != pytest.ExitCode.INTERRUPTED

    def _exit_status(self, exitstatus: int) -> int:
        """Pytest's own exit code, unless a limit stayed without a verdict that no option skipped."""
        answered, unanswered = self.assembly.answered, self.collected - self.assembly.answered
        if unanswered > 0 or self.locks.fails or self.paths.unfit:
            return pytest.ExitCode.TESTS_FAILED
        if broken := self._hidden_failures():
            limits = several(broken, "limit")
            self.remarks.append(f"{limits} failed, but another plugin reported them as passed: see the table")
            return pytest.ExitCode.TESTS_FAILED
        if answered:
            return exitstatus
        if self.cut.elsewhere:
            return pytest.ExitCode.OK  # an empty part of what others measure
        left_out = self.declared or (self.budgets and self.config.getoption("lf", False))
        if not self.idle and (left_out or options.has_node_ids(self.config)):
            return exitstatus
        why = "" if self.budgets else self.paths.why_nothing()
        self.remarks.append(f"nothing measured\n{why}" if why else "nothing measured")
        return pytest.ExitCode.NO_TESTS_COLLECTED

    def _hidden_failures(self) -> int:
        """The number of limits that fail, whatever pytest made of them.

        A marker of a conftest, or a plugin, may call a failed item passed, and the session green: exit 0 needs both.
        """
        report = self.report
        return sum(case.check.fails for case in report.cases()) + len(report.broken) if report else 0

    def pytest_sessionstart(self) -> None:
        """Remove the reports of an earlier run."""
        if hasattr(self.config, "workerinput") or self.config.getoption("collectonly"):
            return
        start = self.config.invocation_params.dir
        remove_reports(options.absolute(start, file) for _, file in options.report_files(self.config))

    def _write_reports(self, report: record.Report, exitstatus: int) -> int:
        """Let the hook hear of the report, and write every file that was asked for.

        The hook has it as JSON, to which it may add: the table shows what was measured, whatever
        it does. What cannot be written keeps no other file from being written. Returns the exit code that a failure
        asks for, or 0.
        """
        try:
            if (hook := self.config.hook.pytest_model_budget_report).get_hookimpls():
                with user_code("the hook pytest_model_budget_report", ExtensionError):
                    document = to_json(report)
                    hook(config=self.config, report=document)
                    report = from_json(record.Report, document)
        except ModelBudgetError as error:
            self.remarks.append(f"no report: {error}")
            return pytest.ExitCode.TESTS_FAILED
        unwritten = self.config.stash.get(session_models.UNWRITTEN, [])
        self.remarks.extend(unwritten)
        codes = [pytest.ExitCode.TESTS_FAILED for _ in unwritten]
        for kind, file in options.report_files(self.config):
            if self.shard and kind.type == table.JSON:
                part = self.shard.part(report, self.cut, self.assembly, self.locks.comparisons, exitstatus)
                codes.append(self._write_report(table.PART, file, part))
            else:
                codes.append(self._write_report(kind, file, report))
        return max(codes, default=pytest.ExitCode.OK)

    def _write_report(self, kind: FileReport, file: str, report: record.Report | Part) -> pytest.ExitCode:
        path = options.absolute(self.config.invocation_params.dir, file)
        try:
            write_report(kind, report, path, file)
        except ModelBudgetError as error:
            self.remarks.append(f"no report: {error}")
            return pytest.ExitCode.TESTS_FAILED
        except OSError as error:
            self.remarks.append(f"cannot write {path}: {error.strerror or error}")
            return pytest.ExitCode.USAGE_ERROR
        return pytest.ExitCode.OK

    def _fold_failures(self) -> None:
        """Let the terminal's failures, which it shows next, be as wide as it is, and each model's block come once."""
        shown = self.config.pluginmanager.get_plugin("terminalreporter")
        self.failed = shown.stats.get("failed", []) if shown else []
        first = [items.fold(report, self._width(), is_shown=self._shows_failures) for report in self.failed]
        blocks = {f"{SEE}{words.partition(':')[0]}" for words in first}
        if shown and self._shows_failures:
            kept = [report for report, words in zip(self.failed, first, strict=True) if words not in blocks]
            shown.stats["failed"] = kept

    @property
    def _shows_failures(self) -> bool:
        return self.config.option.tbstyle not in ("no", "line") and not self.config.option.no_summary

    def _width(self) -> int:
        return self.config.get_terminal_writer().fullwidth - 1

    def pytest_unconfigure(self) -> None:
        """Release what the session used, also where it came to no end."""
        session_models.pool_of(self.config).close()
        self.config.stash[session_models.WATCH].close()

    # What the terminal shows.

    def pytest_report_header(self) -> list[str]:
        """The versions that the numbers may depend on, none of them on two lines."""
        versions = [
            f"{name} {version}".replace(" ", NO_BREAK) for name, version in environment().items() if name not in PYTESTS
        ]
        lines = wrap(f"model budget: {', '.join(versions)}", terminal.WIDTH, subsequent_indent="  ")
        return [line.replace(NO_BREAK, " ") for line in lines]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, what an update wrote, remarks on the session, and its verdict."""
        if self.report is None:
            return
        verbosity = self.config.getoption("verbose")
        if self.failed:
            terminalreporter.stats["failed"] = self.failed
        terminalreporter.ensure_newline()
        terminalreporter.section("model budget")
        if self.assembly.answered and verbosity >= 0:
            for line in terminal.lines(self.report, verbosity, hides_failing=self._shows_failures):
                for text, colour in line.pieces:
                    marks = {terminal.COLOURS.get(colour, colour): True} if colour else {}
                    terminalreporter.write(text, **marks)
                terminalreporter.write_line("")
        for change in (part for line in self.locks.written for part in folded(printed_line(line), self._width())):
            terminalreporter.write_line(change)
        self._show_remarks(terminalreporter)
        if self.assembly.answered:
            terminalreporter.write_line(terminal.counted(self.report))
        for file in self.locks.to_review:
            terminalreporter.write_line(printed_line(file), bold=True)

    def _show_remarks(self, terminalreporter: pytest.TerminalReporter) -> None:
        for remark in (*self.paths.remarks, *self.remarks, *self._left_out()):
            for line in printable(f"model budget: {remark}").split("\n"):
                for part in folded(line, self._width()):
                    terminalreporter.write_line(part, light=True)

    def _left_out(self) -> Iterator[str]:
        """How many limits a selection skipped, where anything was selected."""
        left_out = self.declared - self.collected
        if left_out > 0 or (options.has_node_ids(self.config) and not self.assembly.answered):
            some, by = several(self.declared, "limit"), ", ".join(options.selection(self.config)) or "selection"
            yield f"{self.assembly.answered} of {some} measured, {left_out} skipped by {by}"
