"""A format that an extension adds, whose models run: compared with torch's, and changed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pytest_modelbudget.pytest_plugin.items

pytestmark = pytest.mark.needs_torch
WEIGHT = [[1.0, -2.0, 0.5], [0.25, 3.0, -1.0], [-0.75, 1.5, 2.0], [4.0, 0.125, -0.5]]
# y = x·Wᵀ, from a file that holds W, on numpy alone.
MATRICES = """
import json
from dataclasses import dataclass

import numpy as np

from pytest_modelbudget.formats.model import (
    DrawnInputs, LoadedModel, Output, Run, RunnableModel, UNWATCHED
)
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.graph.graph import Graph, Op, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, dense
from pytest_modelbudget.transforms.transform import (
    Change, Changed, Setting, SettingForm, Transform
)


class Matrix(RunnableModel):
    def __init__(self, weight, specs):
        self.weight, self.specs = weight, specs

    @property
    def measured(self):
        float32, shapes = DType("float32", 32), {"x": self.spec.shape, "w": self.weight.shape}
        shapes["y"] = (*self.spec.shape[:-1], len(self.weight))
        kinds = {"w": StorageKind.PARAMETER}
        x, w, y = (
            dense(name, shapes[name], float32, Storage(
                name, 4 * int(np.prod(shapes[name])), kinds.get(name, StorageKind.ACTIVATION)
            ))
            for name in "xwy"
        )
        op = Op("aten::linear", (x, w, None), (y,), scope="only")
        return LoadedModel(Graph((op,), (x,), (y,), (Weight(w),)), "matrix")

    @property
    def spec(self):
        return self.specs.positional[0]

    @property
    def inputs(self):
        return DrawnInputs({"x": self.spec}, stacks=True)

    @property
    def dtype(self):
        return "float32"

    def run(self, inputs, watch=UNWATCHED):
        y = inputs["x"].astype(self.weight.dtype) @ self.weight.T
        return Run((Output("y", str(y.dtype), y),))

    def in_float64(self):
        return Matrix(self.weight.astype("float64"), self.specs)


def load(source, rules):
    weight = json.loads((source.base / source.target).read_text())
    return Matrix(np.array(weight, "float32"), source.inputs)


def apply(model, settings):
    changed = Matrix(model.weight * model.weight.dtype.type(settings["by"]), model.specs)
    return Changed(changed, (Change("only", "linear", f"times {settings['by']}"),))


FORMATS = (Format("matrix", "path of a matrix", __name__, suffixes=(".matrix",)),)
by = Setting("by", SettingForm.INTEGER, "factor", default=1)
TRANSFORMS = (Transform("scale", "scales the weight", {"matrix": __name__}, settings=(by,)),)
"""
CONFTEST = """
import matrices_of_this_test

def pytest_model_budget_extensions(config):
    return matrices_of_this_test
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
    """2·3·4 MACs; equal to the module with its weight, and not to one with another or twice it."""
    pytester.syspathinsert()
    pytester.makepyfile(matrices_of_this_test=MATRICES)
    pytester.makeconftest(CONFTEST)
    folder = pytester.mkdir("budgets")
    (folder / "net.matrix").write_text(json.dumps(WEIGHT))
    (folder / "nets.yaml").write_text(BUDGET)
    pytester.runpytest_inprocess("--model-budget", "--model-budget-json", "out.json")
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


assert pytest_modelbudget.pytest_plugin.items  # loaded before pytester, which forgets what runs import
