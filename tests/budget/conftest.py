"""Budgets out of texts, read the way the plugin reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.problem import BudgetFileError
from pytest_modelbudget.budget.read_yaml import read_budget
from pytest_modelbudget.frontends.frontend_table import frontend_table
from pytest_modelbudget.metrics.metric_table import metric_table
from pytest_modelbudget.ops.op_table import builtin_ops

Read = Callable[["str | bytes"], Budget]
Problems = Callable[["str | bytes"], list[str]]


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The budget of a text, as ``budgets/b.yaml`` of a project."""
    root = tmp_path_factory.mktemp("project")
    path = root / "budgets" / "b.yaml"
    path.parent.mkdir()
    return lambda text: _read(text, path, root)


@pytest.fixture(scope="session")
def problems(read: Read) -> Problems:
    """The problems of a text as lines "line:column: message"; [] where it is a budget."""

    def found(text: str | bytes) -> list[str]:
        try:
            read(text)
        except BudgetFileError as error:
            lines = str(error).splitlines()
            return [line.removeprefix("budgets/b.yaml:") for line in lines]
        return []

    return found


def _read(text: str | bytes, path: Path, root: Path) -> Budget:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_budget(
        path, root=root, metrics=metric_table(), front_ends=frontend_table(), ops=builtin_ops()
    )
