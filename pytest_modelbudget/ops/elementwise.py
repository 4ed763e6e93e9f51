"""Elementwise operations: one FLOP per output element, never a multiply-accumulate."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.pooling import REQUANTISED, one_per_input
from pytest_modelbudget.ops.role import BIAS, CARRIED, Role, X
from pytest_modelbudget.ops.rule import OpRule, Words, under

# kind -> aten names; each stands for its in-place spelling (name_) too.
UNARY = {
    "relu": "relu",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "rrelu": "rrelu rrelu_with_noise",
    "elu": "elu",
    "selu": "selu",
    "celu": "celu",
    "gelu": "gelu",
    "silu": "silu",
    "mish": "mish",
    "sigmoid": "sigmoid special_expit",
    "log_sigmoid": "log_sigmoid",
    "hardsigmoid": "hardsigmoid",
    "hardswish": "hardswish",
    "hardtanh": "hardtanh",
    "hardshrink": "hardshrink",
    "softshrink": "softshrink",
    "softplus": "softplus",
    "threshold": "threshold",
    "tanh": "tanh",
    "clamp": "clamp clip clamp_min clamp_max",
    "abs": "abs absolute",
    "neg": "neg negative resolve_neg resolve_conj",
    "sign": "sign sgn signbit",
    "exp": "exp exp2 expm1 special_exp2 special_expm1",
    "log": "log log2 log10 log1p special_log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "square": "square",
    "reciprocal": "reciprocal",
    "erf": "erf erfc erfinv special_erf special_erfc special_erfinv",
    "gamma": "lgamma digamma",
    "trigonometry": "sin cos tan asin acos atan sinh cosh asinh acosh atanh "
    "arcsin arccos arctan sinc",
    "rounding": "round floor ceil trunc frac fix",
    "logical_not": "logical_not bitwise_not",
    "logit": "logit special_logit",
    "angle": "angle",
    "degrees": "deg2rad rad2deg",
    "isnan": "isnan isinf isfinite isposinf isneginf",
    "nan_to_num": "nan_to_num",
}
# The gradient of an activation: torch.func and autograd inside a forward pass call these.
GRADIENTS = (
    "tanh_backward sigmoid_backward silu_backward gelu_backward threshold_backward "
    "leaky_relu_backward elu_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
    "mish_backward softplus_backward log_sigmoid_backward logit_backward"
)
BINARY = {
    "add": "add",
    "sub": "sub subtract rsub",
    "mul": "mul multiply",
    "div": "div divide true_divide floor_divide remainder fmod",
    "pow": "pow float_power",
    "maximum": "maximum minimum fmax fmin",
    "comparison": "eq ne lt le gt ge greater greater_equal less less_equal not_equal isclose",
    "logical": "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "__and__ __or__ __xor__ __iand__ __ior__ __ixor__",
    "shift": "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__",
    "atan2": "atan2 arctan2 hypot copysign nextafter heaviside xlogy special_xlogy logaddexp",
    "outer": "outer ger",
    "complex": "complex polar",
}
TERNARY = {
    "where": "where",
    "masked_fill": "masked_fill",
    "lerp": "lerp",
}
# The same kinds by their ONNX operators.
ONNX_UNARY = {
    "relu": "Relu",
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
    "selu": "Selu",
    "celu": "Celu",
    "gelu": "Gelu",
    "silu": "Swish",
    "mish": "Mish",
    "sigmoid": "Sigmoid",
    "hardsigmoid": "HardSigmoid",
    "hardswish": "HardSwish",
    "hardshrink": "Shrink",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "threshold": "ThresholdedRelu",
    "tanh": "Tanh",
    "clamp": "Clip",
    "abs": "Abs",
    "neg": "Neg",
    "sign": "Sign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "trigonometry": "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh",
    "rounding": "Round Floor Ceil",
    "logical_not": "Not BitwiseNot",
    "isnan": "IsNaN IsInf",
}
ONNX_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div Mod",
    "pow": "Pow",
    "comparison": "Equal Greater GreaterOrEqual Less LessOrEqual",
    "logical": "And Or Xor BitwiseAnd BitwiseOr BitwiseXor",
    "shift": "BitShift",
}
ONNX_VARIADIC = {"add": "Sum", "maximum": "Max Min", "mean_of": "Mean"}
PLAIN = "one operation per output element; nothing is accumulated"


def one_per_element(*, out: Tensor) -> int:
    """FLOPs of arithmetic, comparisons, activations and transcendental functions alike."""
    return out.elements


def dropout_flops(*, attributes: Mapping[str, object]) -> int:
    """Nothing at inference; a dropout that stays on draws numbers, which have no figure."""
    if attributes.get("train", attributes.get("training", False)):
        raise UnmeasurableError("dropout that stays on draws random numbers: no figure in flops/1")
    return 0


def biased(*, out: Tensor, bias: Tensor | None = None) -> int:
    """An activation per output element, and a sum where a bias comes with it."""
    return out.elements * (1 + (bias is not None))


def _operands(kind: str, words: Words) -> Words:
    """Roles of a kind: operands of the four arithmetic ones may be learnt where they are stored."""
    if kind not in {"add", "sub", "mul", "div"}:
        return words
    is_sum = kind in {"add", "sub"}
    return tuple(Role(str(word), learnt=True, added=is_sum, scales=not is_sum) for word in words)


def _onnx(names: str, *roles: str | Role) -> dict[str, Words]:
    return dict.fromkeys((f"onnx::{name}" for name in names.split()), roles)


def _onnx_family(table: dict[str, str], *roles: str | Role) -> tuple[OpRule, ...]:
    return tuple(
        OpRule(kind, _onnx(names, *_operands(kind, roles)), PLAIN, flops=one_per_element)
        for kind, names in table.items()
    )


def _spelt(names: str, *roles: str | Role) -> dict[str, Words]:
    spellings = (f"aten::{name}{suffix}" for name in names.split() for suffix in ("", "_"))
    return dict.fromkeys(spellings, roles)


def _family(table: dict[str, str], *roles: str) -> tuple[OpRule, ...]:
    return tuple(
        OpRule(kind, _spelt(names, *_operands(kind, roles)), PLAIN, flops=one_per_element)
        for kind, names in table.items()
    )


ELEMENTWISE: tuple[OpRule, ...] = (
    *_family(UNARY, "x", "bound", "other_bound"),
    *_family(BINARY, "x", "y"),
    *_family(TERNARY, "x", "y", "z"),
    OpRule(
        "maximum",
        under("aten::max.other aten::min.other", "x", "y"),
        PLAIN,
        flops=one_per_element,
    ),
    OpRule(
        "prelu",
        _spelt("prelu _prelu_kernel", "x", Role("slope", weight=True, scales=True)),
        PLAIN,
        flops=one_per_element,
    ),
    OpRule(
        "addcmul",
        _spelt("addcmul addcdiv", "x", "y", "z"),
        "x + a·y·z (or y / z) element by element",
        flops=one_per_element,
    ),
    OpRule(
        "addr",
        _spelt("addr", "x", "y", "z"),
        "an outer product added to a matrix: nothing is accumulated",
        flops=one_per_element,
    ),
    OpRule(
        "glu",
        _spelt("glu", "x"),
        "half of the input gates the other half, element by element",
        flops=one_per_element,
    ),
    *_onnx_family(ONNX_UNARY, "x", "bound", "other_bound"),
    *_onnx_family(ONNX_BINARY, "x", "y"),
    *_onnx_family({"prelu": "PRelu"}, "x", Role("slope", weight=True, scales=True)),
    *_onnx_family({"where": "Where"}, "condition", "x", "y"),
    *_onnx_family(ONNX_VARIADIC, "*parts"),
    OpRule(
        "gelu",
        {
            f"com.microsoft::{name}": ("x", BIAS)
            for name in ("Gelu", "QuickGelu", "FastGelu", "BiasGelu")
        },
        "an activation per element, and a sum where a bias comes with it",
        flops=biased,
    ),
    OpRule(
        "swiglu",
        {"onnx::SwiGLU": ("x", "y")},
        "an activation gates the other operand, element by element",
        flops=one_per_element,
    ),
    OpRule(
        "dropout",
        _spelt(
            "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout", CARRIED
        )
        | {"onnx::Dropout": (CARRIED, "ratio", "training")},
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
        under("com.microsoft::BiasAdd", X, BIAS, Role("residual", learnt=True)),
        "a bias and a residual are added, element by element",
        flops=one_per_element,
    ),
)


KINDS = {
    "sum": "sum nansum",
    "mean": "mean nanmean",
    "prod": "prod",
    "variance": "var std var_mean std_mean",
    "maximum_over": "max amax min amin aminmax argmax argmin",
    "norm": "norm linalg_vector_norm linalg_norm frobenius_norm",
    "logsumexp": "logsumexp special_logsumexp",
    "any_all": "any all _is_all_true _is_any_true",
    "cumulative": "cumsum cumprod cummax cummin logcumsumexp cumsum_ cumprod_",
    "count_nonzero": "count_nonzero",
    "trace": "trace",
}

# The same kinds by their ONNX operators.
ONNX_KINDS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "maximum_over": "ReduceMax ReduceMin ArgMax ArgMin",
    "norm": "ReduceL1 ReduceL2 ReduceSumSquare",
    "logsumexp": "ReduceLogSumExp ReduceLogSum",
    "cumulative": "CumSum CumProd",
}
WHY = "one operation per input element; no pairs are multiplied"


def _reductions(table: dict[str, str], space: str, *roles: str | Role) -> tuple[OpRule, ...]:
    return tuple(
        OpRule(
            kind,
            under(" ".join(f"{space}::{name}" for name in names.split()), *roles),
            WHY,
            flops=one_per_input,
        )
        for kind, names in table.items()
    )


REDUCTION: tuple[OpRule, ...] = (
    OpRule(
        "fold",
        under("aten::col2im", "x")
        | under("onnx::Col2Im", "x", Role("shape", shape=True), Role("sizes", shape=True)),
        "adds up overlapping windows: sums, no products of pairs",
        flops=one_per_input,
    ),
    OpRule(
        "segments",
        under("aten::segment_reduce", "x", "lengths", "indices", "offsets"),
        WHY,
        flops=one_per_input,
    ),
    *_reductions(KINDS, "aten", "x", "y"),
    *_reductions(ONNX_KINDS, "onnx", "x", Role("axes", shape=True)),
    OpRule(
        "mean",
        under("com.microsoft::QLinearReduceMean", *REQUANTISED),
        WHY,
        flops=one_per_input,
    ),
)
