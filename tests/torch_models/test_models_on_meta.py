"""A model on meta has sizes and costs, and no values: what runs one says so, and which weight it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence, measure
from tests.builders.project import Project

pytestmark = pytest.mark.needs_torch
SAYS = "'0.weight' lies on meta, and has no values to compute with: build the model on a CPU"
NETS = """
import torch
from torch import nn

def net(device="cpu"):
    with torch.device(device):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
"""
BUDGET = """
model_budget: 1
models:
  net:
    torch: nets:net
    kwargs: {device: meta}
    inputs: float32 1x3x8x8
    limits: {params: 240}
    statistics: {all: {layers: "*", max_abs: 5}}
    runtime: {latency: 999 s}
    transforms:
      folded: {fold_batchnorm: {}, equivalence: exact_algebra, limits: {params: 224}}
      exported: {export_onnx: {}, equivalence: exact_algebra}
      other: {compare: {torch: "nets:net"}, equivalence: exact_algebra}
"""
RUN = ("max_abs@all", "latency@cpu", "folded::equivalence", "exported::equivalence", "other::equivalence")


def test_what_runs_a_model_says_that_it_has_no_values(project: Project) -> None:
    """3 * 8 * 9 + 8 parameters and 16 of the norm are held, and so are those of the folded twin."""
    project.pytester.makepyfile(nets=NETS)
    project.pytester.makefile(".yaml", budget=BUDGET)
    result = project.pytester.runpytest_inprocess("--model-budget", "budget.yaml", "--model-budget-runtime")
    result.assert_outcomes(passed=2, failed=len(RUN))
    result.stdout.fnmatch_lines([f"FAILED budget.yaml::net::{name} - *: {SAYS}*" for name in RUN])


def test_two_models_on_meta_are_not_the_same() -> None:
    """No number of theirs was compared."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 4))
    assert measure(net, "float32 1x4").macs.value == 16
    found = check_equivalence(net, copy.deepcopy(net), "float32 1x4")
    assert (found.outcome, found.reason) == ("unknown", SAYS)
