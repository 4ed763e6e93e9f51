"""Operators that ONNX Runtime's optimisers write cost what the operators cost that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.builders.onnx_graphs import measured, model, node, scalar, stored, value

INT8, INT32, BOOL = TensorProto.INT8, TensorProto.INT32, TensorProto.BOOL
Inputs = Sequence[onnx.ValueInfoProto]
Weights = Sequence[onnx.TensorProto]


class Pair(NamedTuple):
    """A fused node, and nodes that compute the same; each ends in y."""

    fused: onnx.NodeProto
    inputs: Inputs
    weights: Weights
    nodes: Sequence[onnx.NodeProto]
    alone: tuple[Inputs, Weights] | None = None  # operands of those nodes, where they are others


def microsoft(operator: str, operands: str, results: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node(operator, operands, results, domain="com.microsoft", **attributes)


def program(nodes: Sequence[onnx.NodeProto], inputs: Inputs, weights: Weights) -> onnx.ModelProto:
    """A model that gives the last node's result, whose shape nothing declares."""
    proto = model(nodes, inputs, [value(nodes[-1].output[0])], weights, opset=24, domains=["com.microsoft"])
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def attended(keys: int, *, masked: bool = False) -> list[onnx.NodeProto]:
    """Queries q4, keys k4 turned and values v4 of each head; a mask of the scores."""
    scored = [node("MatMul", "q4 k4", "s"), node("Mul", "s factor", "t")]
    return [
        *scored,
        *([node("Add", "t m", "u")] if masked else []),
        node("Softmax", "u" if masked else "t", "p"),
        node("MatMul", "p v4", "y"),
    ]


def heads(batch: int, heads: int, keys: int, e: int, v: int) -> list[onnx.ValueInfoProto]:
    """One query, keys and values of each head."""
    return [value("q4", batch, heads, 1, e), value("k4", batch, heads, e, keys), value("v4", batch, heads, keys, v)]


IMAGE = [value("x", 2, 8, 4, 5), value("s", 2, 8, 4, 5)]
NORM = [stored("g", 8), stored("b", 8)]
GROUPS: Any = {"groups": 4, "channels_last": 0}
ROWS = [value("x", 2, 6, 16), value("r", 2, 6, 16)]
FACTOR = scalar("factor", 0.5)
# Batch 2, 3 heads of 4 wide queries and keys, and 5 wide values: 7 steps before.
QUERY = [value("q", 2, 1, 12), value("k", 2, 1, 12), value("v", 2, 1, 15)]
PAST = [value("pk", 2, 3, 7, 4), value("pv", 2, 3, 7, 5), value("n", 1, code=INT32)]
DECODER = "DecoderMaskedMultiHeadAttention"
PAIRS = {
    "a sum before a group norm": Pair(
        microsoft("SkipGroupNorm", "x g b s", activation=0, **GROUPS), IMAGE, NORM,
        [node("Add", "x s", "a"), node("GroupNormalization", "a g b", "y", num_groups=4)],
    ),
    "two sums before a group norm, and SiLU": Pair(
        microsoft("SkipGroupNorm", "x g b s c", "y z", activation=1, **GROUPS),
        IMAGE, [*NORM, stored("c", 8)],
        [node("Add", "x s", "a"), node("Add", "a c", "d"),
         node("GroupNormalization", "d g b", "n", num_groups=4), node("Swish", "n", "y")],
        alone=(IMAGE, [*NORM, stored("c", 8, 1, 1)]),
    ),
    "GELU of one half": Pair(
        microsoft("BiasSplitGelu", "x b"), ROWS[:1], [stored("b", 16)],
        [node("Add", "x b", "a"), node("Split", "a", "l r", axis=-1, num_outputs=2), node("Gelu", "r", "g"),
         node("Mul", "l g", "y")],
    ),
    "a bias and a residual": Pair(
        microsoft("BiasAdd", "x b r"), ROWS, [stored("b", 16)], [node("Add", "x b", "a"), node("Add", "a r", "y")],
    ),
    "a bias, a dropout and a residual": Pair(
        microsoft("BiasDropout", "x b r"), ROWS, [stored("b", 16)],
        [node("Add", "x b", "a"), node("Dropout", "a", "d"), node("Add", "d r", "y")],
    ),
    "a bias and a dropout": Pair(
        microsoft("BiasDropout", "x b", "y kept"), ROWS[:1], [stored("b", 16)],
        [node("Add", "x b", "a"), node("Dropout", "a", "y")],
    ),
    "a softmax behind a product": Pair(
        microsoft("FusedMatMulActivation", "x r", transB=1, activation="Softmax", activation_axis=-1), ROWS, [],
        [node("Transpose", "r", "t", perm=[0, 2, 1]), node("MatMul", "x t", "p"), node("Softmax", "p", "y")],
    ),
    "a softmax behind a linear layer": Pair(
        microsoft("FusedGemm", "x w b", activation="Softmax"),
        [value("x", 3, 16)], [stored("w", 16, 5), stored("b", 5)],
        [node("Gemm", "x w b", "p"), node("Softmax", "p", "y")],
    ),
    "GELU behind a linear layer": Pair(
        microsoft("GemmFastGelu", "x w b"), ROWS[:1], [stored("w", 16, 5), stored("b", 5)],
        [node("MatMul", "x w", "p"), node("Add", "p b", "a"), node("Gelu", "a", "y")],
    ),
    "one step of a decoder": Pair(
        microsoft(DECODER, "q k v - - pk pv n", "y nk nv", num_heads=3), [*QUERY, *PAST], [],
        attended(8), alone=(heads(2, 3, 8, 4, 5), [FACTOR]),
    ),
    "one step of a decoder in a buffer": Pair(
        microsoft(DECODER, "q k v - - pk pv n", "y nk nv", num_heads=3, past_present_share_buffer=1),
        [*QUERY, *PAST], [], attended(7), alone=(heads(2, 3, 7, 4, 5), [FACTOR]),
    ),
    "one step of a decoder, masked": Pair(
        microsoft(DECODER, "q k v m - pk pv n", num_heads=3), [*QUERY, *PAST, value("m", 2, 8, code=INT32)], [],
        attended(8, masked=True), alone=([*heads(2, 3, 8, 4, 5), value("m", 2, 1, 1, 8)], [FACTOR]),
    ),
    "one step of a decoder, packed, with a bias": Pair(
        microsoft(DECODER, "qkv - - - - pk pv n - - b", num_heads=3),
        [value("qkv", 2, 1, 39), *PAST], [stored("b", 39)],
        [node("Add", "qkv b", "sum"), *attended(8)],
        alone=([value("qkv", 2, 1, 39), *heads(2, 3, 8, 4, 5)], [stored("b", 39), FACTOR]),
    ),
    "a step of a decoder that sees an encoder": Pair(  # whose keys and values lie in heads, and have had their bias
        microsoft(DECODER, "q k v - - - - - - - b", num_heads=3),
        [value("q", 2, 1, 12), value("k", 2, 3, 9, 4), value("v", 2, 3, 9, 4)], [stored("b", 36)],
        [node("Add", "q c", "sum"), *attended(9)],
        alone=([value("q", 2, 1, 12), *heads(2, 3, 9, 4, 4)], [stored("c", 12), FACTOR]),
    ),
    "a decoder that sees an encoder": Pair(
        microsoft("MultiHeadAttention", "q k v b", num_heads=3),
        [value("q", 2, 1, 12), value("k", 2, 3, 9, 4), value("v", 2, 3, 9, 4)], [stored("b", 36)],
        [node("Add", "q c", "sum"), *attended(9)],
        alone=([value("q", 2, 1, 12), *heads(2, 3, 9, 4, 4)], [stored("c", 12), FACTOR]),
    ),
    "projections and one step of a decoder": Pair(
        microsoft("DecoderMaskedSelfAttention", "x w b - p - n", "y z", num_heads=3),
        [value("x", 2, 1, 10), value("p", 2, 2, 3, 7, 4), value("n", 1, code=INT32)],
        [stored("w", 10, 36), stored("b", 36)],
        [node("MatMul", "x w", "a"), node("Add", "a b", "sum"), *attended(8)],
        alone=([value("x", 2, 1, 10), *heads(2, 3, 8, 4, 4)], [stored("w", 10, 36), stored("b", 36), FACTOR]),
    ),
    "projections and one step in a buffer": Pair(
        microsoft("Attention", "x w b - p - n", "y z", num_heads=3, past_present_share_buffer=1),
        [value("x", 2, 1, 10), value("p", 2, 2, 3, 7, 4), value("n", 1, code=INT32)],
        [stored("w", 10, 36), stored("b", 36)],
        [node("MatMul", "x w", "a"), node("Add", "a b", "sum"), *attended(7)],
        alone=([value("x", 2, 1, 10), *heads(2, 3, 7, 4, 4)], [stored("w", 10, 36), stored("b", 36), FACTOR]),
    ),
}  # fmt: skip
HALF_A_BIAS = ("a step of a decoder that sees an encoder", "a decoder that sees an encoder")


@pytest.mark.parametrize("name", PAIRS)
def test_a_fused_operator_costs_what_it_stands_for(name: str, tmp_path: Path) -> None:
    """MACs, FLOPs, parameters and the elements of the result are those of the graph without it."""
    pair = PAIRS[name]
    inputs, weights = pair.alone or (pair.inputs, pair.weights)
    one = measured(program([pair.fused], pair.inputs, pair.weights), tmp_path)
    all_of_them = measured(program(pair.nodes, inputs, weights), tmp_path)
    for key in ("macs", "flops"):
        assert one[key].complete, one[key].unmeasured
        assert one[key].value == all_of_them[key].value, key
    for key in ("bandwidth", "peak_activation", "params"):
        assert one[key].complete, key
    assert one["params"].value == sum(int(np.prod(each.dims)) for each in pair.weights)
    if name not in HALF_A_BIAS:
        assert one["params"].value == all_of_them["params"].value


@pytest.mark.parametrize("name", PAIRS)
def test_results_have_the_shapes_of_what_they_stand_for(name: str, tmp_path: Path) -> None:
    """A Neg of each writes as many bytes."""
    pair = PAIRS[name]
    inputs, weights = pair.alone or (pair.inputs, pair.weights)
    written = []
    for nodes, operands, stored_ones in (([pair.fused], pair.inputs, pair.weights), (pair.nodes, inputs, weights)):
        found = measured(program([*nodes, node("Neg", "y", "negated")], operands, stored_ones), tmp_path)
        (share,) = [each.value for each in found["total_activation"].shares if each.scope == "negated"]
        written.append(share)
    assert written[0] == written[1] > 0


TOKENS = [value("x", 9, 16), value("o", 2, 6, code=INT32), value("n", 3, code=INT32)]  # 9 of 2 · 6
PROJECTION = [stored("w", 16, 48), stored("b", 48)]
UNPADDED = "each query meets the keys of its own sequence, whose length the data decide"
# A node whose work the data decide; its inputs and weights, parameters, elements of its result, and why it has no MACs.
DECIDED = {
    "LongformerAttention": (
        microsoft("LongformerAttention", "x w b m gw gb g", num_heads=4, window=2),
        [value("x", 2, 8, 16), value("m", 2, 8), value("g", 2, 8, code=INT32)],
        [*PROJECTION, stored("gw", 16, 48), stored("gb", 48)], 2 * (16 * 48 + 48), 2 * 8 * 16,
        "each query meets a window of keys and those that the data choose",
    ),
    "PackedAttention": (
        microsoft("PackedAttention", "x w b o n", num_heads=4), TOKENS, PROJECTION, 16 * 48 + 48, 9 * 16, UNPADDED,
    ),
    "PackedAttention, narrow values": (
        microsoft("PackedAttention", "x w b o n", num_heads=4, qkv_hidden_sizes=[16, 16, 8]),
        TOKENS, [stored("w", 16, 40), stored("b", 40)], 16 * 40 + 40, 9 * 8, UNPADDED,
    ),
    "PackedMultiHeadAttention": (
        microsoft("PackedMultiHeadAttention", "x k v b o n", num_heads=4),
        [*TOKENS, value("k", 9, 16), value("v", 9, 8)], [stored("b", 40)], 40, 9 * 8, UNPADDED,
    ),
    "PackedMultiHeadAttention in one": (
        microsoft("PackedMultiHeadAttention", "q - - - o n", num_heads=4),
        [*TOKENS[1:], value("q", 9, 4, 3, 5)], [], 0, 9 * 4 * 5, UNPADDED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fused", "inputs", "weights", "params", "elements", "why"), DECIDED.values(), ids=DECIDED)
def test_work_that_the_data_decide_is_unmeasured(
    fused: onnx.NodeProto, inputs: Inputs, weights: Weights, params: int, elements: int, why: str, tmp_path: Path
) -> None:
    """The operator is named with the reason, and parameters and results are known."""
    found = measured(program([fused, node("Neg", "y", "negated")], inputs, weights), tmp_path)
    assert [(each.op, each.why) for each in found["macs"].unmeasured] == [(f"com.microsoft::{fused.op_type}", why)]
    assert (found["params"].value, found["params"].complete) == (params, True)
    written = {share.scope: share.value for share in found["total_activation"].shares}
    assert written["negated"] == 4 * elements
    assert found["bandwidth"].complete


def test_padding_is_moved(tmp_path: Path) -> None:
    """9 rows of 16 are put to their places among 2 · 6; where they came from, the data decide how many."""
    restored = microsoft("RestorePadding", "x o")
    found = measured(program([restored], TOKENS[:2], []), tmp_path)
    assert (found["flops"].value, found["bandwidth"].value) == (0, 4 * 9 * 16 + 4 * 12 + 4 * 12 * 16)
    removed = microsoft("RemovePadding", "r n", "y o l m")
    found = measured(program([removed], [*ROWS[1:], value("n", 2, code=INT32)], []), tmp_path)
    assert (found["macs"].value, found["macs"].complete) == (0, True)
    assert not found["bandwidth"].complete


def test_a_table_of_distances_is_a_weight(tmp_path: Path) -> None:
    """32 buckets of 4 heads, in no MAC; what finds the buckets has no figure."""
    lengths = [value("q", code=TensorProto.INT64), value("k", code=TensorProto.INT64)]
    bias = microsoft("RelativePositionBias", "w q k", max_distance=128)
    found = measured(program([bias], lengths, [stored("w", 32, 4)]), tmp_path)
    assert (found["params"].value, found["params"].complete) == (32 * 4, True)
    assert found["macs"].value == 0
    assert not found["flops"].complete


def test_one_of_two_integers_for_each_element(tmp_path: Path) -> None:
    """A condition, 2 · 3 bytes, and 3 to choose from beside them."""
    made = microsoft("QLinearWhere", "c x xs xz w xs xz xs xz")
    inputs = [value("c", 2, 3, code=BOOL), value("x", 2, 3, code=INT8)]
    grid = [scalar("xs", 0.1), scalar("xz", 0, np.int8)]
    proto = program([made], inputs, [*grid, stored("w", 3, dtype=np.int8)])
    proto.graph.output[0].type.tensor_type.elem_type = INT8
    found = measured(proto, tmp_path)
    assert (found["flops"].value, found["params"].value) == (2 * 3, 3)
    assert found["bandwidth"].value == 2 * 3 + 2 * 3 + 3 + 2 * 3
