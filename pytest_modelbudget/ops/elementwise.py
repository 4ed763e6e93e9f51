"""Elementwise operations (one FLOP per output element), sorting and losses: no multiply-accumulate but of one loss."""

from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor, broadcast
from pytest_modelbudget.ops.dense import LINEAR_OF
from pytest_modelbudget.ops.pooling import REQUANTISED, one_per_input
from pytest_modelbudget.ops.role import BIAS, CARRIED, SLOPE, WEIGHT, Role, X, roles, shapes
from pytest_modelbudget.ops.rule import Attributes, Maybe, Names, OpRule, Roles, Words, under

# kind -> names as ``under`` reads them; each of aten stands for its in-place spelling (name_) too.
UNARY = {
    "relu": "relu Relu tflite::RELU",
    "relu6": "relu6 tflite::RELU6",
    "leaky_relu": "leaky_relu LeakyRelu tflite::LEAKY_RELU",
    "rrelu": "rrelu rrelu_with_noise rrelu_with_noise_functional",
    "elu": "elu Elu tflite::ELU",
    "selu": "selu Selu",
    "celu": "celu Celu",
    "gelu": "gelu Gelu tflite::GELU",
    "silu": "silu Swish",
    "mish": "mish Mish",
    "sigmoid": "sigmoid special_expit Sigmoid tflite::LOGISTIC",
    "log_sigmoid": "log_sigmoid",
    "hardsigmoid": "hardsigmoid HardSigmoid",
    "hardswish": "hardswish HardSwish tflite::HARD_SWISH",
    "hardtanh": "hardtanh",
    "hardshrink": "hardshrink Shrink",
    "softshrink": "softshrink",
    "softplus": "softplus Softplus",
    "softsign": "Softsign",
    "threshold": "threshold ThresholdedRelu",
    "tanh": "tanh Tanh tflite::TANH",
    "clamp": "clamp clip clamp_min clamp_max Clip tflite::RELU_N1_TO_1 tflite::RELU_0_TO_1",
    "abs": "abs absolute Abs tflite::ABS",
    "neg": "neg negative resolve_neg resolve_conj conj_physical _conj_physical Neg tflite::NEG",
    "sign": "sign sgn signbit Sign tflite::SIGN",
    "exp": "exp exp2 expm1 special_exp2 special_expm1 Exp tflite::EXP",
    "log": "log log2 log10 log1p special_log1p Log tflite::LOG",
    "sqrt": "sqrt Sqrt tflite::SQRT",
    "rsqrt": "rsqrt tflite::RSQRT",
    "square": "square tflite::SQUARE",
    "reciprocal": "reciprocal Reciprocal",
    "erf": "erf erfc erfinv special_erf special_erfc special_erfinv special_erfcx special_log_ndtr special_ndtri Erf",
    "gamma": "lgamma digamma polygamma special_polygamma",
    "entropy": "special_entr",
    "bessel": "i0 special_i0e special_i1 special_i1e special_bessel_j0 special_bessel_j1 special_bessel_y0 "
    "special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_spherical_bessel_j0 special_airy_ai",
    "trigonometry": "sin cos tan asin acos atan sinh cosh asinh acosh atanh arcsin arccos arctan "
    "sinc Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh tflite::SIN tflite::COS",
    "rounding": "round floor ceil trunc frac fix Round Floor Ceil tflite::ROUND tflite::FLOOR tflite::CEIL",
    "logical_not": "logical_not bitwise_not Not BitwiseNot tflite::LOGICAL_NOT",
    "logit": "logit special_logit",
    "angle": "angle",
    "degrees": "deg2rad rad2deg",
    "isnan": "isnan isinf isfinite isposinf isneginf IsNaN IsInf",
    "nan_to_num": "nan_to_num",
    "frexp": "frexp",  # into mantissa and exponent
}
# The gradient of an activation: torch.func and autograd inside a forward pass call these.
GRADIENTS = (
    "tanh_backward sigmoid_backward silu_backward gelu_backward threshold_backward "
    "leaky_relu_backward elu_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
    "mish_backward softplus_backward log_sigmoid_backward logit_backward"
)
ARITHMETIC = {  # of prims what forward derivatives (jvp) of layers and norms are written in
    "add": "add prims::add Add tflite::ADD",
    "sub": "sub subtract rsub prims::sub Sub tflite::SUB",
    "mul": "mul multiply prims::mul Mul tflite::MUL",
    "div": "div divide true_divide floor_divide remainder fmod prims::div Div Mod "
    "tflite::DIV tflite::FLOOR_DIV tflite::FLOOR_MOD",
}
BINARY = {
    "pow": "pow float_power Pow tflite::POW",
    "maximum": "maximum minimum fmax fmin tflite::MAXIMUM tflite::MINIMUM",
    "comparison": "eq ne lt le gt ge greater greater_equal less less_equal not_equal isclose "
    "Equal Greater GreaterOrEqual Less LessOrEqual tflite::EQUAL tflite::NOT_EQUAL tflite::LESS tflite::LESS_EQUAL "
    "tflite::GREATER tflite::GREATER_EQUAL",
    "logical": "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ "
    "__or__ __xor__ __iand__ __ior__ __ixor__ And Or Xor BitwiseAnd BitwiseOr BitwiseXor "
    "tflite::LOGICAL_AND tflite::LOGICAL_OR tflite::BITWISE_XOR",
    "shift": "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ BitShift tflite::RIGHT_SHIFT",
    "atan2": "atan2 arctan2 hypot copysign nextafter heaviside xlogy special_xlogy special_xlog1py logaddexp "
    "logaddexp2 ldexp tflite::ATAN2",
    "divisor": "gcd lcm",
    "incomplete_gamma": "igamma igammac special_zeta",
    "polynomial": "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
    "special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h "
    "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p",
    "outer": "outer ger",
    "complex": "complex polar",
}
REDUCTIONS = {
    "sum": "sum nansum ReduceSum tflite::SUM",
    "mean": "mean nanmean ReduceMean tflite::MEAN",
    "prod": "prod ReduceProd tflite::REDUCE_PROD",
    "variance": "var std var_mean std_mean",
    "maximum_over": "max amax min amin aminmax argmax argmin ReduceMax ReduceMin ArgMax ArgMin "
    "tflite::REDUCE_MAX tflite::REDUCE_MIN tflite::ARG_MAX tflite::ARG_MIN",
    "norm": "norm linalg_vector_norm linalg_norm frobenius_norm ReduceL1 ReduceL2 ReduceSumSquare",
    "logsumexp": "logsumexp special_logsumexp ReduceLogSumExp ReduceLogSum",
    "any_all": "any all _is_all_true _is_any_true tflite::REDUCE_ANY tflite::REDUCE_ALL",
    "cumulative": "cumsum cumprod cummax cummin logcumsumexp cumsum_ cumprod_ CumSum CumProd tflite::CUMSUM",
    "count_nonzero": "count_nonzero",
    "trace": "trace",
}
RESIDUAL = Role("residual", learnt=True)
PLAIN = "one operation per output element; nothing is accumulated"
FOLDED = "one operation for each operand after the first, element by element; nothing is accumulated"
REDUCED = "one operation per input element; no pairs are multiplied"


def one_per_element(*, out: Tensor) -> int:
    """FLOPs of arithmetic, comparisons, activations and transcendental functions alike."""
    return out.elements


def dropout_flops(*, x: Tensor, out: Tensor, attributes: Attributes, training: Maybe = None) -> int:
    """Nothing at inference; a dropout that stays on, by attribute or operand, draws numbers, which have no figure."""
    may_stay_on = training is not None and out.storage is not x.storage
    if may_stay_on or attributes.get("train", attributes.get("training", False)):
        raise UnmeasurableError("dropout that stays on draws random numbers: no figure in flops/1")
    return 0


def biased(*, out: Tensor, bias: Maybe = None) -> int:
    """An activation per output element, and a sum where a bias comes with it."""
    return out.elements * (1 + (bias is not None))


def bias_and_residual_flops(
    *, out: Tensor, attributes: Attributes, x: Tensor, residual: Maybe = None, training: Maybe = None
) -> int:
    """A sum per output element with a bias, one more with a residual; the dropout between them as one alone."""
    dropped = dropout_flops(x=x, out=out, attributes=attributes, training=training)
    return dropped + out.elements * (1 + (residual is not None))


def folded_flops(*, parts: tuple[Tensor, ...]) -> int:
    """One operation for each operand after the first, taken left to right, as a + b + c: per element of what it gives.

    Each result is as large as what lies before, broadcast to each other. One operand is handed on.
    """
    shapes = [part.shape for part in parts]
    return sum(prod(broadcast(shapes[:count])) for count in range(2, len(shapes) + 1))


def mean_flops(*, parts: tuple[Tensor, ...], out: Tensor) -> int:
    """The sums, and a quotient for each element; one operand is handed on."""
    return folded_flops(parts=parts) + out.elements * (len(parts) > 1)


def gated_flops(*, x: Tensor, out: Tensor) -> int:
    """A sum with a bias for each of x (..., 2·n), an activation and a product for each of out (..., n)."""
    return x.elements + 2 * out.elements


def cross_flops(*, out: Tensor) -> int:
    """Two products and a difference for each element."""
    return 3 * out.elements


def distance_flops(*, x: Tensor, y: Tensor) -> int:
    """A difference for each element of the two broadcast to each other, and one operation of the norm."""
    return 2 * prod(broadcast((x.shape, y.shape)))


def twice_per_input(*, x: Tensor) -> int:
    """One operation of a norm for each element, and one product."""
    return 2 * x.elements


def one_each(kind: str, names: Names, because: str = PLAIN) -> OpRule:
    """A rule for one operation per output element."""
    return OpRule(kind, names, because, flops=one_per_element)


def _spelt(names: str, *operands: Roles) -> dict[str, Words]:
    """Roles by name, and by the spelling in place of each of aten's."""
    own = under(names, *operands)
    return own | {f"{name}_": words for name, words in own.items() if name.startswith("aten::")}


def _operands(kind: str) -> tuple[Role, ...]:
    """Of the four arithmetic kinds: they may be learnt where they are stored."""
    is_sum = kind in {"add", "sub"}
    return roles("x y", learnt=True, masks=is_sum, scales=not is_sum)


def _reduction(kind: str, names: str) -> OpRule:
    over = under(names, "x", shapes("axes"))
    operands = {name: ("x", "y") if name.startswith("aten::") else over[name] for name in over}
    return OpRule(kind, operands, REDUCED, flops=one_per_input)


ELEMENTWISE: tuple[OpRule, ...] = (
    *(one_each(kind, _spelt(names, "x bound other_bound")) for kind, names in UNARY.items()),
    *(one_each(kind, _spelt(names, _operands(kind))) for kind, names in ARITHMETIC.items()),
    *(one_each(kind, _spelt(names, "x y")) for kind, names in BINARY.items()),
    *(one_each(kind, _spelt(kind, "x y z")) for kind in ("masked_fill", "lerp")),
    one_each(
        "where",
        _spelt("where", "x y z")
        | under("Where tflite::SELECT tflite::SELECT_V2", "condition", roles("x y", learnt=True, masks=True)),
    ),
    one_each("maximum", under("max.other min.other", "x y")),
    OpRule("maximum", under("Max Min", "*parts"), FOLDED, flops=folded_flops),
    one_each("prelu", _spelt("prelu _prelu_kernel PRelu tflite::PRELU", "x", SLOPE)),
    one_each("addcmul", _spelt("addcmul addcdiv", "x y z"), "x + a·y·z (or y / z) element by element"),
    OpRule(
        "cross_product",
        under("cross linalg_cross", "x y"),
        "a₁·b₂ - a₂·b₁ and so on: three operations per output element, nothing is accumulated along an axis",
        flops=cross_flops,
    ),
    OpRule(
        "norm",
        under("dist", "x y"),
        "the norm of a difference, element by element: no pairs are multiplied",
        flops=distance_flops,
    ),
    OpRule(
        "renormalisation",
        under("renorm renorm_", "x"),
        "the norm of each slice, and a factor for each: no pairs are multiplied",
        flops=twice_per_input,
    ),
    one_each("addr", _spelt("addr", "x y z"), "an outer product added to a matrix: nothing is accumulated"),
    OpRule(
        "sub",
        under("tflite::SQUARED_DIFFERENCE", _operands("sub")),
        "a difference and its square per element",
        flops=distance_flops,
    ),
    one_each("glu", _spelt("glu", "x"), "half of the input gates the other half, element by element"),
    OpRule("add", under("Sum tflite::ADD_N", Role("*parts", learnt=True, masks=True)), FOLDED, flops=folded_flops),
    OpRule("mean_of", under("Mean", "*parts"), "a sum of all operands, and a quotient", flops=mean_flops),
    one_each(
        "swiglu",
        under("SwiGLU com.microsoft::SwiGLU", "x y"),
        "an activation gates the other operand, element by element",
    ),
    OpRule(
        "silu", under("com.microsoft::ScaledSiLU", "x scale"), "a product and a SiLU per element", flops=twice_per_input
    ),
    OpRule(
        "gelu",
        under(
            "com.microsoft::Gelu com.microsoft::QuickGelu com.microsoft::FastGelu com.microsoft::BiasGelu", "x", BIAS
        ),
        "an activation per element, and a sum where a bias comes with it",
        flops=biased,
    ),
    OpRule(
        "dropout",
        _spelt("dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout", CARRIED)
        | under("Dropout", CARRIED, "ratio training"),
        "at inference the input passes through untouched; in training it is a masked product",
        flops=dropout_flops,
        shares_storage_of="x",
        computes_where="training",
    ),
    OpRule(
        "activation_gradient",
        under(" ".join(f"aten::{name}" for name in GRADIENTS.split()), "gradient", "x", "buffer"),
        "one value of the derivative for each element, counted as one operation",
        flops=one_per_element,
    ),
    OpRule(
        "add",
        under("com.microsoft::BiasAdd", X, BIAS, RESIDUAL)
        | under("com.microsoft::BiasDropout", X, BIAS, RESIDUAL, "ratio training"),
        "a bias and a residual are added, element by element",
        flops=bias_and_residual_flops,
    ),
    OpRule(
        "glu",
        under("com.microsoft::BiasSplitGelu", "x", BIAS),
        "a bias is added, and the GELU of one half gates the other, element by element",
        flops=gated_flops,
    ),
    OpRule(
        "fold",
        under("col2im", "x") | under("Col2Im", "x", shapes("shape sizes")),
        "adds up overlapping windows: sums, no products of pairs",
        flops=one_per_input,
    ),
    OpRule(
        "segments", under("aten::segment_reduce", "x", "lengths", "indices", "offsets"), REDUCED, flops=one_per_input
    ),
    *(_reduction(kind, names) for kind, names in REDUCTIONS.items()),
    OpRule("mean", under("com.microsoft::QLinearReduceMean", REQUANTISED), REDUCED, flops=one_per_input),
)


def sorting_flops(*, x: Tensor, out: Tensor, attributes: Attributes) -> int:
    """x (..., n, ...) → ⌈log2 n⌉ comparisons for each element, n along its dim, or all for one result."""
    dim = int(str(attributes.get("dim", attributes.get("axis", -1))))
    n = x.shape[dim] if out.shape else x.elements
    return x.elements * max(n - 1, 0).bit_length()


def one_per_counted(*, x: Tensor) -> int:
    """One operation per element that is counted."""
    return x.elements


SORTING: tuple[OpRule, ...] = (
    OpRule(
        "sort",
        under("sort argsort topk kthvalue median nanmedian mode", "x y order")
        | under("TopK tflite::TOPK_V2", "x", shapes("count")),
        "comparisons only, as many as a merge sort makes: libraries' own ways need about as many",
        flops=sorting_flops,
    ),
    OpRule(
        "sort",
        under("msort quantile searchsorted bucketize", "x y order") | under("Hardmax", "x"),
        "comparisons only",
        flops=None,
    ),
    OpRule(
        "histogram", under("histc bincount", "x y"), "one addition to a count for each element", flops=one_per_counted
    ),
    OpRule(
        "unique",
        under("_unique2 _unique unique_dim unique_consecutive isin", "x y") | under("Unique tflite::UNIQUE", "x"),
        "comparisons and counts only",
        flops=None,
    ),
    OpRule(
        "nms",
        under("torchvision::nms", "boxes scores")
        | under(
            "NonMaxSuppression tflite::NON_MAX_SUPPRESSION_V4 tflite::NON_MAX_SUPPRESSION_V5",
            "boxes scores",
            shapes("count limit delta"),
        ),
        "boxes are compared, not contracted",
        flops=None,
    ),
)


SCALE = Role("scale")  # of classes or elements, which is given and not learnt


def linear_cross_entropy_macs(*, x: Tensor, weight: Tensor, attributes: Attributes) -> int:
    """x (n, k) · weightᵀ (classes, k), and once more for each gradient of the two that the call makes, too."""
    asked = ("compute_input_grad", "compute_linear_weight_grad")
    return x.elements * weight.shape[0] * (1 + sum(attributes.get(name) is True for name in asked))


LOSSES: tuple[OpRule, ...] = (
    OpRule(
        "loss",
        under("mse_loss smooth_l1_loss huber_loss soft_margin_loss", "x y")
        | under("binary_cross_entropy binary_cross_entropy_with_logits", "x y", SCALE, Role("positive_scale")),
        "differences or logarithms element by element, and their mean",
        flops=None,
    ),
    OpRule(
        "loss",
        under("multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward", "x target", SCALE),
        "differences to the chosen element of each row, and their mean",
        flops=None,
    ),
    OpRule(
        "loss",
        under("_ctc_loss", "x target lengths target_lengths"),
        "sums over all alignments, step by step along each row: no pairs are contracted",
        flops=None,
    ),
    OpRule(
        "loss",
        under(
            "nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss",
            "x target",
            SCALE,
        ),
        "one logarithm is picked per row, weighted and summed: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "linear_cross_entropy",
        under(
            "torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
            "x",
            WEIGHT,
            "target",
            BIAS,
            SCALE,
        ),
        "a linear layer and the cross entropy of its results, in chunks, with the gradients that it is asked for",
        macs=linear_cross_entropy_macs,
        contracts=LINEAR_OF,
        flops=None,
    ),
)
