"""The marks of a test module, read from its text: it need not be possible to import it."""

from __future__ import annotations

import ast
from pathlib import Path


def marks_of(path: Path) -> set[str]:
    """The names in its ``pytestmark``; a decorated test of it has none here."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    assigned = [each for each in statements if isinstance(each, ast.Assign)]
    values = [each.value for each in assigned if ast.unparse(each.targets[0]) == "pytestmark"]
    nodes = [node for value in values for node in ast.walk(value)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} - {"mark"}
