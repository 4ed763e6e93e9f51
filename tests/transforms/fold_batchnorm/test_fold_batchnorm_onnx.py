"""Batch norms folded into ONNX layers: the same function in float64, and fewer nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.transforms.fold_batchnorm_on_onnx import folded_batchnorms
from pytest_modelbudget.transforms.on_onnx import Rewritten
from tests.builders.onnx_batchnorms import GROUPED_TRANSPOSE, LAYERS, normalised
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_judgements import in_memory, judged_rewrite
from tests.builders.onnx_linears import CODES, change, drawn, is_close, operators


def judged(proto: onnx.ModelProto, mutate: Any = None) -> Equivalence:
    """A folding held to exact algebra; mutate may change both folded models."""

    def rewrite(each: onnx.ModelProto) -> Rewritten:
        folded = folded_batchnorms(each)
        onnx.checker.check_model(folded.model)
        if mutate:
            mutate(folded.model)
        return folded

    claim = Claim(seeds=(0, 1))
    return judged_rewrite(in_memory(proto), rewrite, claim, changes_weights=True)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("layer", [name for name in LAYERS if name != GROUPED_TRANSPOSE])
def test_folding_is_exact(layer: str, bias: bool, dtype: str) -> None:
    """Every kind of layer, with and without a bias: one node is left, and it computes the same."""
    proto = normalised(layer, bias=bias, dtype=dtype)
    folded = folded_batchnorms(proto)
    assert len(folded.model.graph.node) == 1
    assert [tensor.data_type for tensor in folded.model.graph.initializer] == [CODES[dtype]] * 2
    assert folded.changes[0].became == f"part of onnx::{LAYERS[layer][0]} 'c'"
    found = judged(proto)
    assert found.outcome is Outcome.WITHIN, found.reason
    assert max(record.algebra or 0.0 for record in found.outputs) < 1e-14


def test_grouped_transposed_convolutions() -> None:
    """Where no float64 run exists, the folding is unknown, and equal in float32."""
    proto = normalised(GROUPED_TRANSPOSE)
    assert judged(proto).outcome is Outcome.UNKNOWN
    x = {"x": drawn(9, 2, 4, 8, 8)}
    found, wanted = (OnnxRun(m)(x)["y"] for m in (folded_batchnorms(proto).model, proto))
    assert is_close(found, wanted, 1e-6)


def one_channel(weight: Any) -> Any:
    """A weight (6, 5) whose third channel is scaled by a little too much."""
    return weight * np.where(np.arange(6) == 2, 1.001, 1.0)[:, None]


WRONG = {"a channel's scale": ("y.folded.weight", one_channel), "no shift": ("y.folded.bias", np.zeros_like)}


@pytest.mark.parametrize(("name", "how"), WRONG.values(), ids=WRONG.keys())
def test_wrong_foldings_die(name: str, how: Any) -> None:
    """A scale or a shift that is off is seen, and the layer that took the norm in is named."""
    found = judged(normalised("turned Gemm"), lambda proto: change(proto, name, how))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "c"


def test_what_stays_is_said() -> None:
    """A batch norm that cannot be folded stands in the table of changes, with the reason."""
    nodes = [
        node("BatchNormalization", "x one one one one", "first"),
        node("Conv", "first w", "c"),
        node("BatchNormalization", "c one one one one", "read_twice"),
        node("Add", "c read_twice", "y"),
    ]
    stored = {"one": np.ones(3, np.float32), "w": drawn(0, 3, 3, 1, 1)}
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    proto = model(nodes, [value("x", 1, 3, 4, 4)], [value("y", 1, 3, 4, 4)], weights)
    found = folded_batchnorms(proto)
    assert [(each.scope, each.why) for each in found.changes] == [
        ("first", "its input is no result of onnx::Conv, onnx::ConvTranspose, onnx::Gemm"),
        ("read_twice", "the result of the layer before it is read elsewhere too"),
    ]
    assert operators(found.model) == operators(proto)
