"""Normalisation and softmax: a fixed number of FLOPs per element, and no contraction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import BIAS, MEAN, VARIANCE, WEIGHT, Role
from pytest_modelbudget.ops.rule import Names, OpRule, under

WHY = "statistics, a shift and a scale per element: nothing is contracted"


def per_element(count: int) -> Callable[..., int]:
    """FLOPs of an op that spends ``count`` on every element of its input."""

    def flops(*, x: Tensor) -> int:
        return count * x.elements

    return flops


def skip_flops(count: int) -> Callable[..., int]:
    """FLOPs of a norm after one sum with a residual, and one more with a bias."""

    def flops(*, x: Tensor, second_bias: Tensor | None = None) -> int:
        return (count + 1 + (second_bias is not None)) * x.elements

    return flops


def neighbourhood_flops(*, x: Tensor, attributes: Mapping[str, object]) -> int:
    """A square and ``size`` sums per element, then a scale, a sum, a power and a quotient."""
    return x.elements * (int(str(attributes["size"])) + 5)


def embedding_norm_flops(
    *, out: Tensor, second_weight: Tensor | None = None, third_weight: Tensor | None = None
) -> int:
    """One sum per further table, then a layer norm of 5 per element."""
    return out.elements * (5 + (second_weight is not None) + (third_weight is not None))


def embedding_rows(*, out: Tensor) -> Mapping[str, int]:
    """As many bytes of each table as the result holds."""
    return dict.fromkeys(("table", "second_weight", "third_weight"), out.nbytes)


def batch_norm_flops(
    *, x: Tensor, attributes: Mapping[str, object], mean: Tensor | None = None
) -> int:
    """2 per element with fixed statistics; 5 where the batch's own are worked out first."""
    computed = mean is None or bool(attributes.get("training") or attributes.get("train"))
    return (5 if computed else 2) * x.elements


def _normalisation(kind: str, names: Names, flops_per_element: int, because: str = WHY) -> OpRule:
    return OpRule(kind, names, because, flops=per_element(flops_per_element))


NORMALISATION: tuple[OpRule, ...] = (
    OpRule(
        "batch_norm",
        under(
            "aten::batch_norm aten::_batch_norm_impl_index aten::native_batch_norm "
            "aten::_native_batch_norm_legit aten::_native_batch_norm_legit_no_training "
            "aten::_batch_norm_no_update aten::cudnn_batch_norm aten::miopen_batch_norm",
            "x",
            WEIGHT,
            BIAS,
            MEAN,
            VARIANCE,
        )
        | {"aten::_native_batch_norm_legit.no_stats": ("x", WEIGHT, BIAS)},
        "a scale and a shift per element, after statistics where they are not fixed",
        flops=batch_norm_flops,
    ),
    _normalisation(
        "layer_norm",
        under("aten::layer_norm aten::native_layer_norm", "x", WEIGHT, BIAS),
        5,
    ),
    _normalisation(
        "group_norm",
        under("aten::group_norm aten::native_group_norm", "x", WEIGHT, BIAS),
        5,
    ),
    _normalisation(
        "instance_norm",
        under(
            "aten::instance_norm",
            "x",
            WEIGHT,
            BIAS,
            MEAN,
            VARIANCE,
        ),
        5,
    ),
    _normalisation("rms_norm", under("aten::rms_norm aten::_fused_rms_norm", "x", WEIGHT), 4),
    OpRule(
        "weight_norm",
        under("aten::_weight_norm aten::_weight_norm_interface", "x", "magnitude"),
        "a norm and a quotient per weight: nothing is contracted",
        flops=None,
    ),
    _normalisation(
        "softmax",
        under(
            "aten::softmax aten::_softmax aten::special_softmax aten::_safe_softmax "
            "aten::_masked_softmax",
            "x",
            "mask",
        ),
        5,
        "a maximum, a difference, an exponential, a sum and a division per element",
    ),
    _normalisation(
        "log_softmax",
        under("aten::log_softmax aten::_log_softmax aten::special_log_softmax", "x"),
        5,
        "a softmax and a logarithm in one pass",
    ),
    _normalisation(
        "batch_norm",
        under(
            "onnx::BatchNormalization",
            "x",
            WEIGHT,
            BIAS,
            MEAN,
            VARIANCE,
        ),
        2,
        "with fixed statistics, one scale and one shift per element",
    ),
    _normalisation("layer_norm", under("onnx::LayerNormalization", "x", WEIGHT, BIAS), 5),
    _normalisation(
        "group_norm",
        under("onnx::GroupNormalization com.microsoft::GroupNorm", "x", WEIGHT, BIAS),
        5,
    ),
    _normalisation("instance_norm", under("onnx::InstanceNormalization", "x", WEIGHT, BIAS), 5),
    _normalisation(
        "rms_norm",
        under("onnx::RMSNormalization onnx::SimplifiedLayerNormalization", "x", WEIGHT),
        4,
    ),
    _normalisation(
        "softmax",
        under("onnx::Softmax", "x"),
        5,
        "a maximum, a difference, an exponential, a sum and a division per element",
    ),
    _normalisation(
        "softmax",
        under(
            "com.microsoft::QLinearSoftmax",
            "x",
            "x_scale",
            "x_zero_point",
            "y_scale",
            "y_zero_point",
        ),
        5,
        "a softmax over integers, requantised",
    ),
    _normalisation(
        "log_softmax",
        under("onnx::LogSoftmax", "x"),
        5,
        "a softmax and a logarithm in one pass",
    ),
    OpRule(
        "layer_norm",
        under(
            "com.microsoft::SkipLayerNormalization",
            "x",
            "skip",
            WEIGHT,
            BIAS,
            Role("second_bias", weight=True),
        ),
        "a sum with the residual (and a bias), then a layer norm",
        flops=skip_flops(5),
    ),
    OpRule(
        "rms_norm",
        under(
            "com.microsoft::SkipSimplifiedLayerNormalization",
            "x",
            "skip",
            WEIGHT,
            Role("second_bias", weight=True),
        ),
        "a sum with the residual (and a bias), then an RMS norm",
        flops=skip_flops(4),
    ),
    OpRule(
        "embedding_layer_norm",
        under(
            "com.microsoft::EmbedLayerNormalization",
            "indices",
            "segments",
            Role("table", weight=True),
            Role("second_weight", weight=True),
            Role("third_weight", weight=True),
            WEIGHT,
            BIAS,
            "mask",
        ),
        "rows of up to three tables are added and normalised: nothing is contracted",
        flops=embedding_norm_flops,
        reads=embedding_rows,
    ),
    _normalisation(
        "mean_variance_norm",
        under("onnx::MeanVarianceNormalization", "x"),
        5,
        "a mean, a variance, a shift and a scale per element, as in a layer norm",
    ),
    _normalisation(
        "lp_norm",
        under("onnx::LpNormalization", "x"),
        4,
        "a norm and a quotient per element, counted as an RMS norm",
    ),
    OpRule(
        "local_response_norm",
        under("onnx::LRN", "x"),
        "squares of neighbouring channels are summed: no learnt weights, nothing contracted",
        flops=neighbourhood_flops,
    ),
    OpRule(
        "softmax",
        under("com.microsoft::BiasSoftmax", "x", "mask"),
        "a sum with a mask, then a softmax",
        flops=per_element(6),
    ),
)
