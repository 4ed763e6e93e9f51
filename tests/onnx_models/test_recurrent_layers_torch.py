"""The kernels for recurrent layers compute what torch computes from the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from pytest_modelbudget.onnx_models.recurrent import RECURRENT
from tests.builders.onnx_graphs import model, node, value

pytestmark = pytest.mark.needs_torch

TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_kernels_agree_with_torch_in_float64(kind: str) -> None:
    """The same weights in torch's order of gates give the same float64 numbers, to the last digits."""
    layer_of = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}[kind]
    torch.manual_seed(0)
    module = layer_of(FEATURES, HIDDEN, bidirectional=True).double()
    order = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}[kind]  # i f g o → i o f c; r z n → z r h

    def reordered(name: str) -> Any:
        parts = np.split(getattr(module, name).detach().numpy(), GATES[kind])
        return np.concatenate([parts[at] for at in order])

    ends = ("l0", "l0_reverse")
    w, r = (np.stack([reordered(f"weight_{of}_{end}") for end in ends]) for of in ("ih", "hh"))
    bias = np.stack([np.concatenate([reordered(f"bias_ih_{end}"), reordered(f"bias_hh_{end}")]) for end in ends])
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    made = node(kind, "X W R B", "Y Y_h", hidden_size=HIDDEN, direction="bidirectional", **more)
    inputs = [value(name, code=TensorProto.DOUBLE) for name in "XWRB"]
    proto = model(
        [made], inputs, [value("Y", code=TensorProto.DOUBLE), value("Y_h", code=TensorProto.DOUBLE)], opset=17
    )
    x = torch.randn(TIME, BATCH, FEATURES, dtype=torch.float64)
    feeds = {"X": x.numpy(), "W": w, "R": r, "B": bias}
    every, last = ReferenceEvaluator(proto, new_ops=RECURRENT).run(None, feeds)
    out, state = module(x)
    state = state[0] if kind == "LSTM" else state
    joined = every.transpose(0, 2, 1, 3).reshape(TIME, BATCH, 2 * HIDDEN)
    np.testing.assert_allclose(joined, out.detach().numpy(), atol=1e-14)
    np.testing.assert_allclose(last, state.detach().numpy(), atol=1e-14)
