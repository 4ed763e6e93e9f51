"""``tile: {products: 64}`` on ONNX files: every node that multiplies matrices, down to tile products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget.budget.budget import Transformation
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
    return apply_transform(
        ModelSource("onnx", written(proto, folder).name, base=folder), Transformation("tile", settings), tables()
    )


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


def drawn(name: str, *shape: int) -> onnx.TensorProto:
    """A stored tensor of normal values, at the scale of its last axis."""
    values = np.random.Generator(np.random.Philox(len(name))).standard_normal(shape) / shape[-1] ** 0.5
    return numpy_helper.from_array(values.astype(np.float32), name)


def one_node(
    operator: str, inputs: dict[str, Shape], weights: dict[str, Shape], outputs: dict[str, Shape], **attributes: Any
) -> onnx.ModelProto:
    """A model of one node, which reads its inputs before its weights; "-" is an operand that is left out."""
    reads = " ".join([*inputs, *weights]) if operator != "LSTM" else " ".join(["x", *weights, "-", "h", "c"])
    stored_weights = [drawn(name, *shape) for name, shape in weights.items()]
    read, gives = ([value(name, *shape) for name, shape in of.items()] for of in (inputs, outputs))
    return model([node(operator, reads, " ".join(outputs), **attributes)], read, gives, stored_weights)


STATES = {"h": (2, 2, 6), "c": (2, 2, 6)}
# The node, and its MACs worked out by hand.
NODES = {
    "Conv": (
        one_node(
            "Conv", {"x": (2, 4, 9, 8)}, {"w": (10, 2, 3, 3), "b": (10,)}, {"y": (2, 10, 5, 8)},
            group=2, strides=[2, 1], pads=[1, 2, 1, 2], dilations=[1, 2],
        ),
        2 * 10 * 18 * 5 * 8,
    ),
    "Conv of one dimension": (
        one_node("Conv", {"x": (1, 6, 17)}, {"w": (10, 6, 5)}, {"y": (1, 10, 13)}),
        10 * 30 * 13,
    ),
    "depthwise Conv": (
        one_node("Conv", {"x": (1, 4, 6, 5)}, {"w": (4, 1, 3, 3)}, {"y": (1, 4, 4, 3)}, group=4),
        4 * 9 * 12,
    ),
    "Einsum": (
        one_node(
            "Einsum", {"a": (2, 10, 3, 12), "b": (2, 9, 3, 12)}, {}, {"y": (2, 3, 10, 9)}, equation="blhd,bshd->bhls"
        ),
        6 * 10 * 12 * 9,
    ),
    "Einsum that turns": (
        one_node("Einsum", {"a": (10, 12)}, {"w": (12, 9)}, {"y": (9, 10)}, equation="ij,jk->ki"),
        10 * 12 * 9,
    ),
    "LSTM": (
        one_node(
            "LSTM", {"x": (3, 2, 10), **STATES}, {"w": (2, 24, 10), "r": (2, 24, 6), "b": (2, 48)},
            {"y": (3, 2, 2, 6), "yh": (2, 2, 6), "yc": (2, 2, 6)}, hidden_size=6, direction="bidirectional",
        ),
        2 * 3 * 2 * 24 * (10 + 6),
    ),
    "GRU": (
        one_node(
            "GRU", {"x": (3, 2, 10)}, {"w": (1, 18, 10), "r": (1, 18, 6), "b": (1, 36)}, {"y": (3, 1, 2, 6)},
            hidden_size=6, linear_before_reset=1, direction="reverse",
        ),
        3 * 2 * 18 * (10 + 6),
    ),
    "RNN": (
        one_node(
            "RNN", {"x": (3, 2, 10)}, {"w": (1, 6, 10), "r": (1, 6, 6)}, {"y": (3, 1, 2, 6)},
            hidden_size=6, activations=["Relu"],
        ),
        3 * 2 * 6 * (10 + 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("edge", ["ragged", "pad"])
@pytest.mark.parametrize("name", NODES)
def test_nodes_of_more_than_one_product(name: str, edge: str, tmp_path: Path) -> None:
    """No matrix is larger than a tile, the MACs are those of the formula, and no alarm is given."""
    proto, by_hand = NODES[name]
    done = tiled(proto, tmp_path, 8, edge)
    assert all(size <= 8 for pair in products(done) for shape in pair for size in shape[-2:])
    if edge == "ragged":
        assert macs(done) == by_hand
    assert {op.name for op in done.changed.model.graph.ops}.isdisjoint(
        {"onnx::LSTM", "onnx::GRU", "onnx::RNN", "onnx::Conv"}
    )
    assert done.verify(Claim(seeds=(0,))).outcome is Outcome.WITHIN


WHOLE = {
    "its auto_pad is no list of pads": one_node(
        "Conv", {"x": (1, 4, 6, 5)}, {"w": (4, 4, 3, 3)}, {"y": (1, 4, 6, 5)}, auto_pad="SAME_UPPER"
    ),
    "linear_before_reset is 0": one_node(
        "GRU", {"x": (3, 2, 10)}, {"w": (1, 18, 10), "r": (1, 18, 6)}, {"y": (3, 1, 2, 6)}, hidden_size=6
    ),
    "clip is given": one_node(
        "RNN", {"x": (3, 2, 10)}, {"w": (1, 6, 10), "r": (1, 6, 6)}, {"y": (3, 1, 2, 6)}, hidden_size=6, clip=1.0
    ),
    "it has 3 operands, and only two are tiled": one_node(
        "Einsum", {"a": (4, 5)}, {"b": (5, 6), "cc": (6, 7)}, {"y": (4, 7)}, equation="ij,jk,kl->il"
    ),
}


@pytest.mark.parametrize("why", WHOLE)
def test_the_reason_for_which_a_node_stays_whole(why: str, tmp_path: Path) -> None:
    """It has all of the MACs."""
    with pytest.raises(TransformError, match=rf"{why}, 100.00% of"):
        tiled(WHOLE[why], tmp_path, 8)


def test_what_stays_whole_is_listed_with_its_share(tmp_path: Path) -> None:
    """A ConvTranspose has 9·2·4·6·6 of the MACs, and no tiling: the claim of complete tiling is unknown."""
    nodes = [node("ConvTranspose", "x k", "c"), node("MatMul", "c w", "y")]
    weights = [stored("k", 2, 4, 3, 3), stored("w", 8, 5)]
    proto = model(nodes, [value("x", 1, 2, 6, 6)], [value("y", 1, 4, 8, 5)], weights)
    whole, total = 9 * 2 * 4 * 36, 9 * 2 * 4 * 36 + 32 * 8 * 5
    named = rf"tile left 1 product whole: .*onnx::ConvTranspose.*, {whole / total:.2%} of {total:,} MACs"
    with pytest.raises(TransformError, match=named):
        tiled(proto, tmp_path, 8)
