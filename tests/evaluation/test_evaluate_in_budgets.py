"""``evaluate`` of a model and of a transform: limits on answers, which lock as others do, and are worked out once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.budget.yaml_text import BudgetFileError
from pytest_modelbudget.evaluation import evaluate, stored
from pytest_modelbudget.registry import tables
from tests.builders.project import Project

pytestmark = pytest.mark.needs_torch
NETS = """
import torch
from torch import nn

class Echo(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def forward(self, x):
        rows = torch.arange(x.shape[0])[:, None] + 0 * x[:, :1].long()
        return torch.where(x[:, 5:6] < self.wrong, x.flip(1), x)

def echo(wrong=0.0):
    return Echo(wrong)
"""
DATA = "{data: ../data.npz, metric: top1"
MODEL = "  net:\n    torch: nets:echo\n    inputs: float32 1x6\n    isolate: false\n"
IN_BATCHES = MODEL.replace("1x6", "8x6")


@pytest.fixture
def echo(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A model whose answer is the largest input; of 1,000 rows 974 have its place as label. Column 5 counts rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.path / "cache"))
    project.write("nets.py", NETS)
    rows = np.zeros((1000, 6), np.float32)
    labels = np.arange(1000) % 5
    rows[np.arange(1000), labels] = 2
    rows[:, 5] = np.arange(1000) / 1000
    np.savez(project.path / "data.npz", inputs=rows, labels=np.where(np.arange(1000) < 974, labels, (labels + 1) % 5))
    return project


def parts(report: Any, key: str) -> Iterator[Any]:
    """Every mapping of a report that has a key."""
    if isinstance(report, dict) and key in report:
        yield report
    for part in report.values() if isinstance(report, dict) else report if isinstance(report, list) else ():
        yield from parts(part, key)


def outcomes(report: Any) -> dict[str, str]:
    return {check["id"].partition("::")[2]: check["outcome"] for check in parts(report, "outcome") if "metric" in check}


def compared(wrong: float, limits: str) -> str:
    """A transform: another model, which flips the first rows and so gives another answer."""
    return (
        f"      new:\n        compare: {{torch: nets:echo, kwargs: {{wrong: {wrong}}}}}\n        evaluate: {limits}\n"
    )


def test_limits_of_a_model_and_a_transform(echo: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """974 of 1,000 are right, and of 20 rows that the other model flips, none; both are run once."""
    models = (
        f"{IN_BATCHES}    evaluate: {DATA}, min: 97.4 %}}\n    transforms:\n{compared(0.02, '{min: 97%, drop: 1%}')}"
    )
    echo.budget(models)
    runs = []
    monkeypatch.setattr(stored, "evaluate", lambda *args: runs.append(args) or evaluate.evaluate(*args))
    first = echo.report()
    assert len(runs) == 2, "the model and the other one"
    assert [each["accuracy"]["exact"] for each in parts(first, "accuracy")] == [[974, 1000], [954, 1000]]
    (drop,) = (each["accuracy_drop"] for each in parts(first, "accuracy_drop"))
    assert drop["parts"] == {"lost": 20, "gained": 0, "answers": 1000}
    expected = {"net::accuracy": "within", "net::new::accuracy": "over", "net::new::accuracy_drop": "over"}
    assert outcomes(first) == expected
    assert outcomes(echo.report()) == expected
    assert len(runs) == 2, "a second run evaluates nothing"
    arrays = dict(np.load(echo.path / "data.npz"))
    np.savez(echo.path / "data.npz", **{**arrays, "labels": arrays["labels"][::-1]})
    echo.report()
    assert len(runs) == 4, "other labels are other data"


def test_a_minimum_locks_and_is_updated(echo: Project) -> None:
    """create fills auto and locks the number; fix lowers a minimum that is broken, in the budget and its lock."""
    echo.budget(f"{IN_BATCHES}    evaluate: {DATA}, min: auto}}\n")
    echo.run("--model-budget-update=create")
    path = echo.path / "budgets" / "a.yaml"
    assert "min: 97.4 %" in path.read_text()
    locked = json.loads((echo.path / "budgets" / "a.lock.json").read_text())["models"]["net"]["accuracy"]
    assert (locked["value"], locked["exact"]) == ("0.9740", [974, 1000])
    path.write_text(path.read_text().replace("97.4 %", "98 %"))
    assert outcomes(echo.report()) == {"net::accuracy": "over"}
    echo.run("--model-budget-update=fix")
    assert "min: 97.4 %" in path.read_text()


def test_what_cannot_be_evaluated_is_red(echo: Project) -> None:
    """A limit without a number is unknown, with what is wrong in a sentence; other limits have theirs."""
    np.savez(echo.path / "data.npz", inputs=np.zeros((4, 6), np.float32), labels=np.arange(3))
    echo.budget(f"{MODEL}    limits: {{params: 0}}\n    evaluate: {DATA}, min: 1 %}}\n")
    result, report = echo.run_and_report("--model-budget-report=junit:out.xml")
    assert outcomes(report) == {"net::params": "within", "net::accuracy": "unknown"}
    words = "has 4 rows, and there are 3 labels: give one label for each row"
    assert words in json.dumps(report)
    assert words in (echo.path / "out.xml").read_text()
    assert result.ret == 1


@pytest.mark.parametrize(
    ("models", "words"),
    [
        pytest.param("    evaluate: {metric: top1, min: 1%}\n", "give data, such as data/test.npz", id="no data"),
        pytest.param("    evaluate: {data: x.npz, metric: top3, min: 1%}\n", "'top3' is no metric", id="metric"),
        pytest.param(f"    evaluate: {DATA}, max: 1}}\n", "'max' is of a mean error", id="an error of top1"),
        pytest.param("    evaluate: {data: x.npz, metric: mse, min: 1%}\n", "mse gives an error", id="a share of mse"),
        pytest.param(f"    evaluate: {DATA}, drop: 1%}}\n", "to what a transform makes", id="no transform"),
        pytest.param(f"    evaluate: {DATA}, min: 1}}\n", "'1'", id="an amount without its unit"),
        pytest.param(
            f"    limits: {{params: 1}}\n    transforms:\n{compared(0, '{drop: 1%}')}", "or on the model", id="none"
        ),
        pytest.param(
            "    evaluate: {data: x.npz, metric: mse}\n    transforms:\n" + compared(0, "{drop: 1%}"),
            "mse gives an error", id="a drop of an error",
        ),
        pytest.param("    limits: {accuracy: 97%}\n", "write evaluate: {data:", id="under limits"),
    ],
)  # fmt: skip
def test_budgets_that_say_something_else(tmp_path: Path, models: str, words: str) -> None:
    """One problem, in its place."""
    path = tmp_path / "budgets" / "a.yaml"
    path.parent.mkdir()
    path.write_text(f"model_budget: 1\nmodels:\n{MODEL}{models}")
    with pytest.raises(BudgetFileError) as error:
        read_budget(path, tables(), root=tmp_path)
    (problem,) = error.value.problems
    assert words in problem.message
