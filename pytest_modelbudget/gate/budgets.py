"""A budget file as a session reads it: with the project's own tables and its extensions'."""

from __future__ import annotations

from pathlib import Path

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.registry import Tables


def read(path: Path, registry: Tables, *, root: Path, text: str | None = None) -> Budget:
    """The budget of a file under this session's tables; text in place of what it holds.

    Raises BudgetFileError with every problem of the file.
    """
    return read_budget(path, registry, root=root, text=text)
