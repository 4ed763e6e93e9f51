"""A format that an extension adds, whose models run: compared with torch's, and changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.needs_torch
DOCUMENT = (Path(__file__).parents[2] / "docs" / "extensions.md").read_text(encoding="utf-8")
WEIGHT = [[1.0, -2.0, 0.5], [0.25, 3.0, -1.0], [-0.75, 1.5, 2.0], [4.0, 0.125, -0.5]]
EXTENSION = """
from lab_matrix import Matrix
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.transforms.transform import (
    Change, Changed, Setting, SettingForm, Transform
)


def apply(model, settings):
    changed = Matrix(model.weight * model.weight.dtype.type(settings["by"]), model.spec)
    return Changed(changed, (Change("product", "linear", f"times {settings['by']}"),))


FORMATS = (Format("matrix", "path of a matrix", "lab_matrix", suffixes=(".matrix",)),)
by = Setting("by", SettingForm.INTEGER, "factor", default=1)
TRANSFORMS = (Transform("scale", "scales the weight", {"matrix": __name__}, settings=(by,)),)
"""
CONFTEST = """
import extension_of_lab_matrix

def pytest_model_budget_extensions(config):
    return extension_of_lab_matrix
"""
BUDGET = f"""
model_budget: 1
models:
  matrix:
    matrix: net.matrix
    inputs: float32 2x3
    limits: {{macs: 24 MAC, params: 12}}
    transforms:
      same: {{compare: {{torch: "{__name__}:same"}}, equivalence: exact_algebra}}
      other: {{compare: {{torch: "{__name__}:other"}}, equivalence: exact_algebra}}
      kept: {{scale: {{}}, equivalence: exact_algebra, limits: {{macs: 24 MAC}}}}
      doubled: {{scale: {{by: 2}}, equivalence: exact_algebra}}
  module:
    torch: "{__name__}:same"
    inputs: float32 2x3
    limits: {{macs: 24 MAC}}
    transforms:
      matrix: {{compare: {{matrix: net.matrix}}, equivalence: exact_algebra}}
"""


def same() -> nn.Module:
    """The layer with this weight."""
    layer = nn.Linear(3, 4, bias=False)
    layer.weight = nn.Parameter(torch.tensor(WEIGHT))
    return layer


def other() -> nn.Module:
    """The same, but for one sign."""
    layer = same()
    with torch.no_grad():
        layer.get_parameter("weight")[2, 1] *= -1
    return layer


def test_a_format_that_runs_is_compared_and_changed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented one: 2·3·4 MACs; equal to the module with its weight, and not to one with another or twice it."""
    pytester.syspathinsert()
    (documented,) = re.findall(r"<!-- file: lab_matrix.py -->\n```python\n(.*?)```", DOCUMENT, re.S)
    pytester.makepyfile(lab_matrix=documented, extension_of_lab_matrix=EXTENSION)
    pytester.makeconftest(CONFTEST)
    folder = pytester.mkdir("budgets")
    (folder / "net.matrix").write_text(json.dumps(WEIGHT))
    (folder / "nets.yaml").write_text(BUDGET)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "--model-budget", "--model-budget-report=json:out.json")
    report: dict[str, Any] = json.loads((pytester.path / "out.json").read_text())
    outcomes = {
        transform["name"]: transform["equivalence"]["outcome"]
        for model in report["models"]
        for transform in model["transforms"]
    }
    assert outcomes == {
        "same": "within", "other": "over", "kept": "within", "doubled": "over", "matrix": "within"
    }  # fmt: skip
    checks = [check for model in report["models"] for check in model["checks"]]
    assert [(each["metric"], each["actual"], each["outcome"]) for each in checks] == [
        ("macs", 2 * 3 * 4, "within"),
        ("params", 3 * 4, "within"),
        ("macs", 2 * 3 * 4, "within"),
    ]
    assert np.shape(WEIGHT) == (4, 3)
