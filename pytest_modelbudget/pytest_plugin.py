"""Options and hooks of the pytest plugin, a few lines each.

Everybody who installs the package pays for importing this file in every pytest run: so nothing of
the project is imported before ``--model-budget`` is given, and the hooks live in ``Gate``, which is
registered only then.
"""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pytest_modelbudget.pytest_items import BudgetedModel
    from pytest_modelbudget.reports.report import Record
    from pytest_modelbudget.reports.report_table import FileReport

SWITCH = "--model-budget"
PATHS = "model_budget_paths"
DEFAULT_PATHS = ["budgets"]
SUFFIXES = frozenset({".yaml", ".yml"})
STATEMENT = "model_budget_statement"  # attribute of a test report that carries an item's words
COUNTS = "model_budget_counts"  # what a worker tells the controller at its end
NEVER_STARTED = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)
COLOURS = {
    "within": {"green": True},
    "over": {"red": True},
    "unknown": {"red": True},
    "warn": {"yellow": True},
    "file": {"bold": True},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switch, one option for each report file, and where budgets are looked for."""
    from pytest_modelbudget.reports.report_table import FILE_REPORTS

    group = parser.getgroup("model-budget", "budgets for neural networks")
    group.addoption(
        SWITCH,
        action="store_true",
        dest="model_budget",
        help="hold models against their budgets: those under ini model_budget_paths, or the "
        "files and directories given",
    )
    for report in FILE_REPORTS:
        group.addoption(report.option, metavar="FILE", help=f"write to FILE {report.describes}")
    parser.addini(
        PATHS,
        "where --model-budget looks for budgets, relative to rootdir (default: budgets)",
        type="args",
        default=DEFAULT_PATHS,
    )


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that a conftest.py may implement."""
    from pytest_modelbudget import pytest_hookspecs

    pluginmanager.add_hookspecs(pytest_hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and with the switch everything else."""
    config.addinivalue_line("markers", "model_budget: a limit on a model, from a budget file")
    if config.getoption("model_budget"):
        config.pluginmanager.register(Gate(config), "modelbudget-gate")
        return
    for report, path in _report_files(config):
        needed = f"{report.option} {path} needs {SWITCH}"
        raise pytest.UsageError(f"{needed}: nothing is measured without it")


@pytest.fixture
def model_budget(request: pytest.FixtureRequest) -> Iterator[Callable[..., BudgetedModel]]:
    """Budgets written in a test: ``model_budget(model, inputs).within(params="12 M")``."""
    from pytest_modelbudget.pytest_items import budgeted_models

    yield from budgeted_models(request)


class Gate:
    """The session's hooks while ``--model-budget`` is given."""

    def __init__(self, config: pytest.Config) -> None:
        # Here and not above: without the switch none of this is needed.
        from pytest_modelbudget import pytest_items
        from pytest_modelbudget.reports.assembly import Assembly

        self.config = config
        self.items = pytest_items
        self.assembly = Assembly()
        self.missing: list[Path] = []
        self.paths = self._budget_paths()
        self.files = self.declared = self.collected = 0
        self.remarks: list[str] = []
        self.record: Record | None = None

    # Finding budgets.

    def _budget_paths(self) -> tuple[Path, ...]:
        """Files and directories that may hold budgets: those given, else the configured ones."""
        config = self.config
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            given = (arg.partition("::")[0] for arg in config.args)
            return tuple(_absolute(config.invocation_params.dir, path) for path in given)
        names = config.getini(PATHS)
        paths = [_absolute(config.rootpath, name) for name in names]
        self.missing = [path for path in paths if not path.exists()]
        if self.missing and names != DEFAULT_PATHS:
            raise pytest.UsageError(
                f"{PATHS} names {self.missing[0]}, which does not exist: "
                f"create it, or correct {config.inipath or 'the configuration'}"
            )
        found = tuple(path for path in paths if path not in self.missing)
        config.args.extend(str(path) for path in found if not self._is_visited(path))
        return found

    def _is_visited(self, path: Path) -> bool:
        """Whether pytest comes by this path anyway.

        Beside the directory that pytest was started in, pytest 8.0 to 8.4 drop it when more
        arguments are added, so nothing may be added that lies inside.
        """
        start = self.config.invocation_params.dir
        return any(path.is_relative_to(_absolute(start, arg)) for arg in self.config.args)

    def _claims(self, path: Path) -> bool:
        """Whether a file is a budget of this session: named itself, or found and marked."""
        if path.suffix not in SUFFIXES:
            return False
        if path in self.paths:
            return True
        return any(path.is_relative_to(each) for each in self.paths) and self.items.is_marked(path)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> Any:
        """A budget file, if it is one of ours."""
        if self._claims(file_path):
            self.files += 1
            return self.items.BudgetFile.from_parent(parent, path=file_path)
        return None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is left after all selection."""
        ours = [item for item in session.items if isinstance(item, self.items.BudgetItem)]
        broken = sum(isinstance(item, self.items.BrokenBudget) for item in ours)
        self.collected = len(ours)
        self.declared = self.items.declared_limits(self.config) + broken

    # Listening to items, in whichever process they run.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let an item's report carry its words to the controller."""
        report = yield
        if call.when == "call" and isinstance(item, self.items.BudgetItem) and item.statement:
            setattr(report, STATEMENT, item.statement)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in an item's words; a budget's item that fails without any is unknown."""
        statement = getattr(report, STATEMENT, None)
        if statement:
            self.assembly.add(statement)
        elif report.failed and self._claims(
            self.config.rootpath / report.nodeid.partition("::")[0]
        ):
            self.assembly.lose(report.nodeid, _first_line(report))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Learn from an xdist worker how much there was to select from."""
        counts = getattr(node, "workeroutput", {}).get(COUNTS)
        if counts:
            self.files, self.declared, self.collected = counts

    # The end of the session.

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the reports, and see to it that a session without a verdict is not green."""
        counts = (self.files, self.declared, self.collected)
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput[COUNTS] = counts  # type: ignore[attr-defined]  # xdist's own
            return
        is_started = self.assembly.answered or exitstatus not in NEVER_STARTED
        if self.config.getoption("collectonly") or not is_started:
            return
        self.record = self.assembly.report(selected=self._is_selected())
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = self._exit_status(exitstatus)
        if self.collected > self.assembly.answered:
            left = _limits(self.collected - self.assembly.answered)
            self.remarks.append(f"{left} skipped or stopped, and so not measured")
        # A copy, so that the table shows what was measured, whatever a hook does to the record.
        session.exitstatus = self._reported(deepcopy(self.record)) or session.exitstatus

    def _is_selected(self) -> bool:
        """Whether anything may have kept limits from being measured that was asked for."""
        return self.declared > self.assembly.answered or bool(self._selection())

    def _selection(self) -> list[str]:
        """The kinds of selection that this session was given."""
        options = {"-k": "keyword", "-m": "markexpr", "--lf": "lf", "--deselect": "deselect"}
        given = [flag for flag, name in options.items() if self.config.getoption(name, None)]
        return [*given, *(["a node id"] if self._has_node_ids() else [])]

    def _has_node_ids(self) -> bool:
        is_given = self.config.args_source is pytest.Config.ArgsSource.ARGS
        return is_given and any("::" in arg for arg in self.config.args)

    def _exit_status(self, exitstatus: int) -> int:
        """Pytest's own exit code, unless a limit stayed without an answer and nobody asked so."""
        answered, unanswered = self.assembly.answered, self.collected - self.assembly.answered
        if unanswered > 0:
            return pytest.ExitCode.TESTS_FAILED
        if answered:
            return exitstatus
        left_out = self.declared or (self.files and self.config.getoption("lf", False))
        if left_out or self._has_node_ids():
            return exitstatus
        self.remarks.append(f"nothing measured{self._why_nothing()}")
        return pytest.ExitCode.NO_TESTS_COLLECTED

    def _why_nothing(self) -> str:
        if self.missing:
            names = ", ".join(str(path) for path in self.missing)
            return f"\n{names} does not exist: write a budget there, or set ini {PATHS}"
        names = ", ".join(str(path) for path in self.paths) or "the paths given"
        return f"\nno YAML file with the key model_budget under {names}"

    def _reported(self, record: Record) -> int:
        """Let the hook hear of the record, and write every file that was asked for.

        Returns the exit code that a failure asks for, or 0.
        """
        from pytest_modelbudget.errors import ExtensionError, ModelBudgetError
        from pytest_modelbudget.frontends.user_code import user_code

        try:
            with user_code("the hook pytest_model_budget_report", ExtensionError):
                self.config.hook.pytest_model_budget_report(config=self.config, report=record)
            for report, file in _report_files(self.config):
                path = _absolute(self.config.invocation_params.dir, file)
                with user_code(f"rendering {report.option} {file}", ExtensionError):
                    text = report.render(record)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except ModelBudgetError as error:
            self.remarks.append(f"no report: {error}")
            return pytest.ExitCode.TESTS_FAILED
        except OSError as error:
            self.remarks.append(f"cannot write {path}: {error.strerror or error}")
            return pytest.ExitCode.USAGE_ERROR
        return pytest.ExitCode.OK

    # What the terminal shows.

    def pytest_report_header(self) -> str:
        """The versions that the numbers may depend on."""
        from pytest_modelbudget.reports.report import environment

        versions = [f"{name} {version}" for name, version in environment().items()]
        return f"model budget: {', '.join(versions)}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, and what has to be said about the session as a whole."""
        if self.record is None:
            return
        from pytest_modelbudget.reports.terminal import counted, lines

        verbosity = self.config.get_verbosity()
        terminalreporter.section("model budget")
        if self.assembly.answered:
            table = (
                lines(self.record, verbosity) if verbosity >= 0 else [(counted(self.record), "")]
            )
            for text, colour in table:
                terminalreporter.write_line(text, **COLOURS.get(colour, {}))
        unmeasured = self.declared - self.collected
        if unmeasured > 0 or (self._selection() and (self.files or self._has_node_ids())):
            self.remarks.append(
                f"{self.assembly.answered} of {_limits(self.declared)} measured, "
                f"{unmeasured} left out by {', '.join(self._selection()) or 'selection'}"
            )
        for remark in self.remarks:
            terminalreporter.write_line(f"model budget: {remark}", yellow=True)


def _absolute(start: Path, path: str | Path) -> Path:
    return Path(os.path.abspath(start / path))


def _limits(count: int) -> str:
    return f"{count} limit{'' if count == 1 else 's'}"


def _report_files(config: pytest.Config) -> Iterator[tuple[FileReport, str]]:
    """Every report that was asked for, and the file that it goes to."""
    from pytest_modelbudget.reports.report_table import FILE_REPORTS

    for report in FILE_REPORTS:
        path = config.getoption(report.option)
        if path:
            yield report, str(path)


def _first_line(report: pytest.TestReport) -> str:
    """What a report without an item's words says about its failure."""
    words = report.longreprtext.split("\n")
    return next((line.strip() for line in words if line.strip()), f"failed in {report.when}")
