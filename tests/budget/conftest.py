"""Budgets out of texts, read the way the plugin reads them."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.budget import Budget
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.yaml_text import BudgetFileError
from pytest_modelbudget.registry import tables
from tests.builders.texts import HARDWARE, Problems, Read


@pytest.fixture(scope="session")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The budget of a text, as ``budgets/b.yaml`` of a project with the devices of ``HARDWARE``."""
    root = tmp_path_factory.mktemp("project")
    path = root / "budgets" / "b.yaml"
    path.parent.mkdir()
    path.with_name("hardware.yaml").write_text(HARDWARE, encoding="utf-8")
    using = tables()

    def of(text: str | bytes) -> Budget:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_budget(path, using, root=root)

    return of


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
