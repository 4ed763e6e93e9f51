"""Open sizes of inputs in claims and transforms, and what a stored scale weighs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.onnx_models.inputs import drawn_inputs
from pytest_modelbudget.onnx_models.program import Program
from tests.builders.onnx_graphs import integers, model, node, scalar, stored, value
from tests.builders.onnx_judgements import in_memory, judged_beside
from tests.builders.project import Project


def tree(threshold: float, rows: int | str | None = None) -> onnx.ModelProto:
    """x (rows, 4) through one comparison: 1 up to the threshold, 2 above."""
    compared = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[threshold, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1.0, 2.0],
    )  # fmt: skip
    made = model([compared], [value("x", rows, 4)], [value("y", rows, 1)], opset=17, domains=["ai.onnx.ml"])
    made.opset_import[1].version = 3
    made.ir_version = 8
    return made


@pytest.mark.parametrize("rows", [None, "batch"], ids=["no name", "a name"])
def test_an_axis_without_a_name_is_open(rows: str | None) -> None:
    """`batch: [256]` takes it, and finds a threshold that one row does not."""
    claim = Claim(batches=(256,))
    first = in_memory(tree(0.0, rows))
    assert judged_beside(first, tree(0.05, rows), claim).outcome is Outcome.OVER
    assert judged_beside(first, tree(0.0, rows), claim).outcome is Outcome.WITHIN


def test_a_fixed_axis_is_none() -> None:
    """One row is one row."""
    judged = judged_beside(in_memory(tree(0.0, 1)), tree(0.0, 1), Claim(batches=(256,)))
    assert judged.outcome is Outcome.UNKNOWN
    assert "the file fixes the first axis" in judged.reason


@pytest.mark.parametrize(
    ("shapes", "resizes"),
    [([(None, 4), ("n", 4)], True), ([(None, 4), (3, 4)], False), ([("n", 4), (None,)], True), ([()], False)],
)
def test_all_inputs_must_be_open(shapes: list[tuple[int | str | None, ...]], resizes: bool) -> None:
    """Rows are more of every input."""
    inputs = [value(f"x{at}", *shape) for at, shape in enumerate(shapes)]
    nodes = [node("Relu", "x0", "y")]
    drawn = drawn_inputs(Program(model(nodes, inputs, [value("y", *shapes[0])])), {})
    assert (drawn.resizes, drawn.stacks) == (resizes, resizes)


def linear(rows: int | str | None, *, opset: int = 17) -> onnx.ModelProto:
    """x (rows, 64) · weight (64, 100)."""
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 100)).astype("float32"), "w")
    made = model([node("MatMul", "x w", "y")], [value("x", rows, 64)], [value("y", rows, 100)], [weight], opset=opset)
    made.ir_version = 8
    return made


def through_shapes() -> onnx.ModelProto:
    """The same behind a Reshape whose sizes come from the input's shape."""
    made = linear("batch")
    nodes = [
        node("Shape", "x0", "s"),
        node("Gather", "s zero", "rows", axis=0),
        node("Concat", "rows minus", "sizes", axis=0),
        node("Reshape", "x0 sizes", "x"),
        made.graph.node[0],
    ]
    weights = [made.graph.initializer[0], integers("zero", 0), integers("minus", -1)]
    proto = model(nodes, [value("x0", "batch", 8, 8)], [value("y", None, 100)], weights, opset=17)
    proto.ir_version = 8
    return proto


@pytest.mark.parametrize(
    ("proto", "dims"),
    [
        pytest.param(linear("batch"), "batch", id="a name"),
        pytest.param(linear(None), "x.0", id="no name"),
        pytest.param(linear(-1), "x.0", id="a negative size"),
        pytest.param(through_shapes(), "batch", id="rows that are worked out"),
    ],
)
def test_rows_are_tiled_under_dims(proto: onnx.ModelProto, dims: str, project: Project) -> None:
    """What a transform fixed need not be bound again."""
    (project.path / "budgets" / "net.onnx").write_bytes(proto.SerializeToString())
    project.write(
        "budgets/a.yaml",
        f"model_budget: 1\nmodels:\n  net:\n    onnx: net.onnx\n    dims: {{{dims}: 4}}\n"
        "    limits: {macs: 25600 MAC}\n    transforms:\n      t: {tile_linear: {tile: [2, 16, 16]}, "
        "equivalence: exact_algebra, limits: {macs: 25600 MAC}}\n",
    )
    project.run("budgets/a.yaml").assert_outcomes(passed=3)


def quantised(scale_rank: int) -> onnx.ModelProto:
    """x (1, 64) times an int8 weight with one scale and one zero point, of rank 0 or 1."""
    make = scalar if scale_rank == 0 else (lambda name, entry, dtype=np.float32: stored(name, 1, dtype=dtype))
    weights = [
        onnx.numpy_helper.from_array(np.ones((64, 100), np.int8), "q"),
        make("scale", 0.1, np.float32),
        make("zero", 0, np.int8),
    ]
    nodes = [node("DequantizeLinear", "q scale zero", "w", axis=0), node("MatMul", "x w", "y")]
    if scale_rank:
        nodes[0].attribute[0].i = 1
        weights[1:] = [stored("scale", 100), stored("zero", 100, dtype=np.int8)]
    return model(nodes, [value("x", 1, 64)], [value("y", 1, 100)], weights)


@pytest.mark.parametrize(("rank", "nbytes"), [(0, 6_400 + 4 + 1), (1, 6_400 + 100 * 5)])
def test_a_model_is_never_smaller_than_its_weights(rank: int, nbytes: int, tmp_path: Path) -> None:
    """A scale of rank 0 is stored as well: 6,400 int8, and what quantises them."""
    path = tmp_path / "q.onnx"
    path.write_bytes(quantised(rank).SerializeToString())
    found = measure(path)
    assert found["weight_memory"].value == nbytes
    assert found["model_size"].value == nbytes


def test_claims_ask_for_open_sizes_by_name(tmp_path: Path) -> None:
    """An axis behind the first one has no size to draw, and the error says what to write."""
    proto = model([node("Relu", "x", "y")], [value("x", 1, "seq")], [value("y", 1, "seq")])
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    judged = check_equivalence(path, path)
    assert judged.outcome is Outcome.UNKNOWN
    assert "not bound by dims: seq (of x): write dims: {seq: 1}" in judged.reason


def test_the_command_line_asks_for_open_sizes_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option, which a shell takes as it stands."""
    proto = model([node("Relu", "x", "y")], [value("x", 1, "2*n + 1")], [value("y", 1, "2*n + 1")])
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    assert main(["activations", str(path)]) == 2
    words = "not bound by dims: 2*n + 1 (of x): bind it: --dims '2*n + 1=1'\n"
    assert capsys.readouterr().err == f"modelbudget: error: {words}"
