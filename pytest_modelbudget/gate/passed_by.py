"""Budget files that the base held by its own settings of pytest, and that a session of today passes by.

The base's settings are read as text out of git, and none of its code is run: of a conftest.py that ignores anything,
the strings that it holds are taken for the names of what it ignores.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from os.path import abspath, realpath
from pathlib import Path

from pytest_modelbudget.budget import FOLDER, PATHS, SUFFIXES, revision
from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.gate.project import ReadText, configuration, configuration_in, text_of, words

# Folders that pytest itself passes by where norecursedirs is not set.
PASSED_BY = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")
IGNORING = ("collect_ignore", "pytest_ignore_collect")  # words of a conftest.py that ignores anything
IGNORE = ("--ignore", "--ignore-glob")
OF_FOLDER = ("conftest.py", "pyvenv.cfg")  # files by which pytest may pass by what lies below them


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of pytest that say by which budgets a session comes."""

    paths: tuple[str, ...] = (FOLDER,)
    passed_by: tuple[str, ...] = PASSED_BY
    options: tuple[str, ...] = ()


def passed_by(
    base: revision.BaseRevision,
    root: Path,
    collected: Collection[Path],
    roots: Collection[Path],
    file: Path | None = None,
) -> Iterator[Path]:
    """Budgets of the base's ``model_budget_paths`` that are still there, and were not collected.

    What the base itself ignored is not among them. roots are the paths under which this session looks for budgets; file
    is the configuration that the command line names. Raises SourceError where the configuration of either side is
    broken, and BaseError where git cannot tell.
    """

    def read(path: Path) -> str | None:
        return revision.text_at(base, path)

    if file is not None and read(file) is None:
        return
    then, now = _settings(root, read, file), _settings(root, text_of, file)
    known = {realpath(path) for path in collected}
    for top in (Path(abspath(root / name)) for name in then.paths):
        files: tuple[Path, ...] = ()
        with suppress(revision.BaseError):  # a folder of another repository, whose budgets have no base here
            files = revision.files_at(base, top)
        for path in files:
            is_left = path.suffix in SUFFIXES and path.is_file() and realpath(path) not in known
            if not is_left or not is_budget(path.read_bytes()) or not is_budget(read(path) or ""):
                continue
            is_outside = not any(path.is_relative_to(each) for each in roots)
            is_same = then == now and (is_outside or _has_same_folders(path, root, read))
            if not is_same and not _is_ignored(path, top, root, then, read):
                yield path


def option_values(words: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """The values of options of these names among the words of a command line: --ignore=a, or --ignore a."""
    for word, following in pairwise((*words, "")):
        name, sign, value = word.partition("=")
        if name in names:
            yield value if sign else following


def is_named(path: Path, folder: Path, name: str) -> bool:
    """Whether a name, or a pattern of names, beside a folder means this file or one of the folders it lies in."""
    pattern = abspath(folder / name)
    return any(fnmatch(str(each), pattern) for each in (path, *path.parents) if folder in each.parents)


def _settings(root: Path, read: ReadText, file: Path | None) -> Settings:
    found = configuration(root, read) if file is None else (file, configuration_in(file, read) or {})
    if found is None:
        return Settings()
    source, table = found
    folders = words(source, table, "norecursedirs") if "norecursedirs" in table else PASSED_BY
    return Settings(words(source, table, PATHS, FOLDER), folders, words(source, table, "addopts"))


def _has_same_folders(path: Path, root: Path, read: ReadText) -> bool:
    """Whether the folders around a file hold what they held at the base of what makes pytest pass by."""
    around = [folder / name for folder in path.parents if folder.is_relative_to(root) for name in OF_FOLDER]
    here = {file: file.read_bytes().decode("utf-8-sig", "replace") if file.is_file() else None for file in around}
    return all(text == read(file) for file, text in here.items())


def _is_ignored(path: Path, top: Path, root: Path, then: Settings, read: ReadText) -> bool:
    """Whether the base passed a file by, too."""
    below = [folder for folder in path.parents if top in folder.parents]
    if any(_is_passed_by(folder, pattern) for folder in below for pattern in then.passed_by):
        return True
    if any(is_named(path, root, name) for name in option_values(then.options, IGNORE)):
        return True
    folders = [folder for folder in path.parents if folder.is_relative_to(root)]
    if any(read(folder / "pyvenv.cfg") is not None for folder in folders):
        return True
    return any(
        is_named(path, folder, name) or name in path.relative_to(folder).parts
        for folder in folders
        for name in _ignored_names(read(folder / "conftest.py") or "")
    )


def _is_passed_by(folder: Path, pattern: str) -> bool:
    """Whether norecursedirs means a folder: by its name, or with a slash by the end of its path."""
    return fnmatch(folder.as_posix(), f"*/{pattern}") if "/" in pattern else fnmatch(folder.name, pattern)


def _ignored_names(text: str) -> set[str]:
    """The strings of a conftest.py that ignores anything."""
    if not any(word in text for word in IGNORING):
        return set()
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return set()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)} - {"", "."}
