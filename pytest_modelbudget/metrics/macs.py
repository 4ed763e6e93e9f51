"""``macs`` and ``flops``: what a model computes."""

from __future__ import annotations

from pytest_modelbudget.metrics.costed_graph import Cost, CostedGraph, CostOf, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import Measurement, Metric, shares_of, unmeasured_ops

FLOPS_CONVENTION = "flops/1"


def macs(costed: CostedGraph) -> Measurement:
    """Multiply-accumulates of all contractions; bias and elementwise work are none."""
    return _computed("MAC", costed, lambda cost: cost.macs)


def op_flops(cost: OpCost) -> Cost:
    """Two FLOPs per multiply-accumulate, and what the convention adds for this kind of op."""
    if isinstance(cost.macs, Unknown):
        return cost.macs
    if isinstance(cost.flops, Unknown):
        return cost.flops
    return 2 * cost.macs + cost.flops


def flops(costed: CostedGraph) -> Measurement:
    """Two per multiply-accumulate, plus everything else by convention ``flops/1``."""
    return _computed("FLOP", costed, op_flops, convention=FLOPS_CONVENTION)


def _computed(
    unit: str, costed: CostedGraph, cost: CostOf, convention: str | None = None
) -> Measurement:
    contributions = list(costed.known(cost))
    return Measurement(
        sum(value for _, value in contributions),
        unit,
        shares=shares_of(contributions),
        unmeasured=unmeasured_ops(costed.missing(cost)),
        convention=convention,
    )


MACS = Metric("macs", "MAC", "multiply-accumulates of contractions; padding counts", macs)
FLOPS = Metric(
    "flops", "FLOP", "2 x macs plus everything elementwise, by convention flops/1", flops
)
