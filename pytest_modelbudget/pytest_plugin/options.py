"""The options of a command line and a configuration; imported in everybody's pytest runs."""

import os
import shlex
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_modelbudget.budget import FOLDER, PATHS
from pytest_modelbudget.reports import table

SWITCH = "--model-budget"
REPORT = "--model-budget-report"
UPDATE = "--model-budget-update"
BASE = "--model-budget-base"
LOCK = "--model-budget-lock"
RUNTIME = "--model-budget-runtime"
WORKERS = "--model-budget-workers"
SHARD = "--model-budget-shard"
DATE = "--model-budget-date"
TIMEOUT = "--model-budget-timeout"
MEMORY = "--model-budget-memory"
PROFILE_DIR = "--model-budget-profile-dir"
DEFAULT_PATHS = [FOLDER]
MOST_DIGITS = 4  # of the number of shards


class Option(NamedTuple):
    """One option of a session: its help, what argparse takes of it, and the key of the configuration for it."""

    name: str
    help: str
    settings: dict[str, Any]
    ini: str = ""
    default: str = ""
    unit: str = ""
    is_advanced: bool = False


OPTIONS = (
    Option(
        SWITCH,
        f"check models against their budgets: those under ini {PATHS}, or the files and folders given",
        {"action": "store_true", "dest": "model_budget"},
    ),
    Option(REPORT, table.report_help(), {"metavar": table.SHAPE, "action": "append", "type": table.asked_report}),
    Option(
        UPDATE,
        "write budgets and lock files: create fills in what is auto or not locked, trim lowers limits more than 1%% "
        "above what was measured, fix sets broken ones",
        {"choices": ("create", "trim", "fix")},
    ),
    Option(
        BASE,
        "compare with this revision: growth, loosened limits, redefined models (on GitHub's pull requests: the "
        "target branch)",
        {"metavar": "REV"},
    ),
    Option(
        LOCK,
        "check: fail where a lock file is not what was measured; keep: add no numbers that it lacks",
        {"choices": ("check", "keep")},
    ),
    Option(RUNTIME, "time models, and check 'runtime:' of their budgets", {"action": "store_true"}),
    Option(
        WORKERS,
        "measure N models at a time, each in its own process (one a core; 1 with pytest-xdist); 0: in pytest's process",
        {"metavar": "N"},
        ini="model_budget_workers",
    ),
    Option(
        SHARD,
        "measure the I-th of N parts of the models, which modelbudget merge joins",
        {"metavar": "I/N"},
        is_advanced=True,
    ),
    Option(
        DATE,
        "the day that waivers are compared with, such as 2027-01-31 (today, in UTC)",
        {"metavar": "DATE"},
        is_advanced=True,
    ),
    Option(
        TIMEOUT,
        "the longest that one step of a model's process may take (600 s)",
        {"metavar": "TIME"},
        ini="model_budget_timeout",
        default="600 s",
        unit="s",
        is_advanced=True,
    ),
    Option(
        MEMORY,
        "the most memory that a model's process may take (80%% of the machine's for all of them together)",
        {"metavar": "SIZE"},
        ini="model_budget_memory",
        unit="B",
        is_advanced=True,
    ),
    Option(
        PROFILE_DIR,
        f"with {RUNTIME}: write a Chrome trace of each model there",
        {"metavar": "FOLDER"},
        is_advanced=True,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}


def add_options(parser: pytest.Parser) -> None:
    """Declare the options, the keys of the configuration that set them too, and where budgets are looked for."""
    people = parser.getgroup("model-budget", "model budget")
    advanced = parser.getgroup("model-budget-advanced", "model budget (advanced)")
    for option in OPTIONS:
        (advanced if option.is_advanced else people).addoption(option.name, help=option.help, **option.settings)
        if option.ini:
            parser.addini(option.ini, f"as {option.name}", default=option.default)
    text = f"where {SWITCH} looks for budgets, relative to rootdir (default: {FOLDER})"
    parser.addini(PATHS, text, type="args", default=DEFAULT_PATHS)


def value_of(config: pytest.Config, name: str) -> str:
    """The value of an option, of the command line or else of the configuration; "" of none."""
    return str(config.getoption(name) or config.getini(BY_NAME[name].ini))


def report_files(config: pytest.Config) -> Iterator[tuple[table.FileReport, str]]:
    """Every report that was asked for, and the file that it goes to."""
    return table.asked_reports(config.getoption(REPORT) or ())


def idle_options(config: pytest.Config) -> Iterator[str]:
    """Options, as they were given, that do nothing without the switch."""
    for option in OPTIONS:
        value = config.getoption(option.name)
        for one in value if isinstance(value, list) else [value]:
            if one:
                yield option.name if one is True else f"{option.name}={one}"


def require_packages(config: pytest.Config) -> None:
    """Stop before anything is measured where a report lacks the package that it needs."""
    from pytest_modelbudget.errors import MissingExtraError

    for report, path in report_files(config):
        if not report.is_installed:
            option = f"{REPORT}={report.type}:{path}"
            raise pytest.UsageError(str(MissingExtraError(option, package=report.package, extra=report.extra)))


def require_amounts(config: pytest.Config) -> None:
    """Stop before anything is measured where a bound of the models' processes cannot be read."""
    from pytest_modelbudget.errors import UnitError
    from pytest_modelbudget.units import quantity

    for option in OPTIONS:
        text = value_of(config, option.name) if option.unit else ""
        if not text:
            continue
        given = option.name if config.getoption(option.name) else option.ini
        try:
            amount = quantity(text, option.unit)
        except UnitError as error:
            raise pytest.UsageError(f"{given}: {error}") from error
        if amount <= 0:
            raise pytest.UsageError(f"{given}: {text} leaves no room for any model")
    asked_workers(config)


def asked_workers(config: pytest.Config) -> int | None:
    """The number of models that are measured at a time, 0 in the session's process; None where none is asked for.

    Raises pytest.UsageError for what is no number.
    """
    if config.getoption("usepdb", False):  # the debugger needs the terminal
        return 0
    text = value_of(config, WORKERS)
    if not text:
        return None
    if not _is_number(text):
        given = WORKERS if config.getoption(WORKERS) else BY_NAME[WORKERS].ini
        raise pytest.UsageError(f"{given}: {text!r} is no number: write 2 for two models at a time")
    return int(text)


# Options of pytest with which a session shows something, and measures nothing.
SHOWING = ("help", "collectonly", "markers", "showfixtures", "show_fixtures_per_test", "version")


def is_idle(config: pytest.Config) -> bool:
    """Whether a session shows something, and measures nothing."""
    return any(config.getoption(name, False) for name in SHOWING)


class AskedShard(NamedTuple):
    """The part of that number, from 1, of so many."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{SHARD}={self.number}/{self.of}"


def asked_shard(config: pytest.Config) -> AskedShard | None:
    """The part that the option names; None where all models are measured.

    Raises pytest.UsageError where it names none.
    """
    if (text := config.getoption(SHARD)) is None:
        return None
    index, _, of = text.partition("/")
    if not (_is_number(index) and _is_number(of) and 1 <= int(index) <= int(of)):
        raise pytest.UsageError(f"{SHARD}={text} is no shard: write 1/3 for the first of three")
    return AskedShard(int(index), int(of))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def require_day(config: pytest.Config) -> None:
    """Settle on one day for all exceptions of a session, also in its workers, which are given the options."""
    from pytest_modelbudget.budget.limit_forms import day
    from pytest_modelbudget.errors import BudgetError

    asked = config.getoption(DATE)
    try:
        settled = datetime.now(timezone.utc).date() if asked is None else day(asked)
    except BudgetError as error:
        raise pytest.UsageError(f"{DATE}: {error}") from error
    config.option.model_budget_date = settled.isoformat()


# Options of pytest that leave out what it has collected, and their names in a configuration.
SELECTIONS = {"-k": "keyword", "-m": "markexpr", "--lf": "lf", "--sw": "stepwise", "--deselect": "deselect"}


def selection(config: pytest.Config) -> list[str]:
    """The kinds of selection that a session was given."""
    given = [flag for flag, name in SELECTIONS.items() if config.getoption(name, None)]
    return [*given, *(["a node id"] if has_node_ids(config) else [])]


def has_node_ids(config: pytest.Config) -> bool:
    """Whether single tests were named on the command line."""
    is_given = config.args_source is pytest.Config.ArgsSource.ARGS
    return is_given and any("::" in arg for arg in config.args)


def own_words(config: pytest.Config) -> list[str]:
    """The words that the user gave on the command line, or in PYTEST_ADDOPTS: none of a project's addopts."""
    return [*map(str, config.invocation_params.args), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]


def ignored_by_command_line(config: pytest.Config) -> list[str]:
    """The paths, and patterns of paths, that the user ignores on the command line."""
    names = [str(name) for option in ("ignore", "ignore_glob") for name in config.getoption(option) or ()]
    own, start = own_words(config), config.invocation_params.dir
    return [str(absolute(start, name)) for name in names if any(f"={word}".endswith(f"={name}") for word in own)]


def chooses_budgets(config: pytest.Config) -> bool:
    """True where the command line names the budgets to check: by paths, by a setting behind -o, or by --lf."""
    own, is_given = own_words(config), config.args_source is pytest.Config.ArgsSource.ARGS
    has_paths = is_given and any(arg in own for arg in config.args)
    return has_paths or bool(config.getoption("lf", False)) or any(PATHS in word for word in own)


def configured_paths(config: pytest.Config) -> list[Path]:
    """The paths under which the settings look for budgets."""
    return [absolute(config.rootpath, name) for name in config.getini(PATHS)]


def absolute(start: Path, path: str | Path) -> Path:
    """A path as its user means it, seen from start; symbolic links stay as they are."""
    return Path(os.path.abspath(start / path))
