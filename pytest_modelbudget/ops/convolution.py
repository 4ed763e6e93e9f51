"""Convolutions in one to three dimensions: grouped, dilated, transposed, deformable."""

from collections.abc import Sequence
from math import prod

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.dense import bias_flops
from pytest_modelbudget.ops.role import BIAS, LAYER, WEIGHT, shapes
from pytest_modelbudget.ops.rule import Attributes, Contraction, Formula, Maybe, Names, OpRule, Over, in_filters, under


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


def either_convolution_macs(*, x: Tensor, weight: Tensor, out: Tensor, attributes: Attributes) -> int:
    """The general operator, with a flag for transposed ones."""
    if attributes.get("transposed"):
        return transposed_convolution_macs(x=x, weight=weight)
    return convolution_macs(weight=weight, out=out)


def time_first_macs(*, weight: Tensor, out: Tensor) -> int:
    """conv_tbc: weight (kernel, in channels, out channels), out (time, batch, out channels)."""
    kernel, channels, _ = weight.shape
    return out.elements * kernel * channels


def fused_convolution_flops(*, out: Tensor, attributes: Attributes, bias: Maybe = None, residual: Maybe = None) -> int:
    """One operation per output element for each of bias, residual and activation."""
    activated = str(attributes.get("activation") or "none") != "none"
    return out.elements * ((bias is not None) + (residual is not None) + activated)


def groups(*, x: Tensor, weight: Tensor, out: Tensor, attributes: Attributes) -> int:
    """Groups that share no channels: as the operation says, else what x has more of than a filter reads.

    x (batch, channels, ...), weight (out channels, channels / groups, kernel ...). Packed and depthwise layers of
    torch say nothing; a layout with channels last says it, or has one group: ONNX Conv.
    """
    said = _said_groups(attributes)
    if said:
        return said
    channels = 1 - len(weight.shape)
    return x.shape[channels] // weight.shape[1] if out.shape[channels] == weight.shape[0] else 1


def _said_groups(attributes: Attributes) -> int:
    """The groups that an operation says; 0 where it says none."""
    return next((int(str(attributes[word])) for word in ("groups", "group") if word in attributes), 0)


def in_turned_filters(shape: Sequence[int], attributes: Attributes) -> int:
    """What one output of a transposed convolution sums at the most: weight (in, out / groups, kernel ...)."""
    return shape[0] // max(_said_groups(attributes), 1) * prod(shape[2:])


def in_either_filters(shape: Sequence[int], attributes: Attributes) -> int:
    """As a flag says whether it is transposed."""
    return (in_turned_filters if attributes.get("transposed") else in_filters)(shape, attributes)


def in_time_first_filters(shape: Sequence[int], attributes: Attributes) -> int:
    """conv_tbc: weight (kernel, in, out)."""
    return prod(shape[:2])


CONVOLUTION_OF = Contraction(Over.CHANNELS, ("x", "weight"))
TURNED_OF = Contraction(Over.CHANNELS, ("x", "weight"), fan_in=in_turned_filters)
EITHER_OF = Contraction(Over.CHANNELS, ("x", "weight"), fan_in=in_either_filters)
TIME_FIRST_OF = Contraction(Over.CHANNELS, ("x", "weight"), fan_in=in_time_first_filters)


def convolution(
    names: Names,
    because: str,
    *,
    macs: Formula = convolution_macs,
    of: Contraction = CONVOLUTION_OF,
    flops: Formula = bias_flops,
) -> OpRule:
    """A rule for a convolution, and what comes behind it."""
    return OpRule("convolution", names, because, macs=macs, contracts=of, flops=flops)


def transposed_convolution(names: Names, because: str) -> OpRule:
    """A rule for a transposed convolution."""
    return convolution(names, because, macs=transposed_convolution_macs, of=TURNED_OF)


CONVOLUTION: tuple[OpRule, ...] = (
    convolution(
        under(
            "conv1d conv2d conv3d mkldnn_convolution cudnn_convolution miopen_convolution "
            "_conv_depthwise2d conv_depthwise3d thnn_conv2d slow_conv3d slow_conv_dilated2d "
            "slow_conv_dilated3d Conv tflite::CONV_2D tflite::DEPTHWISE_CONV_2D tflite::CONV_3D",
            LAYER,
        ),
        "one multiply-add per output element and weight of its filter",
    ),
    convolution(
        under("convolution _convolution _convolution.deprecated convolution_overrideable", LAYER),
        "the operator below every convolution, as traced files call it",
        macs=either_convolution_macs,
        of=EITHER_OF,
    ),
    transposed_convolution(
        under(
            "conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d "
            "slow_conv_transpose3d cudnn_convolution_transpose ConvTranspose",
            LAYER,
        )
        | under("com.microsoft::ConvTransposeWithDynamicPads", "x", WEIGHT, shapes("pads"), BIAS)
        | under("tflite::TRANSPOSE_CONV", shapes("sizes"), WEIGHT, "x", BIAS),
        "one multiply-add per input element and weight of its filter",
    ),
    convolution(
        under("conv_tbc", LAYER),
        "a 1-D convolution over (time, batch, channels)",
        macs=time_first_macs,
        of=TIME_FIRST_OF,
    ),
    OpRule(
        "deformable_convolution",
        under("torchvision::deform_conv2d", "x", WEIGHT, "offset mask", BIAS)
        | under("DeformConv", "x", WEIGHT, "offset", BIAS, "mask"),
        "a convolution over sampled positions; the sampling itself contracts nothing",
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=None,
    ),
    convolution(
        under("com.microsoft::FusedConv com.microsoft::NhwcFusedConv com.microsoft.nchwc::Conv", (LAYER, "residual"))
        | under("com.microsoft::NhwcConv", LAYER),
        "a convolution with a sum and an activation behind it, in any memory layout",
        flops=fused_convolution_flops,
    ),
    convolution(
        under("CausalConvWithState com.microsoft::CausalConvWithState", LAYER, "past")
        | under("com.microsoft::VarlenCausalConvWithState", "x", WEIGHT, "lengths", BIAS, "past captured"),
        "a depthwise convolution over the present and past steps",
        flops=fused_convolution_flops,
    ),
)
