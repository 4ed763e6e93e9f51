"""Exact figures of small ONNX models, with the arithmetic written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_graphs import graph, integers, measured, model, node, packed, scalar, stored, value
from tests.builders.programs import assert_same_macs, costed

INT8, FLOAT8 = TensorProto.INT8, TensorProto.FLOAT8E4M3FN
MICROSOFT = "com.microsoft"
TRUE = node("Constant", "", "true", value=scalar("t", True, np.bool_))
GOES_ON = node("Identity", "cond", "goes_on")


def one(
    operator: str,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
    operands: str,
    *,
    domain: str = "",
    opset: int = 23,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node."""
    results = " ".join(output.name for output in outputs)
    made = node(operator, operands, results, domain=domain, **attributes)
    domains = [domain] if domain else []
    return model([made], inputs, outputs, weights, opset=opset, domains=domains)


def quantised_matmul(weight: onnx.TensorProto, *scales: onnx.TensorProto) -> onnx.ModelProto:
    """DequantizeLinear(weight) → MatMul: x (2, 8) · weight (8, 4)."""
    names = " ".join(each.name for each in (weight, *scales))
    nodes = [node("DequantizeLinear", names, "w", axis=1), node("MatMul", "x w", "y")]
    return model(nodes, [value("x", 2, 8)], [value("y", 2, 4)], [weight, *scales])


def loop(count: onnx.TensorProto, weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Loop: state (2, 4) · weight (4, 4) each time, and every state stacked."""
    body = graph(
        [GOES_ON, node("MatMul", "state w", "next"), node("Relu", "next", "slice")],
        [value("i", code=TensorProto.INT64), value("cond", code=TensorProto.BOOL),
         value("state", 2, 4)],
        [value("goes_on", code=TensorProto.BOOL), value("next", 2, 4), value("slice", 2, 4)],
    )  # fmt: skip
    nodes = [TRUE, node("Loop", "count true x", "last all", body=body)]
    outputs = [value("last", 2, 4), value("all", None, 2, 4)]
    return model(nodes, [value("x", 2, 4)], outputs, [count, *weights])


def scan() -> onnx.ModelProto:
    """Scan over 5 steps of x (5, 3): state (3) + step, put out each time."""
    body = graph(
        [node("Add", "state step", "sum"), node("Identity", "sum", "out")],
        [value("state", 3), value("step", 3)],
        [value("sum", 3), value("out", 3)],
    )
    made = node("Scan", "first x", "last all", body=body, num_scan_inputs=1)
    inputs = [value("first", 3), value("x", 5, 3)]
    return model([made], inputs, [value("last", 3), value("all", 5, 3)])


def resize(scales: list[float], **attributes: Any) -> onnx.ModelProto:
    """Resize: x (1, 1, 4, 4) by these factors."""
    factors = onnx.numpy_helper.from_array(np.array(scales, np.float32), "scales")
    inputs, outputs = [value("x", 1, 1, 4, 4)], [value("y", *[int(4 * each) if each < 1 else None for each in scales])]
    return one("Resize", inputs, outputs, [factors], "x - scales", **attributes)


def grouped(operands: str = "", **attributes: Any) -> onnx.ModelProto:
    """GroupQueryAttention: 4 steps, queries of 4 heads and keys and values of 2, each of 8."""
    queries, others = value("q", 1, 4, 32), [value(name, 1, 4, 16) for name in ("k", "v")]
    lengths = [onnx.numpy_helper.from_array(np.array([3], np.int32), "last"), scalar("steps", 4, np.int32)]
    weights = [*lengths, stored("cosines", 16, 4), stored("sines", 16, 4), stored("by", 8)]
    outputs = [value("y", 1, 4, 32), value("keys", 1, 2, 4, 8), value("values", 1, 2, 4, 8)]
    names = f"q k v - - last steps {operands}"
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return one("GroupQueryAttention", [queries, *others], outputs, weights, names, domain=MICROSOFT, **attributes)


SCORES = 4 * 4 * 4  # heads · queries · keys


def branches() -> onnx.ModelProto:
    """If: x (2, 8) · a (8, 8), or x · b (8, 4) · c (4, 8), which is as many MACs but for one."""
    then = graph([node("MatMul", "x a", "then")], [], [value("then", 2, 8)], [stored("a", 8, 8)])
    steps = [node("MatMul", "x b", "middle"), node("MatMul", "middle c", "other")]
    weights = [stored("b", 8, 3), stored("c", 3, 8)]
    other = graph(steps, [], [value("other", 2, 8)], weights)
    made = node("If", "condition", "y", then_branch=then, else_branch=other)
    inputs = [value("condition", code=TensorProto.BOOL), value("x", 2, 8)]
    return model([made], inputs, [value("y", 2, 8)])


def local_function() -> onnx.ModelProto:
    """A function of the file's own, called twice: relu(x · w), x (2, 4), w (4, 4)."""
    body = [node("MatMul", "a b", "p"), node("Relu", "p", "q")]
    own = helper.make_function("own", "Block", ["a", "b"], ["q"], body, [helper.make_opsetid("", 23)])
    nodes = [node("Block", "x w", "h", domain="own"), node("Block", "h w", "y", domain="own")]
    return model(
        nodes, [value("x", 2, 4)], [value("y", 2, 4)], [stored("w", 4, 4)],
        domains=["own"], functions=[own],
    )  # fmt: skip


def views() -> onnx.ModelProto:
    """Reshape by a computed shape, Flatten, Unsqueeze, Squeeze, Identity, Dropout, then Relu."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch"),
        node("Unsqueeze", "batch axis", "rows"),
        node("Concat", "rows rest", "target", axis=0),
        node("Reshape", "x target", "a"),
        node("Flatten", "a", "b"),
        node("Unsqueeze", "b axis", "c"),
        node("Squeeze", "c axis", "d"),
        node("Identity", "d", "e"),
        node("Dropout", "e", "f"),
        node("Relu", "f", "y"),
    ]
    weights = [scalar("zero", 0, np.int64), integers("axis", 0), integers("rest", -1)]
    return model(nodes, [value("x", 2, 3, 4)], [value("y", 2, 12)], weights)


def shared() -> onnx.ModelProto:
    """One stored weight read by two products, once under another name."""
    nodes = [node("Identity", "w", "tied"), node("MatMul", "x w", "h"), node("MatMul", "h tied", "y")]
    return model(nodes, [value("x", 2, 4)], [value("y", 2, 4)], [stored("w", 4, 4)])


def dead_outputs() -> onnx.ModelProto:
    """A MaxPool whose indices nobody reads, and a TopK whose values nobody reads."""
    nodes = [node("MaxPool", "x", "pooled indices", kernel_shape=[2, 2], strides=[2, 2]), node("Relu", "pooled", "y")]
    return model(nodes, [value("x", 1, 3, 4, 4)], [value("y", 1, 3, 2, 2)])


ATTENTION = one(
    "Attention",
    [value("q", 2, 4, 5, 8), value("k", 2, 2, 7, 8), value("v", 2, 2, 7, 6)],
    [value("y", 2, 4, 5, 6)],
    [],
    "q k v",
)
FLAT_ATTENTION = one(
    "Attention",
    [value("q", 2, 5, 32), value("k", 2, 7, 16), value("v", 2, 7, 12),
     value("past_k", 2, 2, 3, 8), value("past_v", 2, 2, 3, 6)],
    [value("y", 2, 5, 24), value("present_k", 2, 2, 10, 8), value("present_v", 2, 2, 10, 6)],
    [],
    "q k v - past_k past_v",
    q_num_heads=4,
    kv_num_heads=2,
)  # fmt: skip
LSTM = one(
    "LSTM",
    [value("x", 5, 2, 4)],
    [value("y", 5, 2, 2, 8)],
    [stored("w", 2, 32, 4), stored("r", 2, 32, 8), stored("b", 2, 64)],
    "x w r b",
    hidden_size=8,
    direction="bidirectional",
)

# Model, and the figures that must come out: metric to arithmetic.
CASES = {
    "gemm, both transposed": (
        one("Gemm", [value("x", 6, 2)], [value("y", 2, 3)], [stored("w", 3, 6), stored("b", 3)],
            "x w b", transA=1, transB=1),
        {"macs": 2 * 3 * 6, "params": 3 * 6 + 3, "flops": 2 * 2 * 3 * 6 + 2 * 3,
         "bandwidth": 4 * (6 * 2 + 3 * 6 + 3 + 2 * 3)},
    ),
    "determinants, as LAPACK counts and as torch's": (
        one("Det", [value("x", 2, 6, 6)], [value("y", 2)], [], "x"),
        {"macs": 2 * 6**3 // 3, "flops": 2 * 2 * 6**3 // 3, "bops": 32 * 32 * (2 * 6**3 // 3)},
    ),
    "inverse": (
        one("Inverse", [value("x", 2, 6, 6)], [value("y", 2, 6, 6)], [], "x", domain=MICROSOFT), {"macs": 2 * 6**3},
    ),
    "fused matmul, transposed batch": (
        one("FusedMatMul", [value("x", 6, 5, 2)], [value("y", 5, 2, 3)], [stored("w", 5, 6, 3)],
            "x w", domain=MICROSOFT, transA=1, transBatchA=1),
        {"macs": 5 * 2 * 3 * 6, "params": 5 * 6 * 3},
    ),
    "grouped convolution": (
        one("Conv", [value("x", 1, 4, 6, 6)], [value("y", 1, 6, 4, 4)],
            [stored("w", 6, 2, 3, 3), stored("b", 6)], "x w b", group=2),
        {"macs": 6 * 4 * 4 * (2 * 3 * 3), "params": 6 * 2 * 9 + 6,
         "bandwidth": 4 * (4 * 36 + 6 * 2 * 9 + 6 + 6 * 16)},
    ),
    "transposed convolution": (
        one("ConvTranspose", [value("x", 1, 4, 5, 5)], [value("y", 1, 6, 11, 11)],
            [stored("w", 4, 3, 3, 3)], "x w", group=2, strides=[2, 2]),
        {"macs": 4 * 25 * (3 * 9), "params": 4 * 3 * 9},
    ),
    "deformable convolution": (
        one("DeformConv", [value("x", 1, 2, 5, 5), value("offset", 1, 18, 3, 3)],
            [value("y", 1, 4, 3, 3)], [stored("w", 4, 2, 3, 3)], "x w offset"),
        {"macs": 4 * 9 * (2 * 9), "params": 4 * 2 * 9},
    ),
    "fused convolution": (
        one("FusedConv", [value("x", 1, 2, 5, 5)], [value("y", 1, 4, 3, 3)],
            [stored("w", 4, 2, 3, 3), stored("b", 4)], "x w b", domain=MICROSOFT,
            activation="Relu"),
        {"macs": 4 * 9 * 18, "flops": 2 * 4 * 9 * 18 + 2 * 4 * 9, "params": 4 * 18 + 4},
    ),
    "einsum": (
        one("Einsum", [value("a", 50, 30), value("b", 30, 40), value("c", 40, 2)],
            [value("y", 50, 2)], [], "a b c", equation="ij,jk,kl->il"),
        {"macs": 50 * 30 * 40 + 50 * 40 * 2},
    ),
    "affine grid": (
        one("AffineGrid", [value("theta", 2, 2, 3)], [value("y", 2, 4, 5, 2)],
            [integers("size", 2, 3, 4, 5)], "theta size"),
        {"macs": 2 * 4 * 5 * 2 * 3, "flops": 2 * 240, "params": 0,
         "bandwidth": 4 * (2 * 2 * 3 + 2 * 4 * 5 * 2)},
    ),
    "attention with grouped heads": (
        ATTENTION,
        {"macs": (2 * 4 * 5) * 7 * (8 + 6), "flops": (2 * 4 * 5) * 7 * (2 * 14 + 6), "params": 0,
         "bandwidth": 4 * (2 * 4 * 5 * 8 + 2 * 2 * 7 * 8 + 2 * 2 * 7 * 6 + 2 * 4 * 5 * 6)},
    ),
    "attention with heads side by side and a cache": (
        FLAT_ATTENTION,
        {"macs": (2 * 4 * 5) * (7 + 3) * (8 + 6)},
    ),
    "bidirectional lstm": (
        LSTM,
        {"macs": (5 * 2) * 2 * (32 * 4 + 32 * 8), "params": 2 * (32 * 4 + 32 * 8 + 64),
         "flops": (5 * 2) * 2 * (2 * (32 * 4 + 32 * 8) + 9 * 8 + 64),
         "bandwidth": 4 * (5 * 2 * 4 + 2 * (32 * 4 + 32 * 8 + 64) + 5 * 2 * 2 * 8)},
    ),
    "gru": (
        one("GRU", [value("x", 5, 2, 4)], [value("y", 5, 1, 2, 8)],
            [stored("w", 1, 24, 4), stored("r", 1, 24, 8)], "x w r", hidden_size=8),
        {"macs": (5 * 2) * (24 * 4 + 24 * 8), "params": 24 * 4 + 24 * 8},
    ),
    "integer matmul": (
        one("MatMulInteger", [value("x", 2, 8, code=INT8)],
            [value("y", 2, 4, code=TensorProto.INT32)], [stored("w", 8, 4, dtype=np.int8)], "x w"),
        {"macs": 2 * 4 * 8, "params": 8 * 4, "weight_memory": 8 * 4,
         "bandwidth": 2 * 8 + 8 * 4 + 4 * 2 * 4},
    ),
    "int8 behind dequantize, a scale a column": (
        quantised_matmul(stored("q", 8, 4, dtype=np.int8), stored("s", 4),
                         stored("z", 4, dtype=np.int8)),
        {"macs": 2 * 4 * 8, "params": 8 * 4, "weight_memory": 8 * 4 + 4 * 4 + 4,
         "model_size": 8 * 4 + 4 * 4 + 4,
         "bandwidth": (32 + 16 + 4) + 4 * (2 * 8 + 2 * 4)},
    ),
    "int8 behind dequantize, one scale": (
        quantised_matmul(stored("q", 8, 4, dtype=np.int8), scalar("s", 1)),
        {"macs": 2 * 4 * 8, "params": 8 * 4, "weight_memory": 8 * 4 + 4, "model_size": 8 * 4 + 4,
         "bandwidth": 32 + 4 * (2 * 8 + 2 * 4)},
    ),
    "int4 behind dequantize": (
        quantised_matmul(packed("q", TensorProto.INT4, 8, 4), stored("s", 4)),
        {"macs": 2 * 4 * 8, "params": 8 * 4, "weight_memory": 8 * 4 // 2 + 4 * 4},
    ),
    "float8 behind dequantize": (
        quantised_matmul(packed("q", FLOAT8, 8, 4), stored("s", 4)),
        {"macs": 2 * 4 * 8, "params": 8 * 4, "weight_memory": 8 * 4 + 4 * 4},
    ),
    "four bits in blocks": (
        one("MatMulNBits", [value("x", 2, 64)], [value("y", 2, 16)],
            [stored("w", 16, 2, 16, dtype=np.uint8), stored("s", 32),
             stored("z", 16, dtype=np.uint8)],
            "x w s z", domain=MICROSOFT, K=64, N=16, bits=4, block_size=32),
        {"macs": 2 * 16 * 64, "params": 64 * 16, "weight_memory": 64 * 16 // 2 + 4 * 32 + 16},
    ),
    "quantised convolution": (
        one("QLinearConv", [value("x", 1, 2, 5, 5, code=INT8)],
            [value("y", 1, 4, 3, 3, code=INT8)],
            [scalar("xs", 1), scalar("xz", 0, np.int8), stored("w", 4, 2, 3, 3, dtype=np.int8),
             stored("ws", 4), stored("wz", 4, dtype=np.int8), scalar("ys", 1),
             scalar("yz", 0, np.int8), stored("b", 4, dtype=np.int32)],
            "x xs xz w ws wz ys yz b"),
        {"macs": 4 * 9 * 18, "params": 4 * 18 + 4, "weight_memory": 72 + 16 + 4 + 16},
    ),
    "loop of three": (
        loop(scalar("count", 3, np.int64), [stored("w", 4, 4)]),
        {"macs": 3 * (2 * 4 * 4), "params": 16, "flops": 3 * (2 * 2 * 4 * 4 + 2 * 4),
         # each time: state and weight in, state out; state in, slice out
         "bandwidth": 3 * 4 * (2 * 4 + 16 + 2 * 4) + 3 * 4 * (2 * 4 + 2 * 4),
         "total_activation": 3 * 4 * (2 * 4 + 2 * 4)},
    ),
    "scan of five": (
        scan(),
        # each time: state and step in, sum out; then the sum is copied to its place
        # at best: first and all of x in, the last state and all of them out
        {"macs": 0, "flops": 5 * 3, "bandwidth": 5 * 4 * (3 + 3 + 3) + 5 * 4 * (3 + 3),
         "bandwidth_floor": 4 * (3 + 5 * 3 + 3 + 5 * 3)},
    ),
    "dearer branch": (
        branches(),
        {"macs": 2 * 8 * 8, "params": 8 * 8 + 8 * 3 + 3 * 8, "bandwidth": 4 * (16 + 64 + 16)},
    ),
    "local function": (
        local_function(),
        {"macs": 2 * (2 * 4 * 4), "params": 16,
         "bandwidth": 2 * 4 * ((8 + 16 + 8) + (8 + 8))},
    ),
    "views": (
        views(),
        {"macs": 0, "params": 0, "bandwidth": 4 * (24 + 24), "peak_activation": 4 * (24 + 24),
         "bandwidth_floor": 4 * (24 + 24)},
    ),
    "shared weight": (
        shared(),
        {"params": 16, "weight_memory": 64, "macs": 2 * (2 * 4 * 4),
         "bandwidth": 2 * 4 * (8 + 16 + 8), "bandwidth_floor": 4 * (8 + 16 + 8)},
    ),
    "dead outputs": (
        dead_outputs(),
        {"total_activation": 4 * (12 + 12), "bandwidth": 4 * (48 + 12) + 4 * (12 + 12),
         "peak_activation": 4 * (48 + 12)},
    ),
    "transpose moves": (
        one("Transpose", [value("x", 2, 3)], [value("y", 3, 2)], [], "x", perm=[1, 0]),
        {"macs": 0, "flops": 0, "bandwidth": 4 * (6 + 6), "peak_activation": 4 * (6 + 6)},
    ),
    "gather reads rows": (
        one("Gather", [value("i", 3, code=TensorProto.INT64)], [value("y", 3, 8)],
            [stored("table", 100, 8)], "table i"),
        {"params": 800, "bandwidth": 4 * 3 * 8 + 8 * 3 + 4 * 3 * 8},
    ),
    "grouped queries": (grouped(), {"macs": SCORES * 16, "flops": 2 * SCORES * 16 + SCORES * 7}),
    "grouped queries without a mask": (grouped(causal=0), {"flops": 2 * SCORES * 16 + SCORES * 6}),
    "grouped queries with a soft cap": (grouped(softcap=5.0), {"flops": 2 * SCORES * 16 + SCORES * (7 + 3)}),
    "grouped queries that are turned": (
        grouped("cosines sines", do_rotary=1), {"flops": 2 * SCORES * 16 + SCORES * 7 + 3 * (4 * 32 + 4 * 16)},
    ),
    "grouped queries that are normed": (
        grouped("- - - - - - - by by"), {"params": 8, "flops": 2 * SCORES * 16 + SCORES * 7 + 4 * (4 * 32 + 4 * 16)},
    ),
    "projected and turned": (
        one("Attention", [value("x", 1, 4, 8)], [value("y", 1, 4, 8)], [stored("w", 8, 24)], "x w", domain=MICROSOFT,
            num_heads=2, do_rotary=1),
        {"flops": 2 * (4 * 8 * 24 + 2 * 4 * 4 * 8) + 2 * 4 * 4 * 6 + 3 * (2 * 4 * 8)},
    ),
    "projected, and a part of each head turned": (  # 2 heads of 4, of which 2 are turned
        one("Attention", [value("x", 1, 4, 8)], [value("y", 1, 4, 8)], [stored("w", 8, 24)], "x w", domain=MICROSOFT,
            num_heads=2, do_rotary=1, rotary_embedding_dim=2),
        {"flops": 2 * (4 * 8 * 24 + 2 * 4 * 4 * 8) + 2 * 4 * 4 * 6 + 3 * (2 * 4 * 4)},
    ),
    **{
        f"{said} turned by {operator.rpartition('::')[0] or 'ONNX'}, {len(shape)} axes": (
            one("RotaryEmbedding", [value("x", *shape), *turning[:1]], [value("y", *shape)],
                [stored("c", 9, part // 2), stored("s", 9, part // 2)], operands, domain=operator.rpartition("::")[0],
                opset=23, **{**more, **({"rotary_embedding_dim": part} if part < 8 else {})}),
            {"macs": 0, "flops": 3 * 2 * 3 * 5 * part},
        )
        for operator, operands in (("", "x c s i"), ("com.microsoft::", "x i c s"))
        for turning in ([value("i", 2, 5, code=TensorProto.INT64)],)
        for said, part in (("all", 8), ("a part", 4))
        for shape, more in (((2, 3, 5, 8), {}), ((2, 5, 24), {"num_heads": 3}))
    },
    "a product and its activation": (
        one("FusedGemm", [value("x", 3, 16)], [value("y", 3, 5)], [stored("w", 16, 5), stored("b", 5)], "x w b",
            domain=MICROSOFT, activation="Relu"),
        {"macs": 3 * 5 * 16, "flops": 2 * 3 * 5 * 16 + 3 * 5 + 3 * 5},
    ),
    "a product without one": (
        one("FusedGemm", [value("x", 3, 16)], [value("y", 3, 5)], [stored("w", 16, 5), stored("b", 5)], "x w b",
            domain=MICROSOFT),
        {"macs": 3 * 5 * 16, "flops": 2 * 3 * 5 * 16 + 3 * 5},
    ),
    **{
        f"a norm of groups, activation {said}": (
            one("GroupNorm", [value("x", 2, 4, 4, 8)], [value("y", 2, 4, 4, 8)], [stored("g", 8), stored("b", 8)],
                "x g b", domain=MICROSOFT, groups=2, activation=said),
            {"macs": 0, "flops": (5 + said) * (2 * 4 * 4 * 8), "params": 16},
        )
        for said in (0, 1)
    },
    "rows of a packed table": (  # 3 of 30: 16 B each, two scales and a byte of two zero points
        one("GatherBlockQuantized", [value("i", 3, code=TensorProto.INT64)], [value("y", 3, 32)],
            [stored("table", 30, 16, dtype=np.uint8), stored("s", 30, 2), stored("z", 30, 1, dtype=np.uint8)],
            "table i s z", domain=MICROSOFT, block_size=16, quantize_axis=1),
        {"params": 960, "flops": 3 * 32, "bandwidth": 3 * (16 + 4 * 2 + 1) + 8 * 3 + 4 * 3 * 32,
         "weight_memory": 30 * (16 + 4 * 2 + 1)},
    ),
    "rows of a packed table, in blocks of rows": (  # whose scales are read whole
        one("GatherBlockQuantized", [value("i", 3, code=TensorProto.INT64)], [value("y", 3, 32)],
            [packed("table", TensorProto.INT4, 32, 32), stored("s", 2, 32)], "table i s", domain=MICROSOFT,
            block_size=16, quantize_axis=0),
        {"params": 1024, "flops": 3 * 32, "bandwidth": 3 * 16 + 4 * 2 * 32 + 8 * 3 + 4 * 3 * 32},
    ),
    "resize in two dimensions": (resize([1.0, 1.0, 0.5, 0.5], mode="linear"), {"macs": 0, "flops": (2 * 2) * 4}),
    "resize in one dimension": (resize([1.0, 1.0, 1.0, 0.5], mode="linear"), {"macs": 0, "flops": (4 * 2) * 2}),
    "resize by cubes": (resize([1.0, 1.0, 0.5, 0.5], mode="cubic"), {"macs": 0, "flops": (2 * 2) * 16}),
    "resize to the nearest": (resize([1.0, 1.0, 0.5, 0.5], antialias=1), {"macs": 0, "flops": 0}),
    "batch norm that works out its statistics": (
        one("BatchNormalization", [value("x", 2, 3, 4)], [value("y", 2, 3, 4), value("m", 3), value("v", 3)],
            [stored(name, 3) for name in ("scale", "shift", "mean", "variance")], "x scale shift mean variance",
            training_mode=1),
        {"macs": 0, "flops": 5 * (2 * 3 * 4), "params": 6},
    ),
    **{
        f"batch norm that gives its statistics, in opset {opset}, {said}": (
            one("BatchNormalization", [value("x", 2, 3, 4)],
                [value("y", 2, 3, 4), *(value(name, *shape) for name in "mvst")],
                [stored(name, 3) for name in ("scale", "shift", "mean", "variance")], "x scale shift mean variance",
                opset=opset),
            {"macs": 0, "flops": 5 * (2 * 3 * 4), "peak_activation": 4 * (2 * (2 * 3 * 4) + 4 * 3)},
        )
        for opset in (7, 9, 13) for said, shape in (("declared", (3,)), ("undeclared", ("c",)))
    },
    "two classes of sklearn's logistic regression": (
        one("LinearClassifier", [value("x", 6, 4)],
            [value("label", 6, code=TensorProto.INT64), value("score", 6, 2)], [], "x",
            domain="ai.onnx.ml", coefficients=[1.0] * 8, intercepts=[0.0, 0.0],
            classlabels_ints=[0, 1]),
        {"macs": 6 * 4 * 2, "params": 8 + 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_closed_forms(case: str, tmp_path: Path) -> None:
    """Every figure is the arithmetic written beside the model, with nothing unmeasured."""
    proto, expected = CASES[case]
    found = measured(proto, tmp_path)
    assert {key: found[key].value for key in expected} == expected
    assert [key for key in expected if not found[key].complete] == []


@pytest.mark.parametrize("case", CASES)
def test_products_have_the_macs_of_their_nodes(case: str, tmp_path: Path) -> None:
    onnx.save(CASES[case][0], tmp_path / "model.onnx")
    assert_same_macs(costed(tmp_path / "model.onnx"))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_an_antialiased_resize_has_no_flops(mode: str, tmp_path: Path) -> None:
    """Its windows are as wide as the scale says: the convention has no figure for them."""
    found = measured(resize([1.0, 1.0, 0.5, 0.5], mode=mode, antialias=1), tmp_path)
    assert [missing.op for missing in found["flops"].unmeasured] == ["onnx::Resize"]
    assert (found["macs"].value, found["macs"].complete) == (0, True)


@pytest.mark.parametrize(("stays_on", "unmeasured"), [(True, ["onnx::Dropout"]), (False, [])], ids=["on", "off"])
def test_a_dropout_that_stays_on_has_no_flops(stays_on: bool, unmeasured: list[str], tmp_path: Path) -> None:
    """It draws numbers, for which the convention has no figure; where it is off, its input passes through."""
    weights = [scalar("ratio", 0.5), scalar("on", stays_on, np.bool_)]
    made = model(
        [node("Dropout", "x ratio on", "d"), node("Relu", "d", "y")], [value("x", 6)], [value("y", 6)], weights
    )
    flops = measured(made, tmp_path)["flops"]
    assert [missing.op for missing in flops.unmeasured] == unmeasured
    assert flops.value == 6


def test_a_mask_is_no_parameter(tmp_path: Path) -> None:
    """0 and −inf, added to scores, are a mask; zeros alone are a bias, as in every fresh layer."""
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    nodes = [node("Add", "x mask", "h"), node("Add", "h bias", "y")]
    weights = [
        onnx.numpy_helper.from_array(mask, "mask"),
        onnx.numpy_helper.from_array(np.zeros(4, np.float32), "bias"),
    ]
    found = measured(model(nodes, [value("x", 4, 4)], [value("y", 4, 4)], weights), tmp_path)
    assert found["params"].value == 4
    assert found["model_size"].value == 4 * (16 + 4)


def test_the_note_names_the_branch(tmp_path: Path) -> None:
    """A report says which branch was counted, and what the other one alone stores: 4 B of 8 · 3 and 3 · 8 elements."""
    assert measured(branches(), tmp_path).notes == (  # type: ignore[attr-defined]
        "If 'y' is counted as its dearer branch, then_branch (condition in dims decides it)",
        "parameters that no counted operation reads: middle.b (8x3), other.c (3x8); "
        "params and weight_memory have them, 192 B",
    )


def test_the_note_names_the_node_where_its_module_is_the_model(tmp_path: Path) -> None:
    """torch calls what stands in no module /If_3: its path is empty, and names nothing."""
    proto = branches()
    next(node for node in proto.graph.node if node.op_type == "If").name = "/If_3"
    assert measured(proto, tmp_path).notes[0].startswith("If '/If_3' is counted")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("taken", "macs"), [(True, 2 * 8 * 8), (False, 2 * 8 * 3 + 2 * 3 * 8)], ids=["then", "else"])
def test_a_known_condition_takes_its_branch(taken: bool, macs: int, tmp_path: Path) -> None:
    """A constant condition is no question of cost."""
    proto = branches()
    del proto.graph.input[0]
    proto.graph.initializer.append(scalar("condition", taken, np.bool_))
    assert measured(proto, tmp_path)["macs"].value == macs


def test_a_loop_of_unknown_length_is_unmeasured(tmp_path: Path) -> None:
    """A trip count that is an input leaves every figure but the stored ones unknown, by name."""
    proto = loop(scalar("count", 3, np.int64), [stored("w", 4, 4)])
    del proto.graph.initializer[0]
    proto.graph.input.append(value("count", code=TensorProto.INT64))
    found = measured(proto, tmp_path)
    for key in ("macs", "flops", "bandwidth", "peak_activation"):
        assert {missing.op for missing in found[key].unmeasured} == {"onnx::Loop"}
    assert found["params"].complete
    assert found["model_size"].value == 4 * 16


def test_a_loop_whose_state_grows_says_so(tmp_path: Path) -> None:
    """Its count is known: what hides the numbers is that each run has another shape."""
    body = graph(
        [GOES_ON, node("Concat", "state state", "next", axis=0)],
        [value("i", code=TensorProto.INT64), value("cond", code=TensorProto.BOOL), value("state", None, 4)],
        [value("goes_on", code=TensorProto.BOOL), value("next", None, 4)],
    )
    nodes = [TRUE, node("Loop", "count true x", "last", body=body)]
    proto = model(nodes, [value("x", 2, 4)], [value("last", None, 4)], [scalar("count", 3, np.int64)])
    (missing,) = measured(proto, tmp_path)["macs"].unmeasured
    assert missing.why == "onnx::Loop 'last': its state or its slices change their shape"


def test_a_scan_of_old_files_says_how_to_count_it(tmp_path: Path) -> None:
    """Before opset 9 its operands had a batch, and came behind their lengths."""
    step = [value("before", 3), value("row", 3)]
    body = graph([node("Add", "before row", "after")], step, [value("after", 3)])
    nodes = [node("Scan", "- first x", "last", body=body, num_scan_inputs=1)]
    ends = [value("first", 2, 3), value("x", 2, 5, 3)], [value("last", 2, 3)]
    (missing,) = measured(model(nodes, *ends, opset=8), tmp_path)["macs"].unmeasured
    assert missing.why == "onnx::Scan 'last': it has a batch of its own: convert the model to opset 9"


@pytest.mark.parametrize(("operator", "other"), [("MatMul", (4, 3)), ("Add", (4,)), ("Gemm", (4, 3))])
def test_operands_that_do_not_fit_are_told(operator: str, other: tuple[int, ...], tmp_path: Path) -> None:
    """x (1, 5), by dims, with a stored tensor that takes 4: no data decide anything."""
    proto = model([node(operator, "x w", "y")], [value("x", 1, "K")], [value("y", None, None)], [stored("w", *other)])
    with pytest.raises(
        SourceError, match=rf"op_type:{operator}, node name: y\): .* [Dd]imension.*: check the model, and sizes in dims"
    ):
        measured(proto, tmp_path, {"K": 5})


def test_an_immediate_costs_nothing(tmp_path: Path) -> None:
    """A constant of rank 0 is no parameter, no traffic and no part of the model's size."""
    nodes = [node("Constant", "", "half", value_float=0.5), node("Mul", "x half", "y")]
    found = measured(model(nodes, [value("x", 3)], [value("y", 3)]), tmp_path)
    figures = [found[key].value for key in ("params", "model_size", "bandwidth")]
    assert figures == [0, 0, 4 * (3 + 3)]


TYPES = {name: code for name, code in TensorProto.DataType.items() if name not in ("UNDEFINED", "STRING")}


@pytest.mark.parametrize("code", TYPES.values(), ids=list(TYPES))
def test_every_element_type_has_its_bytes(code: int, tmp_path: Path) -> None:
    """Five elements, as onnx itself packs them: those of 6 bits in four bytes, of 4 in three, of 2 in two."""
    weight = numpy_helper.from_array(np.zeros(5, helper.tensor_dtype_to_np_dtype(code)), "w")
    proto = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)], [weight])
    assert weight.data_type == code
    assert measured(proto, tmp_path)["model_size"].value == len(weight.raw_data)


RESIZED = [
    # float32(0.7) is below 0.7: in doubles 20 · 0.7 is 13.99, as onnx has it, and ONNX Runtime multiplies in float32
    pytest.param("Resize", 20, 0.7, 14, id="20 · 0.7"),
    pytest.param("axes", 30, 0.9, 27, id="30 · 0.9, of two axes"),
    pytest.param("Upsample", 10, 1.3, 13, id="10 · 1.3"),
    pytest.param("Resize", 7, 0.5, 3, id="7 · 0.5, rounded down"),
]


@pytest.mark.parametrize(("form", "size", "scale", "result"), RESIZED)
def test_resize_by_scales_is_as_large_as_onnx_runtime_makes_it(
    form: str, size: int, scale: float, result: int, tmp_path: Path
) -> None:
    """onnx#7874: the conv behind it has result² · 2 outputs of 2 · 9 MACs, and its size is that of a run."""
    factors = [scale, scale] if form == "axes" else [1.0, 1.0, scale, scale]
    more = {"axes": [2, 3]} if form == "axes" else {}
    operands, name, opset = ("h s", "Upsample", 9) if form == "Upsample" else ("h - s", "Resize", 19)
    nodes = [node("Relu", "x", "h"), node(name, operands, "r", **more), node("Conv", "r w", "y", pads=[1, 1, 1, 1])]
    weights = [numpy_helper.from_array(np.array(factors, np.float32), "s"), stored("w", 2, 2, 3, 3)]
    made = model(nodes, [value("x", 1, 2, size, size)], [value("y", 1, 2, None, None)], weights, opset=opset)
    onnx.save(made, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((1, 2, size, size), "f4")})[0].shape[2] == result
    assert measured(made, tmp_path)["macs"].value == result * result * 2 * 2 * 9


def test_positions_behind_the_last_row_of_a_table_are_refused(tmp_path: Path) -> None:
    """A Range over the length of x (n, 8) picks rows of a table of 16: row 16 is none."""
    nodes = [node("Shape", "x", "n", end=1), node("Squeeze", "n", "m"), node("Range", "zero m one", "at"),
             node("Gather", "table at", "rows"), node("Add", "x rows", "y")]  # fmt: skip
    weights = [scalar("zero", 0, np.int64), scalar("one", 1, np.int64), stored("table", 16, 8)]
    for n, fits in ((16, True), (17, False)):
        made = model(nodes, [value("x", n, 8)], [value("y", n, 8)], weights)
        if fits:
            assert measured(made, tmp_path)["macs"].complete
        else:
            with pytest.raises(SourceError, match="row 16 of a table that has 16"):
                measured(made, tmp_path)
