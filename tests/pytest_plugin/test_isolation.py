"""A model's end is its own: good models beside unruly ones, in this process and in processes of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.unruly_models import DYING, GOOD, UNRULY, model_line, unruly_module

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow]

HEAD = "model_budget: 1\ndefaults: {inputs: float32 1x8}\nmodels:\n"
GOOD_LINES = (
    "  first: {torch: 'good:net', limits: {params: 1 M, macs: 1 M}}\n",
    "  drawn: {torch: 'good:drawn', kwargs: {width: 5}, limits: {params: 1 M, model_size: 1 MB}}\n",
    "  last:\n    torch: good:net\n    kwargs: {width: 6}\n    limits: {params: 1 M}\n    transforms:\n"
    "      tiled: {tile_linear: {tile: 2, edge: ragged}, equivalence: exact_algebra, limits: {macs: 1 M}}\n",
)
CAUSES = {
    "exits": "ended itself with exit code 0",
    "crashes": "ended by SIGSEGV",
    "hangs": "was stopped after 3 s",
    "eats_memory": "needed more than 1 GiB",
    "raises": "raised ValueError: no such weights",
}


@pytest.fixture
def repository(pytester: pytest.Pytester) -> Path:
    """A project with good and with unruly factories."""
    pytester.makefile(".ini", pytest="[pytest]\n")
    pytester.makepyfile(good=GOOD, unruly=unruly_module(UNRULY), dying=unruly_module(DYING))
    pytester.mkdir("budgets")
    return pytester.path


def run(pytester: pytest.Pytester, lines: list[str], *args: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    """The gate over these models, and its report."""
    (pytester.path / "budgets" / "a.yaml").write_text(HEAD + "".join(lines), encoding="utf-8")
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--model-budget", "--model-budget-json=r.json", *args
    )
    return result, json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))


def of_good_models(report: dict[str, Any]) -> dict[str, str]:
    """What a report says of the good models, as text, but for where in the file they stand."""
    models = {model["id"].rpartition("::")[2]: json.dumps(model) for model in report["models"]}
    return {name: re.sub(r'"line": \d+', "", models[name]) for name in ("first", "drawn", "last")}


@pytest.mark.usefixtures("repository")
def test_r10_good_models_are_the_same_beside_unruly_ones(pytester: pytest.Pytester) -> None:
    """The report of a good model knows nothing of who was measured before it, where, and in which order."""
    _, report = run(pytester, list(GOOD_LINES))
    alone = of_good_models(report)
    lines = [*GOOD_LINES, *(model_line("unruly", name) for name in UNRULY)]
    assert len(UNRULY) >= 40
    for some, args in (
        (lines, ()),
        (lines[::-1], ()),
        (lines[::-1], ("-n2",)),
        (lines[::-1], ("--model-budget-isolate",)),
        (lines, ("-n2", "--model-budget-isolate")),
    ):
        result, report = run(pytester, some, *args)
        assert result.ret == 1, args  # some of the unruly ones raise
        assert of_good_models(report) == alone, args
        assert len(report["models"]) == len(lines)
        errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
        for name in UNRULY:
            assert bool(errors[name]) or not name.startswith("raises"), name


@pytest.mark.usefixtures("repository")
def test_r10_ten_models_of_which_five_die(pytester: pytest.Pytester) -> None:
    """Five fail, each with its cause, and five are measured: exit code 1."""
    dying = [model_line("dying", name, "timeout: 3 s, memory: 1 GiB, ") for name in DYING]
    good = [
        f"  good{width}: {{torch: 'good:net', kwargs: {{width: {width}}}, limits: {{params: 1 M}}}}\n"
        for width in range(5)
    ]
    lines = [line for pair in zip(dying, good, strict=True) for line in pair]
    result, report = run(pytester, lines, "--model-budget-isolate", "--durations=0")
    assert result.ret == 1
    result.assert_outcomes(passed=5, failed=10)  # two limits each
    errors = {model["id"].rpartition("::")[2]: model.get("error", "") for model in report["models"]}
    for name, cause in CAUSES.items():
        assert cause in errors[name]
        assert errors[f"good{list(DYING).index(name)}"] == ""
    assert "in hangs, " in errors["hangs"]
    assert "in crashes, " in errors["crashes"]
