"""Operators that real models use have a rule: what they multiply, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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
    "determinant": (torch.linalg.det, "float32 2x6x6", 2 * 6**3 // 3),
    "its sign and logarithm": (lambda x: torch.slogdet(x)[1], "float32 6x6", 6**3 // 3),
    "QR": (lambda x: torch.linalg.qr(x).Q, "float32 2x8x6", 2 * 2 * (8 * 6**2 - 6**3 // 3)),
    "R alone": (lambda x: torch.linalg.qr(x, mode="r").R, "float32 8x6", 8 * 6**2 - 6**3 // 3),
    "Q of 8 rows and columns": (  # 2·m·n·k - (m + n)·k² + 2/3·k³ with m = n = 8
        lambda x: torch.linalg.qr(x, mode="complete").Q,
        "float32 8x6",
        (8 * 6**2 - 6**3 // 3) + (2 * 8 * 8 * 6 - 16 * 6**2 + 2 * 6**3 // 3),
    ),
    "cross entropy": (lambda x: F.cross_entropy(x, x[:, 0].long()), "float32 5x3", 0),
    "of pictures": (lambda x: F.cross_entropy(x, x[:, 0].long()), "float32 5x3x2x2", 0),
    "binary cross entropy": (lambda x: F.binary_cross_entropy(x, x), "float32 5x3", 0),
    "of logits": (lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=x[0].abs()), "float32 5x3", 0),
    "margins": (lambda x: F.multi_margin_loss(x, x[:, 0].long()), "float32 5x3", 0),
    "margins of several labels": (lambda x: F.multilabel_margin_loss(x, x.long()), "float32 5x3", 0),
    "CTC": (lambda x: F.ctc_loss(x.log_softmax(-1), x[:2, :, 0].T.long() + 1, (7, 7), (2, 2)), "float32 7x2x5", 0),
    "windows that are drawn": (lambda x: F.fractional_max_pool2d(x, 3, output_size=4), "float32 1x2x9x9", 0),
    "affine grid": (lambda x: F.affine_grid(x, [5, 3, 7, 8], align_corners=False), "float32 5x2x3", 5 * 7 * 8 * 2 * 3),
    "all true": (lambda x: torch.ops.aten._is_all_true(x > 0), "float32 2x6", 0),
    "segments": (lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 2]), unsafe=True), "float32 4x6", 0),
    "gradient of tanh": (lambda x: torch.ops.aten.tanh_backward(x, torch.tanh(x)), "float32 2x6", 0),
}


@pytest.mark.parametrize(("forward", "inputs", "macs"), MACS.values(), ids=list(MACS))
def test_operators_of_real_models_are_counted(forward: Forward, inputs: str, macs: int) -> None:
    """LAPACK's counts for solvers; nothing for what contracts nothing."""
    measured = measure(Apply(forward), inputs)
    assert (measured["macs"].value, measured["macs"].unmeasured) == (macs, ())


def test_flops_of_a_triangle_are_lapacks() -> None:
    """N² · columns, half of them products."""
    measured = measure(Apply(lambda x: torch.linalg.solve_triangular(x, x[..., :4], upper=False)), "float32 6x6")
    assert measured["flops"].value == 6 * 6 * 4


def test_fused_fake_quantisers_contract_nothing() -> None:
    """Quantisation-aware training leaves them in the model."""
    quantiser = torch.ao.quantization.default_fused_per_channel_wt_fake_quant
    fake = torch.ao.quantization.FusedMovingAvgObsFakeQuantize().eval()
    assert quantiser is not None
    measured = measure(Apply(lambda m, x: fake(x) @ m.w, w=weight(6, 3)), "float32 2x6")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (2 * 6 * 3, ())


def test_a_table_with_a_longest_row_is_measured_but_for_what_the_data_decide() -> None:
    """max_norm: the linear layer behind it has 4·8·3 MACs; which rows are shortened, and written, no shape tells."""
    table, linear = nn.Embedding(100, 8, max_norm=1.0), nn.Linear(8, 3)
    measured = measure(Apply(lambda x: linear(table(x.long())), table=table, linear=linear), "float32 4")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (4 * 8 * 3, ())
    (missing,) = measured["bandwidth"].unmeasured
    assert (missing.op, missing.why) == (
        "aten::embedding_renorm_",
        "which of the rows that are named are longer than max_norm, the data decide",
    )


def test_such_a_table_is_written_anew_in_a_decomposed_program(tmp_path: Path) -> None:
    """4·8·3 MACs as in the module; 100 rows of 8 floats are copied, whichever are too long, and written back."""
    model = nn.Sequential(nn.Embedding(100, 8, max_norm=1.0), nn.Linear(8, 3)).eval()
    program = torch.export.export(model, (torch.zeros(4, dtype=torch.int64),)).run_decompositions()
    torch.export.save(program, tmp_path / "table.pt2")
    measured = measure(tmp_path / "table.pt2")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (4 * 8 * 3, ())
    copied, written_back = 2 * 4 * 800 + 4 * 8, 2 * 4 * 800
    picked, layer = 2 * 4 * 4 * 8 + 4 * 8, 4 * (4 * 8 + 8 * 3 + 3 + 4 * 3)
    expected = copied + picked + layer + written_back
    assert (measured["bandwidth"].value, measured["bandwidth"].unmeasured) == (expected, ())


class HeadWithLoss(nn.Module):
    """A loss that makes the logits of 4 rows of 8 features in chunks, with 7 classes."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Parameter(torch.zeros(7, 8))
        options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")
        self.options = options.LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=reduction != "none")
        self.reduction = reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss against class 0."""
        target = x[:, 0].long() * 0
        named = {"options": self.options, "reduction": self.reduction}
        return F.linear_cross_entropy(self.body(x), self.head, target, **named)  # type: ignore[no-any-return, attr-defined]


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_with_a_linear_layer_in_it_has_the_products_of_that(reduction: str) -> None:
    """4·8·8 of the layer before, and 4·8·7."""
    measured = measure(HeadWithLoss(reduction), "float32 4x8")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (4 * 8 * 8 + 4 * 8 * 7, ())


def test_such_a_loss_makes_its_gradients_at_once() -> None:
    """Of the layer before a product and the gradient of its weight; of the loss a product and two gradients."""
    measured = measure(HeadWithLoss("mean"), "float32 4x8", training="sgd")["training_macs"]
    assert (measured.value, measured.unmeasured) == (2 * 4 * 8 * 8 + 3 * 4 * 8 * 7, ())


@pytest.mark.parametrize("name", ["svdvals", "eigvalsh", "matrix_exp", "polar"])
def test_methods_that_iterate_are_unmeasured_by_decision(name: str) -> None:
    """How often they do, nobody can tell before."""
    forward = getattr(torch.linalg, name)
    (missing,) = measure(Apply(lambda x: forward(x)), "float32 6x6")["macs"].unmeasured
    assert "iterates until it converges" in missing.why


FLOPS: dict[str, tuple[Forward, str, int]] = {
    "determinant": (torch.linalg.det, "float32 6x6", 2 * 6**3 // 3),
    "cross product": (lambda x: torch.linalg.cross(x, x + 1), "float32 5x3", 5 * 3 + 3 * 5 * 3),
    "distance of two tensors": (lambda x: torch.dist(x, x[0]), "float32 5x3", 2 * 5 * 3),
    "norms no longer than one": (lambda x: torch.renorm(x, 2, 0, 1.0), "float32 5x3", 2 * 5 * 3),
    "special functions": (
        lambda x: torch.special.i0e(torch.special.log_ndtr(torch.special.entr(torch.polygamma(1, x)))),
        "float32 6",
        4 * 6,
    ),
    "of two": (lambda x: torch.logaddexp2(x, torch.igamma(x, x)), "float32 6", 2 * 6),
    "a polynomial": (lambda x: torch.special.chebyshev_polynomial_t(x, 3), "float32 6", 6),
    "divisors": (lambda x: torch.gcd(x, torch.lcm(x, x)), "int64 6", 2 * 6),
    "mantissas": (lambda x: torch.frexp(x)[0], "float32 6", 6),
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
def test_experts_and_detectors_have_flops(forward: Forward, inputs: str, flops: int) -> None:
    """Comparisons, counts and neighbours have a figure in the convention."""
    measured = measure(Apply(forward), inputs)["flops"]
    assert (measured.value, measured.unmeasured) == (flops, ())
