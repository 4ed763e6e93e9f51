"""The project around a folder, as pytest would find it: its root, its budgets, and where modules are imported from.

Read without pytest, out of the file that pytest reads: the nearest one, upwards, with a table of its own. Of an INI
file ``pythonpath = src tools`` is split as a shell would, in TOML it may be a list.
"""

import configparser
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import FOLDER, PATHS
from pytest_modelbudget.errors import SourceError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found]  # which pytest brings on Python 3.10
OF_INI = ("tool", "pytest", "ini_options")  # whose values pytest takes for their texts, but for lists
NATIVE = ("tool", "pytest")  # whose values have types of TOML, which pytest reads from version 9 on
# The files that pytest reads, in its order, and the table of each that is for pytest; pytest.ini may be empty.
TABLES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("pytest.toml", (("pytest",),)),
    (".pytest.toml", (("pytest",),)),
    ("pytest.ini", (("pytest",),)),
    (".pytest.ini", (("pytest",),)),
    ("pyproject.toml", (OF_INI, NATIVE)),
    ("tox.ini", (("pytest",),)),
    ("setup.cfg", (("tool:pytest",),)),
)
# Tables that somebody may take for ours: nothing reads them.
NOT_READ = ("modelbudget", "model-budget", "model_budget", "pytest-modelbudget", "pytest_modelbudget")


BOM = "\ufeff"  # with which some editors begin a file: pytest passes it by in INI files, and refuses it in TOML
ReadText = Callable[[Path], str | None]  # gives the text of a file; None where there is none


@dataclass(frozen=True, slots=True)
class Project:
    """A root, the folders whose modules pytest can import, and where budgets are: files and folders with them."""

    root: Path
    pythonpath: tuple[Path, ...] = ()
    budgets: tuple[Path, ...] = ()


def text_of(file: Path) -> str | None:
    """The text of a configuration file; None where there is none. Raises SourceError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8") if file.is_file() else None
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def project_around(folder: Path, read: ReadText = text_of) -> Project:
    """The project that a folder lies in: itself where no file configures pytest. read gives the text of such a file.

    Raises SourceError where such a file is broken.
    """
    for root in (folder, *folder.parents):
        found = configuration(root, read)
        if found is not None:
            file, settings = found
            pythonpath = (root / name for name in words(file, settings, "pythonpath"))
            budgets = (root / name for name in words(file, settings, PATHS, FOLDER))
            return Project(root, tuple(pythonpath), tuple(budgets))
    return Project(folder, budgets=(folder / FOLDER,))


def configuration(root: Path, read: ReadText = text_of) -> tuple[Path, Mapping[str, Any]] | None:
    """The file of a folder that pytest is configured by, and its table for pytest; None where there is none.

    Raises SourceError where such a file is broken.
    """
    for name, places in TABLES:
        settings = _settings(root / name, places, read)
        if settings is not None:
            return root / name, settings
    return None


@contextmanager
def importing_as_pytest(folder: Path) -> Iterator[None]:
    """Let modules be found as the gate finds them, with folder before all else."""
    project, before = project_around(folder), list(sys.path)
    sys.path[:0] = dict.fromkeys(str(path) for path in (folder, project.root, *project.pythonpath))
    try:
        yield
    finally:
        sys.path[:] = before


def unread_table(root: Path) -> str:
    """The first table of pyproject.toml that looks like this project's, as [tool.modelbudget]; "" of none."""
    file = root / "pyproject.toml"
    tools = _parsed(file, text_of(file) or "").get("tool", {})
    return next((f"[tool.{name}]" for name in NOT_READ if name in tools), "")


def words(file: Path, settings: Mapping[str, Any], key: str, usual: str = "") -> tuple[str, ...]:
    """What a setting lists: a list, or a text, split as a shell would. Raises SourceError where it is neither."""
    written = settings.get(key, usual)
    try:
        return tuple(shlex.split(written)) if isinstance(written, str) else tuple(map(str, written))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{key} of {file.name}, which pytest is configured by, is no list of folders: {error}"
        ) from error


def _settings(file: Path, places: tuple[tuple[str, ...], ...], read: ReadText) -> Mapping[str, Any] | None:
    """The table of a file that is for pytest; None where there is no such file, or no such table."""
    text = read(file)
    if text is None:
        return None
    document = _parsed(file, text)
    found = [table for place in places if isinstance(table := _table(document, place), Mapping)]
    # An empty table beside another one says nothing: pytest reads the other.
    usual: Mapping[str, Any] | None = {} if file.name.removeprefix(".").startswith("pytest.") else None
    return next(filter(None, found), found[0] if found else usual)


def _table(document: Mapping[str, Any], place: tuple[str, ...]) -> object:
    """The text at a place of a file. Settings of pytest's own beside ini_options do not hold that table."""
    table: Any = document
    for key in place:
        table = table.get(key) if isinstance(table, Mapping) else None
    if place == NATIVE and isinstance(table, Mapping):
        return {key: value for key, value in table.items() if key != "ini_options"} or None
    if place == OF_INI and isinstance(table, Mapping):
        return {key: value if isinstance(value, list) else str(value) for key, value in table.items()}
    return table


def _parsed(file: Path, text: str) -> Mapping[str, Any]:
    """A configuration file as tables."""
    try:
        if file.suffix == ".toml":
            tables: Mapping[str, Any] = tomllib.loads(text)
            return tables
        parser = configparser.RawConfigParser(strict=False, default_section="")  # no section speaks for others
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys as they are written, as pytest reads them
        parser.read_string(text.removeprefix(BOM))
        return {name: dict(section) for name, section in parser.items()}
    except (ValueError, configparser.Error) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> SourceError:
    why = " ".join(str(error).split())
    return SourceError(f"{file.name}, which pytest is configured by, cannot be read: {why}")
