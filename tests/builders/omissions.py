"""Rows of the table of what graphs and comparisons omit."""

from __future__ import annotations

from typing import NamedTuple

from tests.builders.documents import ROOT

PAGE = ROOT / "pytest_modelbudget" / "formats" / "omissions.md"


class Omission(NamedTuple):
    """One kind of thing that is in no number; place says who leaves it out."""

    place: str
    what: str
    because: str


def omissions(heading: str) -> tuple[Omission, ...]:
    """The rows of the table under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return tuple(Omission(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines)
