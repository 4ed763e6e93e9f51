"""The file that a dotted name means for one budget, and the line that defines what it names.

Two packages of a repository may each have a ``nets.py``. The folder that is nearest to the budget is searched first::

    budgets of b/budgets, with pythonpath = a b and rootdir .    (b) (. a)
"""

import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pytest_modelbudget.errors import INSTALLED, STANDARD_LIBRARY, SourceError, is_in, user_code

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
OWN = Path(__file__).resolve().parents[1]  # the source of this project

Roots = tuple[tuple[Path, ...], ...]  # folders, nearest first; those of a group are equally near
_SEARCHED: ContextVar[Roots] = ContextVar("searched", default=())


@contextmanager
def searched_first(roots: Roots) -> Iterator[None]:
    """Import modules from these folders first."""
    folders, token = [str(root) for group in roots for root in group], _SEARCHED.set(roots)
    sys.path[:0] = folders
    try:
        yield
    finally:
        _SEARCHED.reset(token)
        for folder in folders:
            if folder in sys.path:
                sys.path.remove(folder)


def import_roots(folder: Path, rootdir: Path, pythonpath: Iterable[Path]) -> Roots:
    """The folders that the modules of budgets in a folder are imported from.

    They are rootdir, those of pytest's pythonpath, and the package that the budgets are part of: the nearest folder
    with a pyproject.toml or setup.py. Nearness is the length of the path that a folder shares with the budget's.
    """
    above = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(rootdir)]
    packages = (parent for parent in above if any((parent / name).is_file() for name in PROJECT_FILES))
    groups: dict[int, dict[Path, None]] = {}
    for root in (*([package] if (package := next(packages, None)) else []), rootdir, *pythonpath):
        shared = len(Path(os.path.commonpath([folder, root])).parts)
        groups.setdefault(shared, {})[root] = None
    return tuple(tuple(groups[shared]) for shared in sorted(groups, reverse=True))


def refuse_ambiguous(module: str) -> None:
    """Raise SourceError if a module's name means two files that are equally near to the budget."""
    for group in _SEARCHED.get():
        files = {os.path.realpath(path): path for path in _files(module, group)}
        if len(files) > 1:
            names = " and ".join(_from_here(path) for path in files.values())
            raise SourceError(
                f"'{module}' can mean {names}, which are equally near to this budget: "
                "move the budget into the folder of one, or give the modules different names"
            )
        if files:
            return


def refuse_other_file(module: str) -> None:
    """Raise SourceError if an imported module is another file than the one nearest to the budget."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    nearest = next((path for group in _SEARCHED.get() for path in _files(module, group)), None)
    if loaded and nearest is not None and os.path.realpath(loaded) != os.path.realpath(nearest):
        raise SourceError(
            f"'{module}' is {_from_here(loaded)} in this process, and {_from_here(nearest)} for this model: measure "
            "each model in a process of its own, as is the default, or give the modules different names"
        )


def _files(module: str, folders: Iterable[Path]) -> Iterator[Path]:
    """The files that a module's name means in some folders."""
    for folder in folders:
        stem = folder.joinpath(*module.split("."))
        yield from (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())


def is_installed(file: str) -> bool:
    """Whether a file is Python's, a package's or this project's, and not a user's."""
    is_pythons = file in ("built-in", "frozen") or file.startswith(STANDARD_LIBRARY)
    return is_pythons or Path(file).is_relative_to(OWN) or is_in(file, INSTALLED)


def definition(named: object, rootdir: Path) -> str:
    """The file and line of a user's class or function, relative to rootdir: "b/nets.py:2"; "" of what is installed.

    A file outside of rootdir is named by the last two parts of its path, which are the same on every machine.
    """
    with suppress(SourceError, OSError), user_code("finding the definition", SourceError):  # attributes may be code
        function: Any = inspect.unwrap(named) if callable(named) else named
        path = Path(inspect.getfile(function))
        if not is_in(str(path), INSTALLED):
            shown = path.relative_to(rootdir) if path.is_relative_to(rootdir) else Path(*path.parts[-2:])
            return f"{shown.as_posix()}:{inspect.getsourcelines(function)[1]}"
    return ""


def _from_here(file: str | Path) -> str:
    """A file as it is called from the current folder, where that is shorter."""
    return min(str(file), os.path.relpath(file), key=len)
