"""Python files as they are: what they import, and whether they are installed; nothing is imported for it."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

OWN = Path(__file__).resolve().parents[1]  # the source of this project
LIBRARY = os.path.dirname(os.__file__)
PACKAGES = ("site-packages", "dist-packages")  # folders of what is installed
INSIDE = ("built-in", "frozen")  # in place of a file: what Python holds itself


def is_installed(file: str) -> bool:
    """Whether a file is Python's, a package's or this project's, and not a user's."""
    path = Path(file)
    is_inside = file in INSIDE or path.is_relative_to(LIBRARY) or path.is_relative_to(OWN)
    return is_inside or not set(PACKAGES).isdisjoint(path.parts)


def top_imports(file: Path) -> Iterator[str]:
    """The modules that a file imports at its top; none of a file that is no Python.

    Imports inside functions, classes and conditions may never happen; relative ones are in the file's own package.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
