"""Operators that real models use have a rule: what they multiply, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pytest_modelbudget import measure
from tests.builders.micro_modules import Apply, weight

pytestmark = pytest.mark.needs_torch

Forward = Callable[[torch.Tensor], Any]
MACS: dict[str, tuple[Forward, str, int]] = {
    "triangle": (
        lambda x: torch.linalg.solve_triangular(x, x[..., :4], upper=False),
        "float32 2x6x6",
        2 * 6 * 6 * 4 // 2,
    ),
    "triangle from the right": (
        lambda x: torch.linalg.solve_triangular(x, x[..., :4, :], upper=True, left=False),
        "float32 2x6x6",
        2 * 6 * 6 * 4 // 2,
    ),
    "cholesky": (lambda x: torch.linalg.cholesky_ex(x).L, "float32 2x6x6", 2 * 6**3 // 6),
    "solve": (lambda x: torch.linalg.solve_ex(x, x[..., :4]).result, "float32 2x6x6", 2 * 6**3 // 3 + 2 * 6 * 6 * 4),
    "inverse": (lambda x: torch.linalg.inv_ex(x).inverse, "float32 2x6x6", 2 * 6**3),
    "factors": (lambda x: torch.linalg.lu_factor_ex(x).LU, "float32 2x6x6", 2 * 6**3 // 3),
    "affine grid": (lambda x: F.affine_grid(x, [5, 3, 7, 8], align_corners=False), "float32 5x2x3", 5 * 7 * 8 * 2 * 3),
    "all true": (lambda x: torch.ops.aten._is_all_true(x > 0), "float32 2x6", 0),
    "segments": (lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 2]), unsafe=True), "float32 4x6", 0),
    "gradient of tanh": (lambda x: torch.ops.aten.tanh_backward(x, torch.tanh(x)), "float32 2x6", 0),
}


@pytest.mark.parametrize(("forward", "inputs", "macs"), MACS.values(), ids=list(MACS))
def test_s9_operators_of_real_models_are_counted(forward: Forward, inputs: str, macs: int) -> None:
    """S9: LAPACK's counts for solvers; nothing for what contracts nothing."""
    measured = measure(Apply(forward), inputs)
    assert (measured["macs"].value, measured["macs"].unmeasured) == (macs, ())


def test_s9_flops_of_a_triangle_are_lapacks() -> None:
    """S9: n² · columns, half of them products."""
    measured = measure(Apply(lambda x: torch.linalg.solve_triangular(x, x[..., :4], upper=False)), "float32 6x6")
    assert measured["flops"].value == 6 * 6 * 4


def test_s9_fused_fake_quantisers_contract_nothing() -> None:
    """S9: quantisation-aware training leaves them in the model."""
    quantiser = torch.ao.quantization.default_fused_per_channel_wt_fake_quant
    fake = torch.ao.quantization.FusedMovingAvgObsFakeQuantize().eval()
    assert quantiser is not None
    measured = measure(Apply(lambda m, x: fake(x) @ m.w, w=weight(6, 3)), "float32 2x6")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (2 * 6 * 3, ())


@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "matrix_exp"])
def test_s9_methods_that_iterate_are_unmeasured_by_decision(name: str) -> None:
    """S9: how often they do, nobody can tell before."""
    forward = getattr(torch.linalg, name)
    (missing,) = measure(Apply(lambda x: forward(x)), "float32 6x6")["macs"].unmeasured
    assert "iterates until it converges" in missing.why


FLOPS: dict[str, tuple[Forward, str, int]] = {
    "top 2 of 8 experts": (lambda x: torch.topk(x, 2).values, "float32 5x8", 5 * 8 * 3),
    "sort": (lambda x: torch.sort(x, dim=0).values, "float32 9x4", 9 * 4 * 4),
    "sort of one": (lambda x: torch.sort(x, dim=1).values, "float32 9x1", 0),
    "argsort": (lambda x: torch.argsort(x), "float32 3x6", 3 * 6 * 3),
    "median of all": (lambda x: torch.median(x), "float32 4x16", 64 * 6),
    "histc": (lambda x: torch.histc(x, bins=4, min=0, max=4), "float32 32", 32),
    "grid, bilinear": (lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)), "float32 1x3x4x5", 3 * 4 * 5 * 4),
    "grid, nearest": (lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), mode="nearest"), "float32 1x3x4x5", 0),
    "weight norm": (lambda x: torch._weight_norm(x, x[:, :1]), "float32 4x6", 3 * 4 * 6),
}


@pytest.mark.parametrize(("forward", "inputs", "flops"), FLOPS.values(), ids=list(FLOPS))
def test_s15_experts_and_detectors_have_flops(forward: Forward, inputs: str, flops: int) -> None:
    """S15: comparisons, counts and neighbours have a figure in the convention."""
    measured = measure(Apply(forward), inputs)["flops"]
    assert (measured.value, measured.unmeasured) == (flops, ())
