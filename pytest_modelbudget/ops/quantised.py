"""Quantised operators: the contraction of the float layer, over smaller operands."""

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.convolution import convolution, transposed_convolution
from pytest_modelbudget.ops.dense import (
    COLUMNS_OF,
    activated_flops,
    bias_flops,
    in_inner,
    linear,
    linear_macs,
    turned_macs,
)
from pytest_modelbudget.ops.elementwise import one_each
from pytest_modelbudget.ops.normalisation import SOFTMAX, per_element
from pytest_modelbudget.ops.pooling import REQUANTISED
from pytest_modelbudget.ops.role import (
    BIAS,
    CARRIED,
    CARRIED_PARTS,
    LAYER,
    OUT_SCALES,
    SCALE,
    SLOPE,
    WEIGHT,
    WEIGHT_SCALE,
    WEIGHT_SCALES,
    WEIGHT_ZERO_POINT,
    X_SCALE,
    X_SCALES,
    X_ZERO_POINT,
    ZERO_POINT,
    Role,
    X,
    Y,
    roles,
)
from pytest_modelbudget.ops.rule import Contraction, OpRule, Over, free, nothing, under

PACKED = "the float layer's contraction over a packed weight, (weight, bias) read from the pack"
INTEGERS = "the float layer's contraction over integers; scales and zero points multiply nothing"
EACH_ELEMENT = "one operation per output element"
# Operands of a layer over integers, and of an elementwise operation over two of them.
INTEGER_WEIGHT = (WEIGHT, WEIGHT_SCALES)
INTEGER_PRODUCT = ("x", X_SCALES, INTEGER_WEIGHT, OUT_SCALES)
INTEGER_PAIR = (  # a stored operand is a weight, as the float one is that it stands for
    Role("x", weight=True), roles("x_scale x_zero_point", quantises="x"),
    Role("y", weight=True), roles("y_scale y_zero_point", quantises="y"), OUT_SCALES,
)  # fmt: skip
UNSCALED = ("x", WEIGHT, "x_zero_point", WEIGHT_ZERO_POINT)
QUANTISED_X = Role("x", carried=True, dequantised=True)
WEIGHT_IN_BITS = Role("weight", weight=True, packed=("K", "N"))


GRID = Role("bits", shape=True)  # how many the integers have, which QONNX stores as a number: it has no part in x


def _of_qonnx(names: str) -> str:
    """Operators under each domain that QONNX has had: its own, that of Brevitas and of FINN."""
    domains = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
    return " ".join(f"{domain}::{name}" for domain in domains for name in names.split())


def three_per_element(*, x: Tensor) -> int:
    """Two reductions and one rounding per input element."""
    return 3 * x.elements


def two_per_input(*, x: Tensor) -> int:
    """Two reductions per input element."""
    return 2 * x.elements


def two_per_element(*, out: Tensor) -> int:
    """Arithmetic and the activation fused behind it."""
    return 2 * out.elements


CODE_BOOK, Y_SCALE = Role("code_book", quantises="x"), Role("y_scale", quantises="y")
ROWS_OF = Contraction(Over.FEATURES, ("x", "y"), fan_in_at=in_inner)


QUANTISED: tuple[OpRule, ...] = (
    convolution(
        under(
            "quantized::conv1d quantized::conv2d quantized::conv3d quantized::conv2d_dynamic quantized::conv1d_dynamic",
            LAYER,
        ),
        PACKED,
    ),
    convolution(
        under("quantized::conv1d_relu quantized::conv2d_relu quantized::conv3d_relu", LAYER),
        PACKED,
        flops=activated_flops,
    ),
    transposed_convolution(
        under("quantized::conv_transpose1d quantized::conv_transpose2d quantized::conv_transpose3d", LAYER), PACKED
    ),
    linear(under("quantized::linear quantized::linear_dynamic quantized::linear_dynamic_fp16", LAYER), PACKED),
    linear(under("quantized::linear_relu quantized::linear_relu_dynamic", LAYER), PACKED, flops=activated_flops),
    one_each(
        "add",
        under("quantized::add quantized::add_scalar", X, Y, "into") | under("com.microsoft::QLinearAdd", INTEGER_PAIR),
        "one sum per output element, requantised",
    ),
    OpRule(
        "add",
        under("quantized::add_relu quantized::add_scalar_relu", X, Y, "into"),
        "a sum and an activation per output element, requantised",
        flops=two_per_element,
    ),
    one_each(
        "where",
        under("com.microsoft::QLinearWhere", "condition", INTEGER_PAIR),
        "one of two for each element, requantised",
    ),
    one_each(
        "mul",
        under("quantized::mul quantized::mul_scalar", X, Y, "into")
        | under("com.microsoft::QLinearMul", INTEGER_PAIR)
        | under("com.microsoft::MulInteger", X, "x_zero_point", Y, "y_zero_point"),
        "one product per output element, requantised",
    ),
    OpRule(
        "mul",
        under("quantized::mul_relu quantized::mul_scalar_relu", X, Y, "into"),
        "a product and an activation per output element, requantised",
        flops=two_per_element,
    ),
    *(
        one_each(kind, under(f"quantized::{kind}", "x", SLOPE), EACH_ELEMENT)
        for kind in ("hardswish", "leaky_relu", "sigmoid", "relu6", "elu", "celu", "prelu")
    ),
    one_each("sigmoid", under("com.microsoft::QLinearSigmoid", REQUANTISED), EACH_ELEMENT),
    one_each("leaky_relu", under("com.microsoft::QLinearLeakyRelu", REQUANTISED), EACH_ELEMENT),
    OpRule("softmax", under("quantized::softmax", "x"), SOFTMAX, flops=per_element(5)),
    free(
        "cat",
        under("quantized::cat quantized::cat_relu", CARRIED_PARTS)
        | under("com.microsoft::QLinearConcat", OUT_SCALES, CARRIED_PARTS),
        "reads every part and writes it into the result",
    ),
    one_each(
        "quantize",
        under(
            "quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic QuantizeLinear "
            "com.microsoft::QuantizeLinear tflite::QUANTIZE",
            (CARRIED, SCALE, ZERO_POINT),
        )
        | under(
            "quantized_decomposed::quantize_per_tensor quantized_decomposed::quantize_per_channel "
            "quantized_decomposed::quantize_per_token quantized_decomposed::quantize_per_channel_group "
            "torchao::quantize_affine trt::QuantizeLinear trt::TRT_FP8QuantizeLinear trt::TRT_INT4QuantizeLinear "
            "trt::TRT_MXFP8QuantizeLinear",
            (CARRIED, SCALE, ZERO_POINT),
        )
        | under("com.microsoft::QuantizeBFP", CARRIED),
        "one division and rounding per element, counted as one operation",
    ),
    OpRule(
        "quantize",
        under("DynamicQuantizeLinear trt::TRT_FP4DynamicQuantize trt::TRT_MXFP8DynamicQuantize", CARRIED, SCALE),
        "a maximum, a minimum, and one rounding per element",
        flops=three_per_element,
    ),
    one_each(
        "dequantize",
        under("dequantize", QUANTISED_X)
        | under("DequantizeLinear com.microsoft::DequantizeLinear tflite::DEQUANTIZE", QUANTISED_X, SCALE, ZERO_POINT)
        | under(
            "quantized_decomposed::dequantize_per_tensor quantized_decomposed::dequantize_per_channel "
            "quantized_decomposed::dequantize_per_token quantized_decomposed::dequantize_per_channel_group "
            "torchao::dequantize_affine trt::DequantizeLinear trt::TRT_FP8DequantizeLinear "
            "trt::TRT_INT4DequantizeLinear trt::TRT_MXFP8DequantizeLinear",
            (QUANTISED_X, SCALE, ZERO_POINT),
        )
        | under("bitsandbytes::dequantize_4bit bitsandbytes::dequantize_blockwise", QUANTISED_X, SCALE, CODE_BOOK)
        | under("bitsandbytes::int8_vectorwise_dequant", QUANTISED_X, SCALE)
        | under("bitsandbytes::int8_mm_dequant", QUANTISED_X, "row_scale", SCALE, BIAS),
        "one product per element",
    ),
    OpRule(
        "matmul",
        under("bitsandbytes::gemv_4bit", X, Y, Y_SCALE, Role("code_book", quantises="y"))
        | under(
            "bitsandbytes::gemm_4bit",
            (X, Y, Y_SCALE, BIAS, *roles("scale_of_scales code_of_scales offset_of_scales", quantises="y")),
        )
        | under("bitsandbytes::int8_linear_matmul", X, Y)
        | under("bitsandbytes::int8_scaled_mm", X, Y, "row_scale", Y_SCALE, BIAS),
        "x (..., k) · y (n, k), packed or of 8 bits: the MACs of the float product",
        macs=linear_macs,
        contracts=ROWS_OF,
        flops=bias_flops,
    ),
    OpRule(
        "quantize",
        under("bitsandbytes::int8_vectorwise_quant bitsandbytes::int8_double_quant", "x"),
        "a maximum and one rounding per element",
        flops=two_per_input,
    ),
    OpRule(
        "quantisation_range",
        under(
            "quantized_decomposed::choose_qparams quantized_decomposed::choose_qparams_symmetric "
            "quantized_decomposed::choose_qparams_per_token "
            "quantized_decomposed::choose_qparams_per_token_asymmetric torchao::choose_qparams_affine",
            "x",
        ),
        "a maximum and a minimum per element give scale and zero point",
        flops=two_per_input,
    ),
    one_each(
        "fake_quantize",
        under(
            "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine tflite::FAKE_QUANT",
            ("x", SCALE, ZERO_POINT),
        ),
        "rounds each element to the grid, counted as one operation",
    ),
    one_each(
        "fake_quantize",
        under(_of_qonnx("Quant IntQuant"), (CARRIED, SCALE, ZERO_POINT, GRID))
        | under(_of_qonnx("BipolarQuant"), (CARRIED, SCALE))
        | under(_of_qonnx("FloatQuant"), (CARRIED, SCALE, GRID, "mantissa_bits exponent_bias largest"))
        | under(_of_qonnx("Trunc"), (CARRIED, SCALE, ZERO_POINT, GRID, "out_scale out_bits"))
        | under("trt::TRT_FP4QDQ", (CARRIED, SCALE)),
        "rounds each element to the grid, counted as one operation; QONNX, as Brevitas exports it, TensorRT",
    ),
    one_each(
        "fake_quantize",
        under(
            "fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper",
            ("x", "observer_on", "fake_quant_on", Role("running_min", statistic=True)),
            (Role("running_max", statistic=True), SCALE, ZERO_POINT),
        ),
        "rounds each element to the grid, counted as one operation; the observer is of training",
    ),
    free("int_representation", under("int_repr", "x"), "the stored integers under another type"),
    convolution(under("QLinearConv com.microsoft::QLinearConv", INTEGER_PRODUCT, BIAS), INTEGERS),
    convolution(under("ConvInteger", UNSCALED), INTEGERS, flops=nothing),
    OpRule(
        "matmul",
        under("QLinearMatMul", INTEGER_PRODUCT) | under("MatMulInteger com.microsoft::MatMulInteger16", UNSCALED),
        INTEGERS,
        macs=linear_macs,
        contracts=COLUMNS_OF,
    ),
    linear(
        under("com.microsoft::QGemm", ("x", X_SCALES, INTEGER_WEIGHT, BIAS, OUT_SCALES)),
        INTEGERS,
        of=COLUMNS_OF,
        macs=turned_macs,
    ),
    linear(
        under("com.microsoft::DynamicQuantizeMatMul", "x", INTEGER_WEIGHT, BIAS)
        | under(
            "com.microsoft::MatMulIntegerToFloat",
            ("x", WEIGHT, X_SCALE, WEIGHT_SCALE, X_ZERO_POINT, WEIGHT_ZERO_POINT, BIAS),
        ),
        INTEGERS,
        of=COLUMNS_OF,
    ),
    linear(
        under("com.microsoft::MatMulNBits", ("x", WEIGHT_IN_BITS, WEIGHT_SCALE, WEIGHT_ZERO_POINT, "group_index", BIAS))
        | under("com.microsoft::MatMulBnb4 com.microsoft::MatMulPacked", "x", WEIGHT_IN_BITS, WEIGHT_SCALE),
        "x (..., K) times a weight of K·N packed elements: the MACs of the float product",
    ),
)
