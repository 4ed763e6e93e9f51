"""Operators that ONNX Runtime's optimisers write: shapes as it runs them, and closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.builders.onnx_graphs import measured, model, node, packed, scalar, stored, value

INT8, UINT8, INT32 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32
SCALES = [scalar("xs", 0.1), scalar("xz", 0, np.int8), scalar("ys", 0.1), scalar("yz", 0, np.int8)]


def fused(
    operator: str,
    inputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
    operands: str,
    results: str = "h",
    *,
    domain: str = "com.microsoft",
    code: int = TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """One fused node between the inputs and a Neg, whose shape nothing declares."""
    first = results.split()[0]
    nodes = [node(operator, operands, results, domain=domain, **attributes), node("Neg", first, "y")]
    return model(nodes, inputs, [value("y", code=code)], weights, opset=17, domains=[domain])


def undeclared(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose output has a type and no shape."""
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


X = value("x", 2, 6, 16)  # batch 2, length 6, width 16
# Model; bytes of its last result, a Neg; MACs; params.
CASES = {
    "FusedConv": (
        fused("FusedConv", [value("x", 1, 2, 8, 8)], [stored("w", 4, 2, 3, 3)], "x w",
              activation="Relu", strides=[2, 2]),
        4 * (4 * 3 * 3), (4 * 3 * 3) * (2 * 3 * 3), 4 * 2 * 3 * 3,
    ),
    "FusedMatMul": (
        fused("FusedMatMul", [X], [stored("w", 8, 16)], "x w", transB=1),
        4 * (2 * 6 * 8), (2 * 6 * 8) * 16, 8 * 16,
    ),
    "FusedGemm": (
        fused("FusedGemm", [value("x", 3, 16)], [stored("w", 16, 5), stored("b", 5)], "x w b",
              activation="Relu"),
        4 * (3 * 5), 3 * 5 * 16, 16 * 5 + 5,
    ),
    "MatMulNBits": (
        fused("MatMulNBits", [value("x", 2, 32)],
              [stored("w", 8, 1, 16, dtype=np.uint8), stored("s", 8)], "x w s",
              K=32, N=8, bits=4, block_size=32),
        4 * (2 * 8), 2 * 8 * 32, 32 * 8,
    ),
    "Attention": (
        fused("Attention", [X], [stored("w", 16, 48), stored("b", 48)], "x w b", num_heads=4),
        4 * (2 * 6 * 16), (2 * 6) * 16 * 48 + (2 * 4 * 6) * 6 * (4 + 4), 16 * 48 + 48,
    ),
    "MultiHeadAttention": (
        fused("MultiHeadAttention", [X, value("k", 2, 9, 16), value("v", 2, 9, 8)], [], "x k v",
              num_heads=4),
        4 * (2 * 6 * 8), (2 * 4 * 6) * 9 * (4 + 2), 0,
    ),
    "GroupQueryAttention": (
        fused("GroupQueryAttention",
              [X, value("k", 2, 6, 8), value("v", 2, 6, 8), value("pk", 2, 2, 3, 4),
               value("pv", 2, 2, 3, 4), value("lengths", 2, code=INT32),
               value("total", code=INT32)],
              [], "x k v pk pv lengths total", "h nk nv", num_heads=4, kv_num_heads=2),
        4 * (2 * 6 * 16), (2 * 4 * 6) * (3 + 6) * (4 + 4), 0,
    ),
    "SkipLayerNormalization": (
        fused("SkipLayerNormalization", [X, value("s", 2, 6, 16)],
              [stored("g", 16), stored("b", 16)], "x s g b", "h - - sum"),
        4 * (2 * 6 * 16), 0, 16 + 16,
    ),
    "EmbedLayerNormalization": (
        fused("EmbedLayerNormalization",
              [value("i", 2, 6, code=INT32), value("j", 2, 6, code=INT32)],
              [stored("words", 50, 16), stored("places", 10, 16), stored("kinds", 2, 16),
               stored("g", 16), stored("b", 16)],
              "i j words places kinds g b", "h mask"),
        4 * (2 * 6 * 16), 0, (50 + 10 + 2 + 2) * 16,
    ),
    "BiasGelu": (
        fused("BiasGelu", [X], [stored("b", 16)], "x b"),
        4 * (2 * 6 * 16), 0, 16,
    ),
    "DynamicQuantizeMatMul": (
        fused("DynamicQuantizeMatMul", [X],
              [stored("w", 16, 8, dtype=np.int8), stored("s", 8)], "x w s"),
        4 * (2 * 6 * 8), (2 * 6 * 8) * 16, 16 * 8,
    ),
    "QLinearAdd": (
        fused("QLinearAdd", [value("x", 2, 3, code=INT8), value("z", 2, 3, code=INT8)], SCALES,
              "x xs xz z xs xz ys yz", code=INT8),
        2 * 3, 0, 0,
    ),
    "QLinearConv, channels last": (
        fused("QLinearConv", [value("x", 1, 8, 8, 2, code=INT8)],
              [*SCALES, packed("w", INT8, 4, 2, 3, 3)], "x xs xz w xs xz ys yz", code=INT8,
              channels_last=1, pads=[1, 1, 1, 1]),
        8 * 8 * 4, (8 * 8 * 4) * (2 * 3 * 3), 4 * 2 * 3 * 3,
    ),
    "QLinearReduceMean, last": (
        fused("QLinearReduceMean", [value("x", 2, 4, 8, 8, code=INT8)], SCALES,
              "x xs xz ys yz", code=INT8, axes=[2, -1], keepdims=0),
        2 * 4, 0, 0,
    ),
    "QLinearGlobalAveragePool": (
        fused("QLinearGlobalAveragePool", [value("x", 1, 4, 8, 8, code=INT8)], SCALES,
              "x xs xz ys yz", code=INT8),
        4, 0, 0,
    ),
    "QGemm": (
        fused("QGemm", [value("x", 3, 16, code=INT8)],
              [*SCALES, stored("w", 5, 16, dtype=np.int8)], "x xs xz w xs xz - ys yz", code=INT8,
              transB=1),
        3 * 5, 3 * 5 * 16, 5 * 16,
    ),
    "QGemm without a zero point": (
        fused("QGemm", [value("x", 3, 16, code=INT8)],
              [*SCALES, stored("w", 5, 16, dtype=np.int8)], "x xs xz w xs xz - ys", transB=1),
        4 * (3 * 5), 3 * 5 * 16, 5 * 16,
    ),
    "DynamicQuantizeLSTM": (
        fused("DynamicQuantizeLSTM", [value("x", 5, 2, 4)],
              [stored("w", 2, 4, 12, dtype=np.int8), stored("r", 2, 3, 12, dtype=np.int8), *SCALES, stored("s", 2)],
              "x w r - - - - - s xz s xz", "h", hidden_size=3, direction="bidirectional"),
        4 * (5 * 2 * 2 * 3), (5 * 2) * 2 * (4 * 12 + 3 * 12), 2 * (4 * 12 + 3 * 12),
    ),
    "Conv in blocks of channels": (
        fused("Conv", [value("x", 1, 8, 6, 6)], [stored("w", 16, 8, 3, 3)], "x w",
              domain="com.microsoft.nchwc"),
        4 * (16 * 4 * 4), (16 * 4 * 4) * (8 * 3 * 3), 16 * 8 * 3 * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "nbytes", "macs", "params"), CASES.values(), ids=list(CASES))
def test_closed_forms(proto: onnx.ModelProto, nbytes: int, macs: int, params: int, tmp_path: Path) -> None:
    """Shapes come out of the fused operator, whose MACs are those of what it replaces."""
    found = measured(undeclared(proto), tmp_path)
    written = {share.scope: share.value for share in found["total_activation"].shares}
    assert written["y"] == nbytes
    assert (found["macs"].value, found["params"].value) == (macs, params)
    for key in ("macs", "bandwidth", "peak_activation"):
        assert found[key].complete, key


# ONNX Runtime's Neg, which ends each of these graphs, has no uint8 kernel.
RUNNABLE = [
    name
    for name, (proto, *_) in CASES.items()
    if "blocks" not in name and "last" not in name and proto.graph.output[0].type.tensor_type.elem_type != UINT8
]


@pytest.mark.parametrize("name", RUNNABLE)
def test_onnx_runtime_agrees_on_shapes(name: str, tmp_path: Path) -> None:
    """Inference inside ONNX Runtime gives the last result as many bytes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    proto, nbytes, *_ = CASES[name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    made = undeclared(proto).SerializeToString()
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    output = session.get_outputs()[0]
    width = 1 if "int8" in output.type else 4
    assert int(np.prod(output.shape)) * width == nbytes


QUANTISED_CACHES = {"int8": (INT8, np.int8, 8, 8), "two in a byte": (UINT8, np.uint8, 4, 4)}


@pytest.mark.parametrize(("code", "dtype", "bits", "width"), QUANTISED_CACHES.values(), ids=QUANTISED_CACHES)
def test_a_cache_stays_in_the_type_that_it_came_in(
    code: int, dtype: type, bits: int, width: int, tmp_path: Path
) -> None:
    """Keys and values of 8 numbers in width bytes: 3 steps before and 6 now, and its scales are no parameters.

    While the node runs, x, k and v of floats, both caches, lengths, and its three results are alive.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    caches = [value(name, 2, 2, 3, width, code=code) for name in ("pk", "pv")]
    inputs = [
        value("x", 2, 6, 32), value("k", 2, 6, 16), value("v", 2, 6, 16), *caches,
        value("lengths", 2, code=INT32), value("total", code=INT32),
    ]  # fmt: skip
    results = [value("h", 2, 6, 32), *(value(name, 2, 2, None, width, code=code) for name in ("nk", "nv"))]
    attention = node(
        "GroupQueryAttention", "x k v pk pv lengths total - - - - - ks vs", "h nk nv", domain="com.microsoft",
        num_heads=4, kv_num_heads=2, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=bits,
    )  # fmt: skip
    made = model([attention], inputs, results, [stored("ks", 1), stored("vs", 1)], opset=17, domains=["com.microsoft"])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [each.type for each in session.get_outputs()[1:]] == [f"tensor({np.dtype(dtype)})"] * 2
    found = measured(made, tmp_path)
    floats = 4 * 2 * 6 * (32 + 16 + 16)
    before, after = 2 * 2 * 2 * 3 * width, 2 * 2 * 2 * 9 * width
    lengths = 2 * 4 + 4
    assert found["peak_activation"].value == floats + before + lengths + 4 * 2 * 6 * 32 + after
    assert (found["macs"].value, found["params"].value) == ((2 * 4 * 6) * 9 * (8 + 8), 0)


@pytest.mark.parametrize("name", ["QLinearConv", "MulInteger"])
def test_integers_that_an_operator_gives_are_of_its_result(name: str, tmp_path: Path) -> None:
    """Of the zero point of a convolution's result, and of 32 bits from a product of integers."""
    convolution = fused(
        "QLinearConv", [value("x", 1, 2, 8, 8, code=UINT8)],
        [*SCALES, scalar("xu", 0, np.uint8), packed("w", INT8, 4, 2, 3, 3)], "x xs xu w xs xz ys yz", code=INT8,
    )  # fmt: skip
    product = fused(
        "MulInteger", [value(each, 3, 16, code=UINT8) for each in ("x", "z")], [scalar("u", 0, np.uint8)], "x u z u",
        code=INT32,
    )  # fmt: skip
    made, nbytes = {"QLinearConv": (convolution, 4 * 6 * 6), "MulInteger": (product, 4 * 3 * 16)}[name]
    found = measured(undeclared(made), tmp_path)
    assert {share.scope: share.value for share in found["total_activation"].shares}["y"] == nbytes
