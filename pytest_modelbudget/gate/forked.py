"""The server that processes are forked from: what each of them needs is loaded and made once, there.

A model's own module is imported in its own process. What it imports of installed packages (torchvision takes a second)
is imported here; joining the project's own rules takes longer than a small model does.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pytest_modelbudget.gate.garbage import loaded_for_good
from pytest_modelbudget.gate.own_process import LOADED
from pytest_modelbudget.gate.python_files import imports_of, is_installed
from pytest_modelbudget.ops.table import builtin_ops


def installed_modules(targets: Iterable[str], root: Path) -> list[str]:
    """The modules of installed packages that some modules are, or import; none of them is imported for that."""
    names: dict[str, None] = {}
    waiting, met = list(targets), set()
    while waiting:
        name = waiting.pop()
        if name in met:
            continue
        met.add(name)
        file = _own_file(name, root)
        if file is not None:
            waiting += (module for module, _ in imports_of(file, at_top=True))
        elif name.partition(".")[0] not in sys.builtin_module_names:
            names[name] = None
    return sorted(names)


def _own_file(name: str, root: Path) -> Path | None:
    """The file of a module of the project's own, None of any other."""
    stem = root.joinpath(*name.split("."))
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name.partition(".")[0])  # which imports nothing
        if spec is not None and spec.origin and not is_installed(spec.origin):
            inside = Path(spec.origin).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return inside if inside.is_file() else Path(spec.origin)
    return None


def _load(names: Iterable[str]) -> None:
    """Import modules, each if it can be: what fails here fails again, aloud, in the process of its model."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


if names := os.environ.pop(LOADED, ""):
    with loaded_for_good():  # and so its memory is shared: no collection of a child writes into it
        builtin_ops()
        _load(names.split(","))
