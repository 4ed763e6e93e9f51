"""Rows in tiles, ``tile: [m, k, n]``, which cost alike in a torch module and in an ONNX file."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path

import pytest
from torch import nn

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from tests.builders.marks import each_in_turn
from tests.builders.onnx_linears import linear, written

pytestmark = pytest.mark.needs_torch

K, N = 40, 50


def source(format: str, leading: tuple[int, ...], folder: Path) -> ModelSource:
    """x (*leading, 40) → a linear layer with a bias → (*leading, 50)."""
    if format == "onnx":
        path = written(linear(K, N, leading=leading), folder)
        return ModelSource("onnx", path.name, base=folder)
    specs = InputSpecs((TensorSpec("float32", (*leading, K)),))
    return ModelSource("torch", nn.Sequential(nn.Linear(K, N)), specs)


@pytest.mark.parametrize(
    ("format", "leading", "edge"),
    each_in_turn([*product(("torch", "onnx"), ((3,), (4,), (5, 3), ()))], ("ragged", "pad")),
    ids=str,
)
def test_rows_cost_alike(format: str, leading: tuple[int, ...], edge: str, tmp_path: Path) -> None:
    """All leading axes are one; padded, ⌈rows / 2⌉ · 2 rows of 48 inputs to 72 outputs.

    Three tiles of 16 hold 40 inputs, and three of 24 hold 50 outputs.
    """
    settings = {"tile": (2, 16, 24), "edge": edge, "form": "unrolled", "layers": ("*",)}
    model = source(format, leading, tmp_path)
    done = apply_transform(model, Transformation("tile_linear", settings), tables())
    rows = prod(leading)
    tiles = -(-rows // 2)
    costed = CostedGraph(done.changed.model.graph, builtin_ops())
    macs = tiles * 2 * 48 * 72 if edge == "pad" else rows * K * N
    assert metric_table()["macs"].measure(costed).value == macs
    assert [each.became for each in done.changed.changes] == [f"{tiles * 3 * 3} products of 2x16x24"]
    assert done.verify(Claim(seeds=(0,))).outcome == "within"


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("shape", "inputs", "tile", "edge"),
    each_in_turn(
        [((0, 3), 3, (2, 2, 2)), ((2, 0, 3), 3, (2, 2, 2)), ((0, 3), 3, (None, 2, 2)), ((2, 0), 0, (2, 2, 2))],
        ("ragged", "pad"),
    ),
    ids=str,
)
def test_an_empty_axis_is_one_empty_tile(
    shape: tuple[int, ...], inputs: int, tile: tuple[int | None, int, int], edge: str
) -> None:
    """No rows, or nothing to sum: as many products as of one row, and outputs in the shape that they had."""
    settings = {"tile": tile, "edge": edge, "form": "unrolled", "layers": ("*",)}
    source = ModelSource("torch", nn.Linear(inputs, 4), InputSpecs((TensorSpec("float32", shape),)))
    done = apply_transform(source, Transformation("tile_linear", settings), tables())
    count = 2 * (2 if inputs else 1)
    assert [each.became.partition(" ")[0] for each in done.changed.changes] == [str(count)]
    (output,) = done.changed.model.graph.outputs
    assert output.shape == (*shape[:-1], 4)
    assert done.verify(Claim(seeds=(0,))).reason.startswith("the original's outputs do not move")
