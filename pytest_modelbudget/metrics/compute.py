"""``macs`` and ``flops``: what a model computes."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from pytest_modelbudget.metrics.costs import NO_RULE, Cost, CostedGraph, CostOf, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Term, summed, unmeasured_ops

FLOPS_CONVENTION = "flops/1"


def macs(costed: CostedGraph) -> Measurement:
    """Multiply-accumulates of all contractions; bias and elementwise work are none."""
    return _computed("MAC", costed, lambda cost: cost.macs)


def op_flops(cost: OpCost) -> Cost:
    """Two FLOPs per multiply-accumulate, and what the convention adds for this kind of op."""
    if isinstance(cost.macs, Unknown) or isinstance(cost.flops, Unknown):
        return cost.macs if isinstance(cost.macs, Unknown) else cost.flops
    return 2 * cost.macs + cost.flops


def flops(costed: CostedGraph) -> Measurement:
    """Two per multiply-accumulate, plus everything else by convention ``flops/1``."""
    return _computed("FLOP", costed, op_flops, convention=FLOPS_CONVENTION)


def _computed(unit: str, costed: CostedGraph, cost: CostOf, convention: str | None = None) -> Measurement:
    return summed(costed.known(cost), unit, unmeasured_ops(costed.missing(cost)), convention=convention)


MACS = Metric(
    "macs",
    "MAC",
    "multiply-accumulates of contractions; padding counts",
    macs,
    ByFormula((Term("macs"),)),
    drafted=True,
)
FLOPS = Metric(
    "flops",
    "FLOP",
    "2 x macs plus everything elementwise, by convention flops/1",
    flops,
    ByFormula((Term("macs", times=2), Term("flops", word="more flops"))),
)


@dataclass(frozen=True, slots=True)
class OpCount:
    """Operations of one foreign name, the kind they are, and (scope, count) of each place."""

    kind: str
    name: str
    count: int
    places: tuple[tuple[str, int], ...] = ()


def census(costed: CostedGraph) -> tuple[OpCount, ...]:
    """Executed operations by kind and foreign name, in order of first appearance."""
    places: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for cost in costed.costs:
        places[cost.kind, cost.op.name][cost.op.scope] += cost.op.times
    return tuple(
        OpCount(kind, name, sum(counts.values()), tuple(counts.items())) for (kind, name), counts in places.items()
    )


def ops(costed: CostedGraph) -> Measurement:
    """The census as a measurement: parts by kind; ops of no known kind are unmeasured."""
    kinds: Counter[str] = Counter()
    for row in costed.once(census):
        kinds[row.kind] += row.count
    unruled = [(op.name, op.scope, NO_RULE) for op in costed.graph.ops if op.name not in costed.rules]
    executed = ((cost.op.scope, cost.op.times) for cost in costed.costs)
    return summed(executed, "op", unmeasured_ops(unruled), parts=kinds)


OPS = Metric("ops", "op", "operations executed, by kind", ops, by_kind=True)
