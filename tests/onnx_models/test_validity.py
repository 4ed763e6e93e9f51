"""Files that ONNX Runtime refuses to load are refused, each with its place; what it loads is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from packaging.version import Version

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.onnx_models.checks import BEFORE_ONNX, NEWEST
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value

ort = pytest.importorskip("onnxruntime")
NEWEST_IR = onnx.IR_VERSION
BOOL, INT64, FLOAT = TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT
X, Y, FLAG = value("x", 2, 8), value("y", 2, 8), value("flag", code=BOOL)
RELU = node("Relu", "x", "y")


def built(
    *nodes: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto] = (X,), output: onnx.ValueInfoProto = Y,
    weights: Sequence[onnx.TensorProto] = (), opset: int = 21, ml: int = 0, ir: int = 10,
) -> onnx.ModelProto:  # fmt: skip
    """A model of the format's version ir."""
    made = model(nodes, inputs, [output], weights, opset=opset)
    if ml:
        made.opset_import.append(helper.make_opsetid("ai.onnx.ml", ml))
    made.ir_version = ir
    return made


def branch(*nodes: onnx.NodeProto, weights: Sequence[onnx.TensorProto] = (), code: int = FLOAT) -> onnx.GraphProto:
    """A branch that gives what its last node does."""
    return graph(nodes, [], [value(nodes[-1].output[0], 2, 8, code=code)], weights)


def either(then: onnx.GraphProto, *before: onnx.NodeProto, **more: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    """A branch, or a negation of x."""
    made = node("If", "flag", "y", then_branch=then, else_branch=branch(node("Neg", "x", "b")))
    return built(*before, made, inputs=[X, FLAG], **more)  # type: ignore[arg-type]  # weights alone


def rounds(*steps: onnx.NodeProto, given: int = FLOAT, left: int = FLOAT) -> onnx.ModelProto:
    """Three rounds on a state that the body declares with these types."""
    inputs = [value("i", code=INT64), value("goes", code=BOOL), value("state", 2, 8, code=given)]
    results = [value("on", code=BOOL), value("after", 2, 8, code=left)]
    body = graph([node("Identity", "goes", "on"), *steps], inputs, results)
    output = value("y", 2, 8, code=left)
    return built(node("Loop", "count - x", "y", body=body), weights=[scalar("count", 3, np.int64)], output=output)


def loads(made: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime loads a model."""
    ort.set_default_logger_severity(4)
    try:
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  # of many classes
        return False
    return True


W, ROW = stored("w", 8), [stored("w", 8)]
INTEGERS = value("x", 2, 8, code=INT64)
TWICE_GIVEN = "'{}' is given twice: export it again"
REFUSED = {
    "two nodes": (built(RELU, node("Neg", "x", "y")), TWICE_GIVEN.format("y")),
    "one node": (built(node("Split", "x", "y y", axis=1, num_outputs=2)), TWICE_GIVEN.format("y")),
    "a stored tensor": (built(RELU, weights=[stored("y", 2, 8)]), TWICE_GIVEN.format("y")),
    "an input": (built(node("Relu", "x", "x"), RELU), TWICE_GIVEN.format("x")),
    "two inputs": (built(RELU, inputs=[X, X]), TWICE_GIVEN.format("x")),
    "a value around a branch": (either(branch(node("Relu", "x", "a")), node("Neg", "x", "a")), TWICE_GIVEN.format("a")),
    "a weight around a branch": (either(branch(node("Relu", "x", "w")), weights=ROW), TWICE_GIVEN.format("w")),
    "operators of tomorrow": (built(RELU, opset=99), f"version 99 of the operators of ai.onnx, .* to {NEWEST['']}"),
    "operators of never": (built(RELU, opset=0), "version 0 of the operators of ai.onnx"),
    "learning of tomorrow": (built(RELU, ml=99), "version 99 of the operators of ai.onnx.ml"),
    "a format of tomorrow": (built(RELU, ir=99), f"version 99 of the format, .* to {NEWEST_IR}"),
    "too early": (built(node("Gelu", "x", "y"), opset=19), "No Op registered for Gelu with domain_version of 19"),
    "too late": (
        built(node("Upsample", "x s", "y"), weights=[stored("s", 2)], opset=13),
        "Upsample is deprecated in domain_version of 13",
    ),
    "too few operands": (built(node("MatMul", "x", "y")), r"Node\(y\) with .*MatMul.* has input size 1"),
    "too many operands": (built(node("Relu", "x x", "y")), "has input size 2 not in range"),
    "too many results": (built(node("Relu", "x", "y z")), "has output size 2 not in range"),
    **{
        f"an operand left out of {operator}": (
            built(node(operator, reads, "y", **more), weights=ROW),
            rf"Node \(y\)'s input {at} is marked single but has an empty string in the graph",
        )
        for operator, reads, at, more in (
            ("MatMul", "x -", 1, {}), ("MatMul", "- x", 0, {}), ("Add", "x -", 1, {}), ("Relu", "-", 0, {}),
            ("Conv", "x -", 1, {"kernel_shape": [3]}), ("Reshape", "x -", 1, {}),
            ("BatchNormalization", "x w - w w", 2, {}),
        )
    },
    "an attribute left out": (built(node("Cast", "x", "y")), "Required attribute 'to' is missing"),
    "an attribute of nobody": (built(node("Relu", "x", "y", slope=3)), "Unrecognized attribute: slope for"),
    "an attribute of another type": (built(node("Softmax", "x", "y", axis=1.5)), "'y : axis'. Expected: 'INT'"),
    "two types": (
        built(node("Add", "x w", "y"), weights=[stored("w", 8, dtype=np.float64)]),
        r"op_type:Add, node name: y\): B has inconsistent type tensor\(double\): check the model",
    ),
    "integers": (
        built(node("Sigmoid", "x", "y"), inputs=[INTEGERS], output=value("y", 2, 8, code=INT64)),
        r"op_type:Sigmoid, node name: y\): X typestr: T, has unsupported type: tensor\(int64\)",
    ),
    "a zero point of floats": (
        built(node("QuantizeLinear", "x s z", "y"), weights=[scalar("s", 1.0), scalar("z", 1.0)],
              output=value("y", 2, 8, code=TensorProto.INT8)),
        "y_zero_point typestr: T2, has unsupported type",
    ),
}  # fmt: skip
FUSED = node("Gelu", "x", "h", domain="com.microsoft")
REFUSED |= {
    "two types beside an operator of ONNX Runtime": (
        built(FUSED, node("Add", "h w", "y"), weights=[stored("w", 8, dtype=np.float64)], opset=19),
        r"Optype \(Add\) bound to different types \(tensor\(float\) and tensor\(double\) in node \(y\)",
    ),
}  # fmt: skip
REFUSED["operators of ONNX Runtime's tomorrow"] = (built(FUSED, node("Relu", "h", "y")), "domain com.microsoft")
REFUSED["operators of ONNX Runtime's tomorrow"][0].opset_import.append(helper.make_opsetid("com.microsoft", 6))
TWICE = node("FusedMatMul", "x w", "y", domain="com.microsoft", transB=1)
TWICE.attribute.append(TWICE.attribute[0])
REFUSED["an attribute twice"] = (built(TWICE, weights=[stored("w", 8, 8)]), "transB")
LOADED = {
    "an operator of ONNX Runtime": built(FUSED, node("Add", "h w", "y"), weights=ROW),
    "results that nobody here knows": built(
        node("CDist", "x x", "h", domain="com.microsoft", metric="euclidean"),
        node("Cast", "h", "y", to=FLOAT),
        output=value("y", 2, 2),
    ),
    "a branch names what follows": either(branch(node("Relu", "x", "y"))),
    "both branches alike": either(branch(node("Relu", "x", "b"))),
    "a branch stores what stands around it": either(branch(node("Add", "x w", "a"), weights=ROW), weights=ROW),
    "a branch stores what a node gives": either(branch(node("Add", "x w", "a"), weights=ROW), node("Neg", "x", "w")),
    "an input with a stored value": built(node("Add", "x w", "y"), inputs=[X, value("w", 8)], weights=ROW),
    "nodes out of order": built(node("Relu", "a", "y"), node("Neg", "x", "a")),
    "the newest operators": built(RELU, opset=NEWEST[""], ir=NEWEST_IR),
    "a state": rounds(node("Relu", "state", "after")),
    "an operand that may be left out": built(node("Clip", "x - most", "y"), weights=[scalar("most", 1.0)]),
}


@pytest.mark.parametrize(("made", "why"), REFUSED.values(), ids=REFUSED)
def test_what_no_runtime_loads_is_refused(made: onnx.ModelProto, why: str, tmp_path: Path) -> None:
    """Also under a limit that is never reached: no number is made of it."""
    assert not loads(made)
    with pytest.raises(SourceError, match=why):
        measured(made, tmp_path)


# onnx 1.23 has operators of a later runtime than the lowest that the project asks for.
LATEST = pytest.mark.skipif(Version(ort.__version__) < Version("1.32"), reason="onnxruntime 1.32 has them first")


def test_a_graph_without_outputs_is_refused(tmp_path: Path) -> None:
    """No runtime computes anything of it: what it costs is not what its nodes would."""
    made = built(RELU)
    del made.graph.output[:]
    with pytest.raises(SourceError, match="is no valid ONNX model: its graph gives no output: export it again"):
        measured(made, tmp_path)


@pytest.mark.parametrize(
    "made", [pytest.param(made, id=name, marks=LATEST if "newest" in name else ()) for name, made in LOADED.items()]
)
def test_what_runtimes_load_is_measured(made: onnx.ModelProto, tmp_path: Path) -> None:
    """What looks alike is no mistake."""
    assert loads(made)
    nobody_knows = any(each.op_type == "CDist" for each in made.graph.node)
    assert measured(made, tmp_path)["macs"].complete is not nobody_knows


@pytest.mark.parametrize("name", sorted(BEFORE_ONNX))
def test_operators_that_the_runtime_had_first_are_read(name: str, tmp_path: Path) -> None:
    """They stand in files of operator sets that are older than ONNX's own of the name."""
    since = min(each.since_version for each in onnx.defs.get_all_schemas_with_history() if each.name == name)
    norm = name == "LayerNormalization"
    made = built(node(name, "x w" if norm else "x", "y"), weights=[W] if norm else [], opset=since - 1)
    assert loads(made)
    assert measured(made, tmp_path)["macs"].value == 0


def test_an_operator_of_the_files_own_may_have_any_name(tmp_path: Path) -> None:
    """A function stands before ONNX's own operator."""
    made = built(node("Gelu", "x", "y", domain="lab"), opset=19)
    opsets = [helper.make_opsetid("", 19)]
    made.functions.append(helper.make_function("lab", "Gelu", ["x"], ["y"], [RELU], opsets))
    made.opset_import.append(helper.make_opsetid("lab", 1))
    assert measured(made, tmp_path)["macs"].complete


@pytest.mark.parametrize("where", ["inside", "in a file beside"])
def test_a_part_that_was_compiled_hides_its_weights(where: str, tmp_path: Path) -> None:
    """Nobody sees how many parameters it has: 0 would be a claim."""
    mode = int(where == "inside")
    made = built(node("EPContext", "x", "y", domain="com.microsoft", ep_cache_context="weights", embed_mode=mode))
    with pytest.raises(SourceError, match="EPContext 'y' is compiled for one device, and unreadable"):
        measured(made, tmp_path)


ZEROS = helper.make_attribute("value", onnx.numpy_helper.from_array(np.zeros(1, np.float32)))
HELD_WRONGLY = {
    "another name": [helper.make_attribute("values", ZEROS.t)],
    "another type": [helper.make_attribute("value", helper.make_sparse_tensor(ZEROS.t, stored("i", 1), [1]))],
    "several": [helper.make_attribute("value", [ZEROS.t])],
    "twice": [ZEROS, ZEROS],
}


@pytest.mark.parametrize("attributes", HELD_WRONGLY.values(), ids=HELD_WRONGLY)
@pytest.mark.parametrize("count", [1, 2])
def test_a_node_is_held_to_its_schema_beside_good_ones_of_its_operator(
    attributes: Sequence[onnx.AttributeProto], count: int, tmp_path: Path
) -> None:
    """They differ in a tensor that they hold, or in its name."""
    nodes = [node("ConstantOfShape", "sizes", f"good{at}") for at in range(count)]
    wrong = node("ConstantOfShape", "sizes", "wrong")
    for good in nodes:
        good.attribute.append(ZEROS)
    wrong.attribute.extend(attributes)
    sizes = onnx.numpy_helper.from_array(np.array([2, 8]), "sizes")
    made = built(*nodes, wrong, node("Add", "x wrong", "y"), weights=[sizes])
    assert not loads(made)
    with pytest.raises(SourceError, match="ConstantOfShape"):
        measured(made, tmp_path)
