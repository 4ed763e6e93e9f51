"""Python files as they stand: what they import and name, and whether they are installed; nothing is imported for it."""

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

OWN = Path(__file__).resolve().parents[1]  # the source of this project
LIBRARY = os.path.dirname(os.__file__)
PACKAGES = ("site-packages", "dist-packages")  # folders of what is installed
LONGEST = 256  # characters of a path that a file names
INSIDE = ("built-in", "frozen")  # in place of a file: what Python holds itself


def is_installed(file: str) -> bool:
    """Whether a file is Python's, a package's or this project's, and nobody's who works on a model."""
    path = Path(file)
    is_inside = file in INSIDE or path.is_relative_to(LIBRARY) or path.is_relative_to(OWN)
    return is_inside or not set(PACKAGES).isdisjoint(path.parts)


def imports_of(file: Path, package: str = "", *, at_top: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each import of a file: the module, and the names that are taken from it; none of a file that is no Python.

    package is what relative imports begin at; without one they are left out. at_top leaves out imports inside
    functions, classes and conditions, which may never happen.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body if at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module, tuple(alias.name for alias in node.names)


def names_in(file: Path) -> frozenset[str]:
    """Every text written out in a file that may be a path; none of a file that is no Python."""
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return frozenset(text for text in texts if 0 < len(text) <= LONGEST and text.isprintable())


def sources_of(modules: Iterable[Any]) -> list[Path]:
    """The files of modules, and of all that these import but for what is installed apart from them."""
    waiting, known = list(modules), dict[str, Path]()
    own = {module.__name__.partition(".")[0] for module in waiting}
    while waiting:
        module = waiting.pop()
        file = Path(str(module.__file__))
        if str(file) in known:
            continue
        known[str(file)] = file
        for base, names in imports_of(file, module.__package__ or ""):
            for name in (base, *(f"{base}.{each}" for each in names)):
                inner = sys.modules.get(name)
                path = getattr(inner, "__file__", None)
                if inner is not None and path and (name.partition(".")[0] in own or not is_installed(path)):
                    waiting.append(inner)
    return list(known.values())
