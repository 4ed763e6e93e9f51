"""The options of a command line and a configuration; imported in everybody's pytest runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_modelbudget.reports import table

SWITCH = "--model-budget"
UPDATE = "--model-budget-update"
BASE = "--model-budget-base"
LOCK = "--model-budget-lock"
ISOLATE = "--model-budget-isolate"
TIMEOUT = "--model-budget-timeout"
MEMORY = "--model-budget-memory"
MEASURED = "--model-budget-measured"
TRACES = "--model-budget-traces"
PATHS = "model_budget_paths"
ISOLATE_INI, TIMEOUT_INI, MEMORY_INI = "model_budget_isolate", "model_budget_timeout", "model_budget_memory"
DEFAULT_PATHS = ["budgets"]


def add_options(parser: pytest.Parser) -> None:
    """The switch, one option for each report file, and where budgets are looked for."""
    group = parser.getgroup("model-budget", "budgets for neural networks")
    group.addoption(
        SWITCH,
        action="store_true",
        dest="model_budget",
        help="hold models against their budgets: those under ini model_budget_paths, or the "
        "files and directories given",
    )
    for report in table.FILE_REPORTS:
        group.addoption(report.option, metavar="FILE", help=f"write to FILE {report.describes}")
    group.addoption(
        UPDATE,
        choices=("create", "trim", "fix"),
        help="write budgets and lock files: create fills in what is auto or not locked, trim "
        "lowers limits more than 1%% above what was measured, fix sets broken ones",
    )
    group.addoption(
        BASE,
        metavar="REV",
        help="tell growth, loosened limits and redefined models from the files of this revision "
        "(on GitHub's pull requests: the target branch)",
    )
    group.addoption(LOCK, choices=("check",), help="fail where a lock file is not what was measured")
    group.addoption(
        ISOLATE,
        action="store_true",
        help="measure every model in a process of its own: its crash, exit or hang is its own failure",
    )
    group.addoption(TIMEOUT, metavar="TIME", help="the longest that one step of such a process may take (60 s)")
    group.addoption(MEMORY, metavar="SIZE", help="the most memory that such a process may take (4 GiB)")
    group.addoption(
        MEASURED, action="store_true", help="time models where they run, and hold them to 'measured:' of their budgets"
    )
    group.addoption(TRACES, metavar="FOLDER", help=f"with {MEASURED}: write a Chrome trace of each model there")
    parser.addini(ISOLATE_INI, f"as {ISOLATE}", type="bool", default=False)
    parser.addini(TIMEOUT_INI, f"as {TIMEOUT}", default="60 s")
    parser.addini(MEMORY_INI, f"as {MEMORY}", default="4 GiB")
    parser.addini(
        PATHS,
        "where --model-budget looks for budgets, relative to rootdir (default: budgets)",
        type="args",
        default=DEFAULT_PATHS,
    )


def report_files(config: pytest.Config) -> Iterator[tuple[table.FileReport, str]]:
    """Every report that was asked for, and the file that it goes to."""
    for report in table.FILE_REPORTS:
        if path := config.getoption(report.option):
            yield report, str(path)


def idle_options(config: pytest.Config) -> Iterator[str]:
    """Options, as they were given, that do nothing without the switch."""
    for report, path in report_files(config):
        yield f"{report.option} {path}"
    for option in (UPDATE, BASE, LOCK, TIMEOUT, MEMORY, TRACES):
        if value := config.getoption(option):
            yield f"{option}={value}"
    yield from (option for option in (ISOLATE, MEASURED) if config.getoption(option))


def require_packages(config: pytest.Config) -> None:
    """Stop before anything is measured where a report lacks the package that it needs."""
    from pytest_modelbudget.errors import MissingExtraError

    for report, path in report_files(config):
        if not report.is_installed:
            option = f"{report.option} {path}"
            raise pytest.UsageError(str(MissingExtraError(option, package=report.package, extra=report.extra)))


def require_amounts(config: pytest.Config) -> None:
    """Stop before anything is measured where a bound of processes of their own cannot be read."""
    from pytest_modelbudget.errors import UnitError
    from pytest_modelbudget.units import quantity

    for option, ini, unit in ((TIMEOUT, TIMEOUT_INI, "s"), (MEMORY, MEMORY_INI, "B")):
        text = config.getoption(option) or config.getini(ini)
        try:
            amount = quantity(text, unit)
        except UnitError as error:
            raise pytest.UsageError(f"{option}: {error}") from error
        if amount <= 0:
            raise pytest.UsageError(f"{option}: {text} leaves no room for any model")


def selection(config: pytest.Config) -> list[str]:
    """The kinds of selection that a session was given."""
    options = {"-k": "keyword", "-m": "markexpr", "--lf": "lf", "--deselect": "deselect"}
    given = [flag for flag, name in options.items() if config.getoption(name, None)]
    return [*given, *(["a node id"] if has_node_ids(config) else [])]


def has_node_ids(config: pytest.Config) -> bool:
    """Whether single tests were named on the command line."""
    is_given = config.args_source is pytest.Config.ArgsSource.ARGS
    return is_given and any("::" in arg for arg in config.args)


def absolute(start: Path, path: str | Path) -> Path:
    """A path as its user means it, seen from start; symbolic links stay as they are."""
    return Path(os.path.abspath(start / path))
