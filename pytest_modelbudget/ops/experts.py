"""Mixtures of experts called as one operator: each row goes through the k networks that score best for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.role import BIAS, WEIGHT, WEIGHT_SCALE, WEIGHT_ZERO_POINT, Role, logical_bits, roles
from pytest_modelbudget.ops.rule import Attributes, Contraction, Maybe, OpRule, Over, in_rows, under


def expert_macs(
    *, x: Tensor, weight: Tensor, second_weight: Tensor, attributes: Attributes, third_weight: Maybe = None
) -> int:
    """Rows of x (..., d), each through k of e experts; a weight (e, n, d) has an e-th of its elements in each.

    The products that give scores stand before the operator; results of experts are scaled and added elementwise.
    """
    given = zip(PACKED, (weight, second_weight, third_weight), strict=True)
    elements = sum(_elements(role, tensor, attributes) for role, tensor in given if tensor is not None)
    return prod(x.shape[:-1]) * _chosen(weight, attributes) * elements // weight.shape[0]


def _elements(role: Role, weight: Tensor, attributes: Attributes) -> int:
    """Those that a weight stands for, of which several share a byte."""
    return weight.elements * 8 // logical_bits(role, attributes) if weight.dtype.name == "uint8" else weight.elements


def _chosen(weight: Tensor, attributes: Attributes) -> int:
    """k, the experts of each row."""
    chosen, experts = int(str(attributes.get("k", 1))), weight.shape[0]
    if not 0 < chosen <= experts:
        raise UnmeasurableError(f"the node chooses {chosen} of {experts} experts")
    return chosen


def chosen_experts(*, x: Tensor, weight: Tensor, attributes: Attributes) -> Mapping[str, int]:
    """All experts where each row takes all. Raises UnmeasurableError where the data decide which are read."""
    if _chosen(weight, attributes) < weight.shape[0]:
        raise UnmeasurableError("which of its experts it reads, the data decide")
    return {}


MATRICES = (WEIGHT, *roles("second_weight third_weight", weight=True, scales=True))
BIASES = (BIAS, *roles("second_bias third_bias", weight=True))
PACKED = tuple(
    replace(role, bits=(f"fc{at}_expert_weight_bits", "expert_weight_bits", 4)) for at, role in enumerate(MATRICES, 1)
)
SCALES = (WEIGHT_SCALE, Role("second_scale", quantises="second_weight"), Role("third_scale", quantises="third_weight"))
ZERO_POINTS = (
    WEIGHT_ZERO_POINT,
    Role("second_zero_point", quantises="second_weight"),
    Role("third_zero_point", quantises="third_weight"),
)
WHOLE_SCALES = (Role("whole_scale", quantises="weight"), Role("second_whole_scale", quantises="second_weight"))
EXPERTS_OF = Contraction(Over.FEATURES, ("x", "weight", "second_weight", "third_weight"), fan_in=in_rows)
EXPERTS: tuple[OpRule, ...] = (
    OpRule(
        "mixture_of_experts",
        under("com.microsoft::MoE", "x scores", tuple(zip(MATRICES, BIASES, strict=True)))
        | under(
            "com.microsoft::QMoE",
            "x scores",
            tuple(zip(PACKED, SCALES, BIASES, strict=True)),
            (ZERO_POINTS, "mixing", WHOLE_SCALES),
            "x_scale second_x_scale x_block_scale second_x_block_scale",
        ),
        "the products of k experts for each row; what chooses, activates and mixes has no figure in flops/1",
        macs=expert_macs,
        contracts=EXPERTS_OF,
        flops=None,
        reads=chosen_experts,
    ),
)
