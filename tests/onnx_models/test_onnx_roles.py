"""What a stored tensor is to whoever reads it is declared by a rule, or the number says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import graph, model, node, scalar, stored, value

WEIGHT_METRICS = ("params", "trainable_params", "weight_memory")
DOWN, UP = stored("down", 64, 8), stored("up", 8, 64)


def numbers(proto: onnx.ModelProto, folder: Path, rules: Sequence[OpRule] = ()) -> dict[str, Measurement]:
    """Everything measured of a model in a file, with an extension's rules."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    found = measure_model(ModelSource("onnx", str(path)), tables([SimpleNamespace(OPS=tuple(rules))]), root=folder)
    assert found.failure is None
    return dict(found.measurements)


def lab(operands: str, *weights: onnx.TensorProto, before: Sequence[onnx.NodeProto] = ()) -> Any:
    """x (1, 64) and stored tensors through an operator that the project does not know."""
    nodes = [*before, node("low_rank", f"x {operands}", "y", domain="lab")]
    return model(nodes, [value("x", 1, 64)], [value("y", 1, 64)], weights, domains=["lab"])


def low_rank_macs(*, down: Tensor, up: Tensor) -> int:
    return down.elements + up.elements


def test_a_declared_weight_counts_under_any_word(tmp_path: Path) -> None:
    """64·8 down and 8·64 up, in float32."""
    roles = ("x", Role("down", weight=True), Role("up", weight=True))
    rule = OpRule("low_rank", {"lab::low_rank": roles}, "narrow", macs=low_rank_macs)
    found = numbers(lab("down up", DOWN, UP), tmp_path, [rule])
    assert all(found[key].complete for key in WEIGHT_METRICS)
    assert [found[key].value for key in WEIGHT_METRICS] == [1024, 1024, 4096]


@pytest.mark.parametrize("kind", ["low_rank", "add", "matmul"])
@pytest.mark.parametrize("words", [("x", "down", "up"), ("x", "weight", "second_weight")])
def test_a_plain_word_says_nothing(words: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    """However a role or a kind is spelt, nobody said that it is a weight, or that it is none."""
    rule = OpRule(kind, {"lab::low_rank": words}, "narrow")
    found = numbers(lab("down up", DOWN, UP), tmp_path, [rule])
    for key in WEIGHT_METRICS:
        (missing,) = found[key].unmeasured
        assert (missing.op, missing.count) == ("lab::low_rank", 1)
        assert f"what '{words[1]}', '{words[2]}' means" in missing.why
        assert f'Role("{words[1]}", weight=True) is a parameter' in missing.why
    assert found["model_size"].complete
    assert found["model_size"].value == 4096


def test_a_role_without_a_flag_is_an_activation(tmp_path: Path) -> None:
    """Role("down") is a claim: what is stored for it is a constant."""
    rule = OpRule("low_rank", {"lab::low_rank": ("x", Role("down"), Role("up"))}, "narrow")
    found = numbers(lab("down up", DOWN, UP), tmp_path, [rule])
    assert (found["params"].value, found["params"].complete) == (0, True)


def branch(nodes: Sequence[onnx.NodeProto], result: str, *weights: onnx.TensorProto) -> Any:
    return graph(nodes, [], [value(result, 1, 64)], weights)


def if_with_unknown() -> onnx.ModelProto:
    """An operator without a rule, in one branch, with the weight that this branch stores."""
    one = branch([node("low_rank", "x down", "t", domain="lab")], "t", DOWN)
    other = branch([node("Relu", "x", "e")], "e")
    nodes = [node("If", "c", "y", then_branch=one, else_branch=other)]
    inputs = [value("c", code=TensorProto.BOOL), value("x", 1, 64)]
    return model(nodes, inputs, [value("y", 1, 64)], domains=["lab"])


def own_function() -> onnx.ModelProto:
    """An operator without a rule, inside a function of the file's own."""
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("lab", 1)]
    inner = [node("low_rank", "x w", "y", domain="lab")]
    function = helper.make_function("own", "F", ["x", "w"], ["y"], inner, opsets)
    return model(
        [node("F", "x down", "y", domain="own")],
        [value("x", 1, 64)],
        [value("y", 1, 64)],
        [DOWN],
        domains=["lab", "own"],
        functions=[function],
    )


INT8 = stored("q", 64, 8, dtype=np.int8)
TO_UNKNOWN = {
    "read alone": lab("down", DOWN),
    "behind a transpose and a cast": lab(
        "turned",
        DOWN,
        before=[node("Transpose", "down", "t", perm=[1, 0]), node("Cast", "t", "turned", to=TensorProto.FLOAT16)],
    ),
    "dequantised": lab("d", INT8, stored("s", 8), before=[node("DequantizeLinear", "q s", "d", axis=1)]),
    "int8": lab("q", INT8),
    "a Constant node": lab("c", before=[helper.make_node("Constant", [], ["c"], name="c", value=DOWN)]),
    "in a branch": if_with_unknown(),
    "in a function": own_function(),
    "read by a known operator too, which makes it no parameter": lab(
        "down h", DOWN, before=[node("Shape", "down", "h")]
    ),
}


@pytest.mark.parametrize("proto", TO_UNKNOWN.values(), ids=TO_UNKNOWN)
def test_an_operator_without_a_rule_leaves_params_unknown(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """Wherever it stands: the weight metrics are lower bounds that name it."""
    found = numbers(proto, tmp_path)
    for key in WEIGHT_METRICS:
        assert [each.op for each in found[key].unmeasured] == ["lab::low_rank"], key
        assert "no rule says what it reads" in found[key].unmeasured[0].why
    assert found["model_size"].complete


NO_WEIGHT = {"int64": lab("q", stored("q", 64, dtype=np.int64)), "rank 0": lab("q", scalar("q", 2.0))}


@pytest.mark.parametrize("proto", NO_WEIGHT.values(), ids=NO_WEIGHT)
def test_what_cannot_be_a_weight_leaves_params_known(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """Indices and scalars are no parameters, whoever reads them."""
    params = numbers(proto, tmp_path)["params"]
    assert (params.value, params.complete) == (0, True)


def test_a_weight_that_a_known_operator_reads_too_is_one(tmp_path: Path) -> None:
    """One reader that knows it is enough: 64·8."""
    product = node("MatMul", "x down", "h")
    params = numbers(lab("down h", DOWN, before=[product]), tmp_path)["params"]
    assert (params.value, params.complete) == (512, True)


def product_in_loop(count: onnx.ValueInfoProto | onnx.TensorProto) -> onnx.ModelProto:
    """Loop whose state runs through a product with a tensor that its body stores."""
    flag = onnx.numpy_helper.from_array(np.array(True), "go")
    body = graph(
        [node("Identity", "on", "still"), node("MatMul", "state inner", "next")],
        [value("i", code=TensorProto.INT64), value("on", code=TensorProto.BOOL), value("state", 1, 64)],
        [value("still", code=TensorProto.BOOL), value("next", 1, 64)],
        [stored("inner", 64, 64)],
    )
    is_input = isinstance(count, onnx.ValueInfoProto)
    return model(
        [node("Loop", "n go x", "y", body=body)],
        [value("x", 1, 64), *([count] if is_input else [])],
        [value("y", 1, 64)],
        [flag, *([] if is_input else [count])],
    )


def handed_into_scan() -> onnx.ModelProto:
    """Scan over three matrices (64, 64), of which each run multiplies by one."""
    body = graph(
        [node("MatMul", "state each", "next")], [value("state", 1, 64), value("each", 64, 64)], [value("next", 1, 64)]
    )
    scan = node("Scan", "x many", "y", body=body, num_scan_inputs=1)
    return model([scan], [value("x", 1, 64)], [value("y", 1, 64)], [stored("many", 3, 64, 64)])


def out_of_if() -> onnx.ModelProto:
    """MatMul by one of two matrices (64, 64), which the branches of an If give."""

    def gives(name: str) -> onnx.GraphProto:
        return graph([node("Identity", name, f"of_{name}")], [], [value(f"of_{name}", 64, 64)], [stored(name, 64, 64)])

    chosen = node("If", "c", "w", then_branch=gives("a"), else_branch=gives("b"))
    inputs = [value("c", code=TensorProto.BOOL), value("x", 1, 64)]
    return model([chosen, node("MatMul", "x w", "y")], inputs, [value("y", 1, 64)])


@pytest.mark.parametrize(
    ("proto", "params"),
    [
        pytest.param(product_in_loop(onnx.numpy_helper.from_array(np.array(3), "n")), 64 * 64, id="counted"),
        pytest.param(product_in_loop(value("n", code=TensorProto.INT64)), 64 * 64, id="data decide how often"),
        pytest.param(handed_into_scan(), 3 * 64 * 64, id="scanned"),
        pytest.param(out_of_if(), 2 * 64 * 64, id="out of branches"),
    ],
)
def test_weights_of_bodies(proto: onnx.ModelProto, params: int, tmp_path: Path) -> None:
    """What a body stores, is handed or gives is a weight by what reads it, on whichever side."""
    found = numbers(proto, tmp_path)["params"]
    assert (found.value, found.complete) == (params, True)


def test_a_left_operand_is_a_weight(tmp_path: Path) -> None:
    """Gemm multiplies both: W·x has 64·8 parameters as x·W has."""
    proto = model([node("Gemm", "down x", "y")], [value("x", 8, 3)], [value("y", 64, 3)], [DOWN])
    assert numbers(proto, tmp_path)["params"].value == 512


def test_a_role_is_one_thing() -> None:
    """A stored weight that is a shape does not exist."""
    with pytest.raises(ExtensionError, match="role 'w' is weight and shape: only one can hold"):
        Role("w", weight=True, shape=True)
