"""The table of errors by layer: under -vv in the terminal, and on the page."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from pytest_modelbudget.reports.terminal import Detail, lines
from tests.builders import records
from tests.builders.pages import Page, render, with_everything

DEEP = ".".join(f"stage{number}" for number in range(20))
LAYERS = [
    {"scope": "conv1", "of_its_size": "0.0022", "sqnr": "53.2", "max_abs": "0.013"},
    {"scope": "bn1", "of_its_size": "inf"},
    {"scope": "", "of_its_size": "0", "sqnr": "inf"},
    {"scope": DEEP, "of_its_size": "1.5", "sqnr": "-3.5", "max_abs": "12"},
]
SHOWN = [
    ["layer", "SQNR", "max", "abs"],
    ["conv1", "53.2", "dB", "0.013"],
    ["bn1", "fused", "or", "gone"],
    ["(model)", "inf", "dB", "0"],
]


def terminal(outcome: str, detail: Detail) -> list[str]:
    model: Any = records.claimed("declared bounds", outcome=outcome)
    (transform,) = model["transforms"]
    transform["equivalence"]["layers"] = LAYERS
    return [line.text for line in lines(records.report(model), detail)]


@pytest.mark.parametrize("outcome", ["within", "over", "unknown"])
def test_e5_vv_has_a_line_for_each_layer(outcome: str) -> None:
    """In the order of the run, whether the claim holds or not; a long path is cut in its middle."""
    shown = terminal(outcome, Detail.LAYERS)
    at = next(number for number, line in enumerate(shown) if line.split() == SHOWN[0])
    assert [line.split() for line in shown[at : at + 4]] == SHOWN
    last = shown[at + 4]
    assert last.split()[0].startswith("stage0")
    assert last.split()[1:] == ["-3.5", "dB", "12"]
    assert len(last) == len(shown[at]) < 80


@pytest.mark.parametrize("detail", [Detail.TIGHTEST, Detail.ALL])
def test_e5_less_detail_has_no_layers(detail: Detail) -> None:
    """A table of a thousand layers is asked for."""
    assert not [line for line in terminal("within", detail) if "conv1" in line or "fused" in line]


def test_e5_the_page_has_a_row_for_each_layer() -> None:
    """With the root named, and what the other model has not."""
    record = copy.deepcopy(with_everything())
    (transform,) = (each for model in record["models"] for each in model.get("transforms", ()))
    assert "Errors by layer" not in Page(render(record)).views()[0]["markup"]
    transform["equivalence"]["layers"] = LAYERS
    page = Page(render(record)).views()[0]["markup"]
    assert f"Errors by layer ({len(LAYERS)})" in page
    _, _, after = page.partition("Errors by layer of")
    rows = re.findall(r"<tr>(<td.*?)</tr>", after.partition("</tbody>")[0])
    cells = [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    assert cells == [
        ["conv1", "0.0022", "53.2", "0.013"],
        ["bn1", "fused or gone", "", ""],
        ["(model)", "0", "inf", ""],
        [DEEP, "1.5", "-3.5", "12"],
    ]
