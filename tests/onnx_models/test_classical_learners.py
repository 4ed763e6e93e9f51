"""Classical learners of ai.onnx.ml keep what they learnt in attributes: it is counted as stored tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.onnx_models.model import load
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.values.capture import Captured, weights_of
from tests.builders.onnx_graphs import measured, model, node, scalar, stored, value
from tests.builders.programs import program

ML = "ai.onnx.ml"
ROWS, FEATURES = 5, 4
ON_DOUBLES = "forest in doubles"  # ONNX Runtime wants its x in doubles, too
# Two trees: one comparison each, three nodes and two leaves.
TREES: Mapping[str, Any] = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
    "nodes_values": [0.5, 0.0, 0.0] * 2,
    "nodes_truenodeids": [1, 0, 0] * 2,
    "nodes_falsenodeids": [2, 0, 0] * 2,
}
LEAVES: Mapping[str, Any] = {
    "treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "ids": [0, 1, 0, 1], "weights": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip
FOREST = {**TREES, "n_targets": 2, **{f"target_{name}": held for name, held in LEAVES.items()}}
VOTES = {**TREES, "classlabels_int64s": [3, 7], **{f"class_{name}": held for name, held in LEAVES.items()}}
MACHINE = {
    "support_vectors": [0.5] * (3 * FEATURES), "coefficients": [1.0] * 3, "rho": [0.1], "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
}  # fmt: skip


def learner(operator: str, results: str, *, opset: int = 1, **attributes: Any) -> onnx.ModelProto:
    """One node on x (rows, features), in an operator set of ai.onnx.ml; nothing says which shapes it gives."""
    inputs = [value("x", ROWS, FEATURES)]
    outputs = [value(name, code=0) for name in results.split()]
    for output in outputs:
        output.ClearField("type")
    made = model([node(operator, "x", results, domain=ML, **attributes)], inputs, outputs, opset=17, domains=[ML])
    made.opset_import[1].version = opset
    made.ir_version = 8
    return made


def support_vectors(classes: int, **more: Any) -> onnx.ModelProto:
    """A classifier of a vector each class; coefficients are for each other class."""
    between = classes * (classes - 1) // 2
    attributes = {
        **MACHINE, "support_vectors": [0.5] * (classes * FEATURES), "coefficients": [1.0] * (classes * (classes - 1)),
        "rho": [0.1] * between, "vectors_per_class": [1] * classes, "classlabels_ints": list(range(classes)),
        **{name: [0.5] * between for name in more},
    }  # fmt: skip
    return learner("SVMClassifier", "label scores", **attributes)


# params: what it learnt, by list. stored: all of it with the lists of integers, in bytes.
CASES: Mapping[str, tuple[onnx.ModelProto, int, int]] = {
    "linear regression": (
        learner("LinearRegressor", "y", coefficients=[1.0] * (2 * FEATURES), intercepts=[0.0, 1.0], targets=2),
        2 * FEATURES + 2,
        4 * (2 * FEATURES + 2),
    ),
    "linear regression without intercepts": (
        learner("LinearRegressor", "y", coefficients=[1.0] * FEATURES),
        FEATURES,
        4 * FEATURES,
    ),
    "logistic regression": (
        learner("LinearClassifier", "label scores", coefficients=[1.0] * (3 * FEATURES), intercepts=[0.0] * 3,
                classlabels_ints=[0, 1, 2]),
        3 * FEATURES + 3,
        4 * (3 * FEATURES + 3),
    ),
    "forest": (learner("TreeEnsembleRegressor", "y", opset=3, **FOREST), 6 + 4, 4 * (6 + 4) + 8 * (5 * 6 + 3 * 4)),
    "forest of an older set": (learner("TreeEnsembleRegressor", "y", **FOREST), 10, 40 + 8 * 42),
    "votes of trees": (learner("TreeEnsembleClassifier", "label scores", **VOTES), 10, 40 + 8 * 42),
    ON_DOUBLES: (
        learner("TreeEnsembleRegressor", "y", opset=3,
                **{name: held for name, held in FOREST.items() if name not in {"nodes_values", "target_weights"}},
                nodes_values_as_tensor=helper.make_tensor("v", TensorProto.DOUBLE, (6,), TREES["nodes_values"]),
                target_weights_as_tensor=helper.make_tensor("w", TensorProto.DOUBLE, (4,), LEAVES["weights"])),
        10,
        8 * 10 + 8 * 42,
    ),
    "support vectors": (learner("SVMRegressor", "y", n_supports=3, **MACHINE), 12 + 3 + 1, 4 * 16),
    "votes of support vectors": (support_vectors(2), 8 + 2 + 1, 4 * 11 + 8 * 2),
    "scaler": (learner("Scaler", "y", offset=[1.0] * FEATURES, scale=[2.0] * FEATURES), 8, 32),
    "imputer": (learner("Imputer", "y", imputed_value_floats=[0.0] * FEATURES), 4, 16),
    "normaliser": (learner("Normalizer", "y", norm="L2"), 0, 0),
    "binariser": (learner("Binarizer", "y", threshold=0.5), 0, 0),
}  # fmt: skip
IN_TENSORS = {
    "nodes_featureids": [0], "nodes_splits": stored("s", 1), "nodes_truenodeids": [0], "nodes_falsenodeids": [1],
    "nodes_trueleafs": [1], "nodes_falseleafs": [1], "tree_roots": [0], "leaf_targetids": [0, 0],
    "leaf_weights": stored("w", 2), "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, (1,), [0]),
    "n_targets": 1,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_it_learnt_is_counted(case: str, tmp_path: Path) -> None:
    """Floats are parameters; how trees are linked is stored beside them."""
    proto, params, in_bytes = CASES[case]
    found = measured(proto, tmp_path)
    assert (found["params"].value, found["params"].complete) == (params, True)
    assert (found["model_size"].value, found["model_size"].complete) == (in_bytes, True)


def told(proto: onnx.ModelProto, folder: Path) -> Captured:
    """What ``modelbudget weights`` tells of a file."""
    onnx.save(proto, folder / "told.onnx")
    source = ModelSource("onnx", str(folder / "told.onnx"))
    return weights_of(load(source, builtin_ops()))


@pytest.mark.parametrize("case", [case for case, (_, params, _) in CASES.items() if params])
def test_statistics_are_of_all_that_is_counted(case: str, tmp_path: Path) -> None:
    """Parameters, and integers beside them, in the bytes in which they are stored."""
    proto, params, in_bytes = CASES[case]
    rows = told(proto, tmp_path).layers
    assert sum(row.statistics.count for row in rows if row.type == "parameter") == params
    sizes = {"float32": 4, "float64": 8, "int64": 8}
    assert sum(row.statistics.count * sizes[row.dtype] for row in rows) == in_bytes


def test_statistics_are_of_the_values_that_a_node_holds(tmp_path: Path) -> None:
    """Of two nodes under one name each has its own; 1, 2, 3 and 6 have a mean of 3."""
    nodes = [node("Scaler", "x", "a", domain=ML, offset=[1.0, 2.0, 3.0, 6.0], scale=[2.0] * FEATURES),
             node("Scaler", "a", "b", domain=ML, offset=[5.0] * FEATURES, scale=[0.0] * FEATURES),
             node("Gemm", "b w", "y")]  # fmt: skip
    nodes[0].name = nodes[1].name = "s"
    made = model(nodes, [value("x", ROWS, FEATURES)], [value("y", ROWS, 2)], [stored("w", FEATURES, 2)], domains=[ML])
    made.opset_import[1].version, made.ir_version = 1, 8
    seen = told(made, tmp_path)
    means = {row.name: row.statistics.mean for row in seen.layers if row.name != "w"}
    assert means == {"s.offset": 3.0, "s.scale": 2.0, "s.offset of b": 5.0, "s.scale of b": 0.0}
    assert seen.notes == ()


def test_weights_within_a_function_are_said_to_be_left_out(tmp_path: Path) -> None:
    """What a function of the file stores is a parameter, and no value of the graph's."""
    held = node("Constant", "", "c", value=stored("c", FEATURES))
    opset = helper.make_opsetid("", 17)
    inside = helper.make_function("own", "Shift", ["a"], ["b"], [held, node("Mul", "a c", "b")], [opset])
    nodes = [node("Shift", "x", "a", domain="own"), node("Gemm", "a w", "y")]
    made = model(nodes, [value("x", ROWS, FEATURES)], [value("y", ROWS, 2)], [stored("w", FEATURES, 2)], opset=17)
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(inside)
    seen = told(made, tmp_path)
    assert [row.name for row in seen.layers] == ["w"]
    (note,) = seen.notes
    assert note.startswith("1 parameter tensor skipped: ")


def test_an_ensemble_in_tensors(tmp_path: Path) -> None:
    """Operator set 5: a split and two leaves are 3 parameters; seven numbers of 8 B and a mode of 1 B link them."""
    found = measured(learner("TreeEnsemble", "y", opset=5, **IN_TENSORS), tmp_path)
    assert found["params"].value == 1 + 2
    assert found["weight_memory"].value == 4 * (1 + 2)
    assert found["model_size"].value == 4 * (1 + 2) + 8 * (5 + 1 + 2) + 1


@pytest.mark.parametrize(
    "proto",
    [
        *[pytest.param(proto, id=case) for case, (proto, _, _) in CASES.items() if case != ON_DOUBLES],
        *[pytest.param(support_vectors(classes), id=f"{classes} classes") for classes in (2, 3, 4)],
        pytest.param(support_vectors(4, prob_a=True, prob_b=True), id="4 classes with probabilities"),
    ],
)
def test_results_are_as_large_as_in_a_runtime(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """onnx infers few of these shapes; ONNX Runtime makes them."""
    onnx.save(proto, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    made = session.run(None, {"x": np.ones((ROWS, FEATURES), np.float32)})
    peak = measure(tmp_path / "model.onnx")["peak_activation"]
    assert (peak.value, peak.complete) == (4 * ROWS * FEATURES + sum(result.nbytes for result in made), True)


@pytest.mark.parametrize(("shape", "indices"), [((3,), 2), ((2, 3), 2), ((2, 2, 3), 1)])
def test_extracted_features_are_as_many_as_in_a_runtime(shape: tuple[int, ...], indices: int, tmp_path: Path) -> None:
    """ArrayFeatureExtractor looks columns up."""
    outputs = [value("y", code=0)]
    outputs[0].ClearField("type")
    at = helper.make_tensor("at", TensorProto.INT64, (indices,), [0] * indices)
    made = model(
        [node("ArrayFeatureExtractor", "x at", "y", domain=ML)], [value("x", *shape)], outputs, [at], opset=17,
        domains=[ML],
    )  # fmt: skip
    made.opset_import[1].version, made.ir_version = 1, 8
    onnx.save(made, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones(shape, np.float32)})
    peak = measure(tmp_path / "model.onnx")["peak_activation"]
    assert (peak.value, peak.complete) == (4 * np.prod(shape) + result.nbytes, True)


def figures(found: Mapping[str, Measurement]) -> Mapping[str, object]:
    """What does not depend on an operator's name."""
    return {
        key: found[key].value
        for key in ("params", "weight_memory", "model_size", "macs", "flops", "peak_activation", "bandwidth")
    }


def test_it_costs_what_the_same_product_costs(tmp_path: Path) -> None:
    """A linear regression and Gemm on stored weights are one model."""
    gemm = model(
        [node("Gemm", "x w b", "y")], [value("x", ROWS, FEATURES)], [value("y", ROWS, 2)],
        [stored("w", FEATURES, 2), stored("b", 2)],
    )  # fmt: skip
    learnt = CASES["linear regression"][0]
    assert figures(measured(learnt, tmp_path)) == figures(measured(gemm, tmp_path))
    in_int8 = []
    for name, proto in (("learnt", learnt), ("gemm", gemm)):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        in_int8.append(program(tmp_path / f"{name}.onnx", None, dtype="int8"))
    assert in_int8[0]["bandwidth"] == in_int8[1]["bandwidth"]
    # 8 weights of 1 B, a scale and an int32 bias of each of 2 outputs
    assert in_int8[0]["weight_memory"] == in_int8[1]["weight_memory"] == 8 + 2 * 4 + 2 * 4


def test_the_nodes_that_a_row_meets_are_not_known(tmp_path: Path) -> None:
    """A forest multiplies nothing; what it reads of its trees, the data decide."""
    found = measured(CASES["forest"][0], tmp_path)
    assert (found["macs"].value, found["macs"].complete) == (0, True)
    assert "the data decide" in found["bandwidth"].unmeasured[0].why


@pytest.mark.parametrize("flag", [True, False, None])
def test_branches_store_what_they_do_not_run(flag: bool | None, tmp_path: Path) -> None:
    """Of an If both branches are stored, whichever runs: 4 and 8 coefficients."""
    branches = [
        helper.make_graph(
            [node("LinearRegressor", "x", "y", domain=ML, coefficients=[1.0] * (targets * FEATURES), targets=targets),
             node("ReduceSum", "y", "z", keepdims=0)],
            name, [], [value("z")],
        )
        for name, targets in (("then", 1), ("else", 2))
    ]  # fmt: skip
    condition = [] if flag is None else [scalar("c", flag, np.bool_)]
    inputs = [value("x", ROWS, FEATURES), *([value("c", code=TensorProto.BOOL)] if flag is None else [])]
    chosen = node("If", "c", "out", then_branch=branches[0], else_branch=branches[1])
    made = model([chosen], inputs, [value("out")], condition, opset=17, domains=[ML])
    made.opset_import[1].version, made.ir_version = 1, 8
    assert measured(made, tmp_path)["params"].value == 4 + 8


def test_a_loop_stores_them_once(tmp_path: Path) -> None:
    """Three rounds read the same coefficients: 16 are stored, and 3 x 5 x 16 multiplied."""
    body = helper.make_graph(
        [node("Identity", "go", "goes_on"),
         node("LinearRegressor", "state", "next", domain=ML, coefficients=[1.0] * 16, targets=FEATURES)],
        "body",
        [value("i", code=TensorProto.INT64), value("go", code=TensorProto.BOOL), value("state", ROWS, FEATURES)],
        [value("goes_on", code=TensorProto.BOOL), value("next", ROWS, FEATURES)],
    )  # fmt: skip
    made = model(
        [node("Loop", "count go x", "y", body=body)], [value("x", ROWS, FEATURES)], [value("y", ROWS, FEATURES)],
        [scalar("count", 3, np.int64), scalar("go", True, np.bool_)], opset=17, domains=[ML],
    )  # fmt: skip
    made.opset_import[1].version, made.ir_version = 1, 8
    found = measured(made, tmp_path)
    assert (found["params"].value, found["macs"].value) == (16, 3 * ROWS * 16)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(("said", "operator"), [("SOFTMAX", "Softmax"), ("LOGISTIC", "Sigmoid")])
def test_what_follows_a_linear_model_costs_what_it_does_behind_it(
    said: str, operator: str, targets: int, tmp_path: Path
) -> None:
    """2 · 5 · 4 of each product; of each score then 5, as of Softmax, or 1, as of Sigmoid; and of labels 1."""
    held: Any = {"coefficients": [1.0] * (targets * FEATURES), "post_transform": said}
    found = measured(learner("LinearRegressor", "y", targets=targets, **held), tmp_path)["flops"]
    expected = targets * (2 * ROWS * FEATURES + ROWS * {"Softmax": 5, "Sigmoid": 1}[operator])
    assert (found.value, found.complete) == (expected, True)
    written = model(
        [node("MatMul", "x w", "scores"), node(operator, "scores", "y")], [value("x", ROWS, FEATURES)],
        [value("y", ROWS, targets)], [stored("w", FEATURES, targets)],
    )  # fmt: skip
    assert measured(written, tmp_path)["flops"].value == expected
    if targets > 1:
        chosen = learner("LinearClassifier", "label scores", classlabels_ints=[*range(targets)], **held)
        assert measured(chosen, tmp_path)["flops"].value == expected + targets * ROWS


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_a_classifier_without_intercepts_take_their_place(classes: int, tmp_path: Path) -> None:
    """onnx infers as many scores as intercepts: none. 5 rows of 4 floats, their scores and labels live."""
    learnt = learner("LinearClassifier", "label scores", coefficients=[1.0] * (classes * FEATURES),
                     classlabels_ints=[*range(classes)])  # fmt: skip
    found = measured(learnt, tmp_path)
    assert (found["params"].value, found["macs"].value) == (classes * FEATURES, ROWS * classes * FEATURES)
    assert found["peak_activation"].value == 4 * ROWS * (FEATURES + classes) + 8 * ROWS


@pytest.mark.parametrize("said", ["SOFTMAX_ZERO", "PROBIT"])
def test_what_follows_a_regression_has_no_flops(said: str, tmp_path: Path) -> None:
    """The convention has a figure for neither: which scores are 0, the data decide."""
    found = measured(learner("LinearRegressor", "y", coefficients=[1.0] * FEATURES, post_transform=said), tmp_path)
    assert [missing.why for missing in found["flops"].unmeasured] == [f"convention flops/1 has no figure for {said}"]
    assert (found["macs"].value, found["macs"].complete) == (ROWS * FEATURES, True)


def test_a_classifier_is_a_product_and_the_largest_score(tmp_path: Path) -> None:
    """As Gemm and ArgMax: 2 · 5 · 4 · 3 of the product, 5 · 3 additions, and 5 · 3 comparisons."""
    found = measured(CASES["logistic regression"][0], tmp_path)["flops"]
    expected = 2 * ROWS * FEATURES * 3 + ROWS * 3 + ROWS * 3
    assert (found.value, found.complete) == (expected, True)
    written = model(
        [node("Gemm", "x w b", "scores"), node("ArgMax", "scores", "label", axis=1)], [value("x", ROWS, FEATURES)],
        [value("scores", ROWS, 3), value("label", ROWS, 1, code=TensorProto.INT64)],
        [stored("w", FEATURES, 3), stored("b", 3)],
    )  # fmt: skip
    assert measured(written, tmp_path)["flops"].value == expected


@pytest.mark.parametrize(
    ("classes", "more", "why"),
    [
        (3, {"post_transform": "SOFTMAX_ZERO"}, "SOFTMAX_ZERO"),
        (3, {"post_transform": "PROBIT"}, "PROBIT"),
        (1, {"intercepts": [0.0]}, "labels of a single score"),
        (1, {"intercepts": [0.0], "post_transform": "LOGISTIC"}, "labels of a single score"),
    ],
)
def test_what_else_is_made_of_scores_has_no_flops(
    classes: int, more: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    """Of two classes with coefficients for one, a runtime makes two scores."""
    labels = list(range(max(classes, 2)))
    held = {"coefficients": [1.0] * (classes * FEATURES), "classlabels_ints": labels, **more}
    found = measured(learner("LinearClassifier", "label scores", **held), tmp_path)
    assert [missing.why for missing in found["flops"].unmeasured] == [f"convention flops/1 has no figure for {why}"]
    assert (found["macs"].value, found["macs"].complete) == (ROWS * FEATURES * classes, True)
