"""What a rule declares beside its formulas: names in short, operands never read, fan-in."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_modelbudget.errors import ExtensionError
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import OpRule, free, under
from pytest_modelbudget.ops.table import builtin_ops

WEIGHT, LIKE = Role("weight", weight=True), Role("like", unread=True)


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("linear", "aten::linear"),
        ("_softmax", "aten::_softmax"),
        ("lstm.data", "aten::lstm.data"),
        ("Conv", "onnx::Conv"),
        ("com.microsoft::FusedConv", "com.microsoft::FusedConv"),
    ],
)
def test_a_name_without_a_domain_is_torchs_or_with_a_capital_onnx_own(short: str, name: str) -> None:
    """The tables write names in short; what says its domain stays."""
    assert under(short, "x") == {name: ("x",)}


def test_roles_may_stand_in_one_word_one_string_or_one_tuple() -> None:
    """However they are grouped, operands keep their order."""
    operands = ("x", "x_scale", WEIGHT, "y", LIKE)
    assert under("a B", "x x_scale", (WEIGHT, ("y", LIKE))) == {"aten::a": operands} | {"onnx::B": operands}


def test_a_rule_reads_nothing_of_an_unread_operand() -> None:
    """Declaring it is enough; a formula for what is read comes before it."""
    rule = free("shape", under("shape_of", "x", LIKE), "it lends its shape")
    assert rule.reads is not None
    assert rule.reads() == {"like": 0}
    assert free("copy", under("copy_of", "x"), "copied").reads is None
    given = free("shape", under("s", LIKE), "lent", reads=lambda: {"like": 4})
    assert given.reads is not None
    assert given.reads() == {"like": 4}


def test_an_operand_is_unread_under_all_names_of_a_rule_or_under_none() -> None:
    """Else the reads of one name would speak of an operand that it lacks."""
    with pytest.raises(ExtensionError, match="like, which is no role of aten::b"):
        OpRule("mixed", under("a", LIKE) | under("b", "x"), "lent")


@pytest.mark.parametrize("name", ["onnx::Shape", "onnx::Size", "onnx::EyeLike", "aten::empty_like"])
def test_who_asks_for_a_shape_alone_reads_no_value(name: str) -> None:
    """Built-in rules declare it on the role, and nobody needs a list of such operators."""
    assert all(role.unread for role in builtin_ops()[name].roles[name])


@pytest.mark.parametrize(
    ("name", "shape", "attributes", "fan_in"),
    [
        pytest.param("aten::linear", (7, 5), {}, 5, id="linear (n, k)"),
        pytest.param("aten::addmm", (5, 7), {}, 5, id="addmm (k, n)"),
        pytest.param("onnx::Gemm", (5, 7), {}, 5, id="Gemm (k, n)"),
        pytest.param("onnx::Gemm", (7, 5), {"transB": 1}, 5, id="Gemm (n, k)"),
        pytest.param("onnx::MatMul", (2, 5, 7), {}, 5, id="MatMul (batch, k, n)"),
        pytest.param("onnx::MatMul", (5,), {}, 5, id="MatMul (k,)"),
        pytest.param("onnx::Conv", (8, 3, 2, 2), {}, 3 * 2 * 2, id="Conv"),
        pytest.param("onnx::ConvTranspose", (8, 3, 2, 2), {"group": 2}, 4 * 2 * 2, id="ConvTranspose"),
        pytest.param("aten::convolution", (8, 3, 2, 2), {"transposed": True, "groups": 4}, 2 * 2 * 2, id="turned"),
        pytest.param("aten::conv_tbc", (5, 3, 8), {}, 5 * 3, id="time first"),
        pytest.param("com.microsoft::FusedMatMul", (7, 5), {"transB": 1}, 5, id="FusedMatMul (n, k)"),
        pytest.param("com.microsoft::FusedMatMul", (5, 3, 7), {"transBatchB": 1}, 5, id="FusedMatMul (k, batch, n)"),
        pytest.param("ai.onnx.ml::LinearClassifier", (12,), {"intercepts": (0.0,) * 3}, 4, id="a list of classes"),
        pytest.param("ai.onnx.ml::LinearClassifier", (12,), {"classlabels_ints": (0, 1, 2)}, 4, id="by their labels"),
        pytest.param("ai.onnx.ml::LinearClassifier", (12,), {"classlabels_strings": ("a", "b")}, 12, id="one of two"),
        pytest.param(
            "ai.onnx.ml::LinearClassifier", (12,), {"intercepts": (0.0,) * 2, "classlabels_ints": (0, 1)}, 6,
            id="both of two",
        ),
        pytest.param("ai.onnx.ml::LinearRegressor", (12,), {"targets": 3}, 4, id="a list of targets"),
    ],
)  # fmt: skip
def test_a_contraction_says_how_many_elements_one_output_sums(
    name: str, shape: tuple[int, ...], attributes: Mapping[str, object], fan_in: int
) -> None:
    """Whichever axis of the weight the outputs have, by operator and flag."""
    contraction = builtin_ops()[name].contraction
    assert contraction is not None
    assert contraction.fan_in(shape, attributes) == fan_in
