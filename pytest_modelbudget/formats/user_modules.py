"""The file that a dotted name means for one budget, and the line that defines what it names.

Two packages of a repository may each have a ``nets.py``. The folder that is nearest to the budget is searched first::

    budgets of b/budgets, with pythonpath = a b and rootdir .    (b) (. a)
"""

import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path

from pytest_modelbudget.errors import SourceError

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
INSTALLED = ("site-packages", "dist-packages")

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
    above = [each for each in folder.parents if each.is_relative_to(rootdir)]
    packages = (each for each in (folder, *above) if any((each / name).is_file() for name in PROJECT_FILES))
    groups: dict[int, dict[Path, None]] = {}
    for root in (*([package] if (package := next(packages, None)) else []), rootdir, *pythonpath):
        shared = len(Path(os.path.commonpath([folder, root])).parts)
        groups.setdefault(shared, {})[root] = None
    return tuple(tuple(groups[shared]) for shared in sorted(groups, reverse=True))


def refuse_ambiguous(module: str) -> None:
    """Raise SourceError if a module's name means two files that are equally near to the budget."""
    top = module.partition(".")[0]
    for group in _SEARCHED.get():
        paths = (path for root in group for path in (root / f"{top}.py", root / top / "__init__.py"))
        files = {os.path.realpath(path): path for path in paths if path.is_file()}
        if len(files) > 1:
            names = " and ".join(_from_here(path) for path in files.values())
            raise SourceError(
                f"'{top}' can mean {names}, which are equally near to this budget: "
                "move the budget into the folder of one, or give the modules different names"
            )
        if files:
            return


def refuse_other_file(module: str) -> None:
    """Raise SourceError if an imported module is another file than the one that would be imported now."""
    top = module.partition(".")[0]
    loaded, spec = getattr(sys.modules.get(top), "__file__", None), PathFinder.find_spec(top)
    if not loaded or spec is None or not spec.origin or os.path.realpath(loaded) == os.path.realpath(spec.origin):
        return
    raise SourceError(
        f"'{top}' is {_from_here(loaded)} in this process, and {_from_here(spec.origin)} for this model: measure each "
        "model in a process of its own, as is the default, or give the modules different names"
    )


def definition(named: object, rootdir: Path) -> str:
    """The file and line of a user's class or function, relative to rootdir: "b/nets.py:2"; "" of what is installed."""
    function = inspect.unwrap(named) if callable(named) else named
    try:
        file = inspect.getfile(function)  # type: ignore[arg-type]  # which raises TypeError for other objects
        if set(INSTALLED) & set(Path(file).parts):
            return ""
        line = inspect.getsourcelines(function)[1]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
    return f"{Path(os.path.relpath(file, rootdir)).as_posix()}:{line}"


def _from_here(file: str | Path) -> str:
    """A file as it is called from the current folder, where that is shorter."""
    return min(str(file), os.path.relpath(file), key=len)
