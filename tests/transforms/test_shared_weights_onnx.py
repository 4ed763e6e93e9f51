"""A stored weight with several readers: each reads the integers, or the floats, that it is said to.

All weights are square and drawn, W (8, 8); what a layer reads is worked out here from the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pytest_modelbudget import measure
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.transforms.quantize.grid import Grid
from pytest_modelbudget.transforms.quantize.on_onnx import off_grid, quantised_weights
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_linears import drawn, is_close, linear, operators, written

W = drawn(0, 8, 8)
X = drawn(1, 3, 8)
QUANTISED = "int8, a scale per channel"
LEFT_OUT = "layers: leaves it out"


def rounded(axis: int) -> Any:
    """W as int8 gives it, with the largest of each channel along an axis at 127."""
    scale = np.abs(W).max(1 - axis, keepdims=True) / np.float32(127)
    return scale.astype(np.float64) * np.rint(W / scale)


def graph(*nodes: onnx.NodeProto, outputs: Sequence[str] = ("b",)) -> onnx.ModelProto:
    """x (3, 8) and the weight w."""
    results = [value(name, 3 if name == "b" else 8, 8) for name in outputs]
    return model(nodes, [value("x", 3, 8)], results, [numpy_helper.from_array(W, "w")])


def said(proto: onnx.ModelProto, folder: Path, *layers: str) -> tuple[onnx.ModelProto, list[str]]:
    """The quantised model, which is valid, and what is said of each layer."""
    grid = Grid(layers=layers or ("*",))
    found = quantised_weights(proto, grid)
    written(found.model, folder)
    assert off_grid(proto, found.model, grid) == ()
    return found.model, [change.became or change.why for change in found.changes]


def test_a_layer_that_is_left_out_reads_floats(tmp_path: Path) -> None:
    """The other reader alone gets integers; both weights are stored, and all are counted."""
    proto = graph(node("MatMul", "x w", "a"), node("MatMul", "a w", "b"))
    made, told = said(proto, tmp_path, "a")
    assert told == [QUANTISED, LEFT_OUT]
    assert is_close(OnnxRun(made)({"x": X})["b"], X @ rounded(1) @ W.astype("float64"), 1e-6)
    found = measure(tmp_path / "model.onnx")
    assert found["params"].value == 2 * 64
    assert found["weight_memory"].value == 64 * 4 + 64 + 8 * 4 + 8


def test_two_readers_of_one_axis_share_the_integers(tmp_path: Path) -> None:
    """One DequantizeLinear, and the floats are gone."""
    proto = graph(node("MatMul", "x w", "a"), node("MatMul", "a w", "b"))
    made, told = said(proto, tmp_path)
    assert told == [QUANTISED, QUANTISED]
    assert operators(made) == {"DequantizeLinear": 1, "MatMul": 2}
    assert "w" not in {tensor.name for tensor in made.graph.initializer}
    assert is_close(OnnxRun(made)({"x": X})["b"], X @ rounded(1) @ rounded(1), 1e-6)


def test_each_axis_has_scales_of_its_own(tmp_path: Path) -> None:
    """x·W has its channels along W's columns, a·Wᵀ along its rows; one scale has no axis."""
    proto = graph(node("Gemm", "x w", "a"), node("Gemm", "a w", "b", transB=1))
    made, told = said(proto, tmp_path)
    assert told == [QUANTISED, QUANTISED]
    assert is_close(OnnxRun(made)({"x": X})["b"], X @ rounded(1) @ rounded(0).T, 1e-6)
    whole = quantised_weights(proto, Grid(per_channel=False)).model
    assert operators(whole) == {"DequantizeLinear": 1, "Gemm": 2}


@pytest.mark.parametrize("stored", ["initialiser", "Constant"])
def test_a_turned_weight_with_two_readers(stored: str, tmp_path: Path) -> None:
    """The Transpose of the layer that is left out stays; the other has one behind its integers."""
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "a"), node("MatMul", "a t", "b")]
    proto = graph(*nodes)
    if stored == "Constant":
        proto.graph.node.insert(0, node("Constant", "", "w", value=proto.graph.initializer.pop()))
    made, told = said(proto, tmp_path, "b")
    assert told == [LEFT_OUT, QUANTISED]
    assert operators(made)["Transpose"] == 2
    assert is_close(OnnxRun(made)({"x": X})["b"], X @ W.T.astype("float64") @ rounded(0).T, 1e-6)
    made, told = said(proto, tmp_path)
    assert operators(made) == {"DequantizeLinear": 1, "MatMul": 2, "Transpose": 1}
    assert is_close(OnnxRun(made)({"x": X})["b"], X @ rounded(0).T @ rounded(0).T, 1e-6)


def test_other_readers_keep_the_weight(tmp_path: Path) -> None:
    """A ReLU, a body and an output of the model read what they read before."""
    bodies = [
        helper.make_graph([node("MatMul", "a w", each)], each, [], [value(each, 3, 8)]) for each in ("first", "second")
    ]
    proto = graph(
        node("MatMul", "x w", "a"),
        node("If", "yes", "b", then_branch=bodies[0], else_branch=bodies[1]),
        node("Relu", "w", "c"),
        outputs=("b", "c", "w"),
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    made, told = said(proto, tmp_path)
    # Both products in the bodies contract with the weight, and are listed.
    assert told == [QUANTISED, *["it stands in a body of onnx::If"] * 2]
    results = OnnxRun(made)({"x": X})
    assert np.array_equal(results["w"], W)
    assert np.array_equal(results["c"], np.maximum(W, 0))
    assert is_close(results["b"], X @ rounded(1) @ W.astype("float64"), 1e-6)


def test_names_that_are_taken(tmp_path: Path) -> None:
    """A tensor that is called as a scale would be keeps its name and its values."""
    proto = linear(8, 4)
    own = drawn(3, 4)
    proto.graph.initializer.append(numpy_helper.from_array(own, "fc.weight.scale"))
    proto.graph.node.append(node("Mul", "y fc.weight.scale", "z"))
    proto.graph.output[0].name = "z"
    made, _ = said(proto, tmp_path)
    names = [tensor.name for tensor in made.graph.initializer]
    assert len(names) == len(set(names))
    found, before = (OnnxRun(each)({"x": X})["z"] for each in (made, proto))
    assert is_close(found / own, before / own, 0.02)
