"""A limit on an operator's name holds the same computation under the names that other formats give it."""

from __future__ import annotations

import pytest

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.ops.aliases import ALIKE, GENERAL, MADE_OF, other_names
from pytest_modelbudget.ops.rule import under
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.graphs import parameter, tensor


@pytest.mark.parametrize("line", [*ALIKE, *(f"{whole} {parts}" for whole, parts in MADE_OF.items())])
def test_names_of_one_computation_are_of_one_kind(line: str) -> None:
    """Every name has a rule, and what is of another kind is another program."""
    assert len({builtin_ops()[name].kind for name in under(line)}) == 1


def test_a_name_stands_in_one_line() -> None:
    """Else one of two lines would be lost, also where one of them is of forms."""
    names = [name for line in (*ALIKE, *MADE_OF.values()) for name in under(line)]
    assert len(names) == len(set(names))
    assert {*GENERAL} <= {*builtin_ops()}


@pytest.mark.parametrize(
    ("name", "ranks", "attributes", "named", "not_named"),
    [
        pytest.param("aten::_convolution", (4, 4), {}, "conv2d convolution", "conv1d conv_transpose2d", id="2-d"),
        pytest.param("aten::convolution", (3, 3), {"transposed": True}, "conv_transpose1d", "conv1d", id="transposed"),
        pytest.param("aten::conv2d", (4, 4), {}, "_convolution convolution", "conv1d", id="general names of one"),
        pytest.param("aten::matmul", (2, 2), {}, "mm linalg_matmul", "bmm mv dot", id="matrices"),
        pytest.param("aten::matmul", (3, 3), {}, "bmm", "mm mv dot", id="batches"),
        pytest.param("aten::matmul", (3, 2), {}, "mm", "bmm mv dot", id="rows of a batch"),
        pytest.param("aten::matmul", (2, 1), {}, "mv", "bmm mm dot", id="a vector"),
        pytest.param("aten::bmm", (3, 3), {}, "matmul", "mm", id="of a batch"),
        pytest.param("aten::slice_copy", (2,), {}, "slice narrow", "select", id="a view written anew"),
        pytest.param("aten::relu_", (2,), {}, "relu", "relu6", id="in place"),
        pytest.param("aten::relu", (2,), {}, "", "relu_", id="not in place"),
        pytest.param("aten::absolute_", (2,), {}, "abs absolute abs_", "neg", id="another word in place"),
        pytest.param("com.microsoft::FusedConv", (4, 4), {}, "Conv", "MatMul", id="a fused one"),
        pytest.param("onnx::Conv", (4, 4), {}, "", "com.microsoft::FusedConv", id="what is fused"),
    ],
)
def test_other_names_of_an_operation(
    name: str, ranks: tuple[int, ...], attributes: dict[str, object], named: str, not_named: str
) -> None:
    """Where one operator stands for several, its operands tell which one it is."""
    operands = tuple(tensor(f"x{at}", *(2,) * rank) for at, rank in enumerate(ranks))
    names = {*other_names(Op(name, operands, (), attributes))}
    assert {*under(named)} <= names
    assert not {*under(not_named)} & names
    assert name not in names


def test_a_product_with_a_stored_weight_is_a_linear_layer() -> None:
    """Decomposed programs have layers so; a product of two activations is none."""
    x, weight = tensor("x", 2, 3), parameter("weight", 3, 4)
    assert "aten::linear" in other_names(Op("aten::mm", (x, weight), ()))
    assert "aten::linear" not in other_names(Op("aten::mm", (x, tensor("y", 3, 4)), ()))
