"""``steps:``: transforms one after the other, each held to its claim, and built as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_modelbudget.cli.command import main
from tests.builders.onnx_linears import linear, written

pytest_plugins = ["pytester"]

# 20 inputs and 12 outputs: tiles of 8 make 3 parts of 20, so that 3 · 12 channels have a scale.
FLOATS, INTEGERS, SCALES = 4 * (20 * 12 + 12), 20 * 12 + 4 * 12, 4 * 3 * 12
BUDGET = """
model_budget: 1
models:
  net:
    onnx: ../model.onnx
    transforms:
      small:
        steps:
        - {tile_linear: {tile: 8}}
        - quantize: {weights: {bits: 8}}
        equivalence: {kind: lossy, sqnr: 30}
        limits: {weight_memory: SIZE B}
      wrong:
        steps:
        - {tile_linear: {tile: 8}}
        - apply: passes:shifted
        - {quantize: {weights: {bits: 8}}, equivalence: {kind: custom, max_abs: 1}}
        equivalence: exact_algebra
      lost:
        steps: [quantize, {tile_linear: {tile: 8}}]
        equivalence: lossy
""".replace("SIZE", str(INTEGERS + SCALES))
PASSES = """
import onnx
from onnx import numpy_helper

def shifted(path):
    model = onnx.load(path)
    bias = next(each for each in model.graph.initializer if each.name == "fc.bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 0.5, "fc.bias"))
    onnx.save(model, path)
    return path
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A linear layer in an ONNX file, and a pass that is wrong."""
    root = pytester.path
    written(linear(20, 12, leading=(2,)), root)
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.syspathinsert()
    (root / "passes.py").write_text(PASSES, encoding="utf-8")
    (root / "budgets").mkdir()
    (root / "budgets" / "net.yaml").write_text(BUDGET, encoding="utf-8")
    monkeypatch.chdir(root)
    return root


def outcomes(pytester: pytest.Pytester, transform: str) -> dict[str, str]:
    """The outcome of each check below one transform, from the report; a step is named behind its transform."""
    pytester.runpytest("--model-budget", "budgets", "--model-budget-report=json:r.json", "-p", "no:randomly")
    record = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    parts = [each for each in record["models"][0]["transforms"] if each["name"].startswith(transform)]
    checks = {check["id"].partition("::net::")[2]: check["outcome"] for part in parts for check in part["checks"]}
    stored = {part["name"]: part["metrics"]["weight_memory"]["value"] for part in parts if part["metrics"]}
    return {**checks, **{f"{name} stores": value for name, value in stored.items()}}


def test_each_step_has_a_claim_and_costs(project: Path, pytester: pytest.Pytester) -> None:
    """Tiling must be exact, integers keep the bound of all; both are measured."""
    assert outcomes(pytester, "small") == {
        "small.1-tile_linear::equivalence": "within",
        "small.2-quantize::equivalence": "within",
        "small::equivalence": "within",
        "small::weight_memory": "within",
        "small.1-tile_linear stores": FLOATS,
        "small.2-quantize stores": INTEGERS + SCALES,
        "small stores": INTEGERS + SCALES,
    }


def test_the_wrong_step_is_named(project: Path, pytester: pytest.Pytester) -> None:
    """Steps before and after it are right; the whole is not."""
    found = outcomes(pytester, "wrong")
    over = {name for name, outcome in found.items() if outcome == "over"}
    assert over == {"wrong.2-apply::equivalence", "wrong::equivalence"}
    assert found["wrong.1-tile_linear::equivalence"] == found["wrong.3-quantize::equivalence"] == "within"


def test_what_a_step_would_lose_is_unknown(project: Path, pytester: pytest.Pytester) -> None:
    """Integers are the last step: a pass over the graph sees the floats that they stand for."""
    result = pytester.runpytest("--model-budget", "budgets/net.yaml::net::lost.2-tile_linear", "-p", "no:randomly")
    said = " ".join(result.stdout.str().split())
    assert "steps: tile_linear would lose what the step before it made: put it before that" in said


def test_all_claims_are_in_the_certificate(project: Path) -> None:
    """Those of the steps, and of the whole; the transform has its steps."""
    assert main(["build", "budgets/net.yaml::net::small", "--out", "small.onnx"]) == 0
    record = json.loads((project / "small.onnx.certificate.json").read_text(encoding="utf-8"))
    assert [(each["of"], each["outcome"]) for each in record["claim"]] == [
        ("small.1-tile_linear", "within"), ("small.2-quantize", "within"), ("small", "within")
    ]  # fmt: skip
    assert [each["key"] for each in record["transform"]["made"]] == ["tile_linear", "quantize"]
    assert record["figures"]["weight_memory"] == str(INTEGERS + SCALES)


def test_a_wrong_step_is_not_built(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names it."""
    assert main(["build", "budgets/net.yaml::net::wrong", "--out", "wrong.onnx"]) == 2
    assert "wrong.onnx is not written: wrong.2-apply: equivalence over" in capsys.readouterr().err


TORCH = """
model_budget: 1
models:
  net:
    torch: nets:net
    inputs: float32 4x20
    transforms:
      folded:
        steps: [fold_batchnorm, {apply: "nets:same"}, {tile: {products: 8}}]
        equivalence: exact_algebra
      lost:
        steps: [{tile: {products: 8}}, export_onnx]
        equivalence: exact_algebra
"""
NETS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(20, 12), nn.BatchNorm1d(12), nn.ReLU())
    made[1].running_mean.normal_()
    return made

def same(module):
    return module
"""


@pytest.mark.needs_torch
def test_steps_of_torch(project: Path, pytester: pytest.Pytester) -> None:
    """In float64 every step is made again; what tiles operations and no weights is last."""
    (project / "nets.py").write_text(NETS, encoding="utf-8")
    (project / "budgets" / "net.yaml").write_text(TORCH, encoding="utf-8")
    found = outcomes(pytester, "")
    assert {name: outcome for name, outcome in found.items() if "stores" not in name} == {
        "folded.1-fold_batchnorm::equivalence": "within",
        "folded.2-apply::equivalence": "within",
        "folded.3-tile::equivalence": "within",
        "folded::equivalence": "within",
        "lost.1-tile::equivalence": "within",
        "lost.2-export_onnx::equivalence": "unknown",
        "lost::equivalence": "unknown",
    }
    assert found["folded.1-fold_batchnorm stores"] == 4 * (20 * 12 + 12)
