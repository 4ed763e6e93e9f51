"""``ops``: how many operations of each kind a model executes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from pytest_modelbudget.metrics.costed_graph import NO_RULE, CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric, shares_of, unmeasured_ops


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
        OpCount(kind, name, sum(counts.values()), tuple(counts.items()))
        for (kind, name), counts in places.items()
    )


def ops(costed: CostedGraph) -> Measurement:
    """The census as a measurement: parts by kind; ops of no known kind are unmeasured."""
    kinds: Counter[str] = Counter()
    for row in costed.once(census):
        kinds[row.kind] += row.count
    return Measurement(
        sum(kinds.values()),
        "op",
        shares=shares_of((cost.op.scope, cost.op.times) for cost in costed.costs),
        unmeasured=unmeasured_ops(
            (op.name, op.scope, NO_RULE) for op in costed.graph.ops if op.name not in costed.rules
        ),
        parts=dict(kinds),
    )


OPS = Metric("ops", "op", "operations executed, by kind", ops)
