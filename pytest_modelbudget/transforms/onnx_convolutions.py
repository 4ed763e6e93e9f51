"""The convolutions of an ONNX graph: which can be cut by channels, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from pytest_modelbudget.equivalence.onnx_stored import StoredTensors, attribute
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.transforms.onnx_found_operations import (
    WholeOperation,
    found_operations,
    why_unusable,
)
from pytest_modelbudget.transforms.tile_grid import ONE_CHANNEL

CONVOLUTIONS = frozenset({"onnx::Conv", "onnx::ConvTranspose"})
# Convolutions that are written in other ways, and stay whole.
OTHER_CONVOLUTIONS = frozenset({
    "onnx::QLinearConv", "onnx::ConvInteger", "onnx::DeformConv", "onnx::CausalConvWithState",
    "com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv", "com.microsoft::NhwcConv",
    "com.microsoft.nchwc::Conv", "com.microsoft::QLinearConv",
    "com.microsoft::ConvTransposeWithDynamicPads",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Convolution:
    """One node that convolves with a stored W, k input to n output channels in each group.

    W (groups · n, k, kernel ...), or (groups · k, n, kernel ...) where it is turned. bias is ""
    where there is none.
    """

    node: NodeProto
    weight: str
    groups: int
    k: int
    n: int
    turned: bool
    bias: str


def convolutions(
    model: onnx.ModelProto, stored: StoredTensors
) -> Iterator[Convolution | WholeOperation]:
    """Every convolution in the order of the file, those in bodies and functions included."""
    names = CONVOLUTIONS | OTHER_CONVOLUTIONS
    return found_operations(model, stored, names, _operation, weighted=names)


def _operation(node: NodeProto, stored: StoredTensors) -> Convolution | WholeOperation:
    weight = stored.origin(node.input[1])
    why = _why_whole(node, weight, stored)
    if why:
        return WholeOperation(node, why)
    groups, (first, second, *_) = attribute(node, "group", 1), stored.shape(weight)
    turned = op_name(node) == "onnx::ConvTranspose"
    k, n = (first // groups, second) if turned else (second, first // groups)
    if groups > 1 and k == 1:
        return WholeOperation(node, ONE_CHANNEL)
    bias = node.input[2] if len(node.input) > 2 else ""
    return Convolution(node, weight, groups, k, n, turned, bias)


def _why_whole(node: NodeProto, weight: str, stored: StoredTensors) -> str:
    """Why a convolution cannot be cut; "" where its weight is there to be cut."""
    if op_name(node) in OTHER_CONVOLUTIONS:
        return f"{op_name(node)} is rewritten by no form of tiles"
    if weight in stored:
        return why_unusable(weight, stored)
    maker = stored.makers.get(weight)
    if maker is not None and op_name(maker) == "onnx::DequantizeLinear":
        return "its weight is quantised: tile the float model, then quantise"
    return "its weight is computed in the graph"
