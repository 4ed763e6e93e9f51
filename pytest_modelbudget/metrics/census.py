"""``ops``: how many operations of each kind a model executes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pytest_modelbudget.metrics.costed_graph import NO_RULE, CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric, shares_of, unmeasured_ops


@dataclass(frozen=True, slots=True)
class OpCount:
    """Operations of one foreign name, and the kind they are."""

    kind: str
    name: str
    count: int


def census(costed: CostedGraph) -> tuple[OpCount, ...]:
    """Executed operations by kind and foreign name, in order of first appearance."""
    counts: Counter[tuple[str, str]] = Counter()
    for cost in costed.costs:
        counts[cost.kind, cost.op.name] += cost.op.times
    return tuple(OpCount(kind, name, count) for (kind, name), count in counts.items())


def ops(costed: CostedGraph) -> Measurement:
    """The census as a measurement: parts by kind; ops of no known kind are unmeasured."""
    kinds: Counter[str] = Counter()
    for row in census(costed):
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
