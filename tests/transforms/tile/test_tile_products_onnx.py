"""``tile: {products: 64}`` on ONNX files: products with weights, and those of two activations."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import model, node, stored, value
from tests.builders.onnx_linears import linear, written

Shape = tuple[int, ...]


def product(x: Shape, y: Shape, out: Shape) -> onnx.ModelProto:
    """Subgraph (1) of the lab: both operands are inputs."""
    return model([node("MatMul", "x y", "z")], [value("x", *x), value("y", *y)], [value("z", *out)], [])


def tiled(proto: onnx.ModelProto, folder: Path, size: int, edge: str = "ragged") -> Applied:
    settings = {"products": (None, size, size), "edge": edge, "layers": ("*",)}
    return apply_transform(ModelSource("onnx", written(proto, folder).name, base=folder), "tile", settings, tables())


def products(done: Applied) -> list[tuple[Shape, Shape]]:
    """The operands of every MatMul."""
    ops = (op for op in done.changed.model.graph.ops if op.name == "onnx::MatMul")
    return [tuple(each.shape for each in op.tensors()) for op in ops]  # type: ignore[misc]


def macs(done: Applied) -> object:
    return metric_table()["macs"].measure(CostedGraph(done.changed.model.graph, builtin_ops())).value


def test_a_product_of_two_activations_is_eight(tmp_path: Path) -> None:
    """Subgraph (2) of the lab: A·B of 128³ is 2 · 2 · 2 products of 64³, and equal to 1e-12."""
    done = tiled(product((128, 128), (128, 128), (128, 128)), tmp_path, 64)
    assert products(done) == [((64, 64), (64, 64))] * 8
    assert [each.became for each in done.changed.changes] == ["8 products of 64x64x64"]
    found = done.verify(Claim())
    assert found.outcome is Outcome.WITHIN
    assert max(each.algebra or 0.0 for each in found.outputs) < 1e-12


@pytest.mark.parametrize("edge", ["ragged", "pad"])
@pytest.mark.parametrize(
    ("x", "y", "out", "count"),
    [
        ((10, 20), (20, 12), (10, 12), 2 * 3 * 2),
        ((3, 10, 20), (20, 12), (3, 10, 12), 3 * 2 * 3 * 2),
        ((3, 1, 10, 20), (2, 20, 12), (3, 2, 10, 12), 6 * 2 * 3 * 2),
    ],
    ids=str,
)
def test_stacks_of_matrices(x: Shape, y: Shape, out: Shape, count: int, edge: str, tmp_path: Path) -> None:
    """⌈10/8⌉ · ⌈20/8⌉ · ⌈12/8⌉ products for each matrix of the batch; padded, all of them are 8³."""
    done = tiled(product(x, y, out), tmp_path, 8, edge)
    assert [each.became for each in done.changed.changes] == [f"{count} products of 8x8x8"]
    stack = count // 12
    assert macs(done) == (count * 8**3 if edge == "pad" else stack * 10 * 20 * 12)
    assert done.verify(Claim(seeds=(0,))).outcome is Outcome.WITHIN


def test_rows_of_a_weight_are_tiled_in_each_matrix(tmp_path: Path) -> None:
    """x (2, 10, 20) · W (20, 12): two matrices of ten rows are two tiles each, not three of twenty."""
    done = tiled(linear(20, 12, leading=(2, 10)), tmp_path, 8)
    assert [each.became for each in done.changed.changes] == ["24 products of 8x8x8"]
    assert {each[0] for each in products(done)} == {(2, 8, 8), (2, 8, 4), (2, 2, 8), (2, 2, 4)}
    assert done.verify(Claim(seeds=(0,))).outcome is Outcome.WITHIN


def test_what_stays_whole_is_listed_with_its_share(tmp_path: Path) -> None:
    """A Conv has 9·2·4·4·4 of the MACs, and no tiling: the claim of complete tiling is unknown."""
    nodes = [node("Conv", "x k", "c"), node("MatMul", "c w", "y")]
    proto = model(
        nodes, [value("x", 1, 2, 6, 6)], [value("y", 1, 4, 4, 5)], [stored("k", 4, 2, 3, 3), stored("w", 4, 5)]
    )
    whole, total = 9 * 2 * 4 * 16, 9 * 2 * 4 * 16 + 16 * 4 * 5
    with pytest.raises(
        TransformError, match=rf"tile left 1 product whole: .*onnx::Conv.*, {whole / total:.2%} of 1,472 MACs"
    ):
        tiled(proto, tmp_path, 8)
