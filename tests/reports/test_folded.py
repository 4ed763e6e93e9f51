"""Lines of a failure that are wider than the terminal."""

import pytest

from pytest_modelbudget.reports.text import folded

ACCEPT = "pytest --model-budget --model-budget-update=fix 'budgets/a b.yaml::net::params'"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("params 54 > 48", ["params 54 > 48"]),
        ("params 54 > 48 (+12.5%)   base 48, grow 2.0%   a.yaml:7",
         ["params 54 > 48 (+12.5%)   base 48, grow", "  2.0%   a.yaml:7"]),
        (f"fix: shrink the layer above, or accept: {ACCEPT}",
         ["fix: shrink the layer above, or accept:", f"  {ACCEPT}"]),
        ("  +4  a.very.long.name.weight   [8, 4] -> [9, 4]", ["  +4  a.very.long.name.weight", "    [8, 4] -> [9, 4]"]),
        ("there is no lock: pytest --model-budget --model-budget-update=create writes it",
         ["there is no lock:", "  pytest --model-budget --model-budget-update=create", "  writes it"]),
        ("x" * 50, ["x" * 50]),
    ],
)  # fmt: skip
def test_folded(text: str, lines: list[str]) -> None:
    """In 40 columns; commands and shapes stay whole, and nothing is lost but blanks where a line ends."""
    assert folded(text, 40) == lines


def test_folded_below_a_column() -> None:
    """What stands behind a word goes on below its beginning."""
    text = "  because   a view: the same memory under another shape"
    assert folded(text, 40, 12) == ["  because   a view: the same memory", "            under another shape"]
