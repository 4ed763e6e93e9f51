"""The session's hooks while ``--model-budget`` is given: collect, listen, report."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget import PATHS, SUFFIXES
from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.budget import Address
from pytest_modelbudget.budget.git import head_commit, may_be_link, uncommitted
from pytest_modelbudget.budget.read_budget import (
    AS_TEXT,
    is_budget,
    is_meant,
    link_as_text,
    why_elsewhere,
    why_unmarked,
)
from pytest_modelbudget.errors import ExtensionError, ModelBudgetError, user_code
from pytest_modelbudget.formats.clock import import_seconds
from pytest_modelbudget.gate.left_out import left_out
from pytest_modelbudget.gate.locks import with_history
from pytest_modelbudget.gate.report_files import remove_reports, write_report
from pytest_modelbudget.gate.watch import Watch
from pytest_modelbudget.pytest_plugin import items, locks, options, session_models, shards, upkeep
from pytest_modelbudget.registry import environment
from pytest_modelbudget.reports import build, findings, record, terminal
from pytest_modelbudget.reports.annotations import path_in_checkout
from pytest_modelbudget.reports.checkout import checkout
from pytest_modelbudget.reports.json_records import from_json, to_json
from pytest_modelbudget.reports.shard import Shard
from pytest_modelbudget.reports.table import FileReport
from pytest_modelbudget.reports.text import folded, printable, printed_line
from pytest_modelbudget.units import several, some_of


class BudgetPaths:
    """Files and directories that may hold budgets; configured ones become pytest arguments.

    missing are configured paths that do not exist; remarks say which files look like budgets and are none, unfit are
    those of them that are budgets all the same, and fail the session. Raises
    pytest.UsageError where somebody configured such a path, and did not merely leave the default.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.missing: list[Path] = []
        self.remarks: list[str] = []
        self.unfit: dict[str, str] = {}  # why, by file: budgets whose names keep them from being held, dangling links
        self.told_to_ignore = False  # pytest passed one by, which ignored() says
        self.outside = ""  # a sentence on one that lies outside of rootdir
        self.roots = self._configured()
        self._must_differ()
        self._must_be_held()

    def claims(self, path: Path) -> bool:
        """Whether a file is a budget of this session: named itself, or found and marked."""
        if path.suffix not in SUFFIXES:
            self._note_suffix(path)
            self._note_folder(path)
            return False
        if path in self.roots:
            return not self._is_unfit(path)
        if not any(path.is_relative_to(root) for root in self.roots):
            return False
        try:
            content = path.read_bytes()
        except OSError:
            return True  # a file that cannot be read may be a budget
        if is_budget(content) or is_meant(content) or why_elsewhere(path, content):
            return not self._is_unfit(path)
        if why := why_unmarked(content):
            self.remarks.append(f"{self._shown(path)} is not held: {why}")
        return False

    def _note_suffix(self, path: Path) -> None:
        """Note a budget whose name ends in .YAML, say."""
        if (suffix := path.suffix.lower()) in SUFFIXES and any(map(path.is_relative_to, self.roots)):
            with suppress(OSError):
                if is_budget(path.read_bytes()):
                    self._note_unfit(path, f"let its name end in {suffix}")

    def _note_folder(self, path: Path) -> None:
        """Note a link to a folder with budgets that git wrote out as text."""
        with suppress(OSError, ValueError):
            if any(map(path.is_relative_to, self.roots)) and path.stat().st_size <= LONGEST_LINK:
                folder = path.parent / (link_as_text(path.read_bytes()) or path)
                if folder.is_dir() and may_be_link(path) and self._leads_to_budgets(path, folder):
                    self._note_unfit(path, AS_TEXT)

    def _leads_to_budgets(self, path: Path, folder: Path) -> bool:
        """Whether there are budgets behind a link to a folder, unless that is one around it, which never ends."""
        is_around = path.is_relative_to(os.path.normpath(folder))
        return not is_around and any(map(_may_be_budget, _yaml_files(folder)))

    def _is_unfit(self, path: Path) -> bool:
        """Whether the name of a budget would write more than a name wherever it is shown; noted once."""
        if os.path.relpath(path, self.config.rootpath).isprintable():
            return False
        self._note_unfit(path, "no terminal can be given such a name: rename the file")
        return True

    def _note_unfit(self, path: Path, why: str) -> None:
        if (shown := self._shown(path)) not in self.unfit:
            self.unfit[shown] = why
            self.remarks.append(f"{shown} is not held: {why}")

    def broken(self) -> Iterator[record.BrokenFile]:
        """The entries of reports for budgets that are not held."""
        for file, why in self.unfit.items():
            name = file.replace(os.sep, "/")
            yield record.BrokenFile(id=budgets.path_of(name, items.BROKEN), problems=(f"{name}:1: {why}",))

    def _shown(self, path: Path) -> str:
        """A file as it is called below rootdir, fit for a terminal."""
        return printed_line(os.path.relpath(path, self.config.rootpath))

    def ignored(self, collected: Collection[str]) -> Iterator[str]:
        """A sentence for each budget under the configured paths that pytest did not come by, as it was told."""
        for path in (file for root in self.roots for file in _yaml_files(root)):
            if str(path) in collected:
                continue
            with suppress(OSError):
                if not path.exists():
                    self._note_unfit(path, "it is a link that leads nowhere")
                elif is_budget(path.read_bytes()) and not self._is_unfit(path):
                    self.told_to_ignore = True
                    yield f"{self._shown(path)} is not held: pytest was told to ignore it"

    def note_left_out(self) -> None:
        """Note what a checkout left out among budgets; of a whole project nobody says that all of it holds any."""
        start, passed_by = self.config.invocation_params.dir, self.config.getoption("ignore") or ()
        known = [os.path.realpath(options.absolute(start, path)) for path in passed_by]
        roots = [Path(os.path.realpath(root)) for root in (*self.roots, *self.missing)]
        narrow = [root for root in roots if not Path(os.path.realpath(self.config.rootpath)).is_relative_to(root)]
        perhaps: dict[str, list[str]] = {}
        for path, why, is_known in left_out(roots):
            if any(map(path.is_relative_to, known)):
                continue
            if is_known or any(map(path.is_relative_to, narrow)):
                self._note_unfit(path, why)
            else:
                perhaps.setdefault(why, []).append(self._shown(path))
        for why, names in perhaps.items():
            self.remarks.append(f"{some_of(names)} not held, if there are budgets: {why}")

    def why_nothing(self) -> str:
        """A sentence where no budget was found; "" where a remark has said why one that was found is not held."""
        if self.remarks or self.told_to_ignore:
            return ""
        if self.missing:
            names = ", ".join(str(path) for path in self.missing)
            write = f"write a budget there (modelbudget init), name another folder, or set ini {PATHS}"
            return f"{names} does not exist: {self._other_rootdir() or write}"
        if gone := [str(path) for path in self.roots if not path.exists()]:  # which pytest-xdist's controller lets pass
            return f"{', '.join(gone)} does not exist: name budgets, or folders with them"
        names = ", ".join(str(path) for path in self.roots) or "the paths given"
        no_budgets = all(path.is_file() and path.suffix not in SUFFIXES for path in self.roots)
        way_out = (
            ": name budgets, or nothing (in pre-commit, pass_filenames: false)" if self.roots and no_budgets else ""
        )
        return f"no YAML file with the key model_budget under {names}{way_out}"

    def _other_rootdir(self) -> str:
        """What to give where budgets lie beside or above the folder that pytest was started in; "" of none."""
        start, name = self.config.invocation_params.dir, self.missing[0].name
        found = next((folder for folder in (start, *start.parents) if (folder / name).is_dir()), None)
        if found is None:
            return ""
        other = f"name {name}" if found == start else "start it there"
        return f"pytest's rootdir is {self.config.rootpath}: give --rootdir={os.path.relpath(found, start)}, or {other}"

    def _configured(self) -> tuple[Path, ...]:
        config = self.config
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            files = (Address.parse(arg).file for arg in config.args)
            return tuple(options.absolute(config.invocation_params.dir, file) for file in files)
        names = config.getini(PATHS)
        if not names:
            where = config.inipath or "the configuration"
            raise pytest.UsageError(f"{PATHS} names nothing: name folders with budgets, or remove it from {where}")
        paths = [options.absolute(config.rootpath, name) for name in names]
        self.missing = [path for path in paths if not path.exists()]
        if self.missing and names != options.DEFAULT_PATHS:
            correct = f"create it, or correct {config.inipath or 'the configuration'}"
            way_out = next((each.why for each in left_out(self.missing[:1])), correct)
            raise pytest.UsageError(f"{PATHS} names {self.missing[0]}, which does not exist: {way_out}")
        existing = tuple(path for path in paths if path not in self.missing)
        config.args.extend(str(path) for path in existing if not self._is_visited(path))
        return existing

    def _must_differ(self) -> None:
        """Refuse budgets that pytest would give one id: those outside of rootdir it names by their file alone."""
        top = self.config.rootpath
        outside = [root for root in self.roots if not root.is_relative_to(top)]
        known = {path.name: path for path in (top.iterdir() if outside else ()) if self.claims(path)}
        around = os.path.relpath(os.path.commonpath([top, *outside]), self.config.invocation_params.dir)
        for path in (file for root in outside for file in _yaml_files(root)):
            if path.is_relative_to(top) or not self.claims(path):
                continue
            lies_outside = f"{path} lies outside of pytest's rootdir {top}, where"
            if known.setdefault(path.name, path) != path:
                other = known[path.name]
                raise pytest.UsageError(f"{lies_outside} it could not be told from {other}: give --rootdir={around}")
            self.outside = f"{lies_outside} its limits go by other ids than from the project: give --rootdir={around}"
        self.remarks.clear()  # which collecting the files makes again
        self.unfit.clear()

    def _must_be_held(self) -> None:
        """Refuse a budget that was named itself, and would be passed by for its suffix."""
        for path in self.roots:
            if path.suffix not in SUFFIXES:
                self._note_suffix(path)
        if self.remarks:
            raise pytest.UsageError(self.remarks[0])

    def _is_visited(self, path: Path) -> bool:
        """Whether pytest comes by this path anyway.

        Beside the directory that pytest was started in, pytest 8.0 to 8.4 drop it when more
        arguments are added, so nothing may be added that lies inside.
        """
        start = self.config.invocation_params.dir
        return any(path.is_relative_to(options.absolute(start, arg)) for arg in self.config.args)


LONGEST_LINK = 1024  # bytes of a file that is read for where it leads
NOT_ONES_OWN = {".git", ".hg", ".svn", "node_modules"}  # folders in which no budget is looked for


def _yaml_files(root: Path) -> Iterator[Path]:
    """A YAML file, or all below a folder but in those of version control, of others' packages and environments."""
    if root.is_file():
        yield from [root] if root.suffix in SUFFIXES else []
    for folder, below, names in os.walk(root):
        below[:] = sorted(set(below) - NOT_ONES_OWN)
        if "pyvenv.cfg" in names:
            below.clear()
        paths = (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIXES))
        yield from (path for path in paths if not _waits(path))


def _may_be_budget(file: Path) -> bool:
    """Whether it is a budget, or cannot be read."""
    try:
        return is_budget(file.read_bytes())
    except OSError:
        return True


def _waits(path: Path) -> bool:
    """Whether this is a pipe, a socket or a device, which pytest passes by and whose reader would wait."""
    try:
        mode = path.stat().st_mode
    except OSError:  # a link that leads nowhere, or a folder that cannot be entered
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


NO_BREAK = "\N{NO-BREAK SPACE}"  # where a line of the terminal may not end
STATEMENT = "model_budget_statement"  # attribute of a test report that carries an item's words; text in transit
COUNTS = "model_budget_counts"  # what a worker tells the controller at its end
NEVER_STARTED = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)
COLOURS = {
    "within": {"green": True},
    "over": {"red": True},
    "unknown": {"red": True},
    "unused": {"red": True},
    "accepted": {"yellow": True},
    "warn": {"yellow": True},
    "file": {"bold": True},
}


class Gate:
    """The session's hooks while ``--model-budget`` is given."""

    def __init__(self, config: pytest.Config) -> None:
        options.require_packages(config)
        options.require_own_keys(config)
        options.require_amounts(config)
        options.require_day(config)
        self.config = config
        base_remark = options.settle_base(config)
        self.pid = os.getpid()
        config.stash[session_models.WATCH] = Watch()
        self.assembly = build.Assembly()
        self.paths = BudgetPaths(config)
        self.locks = locks.SessionLocks(config)
        if not config.getoption("collectonly"):
            upkeep.preload(config, (file for root in self.paths.roots for file in _yaml_files(root)))
        asked = options.asked_shard(config)
        self.shard = shards.SessionShard(config, asked) if asked else None
        self.cut = shards.CutCollection()
        self.open = upkeep.OpenItems(())
        self.budgets: list[str] = []  # files that were collected, here or in a worker
        self.plugins = session_models.OwnPlugins()  # alike
        self.is_collected = False  # here or in a worker, to the end
        self.declared = self.collected = 0
        self.idle = 0  # limits on runs that were selected, and that nobody asked to measure
        self.remarks = [*filter(None, [options.moved_rootdir(config), self.paths.outside, base_remark])]
        self.unavailable = ""  # why a worker of xdist measured in its own process
        self.report: record.Report | None = None
        self.is_finished = False  # the session came to its end, whatever it then says
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
            self.paths.remarks.append(
                f"{several(self.idle, 'limit')} on measured runs skipped: give {options.MEASURED}"
            )
        if not self.shard:  # of which the others hold what this one leaves out
            self.paths.remarks += items.broken_left_out(self.config, ours, options.selection(self.config))
        self.cut = self.shard.cut if self.shard else self.cut
        self.declared = items.declared_limits(self.config) - self.cut.elsewhere
        if not self.config.getoption("lf", False):  # which passes by files that did not fail
            self.budgets = [file for file in self.budgets if file in items.read_files(self.config)]
        if self.locks.base is not None:
            self.plugins = session_models.own_plugins(self.config)
        self.open = upkeep.OpenItems(session.items)
        upkeep.plan(session)

    # Listening to items, in whichever process they run.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let go of what nobody asks for any more."""
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
        if call.when == "call" and isinstance(item, items.BudgetItem) and item.statement:
            setattr(report, STATEMENT, item.statement if os.getpid() == self.pid else str(item.statement))
            item.statement = None
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: object) -> Generator[None, dict[str, Any] | None, object]:
        """Write an item's words as text, for another process or a file."""
        written = yield
        if written and STATEMENT in written:
            written[STATEMENT] = str(written[STATEMENT])
        return written

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in an item's words, where they are told; a budget's item that fails without any is unknown."""
        if hasattr(self.config, "workerinput"):
            return
        statement = getattr(report, STATEMENT, None)
        if isinstance(statement, str):
            statement = build.Statement.parse(statement)
            setattr(report, STATEMENT, statement)
        if statement:
            self.assembly.add(statement)
        elif (
            report.failed
            and self.report is None
            and self.paths.claims(self.config.rootpath / Address.parse(report.nodeid).file)
        ):
            self.assembly.lose(report.nodeid, _first_line(report))

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """An item that fails when all have run is counted, without a letter behind the last one's 100%."""
        return ("failed", "", "") if report is self.closing else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Learn from an xdist worker how much there was to select from."""
        counts = getattr(node, "workeroutput", {}).get(COUNTS)
        if counts:
            self.is_collected = True
            self.budgets, plugins, self.declared, self.collected, self.idle, unavailable, *paths, cut = counts
            self.unavailable = self.unavailable or unavailable
            self.plugins = session_models.OwnPlugins(*plugins)
            self.paths.remarks, self.paths.unfit = paths
            self.cut = shards.CutCollection(*cut)

    # The end of the session.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports, and see to it that a session without a verdict is not green."""
        if hasattr(self.config, "workerinput"):
            counted = (self.budgets, tuple(self.plugins), self.declared, self.collected, self.idle)
            counts = (*counted, self._without_processes, self.paths.remarks, self.paths.unfit, tuple(self.cut))
            self.config.workeroutput[COUNTS] = counts  # type: ignore[attr-defined]  # xdist's own
            return
        is_started = self.assembly.answered or exitstatus not in NEVER_STARTED
        if self.config.getoption("collectonly") or not is_started:
            return
        unanswered = max(self.collected - self.assembly.answered, 0)
        if not self.config.getoption("lf", False):  # which leaves out files that did not fail, and is said below
            self.remarks += self.paths.ignored(self.budgets)
            self.paths.note_left_out()
        report = self.assembly.report(selected=self._is_selected(), unanswered=unanswered)
        broken = sorted((*report.broken, *self.paths.broken()), key=lambda broken: broken.id)
        report = replace(report, broken=tuple(broken))
        self.report = self._compared(report, exitstatus)
        for node_id, line, lines in self.locks.failures(self.report):
            self._fail(node_id, line, lines)
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = self._exit_status(exitstatus)
        if unavailable := self.unavailable or self._without_processes:
            self.remarks.append(f"{unavailable}: models were measured in the session's process, one after another")
        if unanswered:
            self.remarks.append(findings.unmeasured(self.report))
        if self.shard:
            self.report = replace(self.report, shard=self._part(self.shard, int(session.exitstatus)))
        session.exitstatus = self._write_reports(self.report) or session.exitstatus
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
        if exitstatus == pytest.ExitCode.INTERRUPTED and self.locks.mode:
            self.locks.mode = None
            self.remarks.append("nothing written: the session was interrupted")
        files = tuple(map(Path, self.budgets))
        is_whole = self.is_collected and exitstatus != pytest.ExitCode.INTERRUPTED
        left_out, elsewhere = self.declared - self.collected, frozenset(self.cut.theirs)
        collected = locks.CollectedBudgets(files, self.paths.roots, is_whole, left_out, elsewhere, self.plugins)
        report = self.locks.compared(report, self.assembly.numbers, collected)
        self.remarks.extend(self.locks.remarks)
        has_page = self.shard or any(asked.profile for asked, _ in options.report_files(self.config))
        if not has_page:
            return report
        root = self.config.rootpath
        return with_history(replace(report, checkout=checkout(root, os.environ)), files, root)

    def _part(self, shard: shards.SessionShard, exitstatus: int) -> Shard:
        """What tells this part from others, and lets them be joined."""
        asked = shard.asked
        self.remarks.append(
            f"shard {shard.name}: {self.collected} of {several(self.cut.limits, 'limit')}, "
            "and modelbudget merge judges the whole"
        )
        return Shard(
            number=asked.number,
            of=asked.of,
            commit=head_commit(self.config.rootpath),
            uncommitted=uncommitted(self.config.rootpath),
            collection=self.cut.collection,
            limits=self.cut.limits,
            answered=self.assembly.answered,
            exit=exitstatus,
            checks_locks=self.locks.checks_locks,
            root=path_in_checkout(self.config.rootpath, os.environ),
            locks=tuple(self.locks.comparisons),
        )

    def _is_selected(self) -> bool:
        """Whether anything may have kept limits from being measured that was asked for."""
        return self.declared > self.assembly.answered or bool(options.selection(self.config))

    def _exit_status(self, exitstatus: int) -> int:
        """Pytest's own exit code, unless a limit stayed without an answer and nobody asked so."""
        answered, unanswered = self.assembly.answered, self.collected - self.assembly.answered
        if unanswered > 0 or self.locks.fails or self.paths.unfit:
            return pytest.ExitCode.TESTS_FAILED
        if broken := self._hidden_failures():
            self.remarks.append(f"{several(broken, 'limit')} failed, and pytest was told otherwise: see the table")
            return pytest.ExitCode.TESTS_FAILED
        if self.shard and self.shard.is_cut_again(self.declared - self.collected):
            self.remarks.append("another plugin left out limits before this shard was cut: let one of the two cut")
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

    def _write_reports(self, report: record.Report) -> int:
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
        codes += [self._write_report(kind, file, report) for kind, file in options.report_files(self.config)]
        return max(codes, default=pytest.ExitCode.OK)

    def _write_report(self, kind: FileReport, file: str, report: record.Report) -> pytest.ExitCode:
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
        """Let the terminal's failures, which it shows next, be as wide as it is: nobody else reads them there."""
        shown = self.config.pluginmanager.get_plugin("terminalreporter")
        for report in shown.stats.get("failed", ()) if shown else ():
            items.fold(report, self._width())

    def _width(self) -> int:
        """The characters of a line that wraps on no terminal of this width."""
        return self.config.get_terminal_writer().fullwidth - 1

    def pytest_unconfigure(self) -> None:
        """Give back what the session held, also where it came to no end."""
        session_models.pool_of(self.config).close()
        self.config.stash[session_models.WATCH].close()

    # What the terminal shows.

    def pytest_report_header(self) -> list[str]:
        """The versions that the numbers may depend on, none of them on two lines."""
        versions = [f"{name} {version}".replace(" ", NO_BREAK) for name, version in environment().items()]
        lines = wrap(f"model budget: {', '.join(versions)}", terminal.WIDTH, subsequent_indent="  ")
        return [line.replace(NO_BREAK, " ") for line in lines]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, and what has to be said about the session as a whole."""
        if self.report is None:
            return
        verbosity = self.config.get_verbosity()
        terminalreporter.section("model budget")
        if self.assembly.answered and verbosity >= 0:
            for text, colour in terminal.lines(self.report, verbosity):
                terminalreporter.write_line(text, **COLOURS.get(colour, {}))
        left_out = self.declared - self.collected
        is_selected = options.selection(self.config) and (self.budgets or options.has_node_ids(self.config))
        if left_out > 0 or is_selected:
            named = " of what is named" if options.has_node_ids(self.config) else ""
            self.remarks.append(
                f"{self.assembly.answered} of {several(self.declared, 'limit')}{named} measured, "
                f"{left_out} left out by {', '.join(options.selection(self.config)) or 'selection'}"
            )
        for remark in (*self.paths.remarks, *self.remarks):
            for line in printable(f"model budget: {remark}").split("\n"):
                for part in folded(line, self._width()):
                    terminalreporter.write_line(part, yellow=True)
        if verbosity > 0 and import_seconds() >= 1:
            terminalreporter.write_line(f"model budget: imports took {import_seconds():.1f} s, in no model's time")
        if self.assembly.answered:
            terminalreporter.write_line(terminal.counted(self.report))


def _first_line(report: pytest.TestReport) -> str:
    """The first line of a failure that came without an item's words."""
    words = report.longreprtext.split("\n")
    return next((line.strip() for line in words if line.strip()), f"failed in {report.when}")
