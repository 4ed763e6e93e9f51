"""Which scales an operation on int8 reads: in bandwidth and in time, as in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.builders.onnx_graphs import model, node, stored, value
from tests.builders.programs import program

pytestmark = pytest.mark.needs_torch

X = "float32 1x8"  # 8 B in int8


class Reads(nn.Module):
    """A function of x and a stored weight of these sizes."""

    def __init__(self, function: Callable[..., torch.Tensor], *sizes: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.zeros(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def halves(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """6 outputs in two halves of the summed axis: each reads the 6 scales."""
    return F.linear(x[:, :4], w[:, :4]), F.linear(x[:, 4:], w[:, 4:])


def rows(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """6 outputs as 2 and 4: 2 scales and 4."""
    return F.linear(x, w[:2]), F.linear(x, w[2:])


def columns(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a weight (8, 6), whose outputs are its columns."""
    return x @ w[:, :2], x @ w[:, 2:]


def turned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a weight (6, 8) that is turned first."""
    return x @ w.T[:, :2], x @ w.T[:, 2:]


def twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two layers of one weight read all 6 scales each."""
    return F.linear(x, w), F.linear(x, w)


def pixels(x: torch.Tensor) -> torch.Tensor:
    return x.view(1, 8, 1, 1)


# What is read, sizes of the weight, int8 elements that move, scales that move, scales that move once.
READS = {
    "whole": (F.linear, (6, 8), 8 + 48 + 6, 6, 6),
    "halves of the summed axis": (halves, (6, 8), 8 + 48 + 12, 12, 6),
    "rows": (rows, (6, 8), 2 * 8 + 48 + 6, 6, 6),
    "columns": (columns, (8, 6), 2 * 8 + 48 + 6, 6, 6),
    "rows of a turned weight": (turned, (6, 8), 2 * 8 + 48 + 6, 6, 6),
    "one weight twice": (twice, (6, 8), 2 * (8 + 48 + 6), 12, 6),
    "a part of a weight": (lambda x, w: F.linear(x, w[:2]), (6, 8), 8 + 16 + 2, 2, 2),
    "a batch of matrices": (lambda x, w: x.expand(3, 1, 8) @ w, (3, 8, 6), 8 + 3 * 48 + 18, 18, 18),
    "one of a batch of matrices": (lambda x, w: x @ w[1], (3, 8, 6), 8 + 48 + 6, 6, 6),
    "columns of a batch": (lambda x, w: x.expand(3, 1, 8) @ w[:, :, 2:], (3, 8, 6), 8 + 3 * 32 + 12, 12, 12),
    "a convolution": (lambda x, w: F.conv2d(pixels(x), w), (6, 8, 1, 1), 8 + 48 + 6, 6, 6),
    "half of its channels": (lambda x, w: F.conv2d(pixels(x), w[:2]), (6, 8, 1, 1), 8 + 16 + 2, 2, 2),
    "half of what it sums": (lambda x, w: F.conv2d(pixels(x)[:, :4], w[:, :4]), (6, 8, 1, 1), 4 + 24 + 6, 6, 6),
    "in groups": (lambda x, w: F.conv2d(pixels(x), w, groups=2), (6, 4, 1, 1), 8 + 24 + 6, 6, 6),
    "transposed": (lambda x, w: F.conv_transpose2d(pixels(x), w), (8, 6, 1, 1), 8 + 48 + 6, 6, 6),
    "transposed in groups": (lambda x, w: F.conv_transpose2d(pixels(x), w, groups=2), (8, 3, 1, 1), 8 + 24 + 6, 6, 6),
    "half of its outputs": (lambda x, w: F.conv_transpose2d(pixels(x), w[:, :2]), (8, 8, 1, 1), 8 + 16 + 2, 2, 2),
    "time first": (lambda x, w: torch.conv_tbc(x[None], w, x.new_zeros(6)), (1, 8, 6), 6 + 8 + 48 + 6 + 6, 6, 6),
    "a weight in front": (lambda x, w: w @ x.view(8, 1), (6, 8), 8 + 48 + 6, 6, 6),
    "rows of a weight in front": (lambda x, w: w[:2] @ x.view(8, 1), (6, 8), 8 + 16 + 2, 2, 2),
    "a batch in front": (lambda x, w: w @ x.view(8, 1), (3, 6, 8), 8 + 3 * 48 + 18, 18, 18),
    "rows by rows": (torch.inner, (6, 8), 8 + 48 + 6, 6, 6),
    "einsum": (lambda x, w: torch.einsum("bi,oi->bo", x, w), (6, 8), 8 + 48 + 6, 6, 6),
    "einsum in front, its result unsaid": (lambda x, w: torch.einsum("oi,bi", w, x), (6, 8), 8 + 48 + 6, 6, 6),
    "einsum of a batch": (lambda x, w: torch.einsum("...i,...io->...o", x, w), (3, 8, 6), 8 + 3 * 48 + 18, 18, 18),
    "einsum of rows": (lambda x, w: torch.einsum("bi,oi->bo", x, w[:2]), (6, 8), 8 + 16 + 2, 2, 2),
    "einsum that sums no products": (lambda x, w: torch.einsum("bi,i->bi", x, w), (8,), 8 + 8 + 8, 0, 0),
    "one vector": (F.linear, (8,), 8 + 8 + 1, 1, 1),
    "not contracted": (lambda x, w: x * w, (8,), 8 + 8 + 8, 0, 0),  # its only scale is a part of the instruction
}


@pytest.mark.parametrize("name", READS)
def test_scales_move_with_what_they_scale(name: str) -> None:
    function, sizes, nbytes, moved, once = READS[name]
    made = program(Reads(function, *sizes).eval(), X, dtype="int8")
    assert made["bandwidth"] == nbytes + 4 * moved
    whole = program(Reads(function, *sizes).eval(), X, dtype="int16")
    assert whole["bandwidth"] == 2 * nbytes + 4 * moved
    assert made["bandwidth_floor"] - (whole["bandwidth_floor"] - made["bandwidth_floor"]) == 4 * once


class Tied(nn.Module):
    """A table of 10 x 4 that is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def test_tied_weights_are_stored_once() -> None:
    """40 B, and a scale for each of the head's 10 outputs."""
    assert program(Tied().eval(), "int64 1x3", dtype="int8")["weight_memory"] == 40 + 4 * 10


class BothWays(nn.Module):
    """x @ w and z @ w.T of 4 x 32, in either order."""

    def __init__(self, *, is_turned_first: bool) -> None:
        super().__init__()
        self.weight, self.is_turned_first = nn.Parameter(torch.zeros(4, 32)), is_turned_first

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.is_turned_first:
            turned = z @ self.weight.t()
            return x @ self.weight, turned
        return x @ self.weight, z @ self.weight.t()


@pytest.mark.parametrize("is_turned_first", [False, True], ids=["first", "turned first"])
def test_the_order_of_products_says_nothing_of_scales(is_turned_first: bool) -> None:
    """128 B, and a scale for each of 32 outputs, which are more than 4; both products read all of both."""
    inputs = ["float32 5x4", "float32 5x32"]
    made = program(BothWays(is_turned_first=is_turned_first).eval(), inputs, dtype="int8")
    assert made["weight_memory"] == 128 + 4 * 32
    assert made["bandwidth"] == 2 * (128 + 4 * 32) + 5 * 4 + 5 * 32 + 5 * 32 + 5 * 4


def test_rows_of_a_table_come_with_their_scales() -> None:
    """Three of ten rows, then all ten: three ids of 8 B, each of 4 B read and written; 40 and 12 B read, 30 written."""
    made = program(Tied().eval(), "int64 1x3", dtype="int8")
    assert made["bandwidth"] == 3 * 8 + 12 + 4 * 3 + 12 + (40 + 12 + 4 * 10 + 30)


def test_floating_types_have_no_scales() -> None:
    """linear 8 → 6 in bfloat16: 8 + 48 + 6 + 6 elements of 2 B."""
    made = program(nn.Linear(8, 6).eval(), X, dtype="bfloat16")
    assert made["bandwidth"] == 2 * (8 + 48 + 6 + 6)


@pytest.mark.parametrize(
    ("operands", "flags", "sizes"),
    [
        pytest.param("x w", {"transBatchB": 1}, (8, 3, 6), id="behind, batch in the middle"),
        pytest.param("x w", {"transBatchB": 1, "transB": 1}, (6, 3, 8), id="behind, turned, too"),
        pytest.param("w t", {"transBatchA": 1, "transA": 1}, (8, 3, 6), id="in front"),
        pytest.param("w t", {"transBatchA": 1}, (6, 3, 8), id="in front, not turned"),
    ],
)
def test_a_batch_in_the_middle_is_no_sum(
    operands: str, flags: Mapping[str, int], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """Three matrices of 8 x 6: 144 B, and a scale for each of 3 · 6 outputs."""
    product = node("FusedMatMul", operands, "y", domain="com.microsoft", **flags)
    x, y = (value("x", 3, 1, 8), value("y", 3, 1, 6)) if "x" in operands else (value("t", 3, 8, 1), value("y", 3, 6, 1))
    onnx.save(model([product], [x], [y], [stored("w", *sizes)], domains=["com.microsoft"]), tmp_path / "model.onnx")
    assert program(tmp_path / "model.onnx", dtype="int8")["weight_memory"] == 144 + 4 * 18
