"""Normalisation and softmax: a fixed number of FLOPs per element, and no contraction."""

from collections.abc import Callable, Mapping, Sequence

from pytest_modelbudget.graph.tensor import Tensor, nbytes_of
from pytest_modelbudget.ops.pooling import REQUANTISED
from pytest_modelbudget.ops.role import BIAS, LAYER, NORM, WEIGHT, Role, roles
from pytest_modelbudget.ops.rule import Attributes, Maybe, Names, OpRule, under

STATISTICS = "statistics, a shift and a scale per element: nothing is contracted"
SOFTMAX = "a maximum, a difference, an exponential, a sum and a division per element"


def per_element(count: int) -> Callable[..., int]:
    """FLOPs of an op that spends ``count`` on every element of its input."""

    def flops(*, x: Tensor) -> int:
        return count * x.elements

    return flops


def skip_flops(count: int) -> Callable[..., int]:
    """FLOPs of a norm after one sum with a residual, and one more with a bias."""

    def flops(*, x: Tensor, second_bias: Maybe = None) -> int:
        return (count + 1 + (second_bias is not None)) * x.elements

    return flops


def activated_norm_flops(*, x: Tensor, attributes: Attributes, skip: Maybe = None, second_bias: Maybe = None) -> int:
    """5 per element, sums with a residual and a bias before, and an activation where an attribute says 1."""
    activated = bool(int(str(attributes.get("activation", 0))))
    return x.elements * (5 + activated + (skip is not None) + (second_bias is not None))


def neighbourhood_flops(*, x: Tensor, attributes: Attributes) -> int:
    """A square and ``size`` sums per element, then a scale, a sum, a power and a quotient."""
    return x.elements * (int(str(attributes["size"])) + 5)


def embedding_norm_flops(*, out: Tensor, second_weight: Maybe = None, third_weight: Maybe = None) -> int:
    """One sum per further table, then a layer norm of 5 per element."""
    return out.elements * (5 + (second_weight is not None) + (third_weight is not None))


def embedding_rows(*, out: Tensor) -> Mapping[str, int]:
    """As many bytes of each table as the result holds."""
    return dict.fromkeys(("table", "second_weight", "third_weight"), out.nbytes)


def quantised_embedding_flops(
    *, out: Tensor, weight: Tensor, bias: Tensor, second_weight: Maybe = None, third_weight: Maybe = None
) -> int:
    """Those of floats, and one product per element that is dequantised: of each table's rows, of scale and shift."""
    tables = 1 + (second_weight is not None) + (third_weight is not None)
    floating = embedding_norm_flops(out=out, second_weight=second_weight, third_weight=third_weight)
    return floating + tables * out.elements + weight.elements + bias.elements


def quantised_embedding_rows(
    *, out: Tensor, table: Tensor, second_weight: Maybe = None, third_weight: Maybe = None
) -> Mapping[str, int]:
    """As many elements of each table as the result holds, in the table's own type."""
    tables = {"table": table, "second_weight": second_weight, "third_weight": third_weight}
    return {word: nbytes_of(out.elements, each.dtype) for word, each in tables.items() if each is not None}


def batch_norm_flops(*, x: Tensor, attributes: Attributes, mean: Maybe = None) -> int:
    """2 per element with fixed statistics; 5 where the batch's own are worked out first."""
    computed = mean is None or any(attributes.get(flag) for flag in ("training", "train", "training_mode"))
    return (5 if computed else 2) * x.elements


def onnx_batch_norm_flops(*, x: Tensor, outputs: Sequence[Tensor], attributes: Attributes) -> int:
    """The same of ONNX's: before training_mode, in opset 14, one with further results works out the batch's own."""
    return (5 if len(outputs) > 1 or attributes.get("training_mode") else 2) * x.elements


BATCH_NORM = "a scale and a shift per element, after statistics where they are not fixed"


def _norm(kind: str, count: int, names: Names, because: str = STATISTICS) -> OpRule:
    """A rule for so many FLOPs per element of the input."""
    return OpRule(kind, names, because, flops=per_element(count))


def quantising(what: str) -> tuple[Role, ...]:
    """Scales, or zero points, of tables, scale and shift."""
    of = ("table", "second_weight", "third_weight", "weight", "bias")
    return tuple(Role(f"{word}_{what}", quantises=word) for word in of)


SECOND_BIAS = roles("second_bias", weight=True)
NORMALISATION: tuple[OpRule, ...] = (
    OpRule(
        "batch_norm",
        under(
            "batch_norm _batch_norm_impl_index native_batch_norm _native_batch_norm_legit "
            "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional _batch_norm_no_update "
            "cudnn_batch_norm miopen_batch_norm",
            NORM,
        )
        | under("_native_batch_norm_legit.no_stats", LAYER),
        BATCH_NORM,
        flops=batch_norm_flops,
    ),
    _norm("batch_norm", 5, under("_batch_norm_with_update _batch_norm_with_update_functional", NORM), BATCH_NORM),
    OpRule("batch_norm", under("BatchNormalization", NORM), BATCH_NORM, flops=onnx_batch_norm_flops),
    _norm("layer_norm", 5, under("layer_norm native_layer_norm LayerNormalization", LAYER)),
    _norm("group_norm", 5, under("group_norm native_group_norm GroupNormalization", LAYER)),
    OpRule(
        "group_norm",
        under("com.microsoft::GroupNorm", LAYER)
        | under("com.microsoft::SkipGroupNorm", LAYER, Role("skip", learnt=True), SECOND_BIAS),
        "a group norm behind a sum with a residual (and a bias), and before a SiLU where the node says so",
        flops=activated_norm_flops,
    ),
    _norm("instance_norm", 5, under("instance_norm", NORM) | under("InstanceNormalization", LAYER)),
    _norm(
        "rms_norm",
        4,
        under("rms_norm _fused_rms_norm RMSNormalization SimplifiedLayerNormalization", "x", WEIGHT)
        | under("com.microsoft::BranchwiseRMSNorm", "x", WEIGHT),
    ),
    _norm("rms_norm", 6, under("com.microsoft::GatedRMSNorm", "x", WEIGHT, "gate"), "an RMS norm times an activation"),
    _norm(
        "weight_norm",
        3,
        under("_weight_norm _weight_norm_interface", "x magnitude"),
        "a square and its sum per weight for the norm, and one quotient",
    ),
    _norm(
        "softmax",
        5,
        under("softmax _softmax special_softmax _safe_softmax _masked_softmax", "x mask")
        | under("Softmax tflite::SOFTMAX", "x"),
        SOFTMAX,
    ),
    _norm("softmax", 5, under("com.microsoft::QLinearSoftmax", REQUANTISED), "a softmax over integers, requantised"),
    _norm("softmax", 6, under("com.microsoft::BiasSoftmax", "x mask"), "a sum with a mask, then a softmax"),
    _norm(
        "log_softmax",
        5,
        under("log_softmax _log_softmax special_log_softmax LogSoftmax tflite::LOG_SOFTMAX", "x"),
        "a softmax and a logarithm in one pass",
    ),
    OpRule(
        "layer_norm",
        under("com.microsoft::SkipLayerNormalization", "x skip", WEIGHT, BIAS, SECOND_BIAS),
        "a sum with the residual (and a bias), then a layer norm",
        flops=skip_flops(5),
    ),
    OpRule(
        "rms_norm",
        under("com.microsoft::SkipSimplifiedLayerNormalization", "x skip", WEIGHT, SECOND_BIAS),
        "a sum with the residual (and a bias), then an RMS norm",
        flops=skip_flops(4),
    ),
    OpRule(
        "embedding_layer_norm",
        under(
            "com.microsoft::EmbedLayerNormalization",
            "indices segments",
            roles("table second_weight third_weight", weight=True),
            (WEIGHT, BIAS, "mask"),
        ),
        "rows of up to three tables are added and normalised: nothing is contracted",
        flops=embedding_norm_flops,
        reads=embedding_rows,
    ),
    OpRule(
        "embedding_layer_norm",
        under(
            "com.microsoft::QEmbedLayerNormalization",
            "indices segments",
            roles("table second_weight third_weight", weight=True),
            (WEIGHT, BIAS, "mask"),
            quantising("scale"),
            quantising("zero_point"),
        ),
        "rows of up to three tables are dequantised, added and normalised: nothing is contracted",
        flops=quantised_embedding_flops,
        reads=quantised_embedding_rows,
    ),
    _norm(
        "mean_variance_norm",
        5,
        under("MeanVarianceNormalization", "x"),
        "a mean, a variance, a shift and a scale per element, as in a layer norm",
    ),
    _norm(
        "lp_norm",
        4,
        under("LpNormalization tflite::L2_NORMALIZATION", "x"),
        "a norm and a quotient per element, counted as an RMS norm",
    ),
    OpRule(
        "local_response_norm",
        under("LRN tflite::LOCAL_RESPONSE_NORMALIZATION", "x"),
        "squares of neighbouring channels are summed: no learnt weights, nothing contracted",
        flops=neighbourhood_flops,
    ),
)
