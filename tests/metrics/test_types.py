"""MACs by the types of what is multiplied, and the bits of both: hand-made operations, the arithmetic beside them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import DType, Tensor
from pytest_modelbudget.metrics.compute import bops, macs
from tests.builders.graphs import costed, parameter, tensor

HALF, INT8, UINT8 = DType("float16", 16), DType("int8", 8), DType("uint8", 8)
X, OUT = tensor("x", 3, 4), tensor("out", 3, 8)
WEIGHT = parameter("fc.weight", 8, 4, dtype=INT8)
MACS = 3 * 8 * 4


def linear(x: Tensor, weight: Tensor) -> Op:
    """x (3, 4) · weight (8, 4) → (3, 8)."""
    return Op("aten::linear", (x, weight, None), (OUT,))


def cached(dtype: DType) -> tuple[Tensor, Tensor]:
    """Keys and values of 3 steps before."""
    return tensor("pk", 2, 1, 3, 4, dtype=dtype), tensor("pv", 2, 1, 3, 4, dtype=dtype)


def grouped(*operands: Tensor | None) -> Op:
    """2 images of 6 steps, 2 heads of queries of 4 on 1 of keys and values: 8 wide, or packed 8 + 4 + 4 = 16."""
    return Op(
        "com.microsoft::GroupQueryAttention", operands, (tensor("o", 2, 6, 8),), {"num_heads": 2, "kv_num_heads": 1}
    )


ATTENDED = tuple(tensor(name, 1, 2, 5, 4, dtype=HALF) for name in "qkv")
CASES: dict[str, tuple[Op, str, int, int | None]] = {  # op, types, MACs, and bits of both, or None
    "float by float": (linear(X, parameter("w", 8, 4)), "float32×float32", MACS, 32 * 32),
    "float by int8": (linear(X, WEIGHT), "float32×int8", MACS, 32 * 8),
    "the bias comes first, and is none of them": (
        Op("aten::addmm", (parameter("b", 8), X, parameter("w", 4, 8, dtype=HALF)), (OUT,)),
        "float32×float16", MACS, 32 * 16,
    ),
    "integers on a grid": (
        linear(tensor("x", 3, 4, dtype=DType("quint8", 8)), parameter("w", 8, 4, dtype=DType("qint8", 8))),
        "uint8×int8", MACS, 8 * 8,
    ),
    "two to a byte": (linear(X, parameter("w", 8, 4, dtype=DType("quint4x2", 4))), "float32×uint4", MACS, 32 * 4),
    "packed in blocks": (
        Op("com.microsoft::MatMulNBits", (X, parameter("w", 8, 1, 16, dtype=UINT8), parameter("s", 8)), (OUT,),
           {"K": 4, "N": 8, "bits": 4}), "float32×4-bit", MACS, 32 * 4,
    ),
    "packed, by bytes": (  # 16 B for 32 elements
        Op("com.microsoft::MatMulBnb4", (X, parameter("w", 16, dtype=UINT8), parameter("s", 1)), (OUT,),
           {"K": 4, "N": 8}), "float32×4-bit", MACS, 32 * 4,
    ),
    "points that it makes in the type of theta": (
        Op("aten::affine_grid_generator", (tensor("theta", 2, 2, 3, dtype=HALF),),
           (tensor("g", 2, 5, 7, 2, dtype=HALF),), {"size": (2, 1, 5, 7)}),
        "float16×float16", 2 * 5 * 7 * 2 * 3, 16 * 16,
    ),
    "a matrix by itself": (
        Op("aten::linalg_inv", (tensor("a", 6, 6),), (tensor("i", 6, 6),)), "float32×float32", 6 * 6 * 6, 32 * 32,
    ),
    "attention": (
        Op("aten::scaled_dot_product_attention", ATTENDED, (tensor("o", 1, 2, 5, 4),)),
        "float16×float16", (2 * 5) * 5 * (4 + 4), 16 * 16,
    ),
    "keys and values packed behind the queries": (
        grouped(tensor("q", 2, 6, 16)), "float32×float32", 2 * 2 * 6 * 6 * (4 + 4), 32 * 32,
    ),
    "packed ones, and others cached": (
        grouped(tensor("q", 2, 6, 16), None, None, *cached(DType("float32", 32))),
        "float32×float32", 2 * 2 * 6 * 9 * (4 + 4), 32 * 32,
    ),
    "packed ones, and others cached in int8": (
        grouped(tensor("q", 2, 6, 16), None, None, *cached(INT8)), "float32×unknown", 2 * 2 * 6 * 9 * (4 + 4), None,
    ),
    "floats, and others cached in int8": (
        grouped(tensor("q", 2, 6, 8), *(tensor(name, 2, 6, 4) for name in "kv"), *cached(INT8)),
        "float32×unknown", 2 * 2 * 6 * 9 * (4 + 4), None,
    ),
    "keys and values cached in int8": (
        Op("aten::scaled_dot_product_attention",
           (ATTENDED[0], *(tensor(name, 1, 2, 5, 4, dtype=INT8) for name in "kv")), (tensor("o", 1, 2, 5, 4),)),
        "float16×int8", (2 * 5) * 5 * (4 + 4), 16 * 8,
    ),
    "matrices of a recurrent layer, not its biases": (
        Op("aten::lstm",
           (tensor("x", 5, 2, 4), (tensor("h", 1, 2, 3), tensor("c", 1, 2, 3)),
            (parameter("w", 12, 4, dtype=INT8), parameter("r", 12, 3, dtype=INT8), parameter("b", 12))),
           (tensor("y", 5, 2, 3),)), "float32×int8", 5 * 2 * (12 * 4 + 12 * 3), 32 * 8,
    ),
    "several of several types": (
        Op("aten::bilinear", (X, tensor("y", 3, 4, dtype=HALF), parameter("w", 8, 4, 4), None), (OUT,)),
        "float32×unknown", 3 * (8 * 4 * 4 + 8 * 4), None,
    ),
    "a tensor kept in several": (  # 4 bits an element, and half a bit of scales
        linear(X, parameter("w", 8, 4, dtype=DType("int32", Fraction(9, 2)))), "float32×unknown", MACS, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("op", "types", "count", "bits"), CASES.values(), ids=list(CASES))
def test_types_of_what_is_multiplied(op: Op, types: str, count: int, bits: int | None) -> None:
    """All MACs are of one pair of types; bit operations are those MACs times both widths, or unmeasured."""
    activations = tuple(each for each in op.tensors() if each.storage.is_activation)
    graph = costed(op, inputs=activations, outputs=op.outputs)
    assert dict(macs(graph).parts) == {types: count}
    number = bops(graph)
    assert (number.value, number.complete) == ((count * bits, True) if bits else (0, False))
    if not bits:
        assert "bits are not known" in number.unmeasured[0].why


def test_parts_of_one_model() -> None:
    """3 · 4 · 4 MACs of floats and 3 · 8 · 4 by int8: 48 · 32 · 32 + 96 · 32 · 8 = 73,728 BOP, and no more shares."""
    hidden = tensor("hidden", 3, 4)
    ops = (
        Op("aten::linear", (X, parameter("a.weight", 4, 4), None), (hidden,), scope="a"),
        Op("aten::relu_", (hidden,), (hidden,), scope="act", mutates=True),
        Op("aten::linear", (hidden, WEIGHT, None), (OUT,), scope="b"),
    )
    graph = costed(*ops, inputs=(X,), outputs=(OUT,))
    assert list(macs(graph).parts.items()) == [("float32×float32", 48), ("float32×int8", 96)]
    assert [(share.scope, share.value) for share in bops(graph).shares] == [
        ("a", 48 * 32 * 32), ("b", 96 * 32 * 8),
    ]  # fmt: skip
    assert bops(graph).value == 73_728


def test_what_has_no_formula_has_no_bits() -> None:
    """An operator without a rule makes both lower bounds, and is no part of any type."""
    graph = costed(Op("their::mixing", (X,), (OUT,), scope="mix"), inputs=(X,), outputs=(OUT,))
    for number in (macs(graph), bops(graph)):
        assert number.value == 0
        assert [op.op for op in number.unmeasured] == ["their::mixing"]
    assert macs(graph).parts == {}


def test_an_outer_product_has_no_macs_and_so_no_bits() -> None:
    """i,j->ij sums nothing: 0 MACs, 0 BOP, complete."""
    parts: Any = (tensor("a", 3), tensor("b", 8, dtype=HALF))
    op = Op("aten::einsum", (parts,), (OUT,), {"equation": "i,j->ij"})
    number = bops(costed(op, inputs=parts, outputs=(OUT,)))
    assert (number.value, number.complete) == (0, True)
