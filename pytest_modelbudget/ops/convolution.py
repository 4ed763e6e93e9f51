"""Convolutions in one to three dimensions: grouped, dilated, transposed, deformable."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.dense import bias_flops
from pytest_modelbudget.ops.role import BIAS, WEIGHT, Role
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, under


def convolution_macs(*, weight: Tensor, out: Tensor) -> int:
    """Each output element sums one product per weight of its filter; padding counts.

    weight (out channels, in channels / groups, kernel ...), out (batch, out channels, ...), hence
    out.elements · (in channels / groups) · kernel. Dilation moves the taps and adds none.
    """
    return out.elements * prod(weight.shape[1:])


def transposed_convolution_macs(*, x: Tensor, weight: Tensor) -> int:
    """Each input element is multiplied into one output per weight of its filter.

    x (batch, in channels, ...), weight (in channels, out channels / groups, kernel ...).
    """
    return x.elements * prod(weight.shape[1:])


def either_convolution_macs(
    *, x: Tensor, weight: Tensor, out: Tensor, attributes: Mapping[str, object]
) -> int:
    """The general operator, which is told by a flag whether it is transposed."""
    if attributes.get("transposed"):
        return transposed_convolution_macs(x=x, weight=weight)
    return convolution_macs(weight=weight, out=out)


def time_first_macs(*, weight: Tensor, out: Tensor) -> int:
    """conv_tbc: weight (kernel, in channels, out channels), out (time, batch, out channels)."""
    kernel, channels, _ = weight.shape
    return out.elements * kernel * channels


def fused_convolution_flops(
    *,
    out: Tensor,
    attributes: Mapping[str, object],
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> int:
    """One operation per output element for each of bias, residual and activation."""
    activated = str(attributes.get("activation") or "none") != "none"
    return out.elements * ((bias is not None) + (residual is not None) + activated)


CONVOLUTION_OF = Contraction(Over.CHANNELS, ("x", "weight"))
CONVOLUTION: tuple[OpRule, ...] = (
    OpRule(
        kind="convolution",
        names=under(
            "aten::conv1d aten::conv2d aten::conv3d aten::mkldnn_convolution "
            "aten::cudnn_convolution aten::miopen_convolution aten::_conv_depthwise2d "
            "aten::conv_depthwise3d aten::thnn_conv2d aten::slow_conv3d aten::slow_conv_dilated2d "
            "aten::slow_conv_dilated3d onnx::Conv",
            "x",
            WEIGHT,
            BIAS,
        ),
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
        because="one multiply-add per output element and weight of its filter",
    ),
    OpRule(
        kind="convolution",
        names=under(
            "aten::convolution aten::_convolution aten::_convolution.deprecated "
            "aten::convolution_overrideable",
            "x",
            WEIGHT,
            BIAS,
        ),
        macs=either_convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
        because="the operator below every convolution, as traced files call it",
    ),
    OpRule(
        kind="convolution",
        names=under(
            "aten::conv_transpose1d aten::conv_transpose2d aten::conv_transpose3d "
            "aten::slow_conv_transpose2d aten::slow_conv_transpose3d "
            "aten::cudnn_convolution_transpose onnx::ConvTranspose",
            "x",
            WEIGHT,
            BIAS,
        )
        | under(
            "com.microsoft::ConvTransposeWithDynamicPads",
            "x",
            WEIGHT,
            Role("pads", shape=True),
            BIAS,
        ),
        macs=transposed_convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
        because="one multiply-add per input element and weight of its filter",
    ),
    OpRule(
        kind="convolution",
        names={"aten::conv_tbc": ("x", WEIGHT, BIAS)},
        macs=time_first_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
        because="a 1-D convolution over (time, batch, channels)",
    ),
    OpRule(
        kind="deformable_convolution",
        names={
            "torchvision::deform_conv2d": ("x", WEIGHT, "offset", "mask", BIAS),
            "onnx::DeformConv": ("x", WEIGHT, "offset", BIAS, "mask"),
        },
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=None,
        because="a convolution over sampled positions; the sampling itself contracts nothing",
    ),
    OpRule(
        kind="convolution",
        names=under(
            "com.microsoft::FusedConv com.microsoft::NhwcFusedConv com.microsoft.nchwc::Conv",
            "x",
            WEIGHT,
            BIAS,
            "residual",
        )
        | under("com.microsoft::NhwcConv", "x", WEIGHT, BIAS),
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=fused_convolution_flops,
        because="a convolution with a sum and an activation behind it, in any memory layout",
    ),
    OpRule(
        kind="convolution",
        names={"onnx::CausalConvWithState": ("x", WEIGHT, BIAS, "past")},
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=fused_convolution_flops,
        because="a depthwise convolution over the present and past steps",
    ),
)
