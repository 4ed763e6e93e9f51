"""ONNX transforms from a budget file alone, in a session that never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.onnx_models.reading import write_model
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.onnx_batchnorms import normalised
from tests.builders.onnx_linears import change, network

CONFTEST = """
import sys
def pytest_sessionfinish(session):
    if "torch" in sys.modules:
        session.exitstatus = 99
"""
# A compiler's own transform, in a package of its own.
COMPILER = """
import onnx
def twice(path):
    "Add a node that changes nothing."
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Identity", ["fc2"], ["same"]))
    made = path.with_name("compiled.onnx")
    onnx.save(model, made)
    return made
def halved(path):
    model = onnx.load(path)
    bias = next(each for each in model.graph.initializer if each.name == "b1")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) / 2, "b1"))
    made = path.with_name("halved.onnx")
    onnx.save(model, made)
    return str(made)
def nudged(path):
    model = onnx.load(path)
    weight = next(each for each in model.graph.initializer if each.name == "w2")
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[abs(values).argmax()] *= 1 + 1e-5
    weight.CopyFrom(onnx.numpy_helper.from_array(values, "w2"))
    onnx.save(model, path)
    return path
def spoilt(path):
    path.write_bytes(b"nothing")
    1 / 0
def nothing(path):
    return None
"""
BUDGET = """model_budget: 1
models:
  net:
    onnx: net.onnx
    limits: {macs: 200 k}
    transforms:
      tiled: {tile_linear: {tile: 64}, equivalence: exact_algebra, limits: {params: 45 k}}
      batched: {tile_linear: {tile: 64, form: batched, edge: pad}, equivalence: exact_algebra}
      rows: {tile_linear: {tile: [3, 64, 64], layers: "fc[01]"}, equivalence: exact_algebra}
      twin: {compare: {onnx: twin.onnx}, equivalence: exact_algebra}
      compiled: {apply: "compiler:twice", equivalence: exact_algebra}
      int8: {quantize: {}, equivalence: {kind: lossy, sqnr: 30}}
  normalised:
    onnx: normalised.onnx
    limits: {macs: 100 k}
    transforms:
      folded: {fold_batchnorm: {}, equivalence: exact_algebra, limits: {ops: {deny: [batch_norm]}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two models, a twin, and a compiler's package."""
    budgets = tmp_path / "budgets"
    proto = network("float32")
    write_model(proto, budgets / "net.onnx")
    write_model(tiled_linears(proto, Tiling(Tile(None, 32, 32))).model, budgets / "twin.onnx")
    write_model(normalised("Conv"), budgets / "normalised.onnx")
    (tmp_path / "compiler.py").write_text(COMPILER, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def session(project: Path, budget: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """One session over a budget: the process, and the report."""
    (project / "budgets" / "net.yaml").write_text(budget, encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", "--model-budget", "--model-budget-report=json:report.json",
        "-p", "no:cacheprovider",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=os.environ)
    return run, json.loads((project / "report.json").read_text(encoding="utf-8"))


def test_every_transform(project: Path) -> None:
    """All seven hold, and torch is never imported."""
    run, report = session(project, BUDGET)
    assert run.returncode == 0, run.stdout + run.stderr
    found = {each["name"]: each for model in report["models"] for each in model["transforms"]}
    assert len(found) == 7
    assert {each["equivalence"]["outcome"] for each in found.values()} == {"within"}
    assert "3 of 3 onnx::Gemm changed" not in run.stdout  # with -vv alone


BROKEN = {
    "a value that is off": ('{apply: "compiler:halved", equivalence: exact_algebra}', "fc1"),
    "one weight that is off by little": ('{apply: "compiler:nudged", equivalence: exact_algebra}',
                                         "first layer that differs: fc2, by"),
    "an exception": ('{apply: "compiler:spoilt", equivalence: exact_algebra}',
                     "calling compiler:spoilt raised ZeroDivisionError"),
    "no path": ('{apply: "compiler:nothing", equivalence: exact_algebra}',
                "returned NoneType, not the path of a file"),
    "no such layer": ('{tile_linear: {tile: 64, layers: fc.2}, equivalence: exact_algebra}',
                      "layers: no module of the model matches 'fc.2': did you mean 'fc2'?"),
    "none to quantise": ('{quantize: {layers: {fd1: keep}}, equivalence: lossy}',
                         "layers: no module of the model matches 'fd1': did you mean 'fc1'?"),
    "none to convolve": ('{tile_conv: {tile: 64, layers: [fd1.*]}, equivalence: exact_algebra}',
                         "layers: no module of the model matches 'fd1.*': did you mean 'fc1'?"),
    "all left out": ('{tile_linear: {tile: 64, layers: "!fc*"}, equivalence: exact_algebra}',
                     "stay as they are (layers: leaves it out)"),
    "a layer misspelt": (
        '{tile_linear: {tile: 64, layers: [fc1, fc22]}, equivalence: exact_algebra}',
        "layers: no module of the model matches 'fc22': did you mean 'fc2'?",
    ),
    "another one": (
        '{quantize: {layers: {fc1: keep, conv: keep}}, equivalence: lossy}',
        "layers: no module of the model matches 'conv'",
    ),
    "no batch norm": ("{fold_batchnorm: {}, equivalence: exact_algebra}", "the model has none"),
    "a name that is not there": (
        '{apply: "compiler:twise", equivalence: exact_algebra}',
        "compiler has no 'twise'; did you mean 'twice'?",
    ),
    "a number for a transform": (
        '{apply: "compiler:onnx.IR_VERSION", equivalence: exact_algebra}',
        "compiler:onnx.IR_VERSION is an int, and cannot be called",
    ),
}  # fmt: skip


def test_what_breaks_is_said(project: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake fails with its own sentence."""
    lines = "".join(f"      t{i}: {entry}\n" for i, (entry, _) in enumerate(BROKEN.values()))
    budget = "model_budget: 1\nmodels:\n  net:\n    onnx: net.onnx\n    transforms:\n" + lines
    before = (project / "budgets" / "net.onnx").read_bytes()
    (project / "budgets" / "net.yaml").write_text(budget, encoding="utf-8")
    (project / "conftest.py").unlink()
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    run = pytester.runpytest_inprocess("--model-budget", "-p", "no:cacheprovider")
    assert run.ret == 1
    assert (project / "budgets" / "net.onnx").read_bytes() == before
    shown = " ".join(run.stdout.str().split())
    for what, (_, sentence) in BROKEN.items():
        assert sentence in shown, what


def test_check_equivalence(project: Path) -> None:
    """From Python, two paths: the twin is the same, and another one is not."""
    first, twin = project / "budgets" / "net.onnx", project / "budgets" / "twin.onnx"
    assert check_equivalence(first, twin, seeds=(0,)).outcome == "within"
    other = network("float32")
    change(other, "w2", lambda values: -values)
    write_model(other, project / "other.onnx")
    found = check_equivalence(str(first), str(project / "other.onnx"), seeds=(0,))
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc2"


def test_a_file_and_a_module(project: Path) -> None:
    """What an ONNX file cannot be compared with is said."""
    with pytest.raises(ModelBudgetError, match="another ONNX file"):
        check_equivalence(project / "budgets" / "net.onnx", "torch.nn:ReLU")
