"""Layers as ONNX models, each with a batch norm behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_linears import CODES, drawn

LAYERS: Mapping[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "Conv": ("Conv", {"pads": [1, 1, 1, 1]}, (6, 3, 3, 3), (2, 3, 8, 8)),
    "grouped Conv": ("Conv", {"group": 3}, (6, 1, 3, 3), (2, 3, 8, 8)),
    "ConvTranspose": ("ConvTranspose", {"strides": [2, 2]}, (3, 6, 3, 3), (2, 3, 8, 8)),
    "grouped ConvTranspose": ("ConvTranspose", {"group": 2}, (4, 3, 3, 3), (2, 4, 8, 8)),
    "Gemm": ("Gemm", {}, (5, 6), (3, 5)),
    "turned Gemm": ("Gemm", {"transB": 1}, (6, 5), (3, 5)),
}


# onnx's reference cannot run it, and ONNX Runtime has no float64 kernel for it.
GROUPED_TRANSPOSE = "grouped ConvTranspose"


def normalised(layer: str, *, bias: bool = True, dtype: str = "float32") -> onnx.ModelProto:
    """One layer with six output channels and a batch norm behind it."""
    operator, attributes, shape, x = LAYERS[layer]
    first = node(operator, "x w b" if bias else "x w", "c", **attributes)
    second = node("BatchNormalization", "c gamma beta mean variance", "y", epsilon=1e-3)
    stored = {"w": drawn(0, *shape), "gamma": drawn(2, 6), "beta": drawn(3, 6)}
    stored |= {"mean": drawn(4, 6), "variance": np.abs(drawn(5, 6)) + 0.5}
    stored |= {"b": drawn(1, 6)} if bias else {}
    weights = [numpy_helper.from_array(a.astype(dtype), name) for name, a in stored.items()]
    code = CODES[dtype]
    result = value("y", *(None for _ in x), code=code)
    return model([first, second], [value("x", *x, code=code)], [result], weights)
