"""Normalisation and softmax: a fixed number of FLOPs per element, and no contraction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.ops.op_rule import Names, OpRule, under

WHY = "statistics, a shift and a scale per element: nothing is contracted"


def per_element(count: int) -> Callable[..., int]:
    """FLOPs of an op that spends ``count`` on every element of its input."""

    def flops(*, x: Tensor) -> int:
        return count * x.elements

    return flops


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
            "weight",
            "bias",
            "mean",
            "variance",
        )
        | {"aten::_native_batch_norm_legit.no_stats": ("x", "weight", "bias")},
        "a scale and a shift per element, after statistics where they are not fixed",
        flops=batch_norm_flops,
    ),
    _normalisation(
        "layer_norm",
        under("aten::layer_norm aten::native_layer_norm", "x", "weight", "bias"),
        5,
    ),
    _normalisation(
        "group_norm",
        under("aten::group_norm aten::native_group_norm", "x", "weight", "bias"),
        5,
    ),
    _normalisation(
        "instance_norm",
        under("aten::instance_norm", "x", "weight", "bias", "mean", "variance"),
        5,
    ),
    _normalisation("rms_norm", under("aten::rms_norm aten::_fused_rms_norm", "x", "weight"), 4),
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
)
