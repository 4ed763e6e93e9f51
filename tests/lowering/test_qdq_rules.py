"""Which operations compute on integers, one rule a case, with the bytes of each operation written out.

x is float32 4x8 (32 elements), w int8 8x8 with a float32 scale for each of 8 columns: 64 + 32 = 96 B.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget import measure
from tests.builders.onnx_graphs import graph, integers, measured, model, node, packed, scalar, stored, value

INT8 = np.int8
E, WEIGHT = 32, 64 + 8 * 4  # elements of an activation; bytes of w with its scales
X = [value("x", 4, 8)]
GRID = [scalar("s", 1.0), scalar("z", 0, INT8)]
OTHER = [scalar("s2", 2.0), scalar("z2", 0, INT8)]
W = [stored("w", 8, 8, dtype=INT8), stored("ws", 8)]


def quantise(x: str, result: str, grid: str = "s z") -> onnx.NodeProto:
    return node("QuantizeLinear", f"{x} {grid}", result)


def dequantise(x: str, result: str, grid: str = "s z") -> onnx.NodeProto:
    return node("DequantizeLinear", f"{x} {grid}", result)


IN = [quantise("x", "q"), dequantise("q", "f")]  # x on its grid
OUT = [quantise("m", "r"), dequantise("r", "y")]  # m on its grid, and back as y
WF = node("DequantizeLinear", "w ws", "wf", axis=1)
MATMUL = node("MatMul", "f wf", "m")
Q, DQ = 4 * E + E, E + 4 * E  # bytes that the first quantise and the last dequantise move


def net(*nodes: onnx.NodeProto, weights: Any = (), x: Any = X, y: Any = ((4, 8),)) -> onnx.ModelProto:
    codes = {node.output[0]: TensorProto.INT64 for node in nodes if node.op_type == "ArgMax"}
    outputs = [
        value(name, *shape, code=codes.get(name, TensorProto.FLOAT))
        for name, shape in zip(("y", "f", "m"), y, strict=False)
    ]
    names = {name for each in nodes for name in each.input}
    known = {tensor.name: tensor for tensor in (*GRID, *OTHER, *W, *weights)}
    return model(list(nodes), list(x), outputs, [known[name] for name in known if name in names])


Case = tuple[onnx.ModelProto, Mapping[str, int], Mapping[str, int]]  # model, numbers, census
MEMBER = {"quantize": 1, "matmul": 1, "dequantize": 1}
CASES: dict[str, Case] = {
    "a group": (
        net(*IN, WF, MATMUL, *OUT),
        {"bandwidth": Q + (E + WEIGHT + E) + DQ, "peak_activation": Q, "params": 64, "weight_memory": WEIGHT,
         "flops": E + 2 * 4 * 8 * 8 + E},
        MEMBER,
    ),
    "an activation behind it is its clamp": (
        net(*IN, WF, MATMUL, node("Relu", "m", "a"), quantise("a", "r"), dequantise("r", "y")),
        {"bandwidth": Q + (E + WEIGHT + E) + DQ, "flops": E + 2 * 4 * 8 * 8 + E},
        MEMBER,
    ),
    "an activation alone is an operation": (
        net(*IN, node("Relu", "f", "m"), *OUT),
        {"bandwidth": Q + 2 * E + DQ, "flops": E + E + E},
        {"quantize": 1, "relu": 1, "dequantize": 1},
    ),
    "an activation beside another reader is one too": (
        net(*IN, WF, MATMUL, node("Relu", "m", "a"), quantise("a", "r1"), quantise("m", "r2"), dequantise("r1", "f1"),
            dequantise("r2", "f2"), node("Add", "f1 f2", "b"), quantise("b", "r"), dequantise("r", "y")),
        {"bandwidth": Q + (E + WEIGHT + E) + 2 * E + 3 * E + DQ},
        {"quantize": 1, "matmul": 1, "relu": 1, "add": 1, "dequantize": 1},
    ),
    "one grid twice is one tensor": (
        net(*IN, WF, MATMUL, quantise("m", "r1"), quantise("m", "r2"), dequantise("r1", "f1"), dequantise("r2", "f2"),
            node("Add", "f1 f2", "b"), quantise("b", "r"), dequantise("r", "y")),
        # the sum's two operands are the same 32 bytes, read once
        {"bandwidth": Q + (E + WEIGHT + E) + 2 * E + DQ},
        {"quantize": 1, "matmul": 1, "add": 1, "dequantize": 1},
    ),
    "two grids are two quantisations": (
        net(*IN, WF, MATMUL, quantise("m", "r1"), quantise("m", "r2", "s2 z2"), dequantise("r1", "f1"),
            dequantise("r2", "f2", "s2 z2"), node("Add", "f1 f2", "b"), quantise("b", "r"), dequantise("r", "y")),
        {"bandwidth": Q + (E + WEIGHT + 4 * E) + 2 * Q + 3 * E + DQ},
        {"quantize": 3, "matmul": 1, "add": 1, "dequantize": 1},
    ),
    "a product without requantisation": (
        net(*IN, WF, MATMUL, node("Softmax", "m", "y")),
        {"bandwidth": Q + (E + WEIGHT + 4 * E) + 8 * E},
        {"quantize": 1, "matmul": 1, "softmax": 1},
    ),
    "a float operand keeps the sum in floats": (
        net(*IN, node("Add", "f x", "m"), *OUT),
        {"bandwidth": Q + DQ + (4 * E + 4 * E + 4 * E) + Q + DQ},
        {"quantize": 2, "dequantize": 2, "add": 1},
    ),
    "an operation without an integer form": (
        net(*IN, WF, MATMUL, quantise("m", "r1"), dequantise("r1", "f1"), node("CumSum", "f1 axis", "c"),
            quantise("c", "r"), dequantise("r", "y"),
            weights=[scalar("axis", 0, np.int64)]),
        {"bandwidth": Q + (E + WEIGHT + E) + DQ + 8 * E + Q + DQ},
        {"quantize": 2, "matmul": 1, "dequantize": 2, "cumulative": 1},
    ),
    "the floats are an output too": (
        net(*IN, WF, MATMUL, *OUT, y=((4, 8), (4, 8))),
        {"bandwidth": Q + DQ + (E + WEIGHT + E) + DQ},
        {"quantize": 1, "matmul": 1, "dequantize": 2},
    ),
    "a weight alone": (
        net(WF, node("MatMul", "x wf", "y")),
        {"bandwidth": 4 * E + WEIGHT + 4 * E, "peak_activation": 8 * E, "flops": 2 * 4 * 8 * 8},
        {"matmul": 1},
    ),
    "weight and bias alone": (  # no scale of an input makes that of the bias: it is read
        net(WF, node("DequantizeLinear", "c cs", "cf", axis=0), node("Gemm", "x wf cf", "y"),
            weights=[stored("c", 8, dtype=np.int32), stored("cs", 8)]),
        {"bandwidth": 4 * E + WEIGHT + 2 * 4 * 8 + 4 * E, "weight_memory": WEIGHT + 2 * 4 * 8, "params": 64 + 8},
        {"linear": 1},
    ),
    "a group with its bias": (
        net(*IN, WF, node("DequantizeLinear", "c cs", "cf", axis=0), node("Gemm", "f wf cf", "m"), *OUT,
            weights=[stored("c", 8, dtype=np.int32), stored("cs", 8)]),
        {"bandwidth": Q + (E + WEIGHT + 4 * 8 + E) + DQ, "weight_memory": WEIGHT + 4 * 8, "params": 64 + 8},
        {"quantize": 1, "linear": 1, "dequantize": 1},
    ),
    "a part of it": (
        net(*IN, node("Split", "f", "a b", axis=1, num_outputs=2), quantise("a", "qa"), quantise("b", "qb"),
            dequantise("qa", "fa"), dequantise("qb", "fb"), node("Mul", "fa fb", "m"), *OUT, y=((4, 4),)),
        {"bandwidth": Q + 2 * E + (E + E // 2) + DQ // 2},
        {"quantize": 1, "split": 1, "mul": 1, "dequantize": 1},
    ),
    "a part of it, the rest in floats": (
        net(*IN, node("Split", "f", "a b", axis=1, num_outputs=2), quantise("a", "qa"), dequantise("qa", "fa"),
            node("Mul", "fa b", "y"), y=((4, 4),)),
        {"bandwidth": Q + DQ + 8 * E + (Q + DQ) // 2 + 3 * 4 * E // 2},
        {"quantize": 2, "dequantize": 2, "split": 1, "mul": 1},
    ),
    "which is largest": (
        net(*IN, node("ArgMax", "f", "y", axis=1, keepdims=0), y=((4,),)),
        {"bandwidth": Q + E + 4 * 8},
        {"quantize": 1, "maximum_over": 1},
    ),
    "a constant of rank 0": (
        net(*IN, node("Mul", "f half", "m"), *OUT, weights=[scalar("half", 0.5)]),
        {"bandwidth": Q + 2 * E + DQ},
        {"quantize": 1, "mul": 1, "dequantize": 1},
    ),
    "a weight alone, turned": (
        net(WF, node("Transpose", "wf", "t", perm=[1, 0]), node("MatMul", "x t", "y")),
        {"bandwidth": 2 * 64 + 4 * E + WEIGHT + 4 * E, "params": 64},
        {"transpose": 1, "matmul": 1},
    ),
    "a weight stored in floats": (
        net(*IN, node("QuantizeLinear", "v ws vz", "vq", axis=1), node("DequantizeLinear", "vq ws vz", "wf", axis=1),
            MATMUL, *OUT, weights=[stored("v", 8, 8), stored("vz", 8, dtype=INT8)]),
        {"bandwidth": Q + (E + 4 * 64 + E) + DQ, "weight_memory": 4 * 64, "params": 64},
        MEMBER,
    ),
    "a weight of four bits in blocks": (
        net(*IN, node("DequantizeLinear", "w4 bs", "wf", axis=0, block_size=4), MATMUL, *OUT,
            weights=[packed("w4", TensorProto.INT4, 8, 8), stored("bs", 2, 8)]),
        {"bandwidth": Q + (E + 32 + 4 * 16 + E) + DQ, "weight_memory": 32 + 64, "params": 64},
        MEMBER,
    ),
    "a scale that is quantised itself": (
        net(node("DequantizeLinear", "sq s", "ws2"), node("DequantizeLinear", "w ws2", "wf", axis=1), *IN, MATMUL,
            *OUT, weights=[stored("sq", 8, dtype=INT8)]),
        {"bandwidth": Q + (E + 64 + 8 + E) + DQ, "params": 64},
        MEMBER,
    ),
    "activations of 16 bits": (
        net(quantise("x", "q", "s z16"), dequantise("q", "f", "s z16"), WF, MATMUL, quantise("m", "r", "s z16"),
            dequantise("r", "y", "s z16"), weights=[scalar("z16", 0, np.int16)]),
        {"bandwidth": 6 * E + (2 * E + WEIGHT + 2 * E) + 6 * E},
        MEMBER,
    ),
    "rows of a table": (
        net(WF, node("Gather", "wf ids", "y"), x=[value("ids", 3, code=TensorProto.INT64)], y=((3, 8),)),
        {"bandwidth": 3 * 8 + 8 * 4 + 3 * 8 + 3 * 8 * 4, "params": 64},
        {"gather": 1},
    ),
    "values that are moved, on one grid": (
        net(*IN, WF, node("Reshape", "f sizes", "a"), quantise("a", "b"), dequantise("b", "c"),
            node("Transpose", "c", "d", perm=[1, 0]), quantise("d", "e"), dequantise("e", "g"),
            node("MatMul", "g wf", "m"), *OUT, weights=[integers("sizes", 8, 4)]),
        {"bandwidth": Q + 2 * E + (E + WEIGHT + E) + DQ},  # Reshape is a view of the integers
        {"quantize": 1, "reshape": 1, "transpose": 1, "matmul": 1, "dequantize": 1},
    ),
    "values that are moved, and quantised nowhere on the way": (
        net(*IN, WF, node("Reshape", "f sizes", "a"), node("Transpose", "a", "g", perm=[1, 0]),
            node("MatMul", "g wf", "m"), *OUT, weights=[integers("sizes", 8, 4)]),
        {"bandwidth": Q + 2 * E + (E + WEIGHT + E) + DQ},
        {"quantize": 1, "reshape": 1, "transpose": 1, "matmul": 1, "dequantize": 1},
    ),
    "a view onto another grid is a copy": (
        net(*IN, node("Reshape", "f sizes", "m"), quantise("m", "r", "s2 z2"), dequantise("r", "y", "s2 z2"),
            weights=[integers("sizes", 8, 4)], y=((8, 4),)),
        {"bandwidth": Q + 2 * E + DQ},
        {"quantize": 1, "reshape": 1, "dequantize": 1},
    ),
    "from grid to grid": (
        net(*IN, quantise("f", "a"), dequantise("a", "b"), quantise("b", "r", "s2 z2"), dequantise("r", "y", "s2 z2")),
        {"bandwidth": Q + 2 * E + DQ},
        {"quantize": 2, "dequantize": 1},
    ),
    "ranges of the run": (
        net(node("DynamicQuantizeLinear", "x", "q ds dz"), dequantise("q", "f", "ds dz"), WF,
            node("MatMul", "f wf", "y")),
        {"bandwidth": (4 * E + E + 4 + 1) + (E + 4 + 1 + WEIGHT + 4 * E)},
        {"quantize": 1, "matmul": 1},
    ),
    "a shape that is asked for": (
        net(*IN, WF, MATMUL, node("Shape", "m", "n"), quantise("m", "a"), dequantise("a", "b"),
            node("Reshape", "b n", "c"), quantise("c", "r"), dequantise("r", "y")),
        {"bandwidth": Q + (E + WEIGHT + E) + DQ},
        {"quantize": 1, "matmul": 1, "shape": 1, "reshape": 1, "dequantize": 1},
    ),
    "a cast from float to float": (
        net(*IN, node("Cast", "f", "h", to=TensorProto.FLOAT16), node("Relu", "h", "a"),
            node("Cast", "a", "m", to=TensorProto.FLOAT), *OUT),
        {"bandwidth": Q + 2 * E + DQ},
        {"quantize": 1, "relu": 1, "dequantize": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules(case: str, tmp_path: Path) -> None:
    """Bytes and census are the arithmetic beside the model; MACs, parameters and completeness are those as written."""
    made, expected, census = CASES[case]
    number = measured(made, tmp_path)
    assert {key: number[key].value for key in expected} == expected
    assert number["ops"].parts == census
    written = measure(tmp_path / "model.onnx", qdq="as_written")
    assert number["macs"].value == written["macs"].value
    assert number["params"].value == written["params"].value
    assert number["peak_activation"].value <= written["peak_activation"].value
    assert all(number[key].complete for key in ("macs", "params", "bandwidth", "peak_activation"))


NOTES = {
    "a group": (),
    "a float operand keeps the sum in floats": (
        "QDQ: as written, because it reads float32 next to integers: onnx::Add in m",
    ),
    "an operation without an integer form": (
        "QDQ: as written, because no integer form of it is known: onnx::CumSum in c",
    ),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes_say_what_stays_floating_and_why(case: str, tmp_path: Path) -> None:
    """The first note counts the operations on integers; each further one names what could not be read, and why."""
    found = measured(CASES[case][0], tmp_path).notes  # type: ignore[attr-defined]
    assert tuple(note for note in found if "as written, because" in note) == NOTES[case]


@pytest.mark.parametrize(
    ("nodes", "outputs", "why"),
    [
        pytest.param([quantise("m", "r"), dequantise("r", "y")], ((4, 8), (4, 8), (4, 8)),
                     "its result is an output of the model", id="an output"),
        pytest.param([quantise("m", "r1"), quantise("m", "r2", "s2 z2"), dequantise("r1", "f1"),
                      dequantise("r2", "f2", "s2 z2"), node("Add", "f1 f2", "y")], ((4, 8),),
                     "its result is quantised in more than one way", id="two grids"),
        pytest.param([quantise("m", "r"), dequantise("r", "b"), node("Pow", "m b", "y")], ((4, 8),),
                     "its result is read by onnx::Pow in float32", id="a float reader"),
    ],
)  # fmt: skip
def test_what_hinders_a_group(
    nodes: list[onnx.NodeProto], outputs: tuple[tuple[int, ...], ...], why: str, tmp_path: Path
) -> None:
    """An operation whose floating result is seen, or quantised in two ways, stays floating; the note says which."""
    found = measured(net(*IN, node("Sigmoid", "f", "m"), *nodes, y=outputs), tmp_path).notes  # type: ignore[attr-defined]
    assert f"QDQ: as written, because {why}: onnx::Sigmoid in m" in found


def test_bodies_are_read_inside(tmp_path: Path) -> None:
    """A scan of three steps: each quantises its slice, multiplies integers, and writes its floats into the result."""
    steps = [quantise("step", "q"), dequantise("q", "f"), WF, MATMUL, quantise("m", "r"), dequantise("r", "slice")]
    body = graph(steps, [value("step", 4, 8)], [value("slice", 4, 8)])
    scan = node("Scan", "x", "y", body=body, num_scan_inputs=1)
    number = measured(model([scan], [value("x", 3, 4, 8)], [value("y", 3, 4, 8)], [*GRID, *W]), tmp_path)
    assert number["bandwidth"].value == 3 * (Q + (E + WEIGHT + E) + DQ)
    assert number["macs"].value == 3 * 4 * 8 * 8


def test_a_body_is_told_of_once(tmp_path: Path) -> None:
    """One product, in seven steps of a scan: one operation, which is read on integers."""
    steps = [quantise("step", "q"), dequantise("q", "f"), WF, MATMUL, quantise("m", "r"), dequantise("r", "slice")]
    body = graph(steps, [value("step", 4, 8)], [value("slice", 4, 8)])
    scan = node("Scan", "x", "y", body=body, num_scan_inputs=1)
    found = measured(model([scan], [value("x", 7, 4, 8)], [value("y", 7, 4, 8)], [*GRID, *W]), tmp_path)
    assert any("1 operation is read on integers" in note for note in found.notes)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_state_is_floating_between_runs(count: int, tmp_path: Path) -> None:
    """Each run quantises what the one before left, multiplies integers, and leaves floats: a state is of one type."""
    steps = [quantise("a", "q"), dequantise("q", "f"), WF, MATMUL, quantise("m", "r"), dequantise("r", "u")]
    body = graph(
        [node("Identity", "c", "d"), *steps],
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("a", 4, 8)],
        [value("d", code=TensorProto.BOOL), value("u", 4, 8)],
    )
    counted = onnx.numpy_helper.from_array(np.array(count, np.int64), "n")
    made = model([node("Loop", "n - x", "y", body=body)], [value("x", 4, 8)], [value("y", 4, 8)], [*GRID, *W, counted])
    assert measured(made, tmp_path)["bandwidth"].value == count * (Q + (E + WEIGHT + E) + DQ)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_state_of_integers_that_is_stacked_too(count: int, tmp_path: Path) -> None:
    """From the second run on, the product reads a slice of the stacked result, and writes the next: it is no view."""
    body = graph(
        [node("Identity", "c", "d"), dequantise("a", "f"), WF, MATMUL, quantise("m", "r")],
        [
            value("i", code=TensorProto.INT64),
            value("c", code=TensorProto.BOOL),
            value("a", 4, 8, code=TensorProto.INT8),
        ],
        [value("d", code=TensorProto.BOOL), *[value("r", 4, 8, code=TensorProto.INT8)] * 2],
    )
    counted = onnx.numpy_helper.from_array(np.array(count, np.int64), "n")
    codes = {"code": TensorProto.INT8}
    outputs = [value("y", 4, 8, **codes), value("k", count, 4, 8, **codes)]
    loop = node("Loop", "n - x", "y k", body=body)
    number = measured(model([loop], [value("x", 4, 8, **codes)], outputs, [*GRID, *W, counted]), tmp_path)
    assert number["macs"].value == count * 4 * 8 * 8
    assert number["bandwidth"].value == count * (E + WEIGHT + E)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_slices_that_stay_as_they_are_are_copied(count: int, tmp_path: Path) -> None:
    """A slice that is dequantised and quantised alike moves as it is; one that is quantised twice is copied then."""
    codes = {"code": TensorProto.INT8}
    body = graph([dequantise("p", "f"), quantise("f", "r")], [value("p", 4, 8, **codes)], [value("r", 4, 8, **codes)])
    scan = node("Scan", "x", "y", body=body, num_scan_inputs=1)
    ends = [value("x", count, 4, 8, **codes)], [value("y", count, 4, 8, **codes)]
    assert measured(model([scan], *ends, [*GRID]), tmp_path)["bandwidth"].value == count * 2 * E
    body = graph(
        [quantise("p", "a"), quantise("p", "b"), dequantise("a", "f")],
        [value("p", 4, 8)], [value("b", 4, 8, **codes), value("a", 4, 8, **codes), value("f", 4, 8)],
    )  # fmt: skip
    scan = node("Scan", "x", "y k l", body=body, num_scan_inputs=1)
    results = [value("y", count, 4, 8, **codes), value("k", count, 4, 8, **codes), value("l", count, 4, 8)]
    made = model([scan], [value("x", count, 4, 8)], results, [*GRID])
    assert measured(made, tmp_path)["bandwidth"].value == count * (Q + 2 * E + DQ)
