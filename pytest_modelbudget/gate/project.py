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
# The files that pytest reads, in its order, and the table of each that is for pytest; pytest.ini may be empty.
TABLES = (
    ("pytest.toml", ("pytest",)),
    (".pytest.toml", ("pytest",)),
    ("pytest.ini", ("pytest",)),
    (".pytest.ini", ("pytest",)),
    ("pyproject.toml", ("tool", "pytest", "ini_options")),
    ("pyproject.toml", ("tool", "pytest")),
    ("tox.ini", ("pytest",)),
    ("setup.cfg", ("tool:pytest",)),
)
ReadText = Callable[[Path], str | None]  # gives the text of a file; None where there is none


@dataclass(frozen=True, slots=True)
class Project:
    """A root, the folders whose modules pytest can import, and where budgets are: files and folders with them."""

    root: Path
    pythonpath: tuple[Path, ...] = ()
    budgets: tuple[Path, ...] = ()


def text_of(file: Path) -> str | None:
    """The text of a configuration file; None where there is none."""
    return file.read_text(encoding="utf-8") if file.is_file() else None


def project_around(folder: Path, read: ReadText = text_of) -> Project:
    """The project that a folder lies in: itself where no file configures pytest. read gives the text of such a file.

    Raises SourceError where such a file is broken.
    """
    for root in (folder, *folder.parents):
        for name, place in TABLES:
            file = root / name
            try:
                settings = _settings(file, place, read)
                if settings is None:
                    continue
                pythonpath = tuple(root / each for each in _words(settings.get("pythonpath", "")))
                return Project(root, pythonpath, tuple(root / each for each in _words(settings.get(PATHS, FOLDER))))
            except (OSError, TypeError, ValueError, configparser.Error) as error:
                why = " ".join(str(error).split())
                raise SourceError(f"{name}, which pytest is configured by, cannot be read: {why}") from error
    return Project(folder, budgets=(folder / FOLDER,))


@contextmanager
def importing_as_pytest(folder: Path) -> Iterator[None]:
    """Let modules be found as the gate finds them, with folder before all else."""
    project, before = project_around(folder), list(sys.path)
    sys.path[:0] = dict.fromkeys(str(path) for path in (folder, project.root, *project.pythonpath))
    try:
        yield
    finally:
        sys.path[:] = before


def _words(written: Any) -> list[str]:
    """What a setting lists: a list, or a text, split as a shell would."""
    return shlex.split(written) if isinstance(written, str) else [str(each) for each in written]


def _settings(file: Path, place: tuple[str, ...], read: ReadText) -> Mapping[str, Any] | None:
    """The table of a file that is for pytest; None where there is no such file, or no such table."""
    if (text := read(file)) is None:
        return None
    table: Any = tomllib.loads(text) if file.suffix == ".toml" else _sections(text)
    for key in place:
        table = table.get(key) if isinstance(table, Mapping) else None
    is_pytests_own = file.name.removeprefix(".").startswith("pytest.")
    return table if isinstance(table, Mapping) and table else {} if is_pytests_own else None


def _sections(text: str) -> Mapping[str, Mapping[str, str]]:
    parser = configparser.RawConfigParser(strict=False, default_section="")  # no section speaks for others
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys as they are written, as pytest reads them
    parser.read_string(text)
    return {name: dict(section) for name, section in parser.items()}
