"""The options of a command line and a configuration; imported in everybody's pytest runs."""

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_modelbudget.budget import FOLDER, PATHS, SUFFIXES
from pytest_modelbudget.reports import table

SWITCH = "--model-budget"
UPDATE = "--model-budget-update"
BASE = "--model-budget-base"
LOCK = "--model-budget-lock"
SHARD, AUTO = "--model-budget-shard", "auto"
TODAY = "--model-budget-today"
WORKERS = "--model-budget-workers"
TIMEOUT = "--model-budget-timeout"
MEMORY = "--model-budget-memory"
MEASURED = "--model-budget-measured"
TRACES = "--model-budget-traces"
WORKERS_INI, TIMEOUT_INI, MEMORY_INI = "model_budget_workers", "model_budget_timeout", "model_budget_memory"
INI_KEYS = (PATHS, WORKERS_INI, TIMEOUT_INI, MEMORY_INI)
DEFAULT_PATHS = [FOLDER]
BAZEL_INDEX, BAZEL_TOTAL, BAZEL_STATUS = "TEST_SHARD_INDEX", "TEST_TOTAL_SHARDS", "TEST_SHARD_STATUS_FILE"
MOST_DIGITS = 4  # of the number of shards
GITLAB_INDEX, GITLAB_TOTAL = "CI_NODE_INDEX", "CI_NODE_TOTAL"


SESSION_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (UPDATE, {
        "choices": ("create", "trim", "fix"),
        "help": "write budgets and lock files: create fills in what is auto or not locked, trim "
        "lowers limits more than 1%% above what was measured, fix sets broken ones",
    }),
    (BASE, {
        "metavar": "REV",
        "help": "tell growth, loosened limits and redefined models from the files of this revision "
        "(on GitHub's pull requests: the target branch)",
    }),
    (LOCK, {"choices": ("check",), "help": "fail where a lock file is not what was measured"}),
    (TODAY, {
        "metavar": "DATE",
        "help": "the day that exceptions (accept:) are held against, as 2027-01-31 (today, in UTC)",
    }),
    (SHARD, {
        "metavar": "I/N",
        "help": "measure the I-th of N parts of the models, which modelbudget merge joins; auto: as GitLab "
        "numbers jobs",
    }),
    (WORKERS, {
        "metavar": "N",
        "help": "measure N models at a time, each in a process of its own (as many as cores; 1 with pytest-xdist); "
        "0: in the session's process, one after another",
    }),
    (TIMEOUT, {"metavar": "TIME", "help": "the longest that one step of a model's process may take (600 s)"}),
    (MEMORY, {
        "metavar": "SIZE",
        "help": "the most memory that a model's process may take (80%% of the machine's for all of them together)",
    }),
    (MEASURED, {
        "action": "store_true",
        "help": "time models where they run, and hold them to 'measured:' of their budgets",
    }),
    (TRACES, {"metavar": "FOLDER", "help": f"with {MEASURED}: write a Chrome trace of each model there"}),
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """The switch, one option for each report file, those of the session, and where budgets are looked for."""
    group = parser.getgroup("model-budget", "budgets for neural networks")
    group.addoption(
        SWITCH,
        action="store_true",
        dest="model_budget",
        help=f"hold models against their budgets: those under ini {PATHS}, or the files and directories given",
    )
    for report in table.FILE_REPORTS:
        group.addoption(report.option, metavar="FILE", help=f"write to FILE {report.describes}")
    for name, settings in SESSION_OPTIONS:
        group.addoption(name, **settings)
    parser.addini(WORKERS_INI, f"as {WORKERS}", default="")
    parser.addini(TIMEOUT_INI, f"as {TIMEOUT}", default="600 s")
    parser.addini(MEMORY_INI, f"as {MEMORY}", default="")
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
    for option in (UPDATE, BASE, LOCK, SHARD, TODAY, WORKERS, TIMEOUT, MEMORY, TRACES):
        if value := config.getoption(option):
            yield f"{option}={value}"
    if config.getoption(MEASURED):
        yield MEASURED


def unchecked_budgets(config: pytest.Config) -> Iterator[str]:
    """Budgets that the command line names."""
    is_given = config.args_source is pytest.Config.ArgsSource.ARGS
    start = config.invocation_params.dir
    for path in (absolute(start, arg.partition("::")[0]) for arg in (config.args if is_given else ())):
        if path.suffix in SUFFIXES and path.is_file():
            from pytest_modelbudget.budget.read_budget import is_budget

            with suppress(OSError):  # a file that cannot be read is none of a session's without the switch
                if is_budget(path.read_bytes()):
                    yield os.path.relpath(path, start)


def require_packages(config: pytest.Config) -> None:
    """Stop before anything is measured where a report lacks the package that it needs."""
    from pytest_modelbudget.errors import MissingExtraError

    for report, path in report_files(config):
        if not report.is_installed:
            option = f"{report.option} {path}"
            raise pytest.UsageError(str(MissingExtraError(option, package=report.package, extra=report.extra)))


def require_own_keys(config: pytest.Config) -> None:
    """Stop where settings have a table or key that nothing reads: whoever wrote it wants something to be held."""
    from pytest_modelbudget.budget.yaml_text import shown, suggestion
    from pytest_modelbudget.errors import SourceError
    from pytest_modelbudget.gate.project import configuration_in, is_slip, unread_table

    try:
        table = unread_table(config.rootpath)
        settings = configuration_in(config.inipath) if config.inipath else None
    except SourceError as error:
        raise pytest.UsageError(str(error)) from error
    if table:
        raise pytest.UsageError(
            f"nothing reads {table} in pyproject.toml: the keys are pytest's own, such as {PATHS} = [...] under "
            "[tool.pytest.ini_options] (pytest --help lists them)"
        )
    written = [(key, f"in {config.inipath.name}" if config.inipath else "") for key in settings or ()]
    written += [(pair.partition("=")[0], "behind -o") for pair in config.getoption("override_ini") or ()]
    for key, place in written:
        if is_slip(key, INI_KEYS) and not _is_read(config, key):
            raise pytest.UsageError(f"nothing reads {shown(key)} {place}: {suggestion(key, INI_KEYS)}")


def _is_read(config: pytest.Config, key: str) -> bool:
    """Whether this project, or another plugin, has a setting of that name."""
    try:
        config.getini(key)
    except (ValueError, TypeError, pytest.UsageError) as error:  # the last two, and some of the first, of its value
        return "unknown configuration value" not in str(error)
    return True


def require_amounts(config: pytest.Config) -> None:
    """Stop before anything is measured where a bound of the models' processes cannot be read."""
    from pytest_modelbudget.errors import UnitError
    from pytest_modelbudget.units import quantity

    for option, ini, unit in ((TIMEOUT, TIMEOUT_INI, "s"), (MEMORY, MEMORY_INI, "B")):
        given = option if config.getoption(option) else ini
        text = config.getoption(option) or config.getini(ini)
        if not text:
            continue
        try:
            amount = quantity(text, unit)
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
    given = WORKERS if config.getoption(WORKERS) else WORKERS_INI
    text = config.getoption(WORKERS) or config.getini(WORKERS_INI)
    if not text:
        return None
    if not _is_number(text):
        raise pytest.UsageError(f"{given}: {text!r} is no number: write 2 for two models at a time")
    return int(text)


# Options of pytest with which a session shows something, and measures nothing.
SHOWING = ("help", "collectonly", "markers", "showfixtures", "show_fixtures_per_test", "version")


def is_idle(config: pytest.Config) -> bool:
    """Whether a session shows something, and measures nothing."""
    return any(config.getoption(name, False) for name in SHOWING)


def settle_base(config: pytest.Config) -> str:
    """Let a host's word on the base stand against that of the project's settings, which a change may write.

    A sentence on it, or "". The choice goes to workers with the options.
    """
    from pytest_modelbudget.budget.revision import asked_base

    named = config.getoption(BASE)
    if not named or hasattr(config, "workerinput") or any(word.startswith(BASE) for word in own_words(config)):
        return ""
    host = asked_base(None, os.environ)
    if host is None or named in (host.name, *host.revisions):
        return ""
    config.option.model_budget_base = None
    return f"{BASE}={named} of addopts is passed over for {host.name}, which GitHub names: give it on the command line"


class AskedShard(NamedTuple):
    """The part of that number, from 1, of so many; source is who asked for it, for people."""

    number: int
    of: int
    source: str


def asked_shard(config: pytest.Config) -> AskedShard | None:
    """The part that an option names, or Bazel; None where all models are measured.

    Raises pytest.UsageError where it names none.
    """
    option, environment = config.getoption(SHARD), os.environ
    if option not in (None, AUTO):
        index, _, of = option.partition("/")
        return _shard(index, of, f"{SHARD}={option}", "write 1/3 for the first of three")
    if BAZEL_TOTAL in environment:
        index, of = environment.get(BAZEL_INDEX, ""), environment[BAZEL_TOTAL]
        index = str(int(index) + 1) if _is_number(index) else index
        return _shard(index, of, f"{BAZEL_INDEX}={environment.get(BAZEL_INDEX, '')} of {BAZEL_TOTAL}={of}")
    if option is None:
        return None
    if GITLAB_TOTAL not in environment:
        raise pytest.UsageError(
            f"{SHARD}=auto finds neither {GITLAB_INDEX} and {GITLAB_TOTAL} nor {BAZEL_INDEX} and {BAZEL_TOTAL}: "
            f"write {SHARD}=1/3 for the first of three"
        )
    of = environment[GITLAB_TOTAL]
    index = environment.get(GITLAB_INDEX, "1" if of == "1" else "")  # not set for a job without parallel:
    return _shard(index, of, f"{GITLAB_INDEX}={index} of {GITLAB_TOTAL}={of}")


def _shard(index: str, of: str, source: str, way_out: str = "the environment sets them wrongly") -> AskedShard:
    if _is_number(index) and _is_number(of) and 1 <= int(index) <= int(of):
        return AskedShard(int(index), int(of), source)
    raise pytest.UsageError(f"{source} is no shard: {way_out}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def touch_shard_status() -> None:
    """Tell Bazel that shards are known here: else it takes each for the whole test."""
    if path := os.environ.get(BAZEL_STATUS):
        try:
            Path(path).touch()
        except OSError as error:
            raise pytest.UsageError(f"{BAZEL_STATUS}={path} cannot be written: {error.strerror or error}") from error


def require_day(config: pytest.Config) -> None:
    """Settle on one day for all exceptions of a session, also in its workers, which are given the options."""
    from pytest_modelbudget.budget.exceptions import day
    from pytest_modelbudget.errors import BudgetError

    asked = config.getoption(TODAY)
    try:
        settled = datetime.now(timezone.utc).date() if asked is None else day(asked)
    except BudgetError as error:
        raise pytest.UsageError(f"{TODAY}: {error}") from error
    config.option.model_budget_today = settled.isoformat()


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
