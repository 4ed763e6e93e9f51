"""Quantised operators: the contraction of the float layer, over smaller operands."""

from __future__ import annotations

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.convolution import (
    CONVOLUTION_OF,
    convolution_macs,
    transposed_convolution_macs,
)
from pytest_modelbudget.ops.dense import (
    LINEAR_OF,
    activated_flops,
    bias_flops,
    linear_macs,
    turned_macs,
)
from pytest_modelbudget.ops.elementwise import one_per_element
from pytest_modelbudget.ops.normalisation import per_element
from pytest_modelbudget.ops.pooling import REQUANTISED
from pytest_modelbudget.ops.role import BIAS, CARRIED, CARRIED_PARTS, WEIGHT, Role, X, Y
from pytest_modelbudget.ops.rule import OpRule, free, under

PACKED = "the float layer's contraction over a packed weight, (weight, bias) read from the pack"

INTEGERS = "the float layer's contraction over integers; scales and zero points multiply nothing"
# Operands of a layer over integers, and of an elementwise operation over two of them.
INTEGER_LAYER = (
    "x",
    "x_scale",
    "x_zero_point",
    WEIGHT,
    Role("weight_scale", quantises="weight"),
    Role("weight_zero_point", quantises="weight"),
    "out_scale",
    "out_zero_point",
    BIAS,
)
INTEGER_PAIR = (
    X,
    "x_scale",
    "x_zero_point",
    Y,
    "y_scale",
    "y_zero_point",
    "out_scale",
    "out_zero_point",
)


def three_per_element(*, x: Tensor) -> int:
    """Two reductions and one rounding per input element."""
    return 3 * x.elements


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
            WEIGHT,
            BIAS,
        ),
        PACKED,
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
    ),
    OpRule(
        "convolution",
        under(
            "quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu",
            "x",
            WEIGHT,
            BIAS,
        ),
        PACKED,
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=activated_flops,
    ),
    OpRule(
        "convolution",
        under(
            "quantized::conv_transpose1d quantized::conv_transpose2d quantized::conv_transpose3d",
            "x",
            WEIGHT,
            BIAS,
        ),
        PACKED,
        macs=transposed_convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under(
            "quantized::linear quantized::linear_dynamic quantized::linear_dynamic_fp16",
            "x",
            WEIGHT,
            BIAS,
        ),
        PACKED,
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under("quantized::linear_relu quantized::linear_relu_dynamic", "x", WEIGHT, BIAS),
        PACKED,
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=activated_flops,
    ),
    OpRule(
        "add",
        under("quantized::add quantized::add_scalar", X, Y, "into")
        | under("com.microsoft::QLinearAdd", *INTEGER_PAIR),
        "one sum per output element, requantised",
        flops=one_per_element,
    ),
    OpRule(
        "add",
        under("quantized::add_relu quantized::add_scalar_relu", X, Y, "into"),
        "a sum and an activation per output element, requantised",
        flops=two_per_element,
    ),
    OpRule(
        "mul",
        under("quantized::mul quantized::mul_scalar", X, Y, "into")
        | under("com.microsoft::QLinearMul", *INTEGER_PAIR)
        | under("com.microsoft::MulInteger", X, "x_zero_point", Y, "y_zero_point"),
        "one product per output element, requantised",
        flops=one_per_element,
    ),
    OpRule(
        "mul",
        under("quantized::mul_relu quantized::mul_scalar_relu", X, Y, "into"),
        "a product and an activation per output element, requantised",
        flops=two_per_element,
    ),
    *(
        OpRule(
            kind,
            under(f"quantized::{kind}", "x", Role("slope", weight=True, scales=True)),
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
        under("quantized::cat quantized::cat_relu", CARRIED_PARTS)
        | under("com.microsoft::QLinearConcat", "out_scale", "out_zero_point", CARRIED_PARTS),
        "reads every part and writes it into the result",
    ),
    OpRule(
        "quantize",
        under(
            "aten::quantize_per_tensor aten::quantize_per_channel "
            "aten::quantize_per_tensor_dynamic onnx::QuantizeLinear com.microsoft::QuantizeLinear",
            CARRIED,
            Role("scale", quantises="x"),
            Role("zero_point", quantises="x"),
        ),
        "one division and rounding per element, counted as one operation",
        flops=one_per_element,
    ),
    OpRule(
        "dequantize",
        under("aten::dequantize", Role("x", carried=True, dequantised=True))
        | under(
            "onnx::DequantizeLinear com.microsoft::DequantizeLinear",
            Role("x", carried=True, dequantised=True),
            Role("scale", quantises="x"),
            Role("zero_point", quantises="x"),
        ),
        "one product per element",
        flops=one_per_element,
    ),
    OpRule(
        "fake_quantize",
        under(
            "aten::fake_quantize_per_tensor_affine aten::fake_quantize_per_channel_affine",
            "x",
            Role("scale", quantises="x"),
            Role("zero_point", quantises="x"),
        ),
        "rounds each element to the grid, counted as one operation",
        flops=one_per_element,
    ),
    OpRule(
        "fake_quantize",
        under(
            "aten::fused_moving_avg_obs_fake_quant aten::_fused_moving_avg_obs_fq_helper",
            "x",
            "observer_on",
            "fake_quant_on",
            Role("running_min", statistic=True),
            Role("running_max", statistic=True),
            Role("scale", quantises="x"),
            Role("zero_point", quantises="x"),
        ),
        "rounds each element to the grid, counted as one operation; the observer is of training",
        flops=one_per_element,
    ),
    free(
        "int_representation",
        under("aten::int_repr", "x"),
        "the stored integers under another type",
    ),
    OpRule(
        "convolution",
        under("onnx::QLinearConv com.microsoft::QLinearConv", *INTEGER_LAYER),
        INTEGERS,
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
        flops=bias_flops,
    ),
    OpRule(
        "convolution",
        under(
            "onnx::ConvInteger",
            "x",
            WEIGHT,
            "x_zero_point",
            Role("weight_zero_point", quantises="weight"),
        ),
        INTEGERS,
        macs=convolution_macs,
        contracts=CONVOLUTION_OF,
    ),
    OpRule(
        "matmul",
        under("onnx::QLinearMatMul", *INTEGER_LAYER[:-1])
        | under(
            "onnx::MatMulInteger com.microsoft::MatMulInteger16",
            "x",
            WEIGHT,
            "x_zero_point",
            Role("weight_zero_point", quantises="weight"),
        ),
        INTEGERS,
        macs=linear_macs,
        contracts=LINEAR_OF,
    ),
    OpRule(
        "linear",
        under(
            "com.microsoft::QGemm",
            "x",
            "x_scale",
            "x_zero_point",
            WEIGHT,
            Role("weight_scale", quantises="weight"),
            Role("weight_zero_point", quantises="weight"),
            BIAS,
            "out_scale",
            "out_zero_point",
        ),
        INTEGERS,
        macs=turned_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under(
            "com.microsoft::DynamicQuantizeMatMul",
            "x",
            WEIGHT,
            Role("weight_scale", quantises="weight"),
            Role("weight_zero_point", quantises="weight"),
            BIAS,
        )
        | under(
            "com.microsoft::MatMulIntegerToFloat",
            "x",
            WEIGHT,
            "x_scale",
            Role("weight_scale", quantises="weight"),
            "x_zero_point",
            Role("weight_zero_point", quantises="weight"),
            BIAS,
        ),
        INTEGERS,
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
    ),
    OpRule(
        "linear",
        under(
            "com.microsoft::MatMulNBits",
            "x",
            Role("weight", weight=True, packed=("K", "N")),
            Role("weight_scale", quantises="weight"),
            Role("weight_zero_point", quantises="weight"),
            "group_index",
            BIAS,
        )
        | under(
            "com.microsoft::MatMulBnb4",
            "x",
            Role("weight", weight=True, packed=("K", "N")),
            Role("weight_scale", quantises="weight"),
        ),
        "x (..., K) times a weight of K·N packed elements: the MACs of the float product",
        macs=linear_macs,
        contracts=LINEAR_OF,
        flops=bias_flops,
    ),
    OpRule(
        "activation",
        under("com.microsoft::QLinearSigmoid com.microsoft::QLinearLeakyRelu", *REQUANTISED),
        "one operation per output element",
        flops=one_per_element,
    ),
    OpRule(
        "quantize",
        under("onnx::DynamicQuantizeLinear", CARRIED),
        "a maximum, a minimum, and one rounding per element",
        flops=three_per_element,
    ),
)
