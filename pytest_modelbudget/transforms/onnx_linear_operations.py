"""The linear operations of an ONNX graph: which can be rewritten, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

import onnx
from onnx import NodeProto

from pytest_modelbudget.equivalence.onnx_stored import StoredTensors, attribute
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.transforms.onnx_found_operations import (
    WholeOperation,
    found_operations,
    why_unusable,
)

PRODUCTS = frozenset({"onnx::Gemm", "onnx::MatMul"})
# Products with weights that are written in other ways, and stay whole.
OTHER_PRODUCTS = frozenset({
    "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul",
    "com.microsoft::MatMulNBits", "com.microsoft::MatMulBnb4", "com.microsoft::GemmFloat8",
    "onnx::QLinearMatMul", "onnx::MatMulInteger", "com.microsoft::QGemm",
    "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::MatMulIntegerToFloat",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinearOperation:
    """One node that computes alpha · x·W + beta · bias with a stored W.

    x (…, k), or (k, m) where x is turned · W (k, n), stored as (n, k) where it is turned.
    bias is "" where there is none.
    """

    node: NodeProto
    weight: str
    k: int
    n: int
    weight_turned: bool = False
    x_turned: bool = False
    bias: str = ""
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """The stored matrix behind an operand, and whether a Transpose turns it on the way."""

    name: str
    turned: bool


FoundOperation = Union[LinearOperation, WholeOperation]


def linear_operations(model: onnx.ModelProto, stored: StoredTensors) -> Iterator[FoundOperation]:
    """Every linear operation in the order of the file, those in bodies and functions included.

    A MatMul of two activations, as in attention, is none: nothing of it is a weight.
    """
    names = PRODUCTS | OTHER_PRODUCTS
    return found_operations(model, stored, names, _operation, weighted={"onnx::Gemm"})


def _operation(node: NodeProto, stored: StoredTensors) -> FoundOperation | None:
    name = op_name(node)
    if name in OTHER_PRODUCTS:
        return WholeOperation(node, f"{name} is rewritten by no form of tiles")
    weight = weight_behind(node.input[1], stored)
    if weight is None and name == "onnx::MatMul":
        return _left_operand(node, stored)
    if weight is None:
        return WholeOperation(node, "its weight is computed in the graph")
    if isinstance(weight, str):
        return WholeOperation(node, weight)
    shape = stored.shape(weight.name)
    turned = weight.turned != bool(attribute(node, "transB", 0))
    k, n = reversed(shape) if turned else shape
    if name == "onnx::MatMul":
        return LinearOperation(node, weight.name, k, n, weight_turned=turned)
    return LinearOperation(
        node,
        weight.name,
        k,
        n,
        weight_turned=turned,
        x_turned=bool(attribute(node, "transA", 0)),
        bias=node.input[2] if len(node.input) > 2 else "",
        alpha=float(attribute(node, "alpha", 1.0)),
        beta=float(attribute(node, "beta", 1.0)),
    )


def _left_operand(node: NodeProto, stored: StoredTensors) -> WholeOperation | None:
    """A product whose first operand is the weight, W·x; None for one of two activations."""
    if weight_behind(node.input[0], stored) is None:
        return None
    return WholeOperation(node, "its weight is the left operand")


def weight_behind(name: str, stored: StoredTensors) -> StoredWeight | str | None:
    """The stored matrix behind an operand, why it cannot be used, or None for an activation."""
    turned = False
    while name not in stored:
        node = stored.makers.get(name)
        if node is None:
            return None
        maker = op_name(node)
        if maker == "onnx::DequantizeLinear" and node.input[0] in stored:
            return "its weight is quantised: tile the float model, then quantise"
        if maker not in {"onnx::Identity", "onnx::Transpose"}:
            return f"its weight comes out of {maker}" if name in stored.constants else None
        turned ^= maker == "onnx::Transpose" and attribute(node, "perm", [1, 0]) == [1, 0]
        name = node.input[0]
    shape = stored.shape(name)
    if len(shape) != 2:
        return f"its weight has rank {len(shape)}, not 2"
    return why_unusable(name, stored) or StoredWeight(name, turned)
