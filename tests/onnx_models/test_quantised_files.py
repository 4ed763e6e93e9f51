"""Quantised files as tools write them: one grid in many nodes, four bits, scales of dynamic quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_graphs import graph, integers, measured, model, node, packed, scalar, stored, value

EVERY = ("macs", "params", "weight_memory", "peak_activation", "bandwidth", "bandwidth_floor")


def two_readers(*, shared: bool, shape: tuple[int, ...] = ()) -> onnx.ModelProto:
    """x · w, read by a product and by a sigmoid, each behind a quantise and a dequantise of its own."""
    scales: list[onnx.TensorProto] = []

    def grid() -> str:
        if not scales or not shared:
            at = len(scales) // 2
            scales.append(onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), f"s{at}"))
            scales.append(onnx.numpy_helper.from_array(np.zeros(shape, np.uint8), f"z{at}"))
        return f"{scales[-2].name} {scales[-1].name}"

    def held(x: str) -> list[onnx.NodeProto]:
        return [node("QuantizeLinear", f"{x} {grid()}", f"{x}q"), node("DequantizeLinear", f"{x}q {grid()}", f"{x}f")]

    def again(x: str) -> list[onnx.NodeProto]:
        return [node("QuantizeLinear", f"{x} {grid()}", f"{x}r"), node("DequantizeLinear", f"{x}r {grid()}", f"{x}g")]

    nodes = [
        node("DequantizeLinear", "w ws", "wf"), *held("x"), node("MatMul", "xf wf", "h"),
        *held("h"), node("MatMul", "hf wf", "a"), *held("a"), *again("h"), node("Sigmoid", "hg", "b"), *held("b"),
    ]  # fmt: skip
    outputs = [value("af", 4, 8), value("bf", 4, 8)]
    weights = [stored("w", 8, 8, dtype=np.int8), scalar("ws", 0.25), *scales]
    return model(nodes, [value("x", 4, 8)], outputs, weights)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["rank 0", "rank 1"])
def test_a_scale_for_each_node_is_one_grid(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Exporters write scale and zero point anew for each node: what has the same numbers is one grid.

    Peak: the first output in floats, 128 B, while the second is made, 128 B, of its integers, 32 B.
    """
    apart, together = (measured(two_readers(shared=shared, shape=shape), tmp_path) for shared in (False, True))
    keys = EVERY if not shape else EVERY[:5]
    assert {key: apart[key].value for key in keys} == {key: together[key].value for key in keys}
    assert (apart["macs"].value, apart["peak_activation"].value) == (2 * 4 * 8 * 8, 128 + 32 + 128)
    assert apart["ops"].parts == together["ops"].parts


@pytest.mark.parametrize("domain", ["", "com.microsoft"], ids=["onnx", "com.microsoft"])
@pytest.mark.parametrize("code", [TensorProto.INT4, TensorProto.UINT4], ids=["int4", "uint4"])
def test_four_bits_of_older_operator_sets(code: int, domain: str, tmp_path: Path) -> None:
    """ONNX Runtime writes int4 under its own names below opset 21: 8 · 8 weights are 32 B, the scale 4 B."""
    nodes = [node("DequantizeLinear", "w s z", "f", domain=domain), node("MatMul", "x f", "y")]
    weights = [packed("w", code, 8, 8), scalar("s", 0.5), packed("z", code)]
    opset = 17 if domain else 21
    proto = model(nodes, [value("x", 4, 8)], [value("y", 4, 8)], weights, opset=opset, domains=[domain or "own"])
    found = measured(proto, tmp_path)
    assert {key: found[key].value for key in ("macs", "params")} == {"macs": 4 * 8 * 8, "params": 64}
    assert all(found[key].complete for key in EVERY)
    assert found["weight_memory"].value == 32 + 4 + 1


@pytest.mark.parametrize("columns", [1, 5], ids=["a scale a tensor", "a scale a column"])
def test_scales_of_dynamic_quantisation_are_no_parameters(columns: int, tmp_path: Path) -> None:
    """onnxruntime.quantization.quantize_dynamic: scale of x times scale of w, times the integer product.

    8 · 5 = 40 parameters of 40 B, a scale of 4 B and a zero point of 1 B for each column or for all.
    """
    shape = () if columns == 1 else (columns,)
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q w z wz", "i"),
        node("Cast", "i", "c", to=1), node("Mul", "s ws", "t"), node("Mul", "c t", "y"),
    ]  # fmt: skip
    weights = [stored("w", 8, 5, dtype=np.int8), stored("ws", *shape), stored("wz", *shape, dtype=np.int8)]
    found = measured(model(nodes, [value("x", 4, 8)], [value("y", 4, 5)], weights), tmp_path)
    assert {key: found[key].value for key in ("macs", "params", "weight_memory")} == {
        "macs": 4 * 8 * 5, "params": 40, "weight_memory": 40 + 5 * columns,
    }  # fmt: skip


def picked(rows: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Five rows of a table of 40 rows of 8 integers, in floats by a scale, times 8 x 4 floats."""
    weights = [stored("t", 40, 8, dtype=np.int8), scalar("s", 0.5), packed("z", TensorProto.INT8), stored("w", 8, 4)]
    outputs = [value("y", 1, 5, 4)]
    nodes = [*rows, node("MatMul", "d w", "y")]
    return model(nodes, [value("i", 1, 5, code=TensorProto.INT64)], outputs, weights, domains=["com.microsoft"])


@pytest.mark.parametrize(
    "rows",
    [
        [node("Gather", "t i", "r"), node("DequantizeLinear", "r s z", "d")],
        [node("DequantizeLinear", "t s z", "f"), node("Gather", "f i", "d")],
        [node("Gather", "t i", "g"), node("Identity", "g", "r"), node("DequantizeLinear", "r s z", "d")],
        [
            node("Gather", "t i", "r"),
            node("QLinearAdd", "r s z r s z s z", "a", domain="com.microsoft"),
            node("DequantizeLinear", "a s z", "d"),
        ],
    ],
    ids=["rows of integers", "rows of floats", "handed on", "added to another"],
)
def test_a_table_is_one_where_its_rows_are_dequantised(rows: Sequence[onnx.NodeProto], tmp_path: Path) -> None:
    """onnxruntime.quantization picks rows before it dequantises them: 40 · 8 and 8 · 4 parameters in either order.

    Bytes: 320 of int8, with a scale of 4 and a zero point of 1, and 128 of floats.
    """
    found = measured(picked(rows), tmp_path)
    assert (found["params"].value, found["weight_memory"].value) == (40 * 8 + 8 * 4, 320 + 4 + 1 + 128)
    assert found["model_size"].value == found["weight_memory"].value
    assert found["params"].complete


def by_rows(*rows: onnx.NodeProto) -> onnx.ModelProto:
    """The same table with a scale and a zero point for each row, for five rows of which the caller asks."""
    scales = [stored("s", 40), stored("z", 40, dtype=np.int8)]
    weights = [stored("t", 40, 8, dtype=np.int8), *scales, stored("w", 8, 4)]
    nodes = [*rows, node("MatMul", "d w", "y")]
    return model(nodes, [value("i", 5, code=TensorProto.INT64)], [value("y", 5, 4)], weights)


EACH = [node("Gather", "t i", "r"), node("Gather", "z i", "zr")]
LAST = node("DequantizeLinear", "r sr zr", "d", axis=0)
BY_ROWS = {
    "rows of integers": by_rows(*EACH, node("Gather", "s i", "sr"), LAST),
    "rows of floats": by_rows(node("DequantizeLinear", "t s z", "f", axis=0), node("Gather", "f i", "d")),
    "handed on": by_rows(*EACH, node("Gather", "s i", "g"), node("Identity", "g", "sr"), LAST),
}


@pytest.mark.parametrize("proto", BY_ROWS.values(), ids=BY_ROWS)
def test_scales_that_are_picked_with_their_rows_are_no_parameters(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """40 · 8 and 8 · 4 parameters; bytes are those of 320 integers, 40 scales, 40 zero points and 32 floats."""
    found = measured(proto, tmp_path)
    assert (found["params"].value, found["weight_memory"].value) == (40 * 8 + 8 * 4, 320 + 40 * 4 + 40 + 128)


def test_floats_that_are_picked_for_another_reader_too_are_parameters(tmp_path: Path) -> None:
    """As a scale and as a shift of every column: 40 parameters more."""
    shift = [node("Unsqueeze", "sr one", "u"), node("Add", "u d0", "d")]
    rows = [*EACH, node("Gather", "s i", "sr"), node("DequantizeLinear", "r sr zr", "d0", axis=0), *shift]
    proto = by_rows(*rows)
    proto.graph.initializer.append(integers("one", 1))
    assert measured(proto, tmp_path)["params"].value == 40 * 8 + 8 * 4 + 40


def test_rows_that_a_branch_picks_have_their_scale(tmp_path: Path) -> None:
    """Of 4 B, and a zero point of 1 B, which the bytes of weights lacked."""
    branches = {
        f"{name}_branch": graph([node("Gather", f"t {at}", name)], [], [value(name, 1, 5, 8, code=TensorProto.INT8)])
        for name, at in (("then", "i"), ("else", "j"))
    }
    proto = picked([node("If", "b", "r", **branches), node("DequantizeLinear", "r s z", "d")])
    proto.graph.input.extend([value("j", 1, 5, code=TensorProto.INT64), value("b", code=TensorProto.BOOL)])
    found = measured(proto, tmp_path)
    assert (found["params"].value, found["weight_memory"].value) == (40 * 8 + 8 * 4, 320 + 4 + 1 + 128)


@pytest.mark.parametrize("whole", [True, False], ids=["rows of floats", "rows of integers"])
def test_a_table_is_one_where_its_rows_are_handed_out(whole: bool, tmp_path: Path) -> None:
    """A file that ends with its embedding: 40 · 8 parameters of a byte, a scale of 4 and a zero point of 1."""
    pick, floats = ("Gather", "t i", "r"), ("DequantizeLinear", "r s z", "y")
    if whole:
        pick, floats = ("DequantizeLinear", "t s z", "f"), ("Gather", "f i", "y")
    weights = [stored("t", 40, 8, dtype=np.int8), scalar("s", 0.5), packed("z", TensorProto.INT8)]
    rows = [value("i", 1, 5, code=TensorProto.INT64)]
    found = measured(model([node(*pick), node(*floats)], rows, [value("y", 1, 5, 8)], weights), tmp_path)
    assert (found["params"].value, found["weight_memory"].value) == (40 * 8, 40 * 8 + 4 + 1)


def test_a_table_of_sizes_and_positions_is_none(tmp_path: Path) -> None:
    """Integers that are picked and cast, or pick rows themselves, are no weights: 8 · 4 parameters and no more."""
    rows = [node("Gather", "t i", "r"), node("Cast", "r", "d", to=TensorProto.FLOAT)]
    assert measured(picked(rows), tmp_path)["params"].value == 8 * 4


def test_a_table_of_which_an_unknown_operator_reads_rows_may_be_one(tmp_path: Path) -> None:
    """Somebody's own operator may dequantise the rows: params are a lower bound, by its name."""
    rows = [node("Gather", "t i", "r"), node("Decode", "r", "d", domain="com.microsoft")]
    params = measured(picked(rows), tmp_path)["params"]
    assert (params.value, params.complete) == (8 * 4, False)
    assert params.unmeasured[0].op == "com.microsoft::Decode"


def test_a_scale_that_the_network_learnt_is_one(tmp_path: Path) -> None:
    """A stored tensor that is multiplied with anything else stays a parameter: 5 of them."""
    proto = model([node("Mul", "x g", "y")], [value("x", 4, 5)], [value("y", 4, 5)], [stored("g", 5)])
    assert measured(proto, tmp_path)["params"].value == 5


def test_a_quantisation_of_nothing_is_refused(tmp_path: Path) -> None:
    """A node without operands is refused in the words of onnx and of ONNX Runtime."""
    made = node("QuantizeLinear", "", "y", domain="com.microsoft")
    proto = model([made], [value("x", 4)], [value("y", None)], domains=["com.microsoft"])
    with pytest.raises(SourceError, match="has input size 0 not in range"):
        measured(proto, tmp_path)
    with pytest.raises(SourceError, match="QuantizeLinear"):
        measured(model([node("QuantizeLinear", "", "y")], [value("x", 4)], [value("y", None)]), tmp_path)
