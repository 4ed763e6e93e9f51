"""``modelbudget search``: a plan to paste, which the gate keeps, or one red sentence."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent

import pytest

from pytest_modelbudget.cli.command import main

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.needs_torch

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(20, 48), nn.Linear(48, 12)
    def forward(self, x):
        return self.two(torch.relu(self.one(x)))
"""
BUDGET = """
model_budget: 1
models:
  net:
    torch: nets:Net
    inputs: float32 4x20
    transforms:
      four: {quantize: {weights: 4, granularity: tensor}, equivalence: {kind: lossy, sqnr: 8, families: [normal]}}
      tiled: {tile: {products: 8}, equivalence: exact_algebra}
"""
WEIGHTS, CHANNELS, BIASES = (20 * 48, 48 * 12), (48, 12), 48 + 12


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = pytester.path
    pytester.makeini("[pytest]\n")
    (root / "nets.py").write_text(NETS, encoding="utf-8")
    (root / "budgets").mkdir()
    (root / "budgets" / "net.yaml").write_text(BUDGET, encoding="utf-8")
    monkeypatch.chdir(root)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return root


def nbytes(*bits: int) -> int:
    """Integers, their scales and the biases of a plan."""
    return (
        sum(-(-width * each // 8) + 4 * n for width, each, n in zip(bits, WEIGHTS, CHANNELS, strict=True)) + 4 * BIASES
    )


def test_the_gate_keeps_a_plan_that_was_pasted(
    project: Path, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its bytes are those of its integers, and its claim is green under a limit of just as many."""
    words = ["search", "budgets/net.yaml::net", "--keep", "sqnr 20 dB", "--bits", "8,4,3", "--out", "plan.yaml"]
    assert main([*words, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    best = record["best"]
    assert best["kept"]
    assert best["sqnr"] >= 20
    assert best["cost"] == nbytes(*best["bits"].values())
    assert [each["bits"] for each in record["layers"][0]["alone"]] == [8, 4, 3]
    worst = [min(trial["sqnr"] for trial in each["alone"]) for each in record["layers"]]
    assert worst == sorted(worst)
    plan = (project / "plan.yaml").read_text(encoding="utf-8")
    limit = f"  limits: {{weight_memory: {best['cost']:.0f} B}}\n"
    (project / "budgets" / "net.yaml").write_text(BUDGET + indent(plan + limit, " " * 6), encoding="utf-8")
    result = pytester.runpytest("--model-budget", "budgets/net.yaml::net::searched", "-p", "no:randomly")
    result.assert_outcomes(passed=2)


def test_a_transform_gives_the_other_settings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scale per tensor, and the families of its claim; the plan is its layers alone."""
    assert main(["search", "budgets/net.yaml::net::four", "--keep", "sqnr 15", "--bits", "6,4"]) == 0
    said = capsys.readouterr().out
    assert "SQNR in dB with one layer quantised, the most sensitive first:" in said
    assert '\nlayers:\n  "one": {weights: {bits: ' in said
    assert "kept: SQNR " in said


def test_a_bound_that_no_plan_meets_is_one_red_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the best that was reached, and no file."""
    words = ["search", "budgets/net.yaml::net", "--keep", "sqnr 60 dB", "--bits", "4,3", "--out", "plan.yaml"]
    assert main(words) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("no plan keeps sqnr 60 dB: the best of 5 models that were run has SQNR ")
    assert last.endswith(f" with weight_memory {nbytes(4, 4):,} B")
    assert not (project / "plan.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["net", "--keep", "sqnr"], "--keep 'sqnr' is no bound: write 'sqnr 20 dB' or 'top1 drop 0.5 %'"),
        (
            ["net", "--keep", "top1 drop 1 %"],
            "--keep 'top1 drop 1 %' is of labelled data: add evaluate: {data: ..., metric",
        ),
        (["net", "--keep", "snr 20"], "snr"),
        (["net", "--keep", "sqnr 20", "--bits", "8,1"], "--bits 8,1 is no list of widths of 2 to 32 bits: write 8,4,3"),
        (["net", "--keep", "sqnr 20", "--least", "byte"], "--least byte is no metric: did you mean 'bytes'?"),
        (["net", "--keep", "sqnr 20", "--least", "array_cycles"], "array_cycles is of a model on a device"),
        (["net", "--keep", "sqnr 20", "--least", "macs"], "macs is the same at all widths"),
        (
            ["met", "--keep", "sqnr 20"],
            "budgets/net.yaml has no 'met': name one of net, net::four, net::tiled after budgets/net.yaml::",
        ),
        (["net::tiled", "--keep", "sqnr 20"], "net::tiled is tile: name the model, or a quantize of it"),
    ],
)
def test_words_that_mean_nothing(
    words: list[str], said: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 2."""
    assert main(["search", f"budgets/net.yaml::{words[0]}", *words[1:]]) == 2
    assert said in capsys.readouterr().err
