"""Operators that ONNX Runtime's optimisers write: shapes as it runs them, and closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
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
    "QEmbedLayerNormalization": (
        fused("QEmbedLayerNormalization",
              [value("i", 2, 6, code=INT32), value("j", 2, 6, code=INT32)],
              [stored("words", 50, 16, dtype=np.uint8), stored("places", 10, 16, dtype=np.uint8),
               stored("kinds", 2, 16, dtype=np.uint8), stored("g", 16, dtype=np.uint8), stored("b", 16, dtype=np.uint8),
               scalar("s", 0.1), scalar("z", 0, np.uint8)],
              "i j words places kinds g b - s s s s s z z z z z", "h mask"),
        4 * (2 * 6 * 16), 0, (50 + 10 + 2 + 2) * 16,
    ),
    "BiasGelu": (
        fused("BiasGelu", [X], [stored("b", 16)], "x b"),
        4 * (2 * 6 * 16), 0, 16,
    ),
    "GatedRMSNorm": (fused("GatedRMSNorm", [X, value("g", 2, 6, 16)], [stored("w", 16)], "x w g"), 4 * 192, 0, 16),
    "BranchwiseRMSNorm": (fused("BranchwiseRMSNorm", [X], [stored("w", 16)], "x w"), 4 * (2 * 6 * 16), 0, 16),
    "ScaledSiLU": (fused("ScaledSiLU", [X], [], "x", alpha=2.0), 4 * (2 * 6 * 16), 0, 0),
    "SwiGLU of two halves": (fused("SwiGLU", [X, value("u", 2, 6, 16)], [], "x u"), 4 * (2 * 6 * 16), 0, 0),
    "GemmFloat8": (
        fused("GemmFloat8", [value("x", 3, 16)], [stored("w", 5, 16)], "x w", transB=1), 4 * (3 * 5), 3 * 5 * 16, 80,
    ),
    "MatMulBlockQuantizedFp8Weight": (
        fused("MatMulBlockQuantizedFp8Weight", [value("x", 3, 32, code=TensorProto.FLOAT16)],
              [packed("w", TensorProto.FLOAT8E4M3FN, 5, 32), stored("s", 5, 1)], "x w s", code=TensorProto.FLOAT16,
              block_size=32),
        2 * (3 * 5), 3 * 5 * 32, 5 * 32,
    ),
    "MatMulBlockQuantizedFp4Weight, two in a byte": (
        fused("MatMulBlockQuantizedFp4Weight", [value("x", 3, 32, code=TensorProto.FLOAT16)],
              [packed("w", UINT8, 5, 16), packed("s", UINT8, 5, 2), scalar("t", 1.0)], "x w s t",
              code=TensorProto.FLOAT16, block_size=16),
        2 * (3 * 5), 3 * 5 * 32, 5 * 32,
    ),
    "CausalConvWithState": (
        fused("CausalConvWithState", [value("x", 1, 8, 20), value("p", 1, 8, 3)], [stored("w", 8, 1, 4)],
              "x w - p", "h past"),
        4 * (8 * 20), (8 * 20) * 4, 8 * 4,
    ),
    "GatedDeltaNet": (  # 5 tokens, 4 states of 8x16: each is read twice and written once
        fused("GatedDeltaNet", [value("q", 5, 2, 8), value("k", 5, 2, 8), value("v", 5, 4, 16),
                                value("cu", 2, code=INT32), value("d", 5, 4), value("b", 5, 4)], [], "q k v cu d b"),
        4 * (5 * 4 * 16), 5 * (8 * 16) * (4 + 4 * 2), 0,
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


RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
NEWER = {  # whose operands are those of a later schema than the lowest ONNX Runtime has
    name: pytest.mark.skipif(RUNTIME < (1, 32), reason="an operator of ONNX Runtime 1.32")
    for name in ("SwiGLU of two halves",)
}


@pytest.mark.parametrize(
    ("proto", "nbytes", "macs", "params"),
    [pytest.param(*case, marks=NEWER.get(name, ()), id=name) for name, case in CASES.items()],
)
def test_closed_forms(proto: onnx.ModelProto, nbytes: int, macs: int, params: int, tmp_path: Path) -> None:
    """Shapes come out of the fused operator, whose MACs are those of what it replaces."""
    found = measured(undeclared(proto), tmp_path)
    written = {share.scope: share.value for share in found["total_activation"].shares}
    assert written["y"] == nbytes
    assert (found["macs"].value, found["params"].value) == (macs, params)
    for key in ("macs", "bandwidth", "peak_activation"):
        assert found[key].complete, key


ROWS = [value("x", 2, 6, 16), value("scores", 12, 5)]  # 12 rows of 16, and what each gives 5 experts
GATED: Any = {"activation_type": "swiglu", "swiglu_fusion": 1}
HALVES = [stored("w", 5, 2 * 8, 16 // 2, dtype=np.uint8), stored("v", 5, 16, 8 // 2, dtype=np.uint8)]
# Model; MACs, of 2 experts a row; their types; params; bytes of weights as stored.
MIXTURES = {
    "MoE": (
        fused("MoE", ROWS, [stored("w", 5, 8, 16), stored("wb", 5, 8), stored("v", 5, 16, 8), stored("vb", 5, 16)],
              "x scores w wb v vb", k=2),
        12 * 2 * (8 * 16 + 16 * 8), "float32", 5 * (8 * 16 + 8 + 16 * 8 + 16), 4 * 5 * (8 * 16 + 8 + 16 * 8 + 16),
    ),
    "MoE of three weights": (
        fused("MoE", ROWS, [stored("w", 5, 8, 16), stored("v", 5, 16, 8), stored("u", 5, 8, 16)], "x scores w - v - u",
              k=2, activation_type="swiglu"),
        12 * 2 * 3 * 8 * 16, "float32", 5 * 3 * 8 * 16, 4 * 5 * 3 * 8 * 16,
    ),
    "MoE, its gate in the first": (
        fused("MoE", ROWS, [stored("w", 5, 2 * 8, 16), stored("v", 5, 16, 8)], "x scores w - v", k=2, **GATED),
        12 * 2 * 3 * 8 * 16, "float32", 5 * 3 * 8 * 16, 4 * 5 * 3 * 8 * 16,
    ),
    "QMoE": (
        fused("QMoE", ROWS, [*HALVES, stored("s", 5, 16), stored("t", 5, 16)], "x scores w s - v t", k=2, **GATED),
        12 * 2 * 3 * 8 * 16, "4-bit", 5 * 3 * 8 * 16, 5 * 3 * 8 * 16 // 2 + 4 * 2 * 5 * 16,
    ),
    "QMoE of bytes": (
        fused("QMoE", ROWS, [stored("w", 5, 16, 16, dtype=np.uint8), stored("v", 5, 16, 8, dtype=np.uint8),
                             stored("s", 5, 16), stored("t", 5, 16)],
              "x scores w s - v t", k=2, expert_weight_bits=8, **GATED),
        12 * 2 * 3 * 8 * 16, "8-bit", 5 * 3 * 8 * 16, 5 * 3 * 8 * 16 + 4 * 2 * 5 * 16,
    ),
    "QMoE of two widths": (
        fused("QMoE", ROWS, [stored("w", 5, 16, 16, dtype=np.uint8), HALVES[1], stored("s", 5, 16), stored("t", 5, 16)],
              "x scores w s - v t", k=2, fc1_expert_weight_bits=8, **GATED),
        12 * 2 * 3 * 8 * 16, "unknown", 5 * 3 * 8 * 16, 5 * (16 * 16 + 16 * 8 // 2) + 4 * 2 * 5 * 16,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "macs", "kind", "params", "nbytes"), MIXTURES.values(), ids=list(MIXTURES))
def test_a_row_meets_k_experts(
    proto: onnx.ModelProto, macs: int, kind: str, params: int, nbytes: int, tmp_path: Path
) -> None:
    """MACs are those of k experts for each row, parameters those of all; what is read, and FLOPs, nobody knows."""
    found = measured(undeclared(proto), tmp_path)
    assert (found["macs"].value, dict(found["macs"].parts)) == (macs, {f"float32×{kind}": macs})
    assert (found["params"].value, found["weight_memory"].value) == (params, nbytes)
    assert (found["active_params"].value, found["active_params"].complete) == (params * 2 // 5, True)
    assert found["macs"].complete
    assert found["params"].complete
    (unread,), (uncounted,) = found["bandwidth"].unmeasured, found["flops"].unmeasured
    assert unread.why == "which of its experts it reads, the data decide"
    assert unread.op == uncounted.op
    assert found["peak_activation"].value == 2 * 4 * 12 * 16 + 4 * 12 * 5


def test_all_experts_are_read_where_each_row_takes_all(tmp_path: Path) -> None:
    """Rows in and out, scores, and all weights; 5 of 5 experts."""
    weights = [stored("w", 5, 8, 16), stored("v", 5, 16, 8)]
    found = measured(fused("MoE", ROWS, weights, "x scores w - v", k=5), tmp_path)
    assert found["macs"].value == 12 * 5 * 2 * 8 * 16
    assert found["bandwidth"].complete
    assert found["bandwidth"].value == 4 * (12 * 16 + 12 * 5 + 5 * 2 * 8 * 16 + 12 * 16) + 2 * 4 * 12 * 16


def test_more_experts_than_there_are_is_unmeasured(tmp_path: Path) -> None:
    """No runtime runs 6 of 5."""
    weights = [stored("w", 5, 8, 16), stored("v", 5, 16, 8)]
    (odd,) = measured(fused("MoE", ROWS, weights, "x scores w - v", k=6), tmp_path)["macs"].unmeasured
    assert odd.why == "the node chooses 6 of 5 experts"


def test_flops_of_a_quantised_embedding(tmp_path: Path) -> None:
    """Each row of 16 and 3 tables: 2 sums, 5 of the norm, 3 products; scale and shift. Then Neg, one each."""
    rows = measured(CASES["QEmbedLayerNormalization"][0], tmp_path)
    assert rows["flops"].value == 12 * 16 * (2 + 5 + 3) + 2 * 16 + 12 * 16
    assert rows["weight_memory"].value == (50 + 10 + 2 + 2) * 16 + 4 + 1
    assert rows["bandwidth"].value == 2 * 4 * 12 + 3 * 12 * 16 + 2 * 16 + 4 * 12 * 16 + 2 * 4 * 12 * 16


# ONNX Runtime's Neg, which ends each of these graphs, has no uint8 kernel; some have kernels for other devices alone.
RUNNABLE = [
    name
    for name, (proto, *_) in CASES.items()
    if not any(word in name for word in ("blocks", "last", "Gated", "SwiGLU", "GemmFloat8", "BlockQuantized"))
    and proto.graph.output[0].type.tensor_type.elem_type != UINT8
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


FP8 = TensorProto.FLOAT8E4M3FN
OF_OTHERS = {
    # Model-Optimizer#1037: 2,048 weights of a byte and one scale; x and result on the grid, 4 rows times 64 x 32
    "trt, eight bits": (
        "a = trt.TRT_FP8QuantizeLinear(x, s) b = trt.TRT_FP8DequantizeLinear(a, s)"
        " d = trt.TRT_FP8DequantizeLinear(w, s) y = MatMul(b, d)", FP8, 2048 + 4,
    ),
    "trt, four bits": ("d = trt.TRT_INT4DequantizeLinear(w, s) y = MatMul(x, d)", TensorProto.INT4, 1024 + 4),
    # onnxruntime#26555: floats that lie on a grid, their scale and zero point; the number of bits is none of them
    "qonnx": (
        "a = qonnx.custom_op.general.Quant(x, s, z, n) d = qonnx.custom_op.general.Quant(w, s, z, n)"
        " y = MatMul(a, d)", TensorProto.FLOAT, 4 * 2048 + 8,
    ),
    "brevitas": (
        "d = onnx.brevitas.Quant(w, s, z, n) p = MatMul(x, d) y = onnx.brevitas.Trunc(p, s, z, n, n)",
        TensorProto.FLOAT, 4 * 2048 + 8,
    ),
    "bipolar": ("d = onnx.brevitas.BipolarQuant(w, s) y = MatMul(x, d)", TensorProto.FLOAT, 4 * 2048 + 4),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code", "nbytes"), OF_OTHERS.values(), ids=list(OF_OTHERS))
def test_quantisers_of_other_domains(body: str, code: int, nbytes: int, tmp_path: Path) -> None:
    """They hand a weight (64, 32) on to a product with x (4, 64)."""
    sets = '"": 23, "trt": 1, "qonnx.custom_op.general": 1, "onnx.brevitas": 1'
    head = f"<ir_version: 11, opset_import: [{sets}]> g (float[4,64] x) => (float[4,32] y)"
    made = onnx.parser.parse_model(f"{head} <float s = {{0.1}}, float z = {{0.0}}, float n = {{4.0}}> {{ {body} }}")
    made.graph.initializer.append(packed("w", code, 64, 32))
    found = measured(made, tmp_path)
    assert (found["params"].value, found["weight_memory"].value) == (64 * 32, nbytes)
    assert (found["macs"].value, found["macs"].complete) == (4 * 64 * 32, True)
