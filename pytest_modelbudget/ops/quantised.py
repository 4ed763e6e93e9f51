"""Quantised operators: the contraction of the float layer, over smaller operands."""

from __future__ import annotations

from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.ops.convolution import convolution_macs, transposed_convolution_macs
from pytest_modelbudget.ops.dense import activated_flops, bias_flops, linear_macs
from pytest_modelbudget.ops.elementwise import one_per_element
from pytest_modelbudget.ops.normalisation import per_element
from pytest_modelbudget.ops.op_rule import OpRule, free, under

PACKED = "the float layer's contraction over a packed weight, (weight, bias) read from the pack"


def two_per_element(*, out: Tensor) -> int:
    """Arithmetic and the activation fused behind it."""
    return 2 * out.elements


QUANTISED: tuple[OpRule, ...] = (
    OpRule(
        "convolution",
        under(
            "quantized::conv1d quantized::conv2d quantized::conv3d quantized::conv2d_dynamic "
            "quantized::conv1d_dynamic",
            "x",
            "weight",
            "bias",
        ),
        PACKED,
        macs=convolution_macs,
        flops=bias_flops,
    ),
    OpRule(
        "convolution",
        under(
            "quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu",
            "x",
            "weight",
            "bias",
        ),
        PACKED,
        macs=convolution_macs,
        flops=activated_flops,
    ),
    OpRule(
        "convolution",
        under(
            "quantized::conv_transpose1d quantized::conv_transpose2d quantized::conv_transpose3d",
            "x",
            "weight",
            "bias",
        ),
        PACKED,
        macs=transposed_convolution_macs,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under(
            "quantized::linear quantized::linear_dynamic quantized::linear_dynamic_fp16",
            "x",
            "weight",
            "bias",
        ),
        PACKED,
        macs=linear_macs,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under("quantized::linear_relu quantized::linear_relu_dynamic", "x", "weight", "bias"),
        PACKED,
        macs=linear_macs,
        flops=activated_flops,
    ),
    OpRule(
        "add",
        under("quantized::add quantized::add_scalar", "x", "y", "into"),
        "one sum per output element, requantised",
        flops=one_per_element,
    ),
    OpRule(
        "add",
        under("quantized::add_relu quantized::add_scalar_relu", "x", "y", "into"),
        "a sum and an activation per output element, requantised",
        flops=two_per_element,
    ),
    OpRule(
        "mul",
        under("quantized::mul quantized::mul_scalar", "x", "y", "into"),
        "one product per output element, requantised",
        flops=one_per_element,
    ),
    OpRule(
        "mul",
        under("quantized::mul_relu quantized::mul_scalar_relu", "x", "y", "into"),
        "a product and an activation per output element, requantised",
        flops=two_per_element,
    ),
    *(
        OpRule(
            kind,
            under(f"quantized::{kind}", "x", "slope"),
            "one operation per output element",
            flops=one_per_element,
        )
        for kind in ("hardswish", "leaky_relu", "sigmoid", "relu6", "elu", "celu", "prelu")
    ),
    OpRule(
        "softmax",
        under("quantized::softmax", "x"),
        "a maximum, a difference, an exponential, a sum and a division per element",
        flops=per_element(5),
    ),
    free(
        "cat",
        under("quantized::cat quantized::cat_relu", "*parts"),
        "reads every part and writes it into the result",
    ),
    OpRule(
        "quantize",
        under(
            "aten::quantize_per_tensor aten::quantize_per_channel "
            "aten::quantize_per_tensor_dynamic",
            "x",
            "scale",
            "zero_point",
        ),
        "one division and rounding per element, counted as one operation",
        flops=one_per_element,
    ),
    OpRule(
        "dequantize",
        under("aten::dequantize", "x"),
        "one product per element",
        flops=one_per_element,
    ),
    OpRule(
        "fake_quantize",
        under(
            "aten::fake_quantize_per_tensor_affine aten::fake_quantize_per_channel_affine",
            "x",
            "scale",
            "zero_point",
        ),
        "rounds each element to the grid, counted as one operation",
        flops=one_per_element,
    ),
    free(
        "int_representation",
        under("aten::int_repr", "x"),
        "the stored integers under another type",
    ),
)
