"""Sizes that stored values say, and onnx's inference does not, are those that ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.builders.onnx_graphs import integers, measured, model, node, scalar, stored, value

ort = pytest.importorskip("onnxruntime")
INT64 = TensorProto.INT64
PLACES = numpy_helper.from_array(np.array([[[[0, 2], [8, 10]]]], np.int64), "places")


def flags(*entries: int) -> onnx.TensorProto:
    """A stored condition."""
    return numpy_helper.from_array(np.array(entries, np.bool_), "flags")


def built(made: onnx.NodeProto, x: onnx.ValueInfoProto, rank: int, *weights: onnx.TensorProto) -> onnx.ModelProto:
    """One node on x, whose result has so many axes; twice as large, it is the output."""
    nodes = [made, node("Add", "h h", "y")]
    return model(nodes, [x], [value("y", *([None] * rank))], weights)


ROWS, SIGNAL = value("x", 3, 4), value("x", 1, 128, 1)
STEPS = (scalar("step", 8, np.int64), scalar("length", 16, np.int64))
# Each with the shape of h: 128 samples hold (128 - 16) / 8 + 1 = 15 windows of 16, each with 16 / 2 + 1 = 9 or 16 bins.
CASES = {
    "rows": (built(node("Compress", "x flags", "h", axis=0), ROWS, 2, flags(1, 0, 1)), (2, 4)),
    "columns from behind": (built(node("Compress", "x flags", "h", axis=-1), ROWS, 2, flags(0, 1, 0, 0)), (3, 1)),
    "a short condition": (built(node("Compress", "x flags", "h", axis=0), ROWS, 2, flags(1)), (1, 4)),
    "a row of all": (built(node("Compress", "x flags", "h"), ROWS, 1, flags(1, 0, 1, 1, 0)), (3,)),
    "nothing": (built(node("Compress", "x flags", "h", axis=0), ROWS, 2, flags(0, 0, 0)), (0, 4)),
    "unpooled": (
        built(node("MaxUnpool", "x places shape", "h", kernel_shape=[2, 2], strides=[2, 2]), value("x", 1, 1, 2, 2), 4,
              PLACES, integers("shape", 1, 1, 5, 5)),
        (1, 1, 5, 5),
    ),
    "one side": (built(node("STFT", "x step - length", "h"), SIGNAL, 4, *STEPS), (1, 15, 9, 2)),
    "one side, as said": (
        built(node("STFT", "x step - length", "h", onesided=1), SIGNAL, 4, *STEPS), (1, 15, 9, 2),
    ),
    "both sides": (built(node("STFT", "x step - length", "h", onesided=0), SIGNAL, 4, *STEPS), (1, 15, 16, 2)),
}  # fmt: skip


@pytest.mark.parametrize(("made", "shape"), CASES.values(), ids=CASES)
def test_results_are_as_large_as_they_run(made: onnx.ModelProto, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Two results of that shape are written, in float32."""
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    (result,) = session.run(None, {"x": np.ones(given.shape, np.float32)})
    assert result.shape == shape
    written = measured(made, tmp_path)["total_activation"]
    assert (written.value, written.complete) == (2 * 4 * int(np.prod(shape)), True)


PART = node("SequenceAt", "parts one", "w")
SEQUENCES = {
    "construct": ([node("SequenceConstruct", "a b", "parts"), PART], [stored("a", 8, 4), stored("b", 8, 4)]),
    "split": ([node("SplitToSequence", "a", "parts", axis=0, keepdims=0), PART], [stored("a", 2, 8, 4)]),
}


@pytest.mark.parametrize(("nodes", "weights"), SEQUENCES.values(), ids=SEQUENCES)
def test_weights_in_a_sequence_are_weights(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], tmp_path: Path
) -> None:
    """x (2, 8) · one of two weights (8, 4), taken from a sequence of both, which has no size of its own."""
    product = node("MatMul", "x w", "y")
    index = scalar("one", 1, np.int64)
    made = model([*nodes, product], [value("x", 2, 8)], [value("y", 2, 4)], [*weights, index])
    found = measured(made, tmp_path)
    assert (found["macs"].value, found["macs"].complete) == (2 * 8 * 4, True)
    assert (found["params"].value, found["params"].complete) == (2 * 8 * 4, True)
    peak = found["peak_activation"]
    assert (peak.value, peak.complete) == (4 * (2 * 8 + 8 * 4 + 2 * 4), False)


HEADER = '<ir_version: 8, opset_import: ["": 17]> g (float[4, 16] x) => '
STORED = f"""<float[16, 8] w = {{{", ".join(map(str, np.arange(128) / 100))}}},
    int64[1] axis = {{0}}, int64 zero = {{0}}, int64 one = {{1}}>"""
SIZES = "p = MatMul(x, w) s = ReduceSum<keepdims=0>(p, axis) k = Cast<to=7>(s)"

ENDS = {
    "(float[n] y)": "m = ReduceSum<keepdims=0>(k) r = Range(zero, m, one) y = Cast<to=1>(r)",
    "(float[a, b] y)": "y = Expand(x, k)",
    "(float[c, d] y)": "y = Reshape(x, k)",
    "(float[e, f] y)": "q = Identity(k) y = ConstantOfShape(q)",
    "(float[4, g] y)": "m = ReduceMax<keepdims=1>(k) y, i = TopK(x, m)",
}
PROGRAMS = [f"{result} {STORED} {{ {SIZES} {end} }}" for result, end in ENDS.items()]


@pytest.mark.parametrize("program", PROGRAMS, ids=list(ENDS.values()))
def test_products_that_only_lead_to_a_size_are_counted(program: str, tmp_path: Path) -> None:
    """4 x 16 · 16 x 8 runs, whatever becomes of it: 512 MAC, and never 0; its weight is a parameter."""
    proto = onnx.parser.parse_model(HEADER + program)
    onnx.checker.check_model(proto)
    found = measured(proto, tmp_path)
    assert (found["macs"].value, found["params"].value) == (4 * 16 * 8, 16 * 8)
