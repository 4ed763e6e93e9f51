"""The recipes of other packages' models lead from an empty folder to a green gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.documents import PAGES_OF_OTHERS, play, run_apart
from tests.builders.marks import needs

pytestmark = [pytest.mark.needs_torch, pytest.mark.zoo]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[needs(package) for package in packages], id=Path(page).stem)
        for page, packages in PAGES_OF_OTHERS.items()
    ],
)
def test_a_recipe_leads_to_a_green_gate(page: str, tmp_path: Path) -> None:
    """Its files, commands and budgets, from top to bottom."""
    assert play(page, tmp_path, run_apart) == ""
