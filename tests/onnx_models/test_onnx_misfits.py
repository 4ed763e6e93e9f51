"""Nodes that no runtime runs are refused, and shapes that a file declares wrongly count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.onnx_models.checks import CHECKS
from pytest_modelbudget.onnx_models.protos import operator_name
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import FLOAT, OPSET, graph, integers, measured, model, node, scalar, stored, value

ort = pytest.importorskip("onnxruntime")


class Case(NamedTuple):
    """Nodes on x; right are weights that fit them, wrong are others of which one does not, or wrong_x another input."""

    nodes: Sequence[onnx.NodeProto]
    x: tuple[int, ...]
    right: Sequence[onnx.TensorProto]
    wrong: Sequence[onnx.TensorProto]
    code: int = TensorProto.FLOAT
    result: int = TensorProto.FLOAT
    wrong_x: tuple[int, ...] = ()
    opset: int = OPSET


def places(row: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full((1, 3), row), "p")


def contrib(operator: str, inputs: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(operator, inputs, "y", domain="com.microsoft", **attributes)]


def bytes_of(*shape: int) -> onnx.TensorProto:
    return stored("w", *shape, dtype=np.uint8)


IMAGE, LINE, ROWS = (1, 6, 8, 8), (5, 2, 4), (2, 5)
LSTM = [node("LSTM", "x w r b", "y", hidden_size=6)]
GRU = [node("GRU", "x w r", "y", hidden_size=6)]
RNN = [node("RNN", "x w r", "y", hidden_size=6)]
BOTH_WAYS = [node("LSTM", "x w r", "y", hidden_size=6, direction="bidirectional")]
STATED = [node("LSTM", "x w r - - h c", "y", hidden_size=6)]
H, C = stored("h", 1, 2, 6), stored("c", 1, 2, 6)
W, R, B = (stored(*each) for each in (("w", 1, 24, 4), ("r", 1, 24, 6), ("b", 1, 48)))
TWO, FIVE, SIX = (stored("w", count) for count in (2, 5, 6))
SCALE = [scalar("s", 1.0), scalar("z", 0, np.uint8)]
PACKED = [stored("w", 4, 1, 16, dtype=np.uint8), stored("s", 4)]
INT32 = TensorProto.INT32
EMBEDDING = contrib("EmbedLayerNormalization", "x - t p - g g")
EMBEDDING[0].output.append("mask")
TABLES = [stored("t", 20, 8), stored("p", 6, 8)]
CACHED = contrib("GroupQueryAttention", "x k k c c l t", num_heads=4, kv_num_heads=2)
CACHED[0].output.extend(["keys", "values"])
CASES = {
    "conv": Case([node("Conv", "x w", "y")], IMAGE, [stored("w", 4, 6, 3, 3)], [stored("w", 4, 3, 3, 3)]),
    "groups": Case([node("Conv", "x w", "y", group=2)], IMAGE, [stored("w", 4, 3, 3, 3)], [stored("w", 4, 6, 3, 3)]),
    "window": Case([node("Conv", "x w", "y")], (1, 6, 4), [stored("w", 4, 6, 4)], [stored("w", 4, 6, 5)]),
    "axes": Case([node("Conv", "x w", "y")], IMAGE, [stored("w", 4, 6, 3, 3)], [stored("w", 4, 6, 3)]),
    "transposed": Case(
        [node("ConvTranspose", "x w", "y")], IMAGE, [stored("w", 6, 4, 3, 3)], [stored("w", 3, 4, 3, 3)]
    ),
    "integers": Case(
        [node("ConvInteger", "x w", "y")], IMAGE, [bytes_of(4, 6, 3, 3)], [bytes_of(4, 3, 3, 3)], TensorProto.UINT8,
        TensorProto.INT32,
    ),
    "lstm": Case(LSTM, LINE, [W, R, B], [stored("w", 1, 24, 5), R, B]),
    "lstm, state": Case(STATED, LINE, [W, R, H, C], [W, R, stored("h", 1, 5, 6), C]),
    "lstm, state of its cell": Case(STATED, LINE, [W, R, H, C], [W, R, H, stored("c", 1, 2, 12)]),
    "gru, lengths": Case(
        [node("GRU", "x w r - l", "y", hidden_size=6)], LINE,
        [stored("w", 1, 18, 4), stored("r", 1, 18, 6), stored("l", 2, dtype=np.int32)],
        [stored("w", 1, 18, 4), stored("r", 1, 18, 6), stored("l", 5, dtype=np.int32)],
    ),
    "lstm, both ways": Case(
        BOTH_WAYS, LINE, [stored("w", 2, 24, 4), stored("r", 2, 24, 6)], [stored("w", 2, 24, 3), stored("r", 2, 24, 6)]
    ),
    "gru": Case(
        GRU, LINE, [stored("w", 1, 18, 4), stored("r", 1, 18, 6)], [stored("w", 1, 18, 5), stored("r", 1, 18, 6)]
    ),
    "rnn": Case(RNN, LINE, [stored("w", 1, 6, 4), stored("r", 1, 6, 6)], [stored("w", 1, 6, 3), stored("r", 1, 6, 6)]),
    "batch norm": Case([node("BatchNormalization", "x w w w w", "y")], IMAGE, [SIX], [FIVE]),
    "product": Case([node("MatMul", "x w", "y")], ROWS, [stored("w", 5, 3)], [stored("w", 4, 3)]),
    "sum": Case([node("Add", "x w", "y")], ROWS, [FIVE], [TWO]),
    "gemm": Case([node("Gemm", "x w", "y")], ROWS, [stored("w", 5, 3)], [stored("w", 3, 5)]),
    "rows of a table": Case([node("MatMul", "x w", "a"), node("Gather", "a p", "y")], ROWS,
                            [stored("w", 5, 3), integers("p", 0, 0)], [stored("w", 5, 3), integers("p", 0, 9)]),
    "places of a table": Case([node("MatMul", "x w", "a"), node("GatherElements", "a p", "y", axis=0)], ROWS,
                              [stored("w", 5, 3), places(0)], [stored("w", 5, 3), places(9)]),
    "depth to space": Case(
        [node("Conv", "x w", "a"), node("DepthToSpace", "a", "y", blocksize=2)], IMAGE, [stored("w", 4, 6, 1, 1)],
        [stored("w", 6, 6, 1, 1)],
    ),
    "space to depth": Case(
        [node("Conv", "x w", "a"), node("SpaceToDepth", "a", "y", blocksize=2)], IMAGE, [stored("w", 4, 6, 1, 1)],
        [stored("w", 4, 6, 2, 2)],
    ),
    "quantised": Case(
        [node("QLinearConv", "x s z w s z s z", "y")], IMAGE, [bytes_of(4, 6, 3, 3), *SCALE],
        [bytes_of(4, 3, 3, 3), *SCALE], TensorProto.UINT8, TensorProto.UINT8,
    ),
    "reshape": Case([node("Reshape", "x w", "y")], ROWS, [integers("w", 5, 2)], [integers("w", 3, 4)]),
    "squeeze": Case([node("Squeeze", "x w", "y")], IMAGE, [integers("w", 0)], [integers("w", 1)]),
    "split": Case([node("Split", "x w", "y z", axis=1)], ROWS, [integers("w", 2, 3)], [integers("w", 3, 3)]),
    "expand": Case([node("Expand", "x w", "y")], ROWS, [integers("w", 3, 2, 5)], [integers("w", 3, 4, 5)]),
    "fused conv": Case(
        contrib("FusedConv", "x w", activation="Relu"), IMAGE, [stored("w", 4, 6, 3, 3)], [stored("w", 4, 3, 3, 3)]
    ),
    "fused product": Case(contrib("FusedMatMul", "x w", transB=1), ROWS, [stored("w", 3, 5)], [stored("w", 5, 3)]),
    "fused product, older": Case(
        contrib("TransposeMatMul", "x w", transB=1), ROWS, [stored("w", 3, 5)], [stored("w", 5, 3)]
    ),
    "dynamic product": Case(
        contrib("DynamicQuantizeMatMul", "x w s z"), ROWS, [bytes_of(5, 3), *SCALE], [bytes_of(4, 3), *SCALE]
    ),
    "integer product": Case(
        contrib("MatMulIntegerToFloat", "x w s s z z"), ROWS, [bytes_of(5, 3), *SCALE], [bytes_of(4, 3), *SCALE],
        TensorProto.UINT8,
    ),
    "packed product": Case(
        contrib("MatMulNBits", "x w s", K=32, N=4, bits=4, block_size=32), (1, 32), PACKED, PACKED, wrong_x=(1, 30)
    ),
    "embedding, scale": Case(EMBEDDING, (1, 5), [*TABLES, stored("g", 8)], [*TABLES, stored("g", 7)], INT32),
    "window with its gaps": Case(
        [node("Conv", "x w", "y", dilations=[2], pads=[1, 0])], (1, 6, 4), [stored("w", 4, 6, 3)],
        [stored("w", 4, 6, 4)],
    ),
    "window on nothing": Case(
        [node("Conv", "x w", "y")], (0, 6, 8, 8), [stored("w", 4, 6, 3, 3)], [stored("w", 4, 6, 3, 3)],
        wrong_x=(1, 6, 0, 8),
    ),
    "transposed, of no size": Case(
        [node("ConvTranspose", "x w", "y", pads=[4, 4, 4, 4])], IMAGE, [stored("w", 6, 4, 3, 3)],
        [stored("w", 6, 4, 1, 1)],
    ),
}  # fmt: skip


def built(case: Case, weights: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in case.nodes[-1].output[:1]]
    for output in outputs:
        output.type.tensor_type.elem_type = case.result
    x, domains = value("x", *case.x, code=case.code), ["com.microsoft"]
    return model(case.nodes, [x], outputs, weights, domains=domains, opset=case.opset)


def runs(proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime runs a model on ones."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (x,) = session.get_inputs()
        code = "uint8" if "uint8" in x.type else "int32" if "int32" in x.type else "float32"
        session.run(None, {"x": np.ones(x.shape, code)})
    except Exception:  # noqa: BLE001  # onnxruntime raises many types, which it does not export
        return False
    return True


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_no_runtime_runs_is_refused(case: Case, tmp_path: Path) -> None:
    """The oracle is ONNX Runtime, which runs the right one."""
    right, wrong = built(case, case.right), built(case._replace(x=case.wrong_x or case.x), case.wrong)
    assert (runs(right), runs(wrong)) == (True, False)
    assert measured(right, tmp_path)["macs"].complete
    with pytest.raises(SourceError, match=f"(?s){case.nodes[-1].op_type}.*check the model, and sizes in dims"):
        measured(wrong, tmp_path)


def test_a_branch_that_cannot_run_makes_a_lower_bound_of_the_other(tmp_path: Path) -> None:
    """Exporters write If(is there one channel, Squeeze, x): 6 channels cannot be squeezed, whatever the flag says."""
    squeezed, whole = value("s", None, None, None), value("w", None, None, None, None)
    then = graph([node("Squeeze", "x axis", "s")], [], [squeezed], [integers("axis", 1)])
    other = graph([node("Conv", "x filters", "w")], [], [whole], [stored("filters", 4, 6, 3, 3)])
    nodes = [node("If", "flag", "y", then_branch=then, else_branch=other)]
    flag = value("flag", code=TensorProto.BOOL)
    found = measured(model(nodes, [value("x", *IMAGE), flag], [value("y", None, None, None, None)]), tmp_path)
    assert (found["macs"].value, found["macs"].complete) == (4 * 36 * 6 * 9, False)
    assert "its then_branch is not counted: (op_type:Squeeze, node name: s)" in found["macs"].unmeasured[0].why


def test_dims_that_fixed_sizes_cannot_take_are_refused(tmp_path: Path) -> None:
    """A Reshape to one row, as exporters write it for a batch of one, under a batch of eight."""
    nodes = [node("Reshape", "x row", "r"), node("MatMul", "r w", "y")]
    weights = [integers("row", 1, 24), stored("w", 24, 5)]
    made = model(nodes, [value("x", "n", 6, 4)], [value("y", 1, 5)], weights)
    assert measured(made, tmp_path, {"n": 1})["macs"].value == 24 * 5
    with pytest.raises(SourceError, match="Reshape 'r' cannot take 8x6x4 as 1x24: check the model, and sizes in dims"):
        measured(made, tmp_path, {"n": 8})


@pytest.mark.parametrize("chain", [False, True], ids=["plain", "behind sizes"])
@pytest.mark.parametrize("place", ["graph", "branch"])
def test_shapes_that_nobody_kept_true_count_for_nothing(chain: bool, place: str, tmp_path: Path) -> None:
    """A batch that only the input was made open for: all else still declares one row, and eight are counted."""
    nodes = [node("MatMul", "f w", "m"), node("Relu", "m", "y")]
    sized = [node("Shape", "x", "s", end=1), node("Concat", "s rest", "to", axis=0), node("Reshape", "x to", "f")]
    nodes = [*sized, *nodes] if chain else [node("Flatten", "x", "f"), *nodes]
    weights = [stored("w", 24, 5), integers("rest", -1)]
    declared = [value("f", 1, 24), value("m", 1, 5)]
    inner = graph(nodes, [], [value("y", 1, 5)], weights)
    inner.value_info.extend(declared)
    if place == "branch":
        nodes = [node("If", "yes", "out", then_branch=inner, else_branch=inner)]
        made = model(nodes, [value("x", "n", 6, 4)], [value("out", 1, 5)], [scalar("yes", True, np.bool_)])
    else:
        made = model(nodes, [value("x", "n", 6, 4)], [value("y", 1, 5)], weights)
        made.graph.value_info.extend(declared)
    assert runs_on(made, (8, 6, 4)) == (8, 5)
    found = measured(made, tmp_path, {"n": 8})
    assert (found["macs"].value, found["macs"].complete) == (8 * 24 * 5, True)
    assert found["peak_activation"].value == 4 * (8 * 24 + 8 * 5)


def runs_on(proto: onnx.ModelProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that ONNX Runtime gives of a model's first result."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shape_given: tuple[int, ...] = session.run(None, {"x": np.ones(shape, np.float32)})[0].shape
    return shape_given


def test_a_wrong_declaration_is_said(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "r"), node("Relu", "r", "y")], [value("x", 8, 4)], [value("y", 1, 4)])
    made.graph.value_info.append(value("r", 1, 4))
    onnx.save(made, tmp_path / "m.onnx")
    found = measure_model(ModelSource("onnx", str(tmp_path / "m.onnx")), tables(), root=tmp_path)
    said = "the file declares 'r' as [1, 4], and its operators give [8, 4] (and 1 more): counted as they give"
    said += ", which is what ONNX Runtime runs"
    assert said in found.notes


@pytest.mark.parametrize("declared", [(1, 4), (None, None), None], ids=["one row", "open", "nothing"])
def test_the_state_of_a_loop_is_as_its_rounds_find_it(declared: Any, tmp_path: Path) -> None:
    """Three rounds of h · W + x on eight rows, whatever the body says of its input: 3 · 8 · 4 · 4."""
    state, after = (value(name, *declared) if declared else value(name) for name in ("h", "after"))
    if not declared:
        for each in (state, after):
            each.type.tensor_type.ClearField("shape")
    rounds = [value("i", code=TensorProto.INT64), value("goes", code=TensorProto.BOOL)]
    steps = [node("Identity", "goes", "on"), node("MatMul", "h w", "m"), node("Add", "m x", "after")]
    body = graph(steps, [*rounds, state], [value("on", code=TensorProto.BOOL), after], [stored("w", 4, 4)])
    nodes = [node("Loop", "times - x", "y", body=body)]
    made = model(nodes, [value("x", "n", 4)], [value("y", None, 4)], [scalar("times", 3, np.int64)])
    macs = measured(made, tmp_path, {"n": 8})["macs"]
    assert (macs.value, macs.complete) == (3 * 8 * 4 * 4, True)


@pytest.mark.parametrize("way", ["no rounds", "a stored false"])
@pytest.mark.parametrize("stacks", [False, True], ids=["a state", "slices"])
def test_a_body_that_never_runs_is_not_held_to_its_shapes(way: str, stacks: bool, tmp_path: Path) -> None:
    """Its state is as it came: x lives beside its rectified copy. What it stacks is unmeasured by name."""
    rounds = [value("i", code=TensorProto.INT64), value("goes", code=TensorProto.BOOL), value("h", 8, 4)]
    steps = [node("Identity", "goes", "on"), node("Reshape", "h one", "after"), node("Relu", "h", "part")]
    results = [value("on", code=TensorProto.BOOL), value("after", 8, 4), *([value("part", 8, 4)] if stacks else [])]
    body = graph(steps, rounds, results, [integers("one", 1, 4)])
    count, flag = ("times", "-") if way == "no rounds" else ("-", "no")
    nodes = [node("Loop", f"{count} {flag} x", "y parts" if stacks else "y", body=body), node("Relu", "y", "z")]
    stored_ = [scalar("times", 0, np.int64)] if way == "no rounds" else [scalar("no", False, np.bool_)]
    outputs = [value("z", 8, 4), *([value("parts", None, 8, 4)] if stacks else [])]
    made = model(nodes, [value("x", 8, 4)], outputs, stored_)
    assert runs_on(made, (8, 4)) == (8, 4)
    found = measured(made, tmp_path)["peak_activation"]
    if stacks:
        assert found.unmeasured[0].why == "onnx::Loop 'y': its body never runs, and gives no slices"
    else:
        assert (found.value, found.complete) == (2 * 4 * 8 * 4, True)


def test_fixed_shapes_are_of_other_inputs_where_dims_bind_some(tmp_path: Path) -> None:
    """What Compress keeps is decided by the data: a declaration of one row is that of a batch of one."""
    nodes = [node("Compress", "x keep", "h", axis=0), node("MatMul", "h w", "y")]
    inputs = [value("x", "n", 4), value("keep", 8, code=TensorProto.BOOL)]
    for rows, complete in ((1, False), ("n", True)):
        made = model(nodes, inputs, [value("y", None, 5)], [stored("w", 4, 5)])
        made.graph.value_info.append(value("h", rows, 4))
        assert measured(made, tmp_path, {"n": 8})["macs"].complete is complete


def test_a_result_that_is_declared_does_not_make_its_operands_fit(tmp_path: Path) -> None:
    """The head of a classifier whose images were bound too small; its result is declared, as all exporters do."""
    nodes = [node("Conv", "x k", "c"), node("Flatten", "c", "f"), node("Gemm", "f w", "y")]
    made = model(
        nodes, [value("x", 1, 3, "h", "h")], [value("y", 1, 10)], [stored("k", 4, 3, 3, 3), stored("w", 144, 10)]
    )
    assert measured(made, tmp_path, {"h": 8})["macs"].value == 36 * 4 * 27 + 1440
    with pytest.raises(
        SourceError, match=r"op_type:Gemm, node name: y\): .* between 144 and 64: check the model, and sizes in dims"
    ):
        measured(made, tmp_path, {"h": 6})


LATE = {  # what reads a result whose size onnx infers only with values, which the reader works out
    "a product": (node("MatMul", "f w", "y"), [stored("w", 12, 4)], (4,)),
    "a sum": (node("Add", "f w", "y"), [stored("w", 12)], (12,)),
    "a chosen row": (node("Where", "m f w", "y"), [scalar("m", True, np.bool_), stored("w", 12)], (12,)),
}


@pytest.mark.parametrize(("reader", "weights", "sizes"), LATE.values(), ids=LATE)
@pytest.mark.parametrize("place", ["graph", "branch"])
def test_a_size_that_is_worked_out_late_has_to_fit(
    reader: onnx.NodeProto, weights: list[onnx.TensorProto], sizes: tuple[int, ...], place: str, tmp_path: Path
) -> None:
    """A row of 36 where 12 are read: onnx infers the result of such a reader while it does not know how many come."""
    for columns, fits in ((12, True), (36, False)):
        nodes = [node("Shape", "x", "s"), node("ReduceProd", "s", "to", keepdims=1), node("Reshape", "x to", "f")]
        y = value("y", *sizes)
        if place == "branch":
            body = graph([*nodes, reader], [], [y], weights)
            made = model(
                [node("If", "yes", "y", then_branch=body, else_branch=body)], [value("x", 3, columns // 3)], [y],
                [scalar("yes", True, np.bool_)],
            )  # fmt: skip
        else:
            made = model([*nodes, reader], [value("x", 3, columns // 3)], [y], weights)
        assert runs(made) is fits
        if fits:
            assert measured(made, tmp_path)["macs"].value == (48 if reader.op_type == "MatMul" else 0)
        else:
            with pytest.raises(SourceError, match=rf"op_type:{reader.op_type}, node name: y\).*check the model"):
                measured(made, tmp_path)


def test_branches_of_different_shapes_leave_open_what_follows(tmp_path: Path) -> None:
    """16 rows without a product, or 8 rows by 128 MACs, then a product: nobody knows how many rows that has."""
    then = graph([node("Concat", "x x", "t", axis=0)], [], [value("t", 16, 4)])
    other = graph([node("MatMul", "x a", "e")], [], [value("e", 8, 4)], [stored("a", 4, 4)])
    nodes = [node("If", "flag", "h", then_branch=then, else_branch=other), node("MatMul", "h w", "y")]
    inputs = [value("x", 8, 4), value("flag", code=TensorProto.BOOL)]
    macs = measured(model(nodes, inputs, [value("y", None, 50)], [stored("w", 4, 50)]), tmp_path)["macs"]
    assert not macs.complete
    assert "its branches give different shapes" in macs.unmeasured[0].why


@pytest.mark.parametrize("imported", ["", "ai.onnx"])
def test_the_standard_operators_go_by_two_names(imported: str, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r", domain="ai.onnx"), node("MatMul", "r w", "y")]
    made = model(nodes, [value("x", 2, 4)], [value("y", None, None)], [stored("w", 4, 3)])
    made.opset_import[0].domain = imported
    assert runs_on(made, (2, 4)) == (2, 3)
    assert measured(made, tmp_path)["macs"].value == 2 * 4 * 3


# What ONNX Runtime runs although it looks odd: x, nodes, weights, and the sizes that the file declares of y.
ODD: dict[str, tuple[tuple[int, ...], list[onnx.NodeProto], list[onnx.TensorProto], Any]] = {
    "after an unknown operator": (
        (2, 3, 3), [*contrib("Inverse", "x"), node("Reshape", "y to", "z")], [integers("to", 2, 9)], (2, 9)
    ),
    "an unknown operand, transposed": ((2, 3, 3), [*contrib("Inverse", "x"), node("Transpose", "y", "z")], [], None),
    "a pool that nothing fits into": ((1, 1, 2, 2), [node("MaxPool", "x", "z", kernel_shape=[3, 3])], [], None),
    "an average of nothing": ((1, 1, 2, 2), [node("AveragePool", "x", "z", kernel_shape=[3, 3])], [], None),
    "an empty part": ((2, 4), [node("Concat", "x w", "z", axis=0)], [stored("w", 0, 4)], (2, 4)),
    "a vector": ((2, 3), [node("FusedMatMul", "x w", "z", domain="com.microsoft")], [stored("w", 3)], (2,)),
    "two groups": ((1, 6, 8, 8), [node("Conv", "x w", "z", group=6)], [stored("w", 12, 1, 3, 3)], None),
    "a line": ((1, 6, 8), [node("Conv", "x w", "z", auto_pad="SAME_UPPER")], [stored("w", 4, 6, 9)], None),
    "an empty batch": ((0, 6, 8), [node("Conv", "x w", "z")], [stored("w", 4, 6, 3)], None),
    "peepholes": (
        (5, 2, 4), [node("LSTM", "x w r - - - - p", "z", hidden_size=6)],
        [stored("w", 1, 24, 4), stored("r", 1, 24, 6), stored("p", 1, 18)], None,
    ),
    "a sum of a row": ((2, 5), [node("Gemm", "x w c", "z")], [stored("w", 5, 3), stored("c", 1)], None),
    "a diagonal": ((3, 3), [node("Einsum", "x", "z", equation="ii->i")], [], None),
    "zero stays": ((2, 4), [node("Reshape", "x to", "z")], [integers("to", 0, 2, -1)], None),
    "one slope": ((1, 6, 8, 8), [node("PRelu", "x w", "z")], [stored("w", 1)], None),
    "a scale of all": ((2, 3, 4), [node("LayerNormalization", "x w", "z", axis=1)], [stored("w", 3, 4)], None),
    "one head for many": (
        (1, 4, 5, 8), [node("Attention", "x w w", "z")], [stored("w", 1, 1, 7, 8)], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("x", "nodes", "weights", "declared"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a branch"])
def test_what_a_runtime_runs_is_not_refused(
    x: tuple[int, ...], nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], declared: Any, inside: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    z = value("z", *(declared or ()))
    if declared is None:
        z.type.tensor_type.ClearField("shape")
    if inside:
        body = graph(nodes, [], [z], weights)
        nodes, weights = [node("If", "yes", "z", then_branch=body, else_branch=body)], [scalar("yes", True, np.bool_)]
    made = model(nodes, [value("x", *x)], [z], weights, domains=["com.microsoft"])
    assert runs(made)
    measured(made, tmp_path)


def test_what_no_operator_gives_is_as_declared(tmp_path: Path) -> None:
    """How much NonZero finds is decided by the data: a file is believed there, but not against its operators."""
    nodes = [node("NonZero", "x", "i"), node("Cast", "i", "f", to=FLOAT), node("MatMul", "w f", "y")]
    for rows, complete in ((2, True), (3, False)):  # of x (2, 5), indices have 2 rows
        made = model(nodes, [value("x", 2, 5)], [value("y", None, None)], [stored("w", 4, 2)])
        made.graph.value_info.append(value("i", rows, 7, code=TensorProto.INT64))
        found = measured(made, tmp_path)
        assert found["macs"].complete is complete
        assert not complete or found["macs"].value == 4 * 2 * 7
        note = "data decide sizes of this model (onnx::NonZero 'i'): counted as the file declares them"
        assert any(each.startswith(note) for each in found.notes) is complete


def test_every_check_is_tried() -> None:
    """By ONNX Runtime, which runs the right one of a case and refuses the wrong one."""
    tried = {operator_name(each.domain, each.op_type) for case in CASES.values() for each in case.nodes}
    assert set(CHECKS) <= tried
