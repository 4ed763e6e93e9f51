"""What the record of a torch model leaves out stands in one table, and nothing else is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_modelbudget.torch_models.omissions import OMISSIONS
from pytest_modelbudget.torch_models.recording import QUERIES

pytestmark = pytest.mark.needs_torch

DOCS = Path(__file__).parents[2] / "docs" / "conventions.md"


def test_class1_the_docs_print_the_table_of_the_code() -> None:
    """Class 1: every row, word for word, and no other."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    start = lines.index("| by | left out | because |") + 2
    rows = lines[start : lines.index("", start)]
    assert rows == [f"| {row.place} | {row.what} | {row.because} |" for row in OMISSIONS]


def test_class1_every_row_gives_its_reason() -> None:
    """Class 1: what is left out without one is a hole."""
    assert all(row.what and len(row.because.split()) > 4 for row in OMISSIONS)
    assert {row.place for row in OMISSIONS} == {"recorder", "doors", "weights", "layers"}


def test_class1_only_torchs_own_queries_are_dropped() -> None:
    """Class 1: these namespaces and no other, and each is in the table."""
    assert {"aten", "prim", "prims", "profiler"} == QUERIES
    assert all(f"`{name}`" in OMISSIONS[0].what for name in QUERIES)
