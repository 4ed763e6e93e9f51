"""Normalisation and softmax: a fixed number of FLOPs per element, and no contraction."""

from __future__ import annotations

from collections.abc import Callable

from pytest_modelbudget.ir.tensor import Tensor
from pytest_modelbudget.ops.op_rule import Names, OpRule, under

WHY = "statistics, a shift and a scale per element: nothing is contracted"


def per_element(count: int) -> Callable[..., int]:
    """FLOPs of an op that spends ``count`` on every element of its input."""

    def flops(*, x: Tensor) -> int:
        return count * x.elements

    return flops


def _normalisation(kind: str, names: Names, flops_per_element: int, because: str = WHY) -> OpRule:
    return OpRule(kind, names, because, flops=per_element(flops_per_element))


NORMALISATION: tuple[OpRule, ...] = (
    _normalisation(
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
        2,
        "with fixed statistics, one scale and one shift per element",
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
    _normalisation(
        "weight_norm",
        under("aten::_weight_norm aten::_weight_norm_interface", "x", "magnitude"),
        4,
        "a norm, a quotient and a product per weight, as an RMS norm; nothing is contracted",
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
