"""Operations as matrix products: hand-made cases, and the same MACs as the rules count, on every model of the suite."""

from dataclasses import replace

import pytest

from pytest_modelbudget.deployment.array import Product
from pytest_modelbudget.deployment.products import FORMULAS, products
from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import DType
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.graphs import parameter, tensor
from tests.builders.programs import NO_PRODUCTS

TWO_VALUES = DType("float4_e2m1fn_x2", 8, 2)


def made(name: str, *operands: object, out: tuple[int, ...], **attributes: object) -> tuple[Product, ...]:
    op = Op(name, operands, (tensor("y", *out),), attributes)  # type: ignore[arg-type]
    return products(op, builtin_ops())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # x (2, 7, 5), weight (3, 5): rows 2 · 7, in 5, out 3
        pytest.param(
            made("aten::linear", tensor("x", 2, 7, 5), parameter("w", 3, 5), None, out=(2, 7, 3)),
            [Product(14, 5, 3)],
            id="linear",
        ),
        # x (7, 5), weight (3, 5); and the gradients of both, of logits (7, 3)
        pytest.param(
            made(
                "torch_nn::_linear_cross_entropy_batch_chunked",
                tensor("x", 7, 5),
                parameter("w", 3, 5),
                tensor("target", 7),
                None,
                None,
                out=(),
                compute_input_grad=True,
                compute_linear_weight_grad=True,
            ),
            [Product(7, 5, 3), Product(7, 3, 5), Product(3, 7, 5)],
            id="linear cross entropy",
        ),
        pytest.param(
            made("aten::addmm", parameter("b", 3), tensor("x", 7, 5), parameter("w", 5, 3), out=(7, 3)),
            [Product(7, 5, 3)],
            id="addmm",
        ),
        pytest.param(
            made("onnx::Gemm", tensor("x", 5, 7), parameter("w", 3, 5), out=(7, 3), transA=1, transB=1),
            [Product(7, 5, 3)],
            id="Gemm, both turned round",
        ),
        pytest.param(
            made("aten::mv", tensor("x", 7, 5), tensor("y", 5), out=(7,)), [Product(7, 5, 1)], id="matrix by vector"
        ),
        pytest.param(
            made("aten::inner", tensor("x", 2, 4), tensor("y", 5, 3, 4), out=(2, 5, 3)),
            [Product(2, 4, 15)],
            id="rows by rows",
        ),
        pytest.param(
            made("aten::matmul", tensor("x", 5), tensor("y", 2, 5, 3), out=(2, 3)),
            [Product(1, 5, 3, 2)],
            id="vector by matrices",
        ),
        pytest.param(
            made("onnx::MatMul", tensor("x", 2, 4, 7, 5), tensor("y", 4, 5, 3), out=(2, 4, 7, 3)),
            [Product(7, 5, 3, 8)],
            id="matrices by broadcast matrices",
        ),
        pytest.param(
            made("onnx::MatMul", tensor("x", 2, 4, 7, 5), parameter("y", 5, 3), out=(2, 4, 7, 3)),
            [Product(56, 5, 3)],
            id="every row by one matrix",
        ),
        pytest.param(
            made("com.microsoft::MatMulNBits", tensor("x", 2, 7, 32), parameter("w", 3, 2, 8), out=(2, 7, 3)),
            [Product(14, 32, 3)],
            id="a weight packed in blocks is no batch",
        ),
        # im2col: 2 images of 6 x 6 positions, 8/4 channels of 3 x 3, 12/4 filters, 4 groups
        pytest.param(
            made("aten::conv2d", tensor("x", 2, 8, 6, 6), parameter("w", 12, 2, 3, 3), out=(2, 12, 6, 6), groups=4),
            [Product(2 * 36, 2 * 9, 3, 4)],
            id="grouped convolution",
        ),
        pytest.param(
            made("quantized::conv2d", tensor("x", 2, 8, 6, 6), parameter("w", 8, 1, 3, 3), out=(2, 8, 6, 6)),
            [Product(2 * 36, 9, 1, 8)],
            id="a depthwise convolution that does not say its groups",
        ),
        pytest.param(
            made("com.microsoft::NhwcConv", tensor("x", 1, 6, 6, 2), parameter("w", 12, 3, 3, 2), out=(1, 6, 6, 12)),
            [Product(36, 18, 12)],
            id="channels last",
        ),
        # each of 2 · 9 input positions: 4/2 channels into 6/2 · 2 · 2 weights, 2 groups
        pytest.param(
            made("onnx::ConvTranspose", tensor("x", 2, 4, 3, 3), parameter("w", 4, 3, 2, 2), out=(2, 6, 6, 6), group=2),
            [Product(18, 2, 12, 2)],
            id="transposed convolution",
        ),
        pytest.param(
            made("aten::conv_tbc", tensor("x", 9, 2, 4), parameter("w", 3, 4, 6), out=(7, 2, 6)),
            [Product(14, 12, 6)],
            id="time first",
        ),
        # scores per head: 7 queries x 4 x 9 keys, then 7 x 9 keys x 5 values; 2 images, 3 heads
        pytest.param(
            made(
                "aten::scaled_dot_product_attention",
                *(tensor("q", 2, 3, 7, 4), tensor("k", 2, 1, 9, 4), tensor("v", 2, 1, 9, 5)),
                out=(2, 3, 7, 5),
            ),
            [Product(7, 4, 9, 6), Product(7, 9, 5, 6)],
            id="attention",
        ),
        pytest.param(
            made(
                "onnx::Attention",
                *(tensor("q", 2, 7, 12), tensor("k", 2, 9, 12), tensor("v", 2, 9, 15)),
                **{"out": (2, 7, 15), "q_num_heads": 3, "kv_num_heads": 3},  # type: ignore[arg-type]
            ),
            [Product(7, 4, 9, 6), Product(7, 9, 5, 6)],
            id="attention whose heads stand in attributes",
        ),
        pytest.param(
            made(
                "aten::einsum", (tensor("x", 4, 8, 16), tensor("y", 4, 6, 16)), out=(4, 8, 6), equation="bij,bkj->bik"
            ),
            [Product(8, 16, 6, 4)],
            id="einsum of a batch",
        ),
        # (50, 30)·(30, 40), then (50, 40)·(40, 2)
        pytest.param(
            made(
                "aten::einsum",
                (tensor("x", 50, 30), tensor("y", 30, 40), tensor("z", 40, 2)),
                out=(50, 2),
                equation="ij,jk,kl->il",
            ),
            [Product(50, 30, 40), Product(50, 40, 2)],
            id="einsum of a chain",
        ),
        # 6 rows: 3 × (2 · 4), then 2 × 4 × 1 for each row
        pytest.param(
            made("aten::bilinear", tensor("x", 6, 3), tensor("y", 6, 4), parameter("w", 2, 3, 4), out=(6, 2)),
            [Product(6, 3, 8), Product(2, 4, 1, 6)],
            id="bilinear",
        ),
        pytest.param(made("aten::relu", tensor("x", 6), out=(6,)), [], id="nothing is multiplied"),
        pytest.param(
            made("aten::mm", tensor("x", 0, 5), parameter("w", 5, 3), out=(0, 3)), [], id="no rows, no product"
        ),
    ],
)
def test_products_by_hand(found: tuple[Product, ...], expected: list[Product]) -> None:
    assert list(found) == expected


def test_a_loop_runs_its_products_again() -> None:
    op = Op("aten::mm", (tensor("x", 2, 5), parameter("w", 5, 3)), (tensor("y", 2, 3),), times=4)
    assert products(op, builtin_ops()) == (Product(2, 5, 3, 4),)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        pytest.param(Op("my::op", (tensor("x", 2),), (tensor("y", 2),)), "no rule", id="unknown operator"),
        pytest.param(
            Op("aten::lstm_cell", (tensor("x", 2, 4), tensor("h", 2, 3), *(parameter("w", 12, k) for k in (4, 3))),
               (tensor("y", 2, 3),)),
            "no matrix product is known of lstm_cell", id="recurrent cell",
        ),
        pytest.param(
            Op("aten::cdist", (tensor("x", 2, 4), tensor("z", 3, 4)), (tensor("y", 2, 3),)),
            "a kernel may compute", id="no formula of MACs",
        ),
        pytest.param(
            Op("aten::_grouped_mm", (tensor("x", 6, 4), tensor("w", 2, 4, 3), tensor("o", 2)), (tensor("y", 6, 3),)),
            "in the data", id="rows of groups",
        ),
    ],
)  # fmt: skip
def test_what_has_macs_and_no_products_is_unmeasured(op: Op, why: str) -> None:
    with pytest.raises(UnmeasurableError, match=why):
        products(op, builtin_ops())


def test_elements_of_two_values_are_twice_as_many_along_k() -> None:
    """x (16, 32) and weight (32, 16) of float4_e2m1fn_x2: 64 values."""
    x, weight = (
        replace(tensor(name, *shape), dtype=TWO_VALUES) for name, shape in {"x": (16, 32), "w": (32, 16)}.items()
    )
    assert made("aten::_scaled_mm", x, weight, None, None, out=(16, 16)) == (Product(16, 64, 16),)


def test_every_rule_with_macs_has_products_or_a_reason() -> None:
    counted = {rule for rule in builtin_ops().values() if rule.macs not in (None, nothing)}
    assert {rule.kind for rule in counted if rule.macs not in FORMULAS} == set(NO_PRODUCTS)
