"""No room of the package has a circle of imports among its modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pytest_modelbudget

PACKAGE = Path(pytest_modelbudget.__file__).parent
ROOMS = (
    "graph", "ops", "lowering", "deployment", "metrics", "values", "formats", "torch_models", "onnx_models",
)  # fmt: skip


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those below ``if TYPE_CHECKING`` included; those in functions are not."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])


def _imported(module: Path, room: str) -> set[str]:
    """The modules of a room that one of them imports."""
    package, found = f"pytest_modelbudget.{room}", set[str]()
    for statement in _statements(ast.parse(module.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.ImportFrom) and statement.module == package:
            found.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(f"{package}."):
            found.add((statement.module or "").removeprefix(f"{package}.").partition(".")[0])
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_of_a_room_import_one_another_in_a_circle(room: str) -> None:
    """Imports for a type checker alone count: what needs one another belongs into one module."""
    modules = {path.stem: _imported(path, room) for path in (PACKAGE / room).glob("*.py") if path.stem != "__init__"}
    TopologicalSorter(modules).prepare()  # which raises CycleError
