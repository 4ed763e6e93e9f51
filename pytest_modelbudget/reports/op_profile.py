"""What single operations compute and move: the points of a roofline.

A convolution, and 7 small operations of one kind added up, drawn once::

    {"points": [{"scope": "conv1", "kind": "convolution", "count": 1, "macs": 900, "flops": 1900,
                 "read": 400, "weights": 100, "write": 300},
                {"scope": None, "kind": "relu", "count": 7, "macs": 0, "flops": 70,
                 "read": 280, "weights": 0, "write": 280}],
     "free": 12, "unknown": [{"scope": "head", "name": "aten::foo", "count": 2}]}

Everything that is known of flops and bytes is in exactly one point, so points add up to the
model's ``flops`` and ``bandwidth`` wherever those are complete. free operations neither compute
nor move anything (views); unknown ones lack a figure, and have no point.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_modelbudget.metrics.costed_graph import CostedGraph, OpCost, Traffic
from pytest_modelbudget.metrics.macs import op_flops
from pytest_modelbudget.reports.report import Record

MOST_POINTS = 400  # the largest ones; the others are added up by kind
FIGURES = ("count", "macs", "flops", "read", "weights", "write")


def op_profile(costed: CostedGraph) -> Record:
    """Points in execution order, then those that were added up; what is free; what is unknown."""
    points: list[Record] = []
    unknown: dict[tuple[str, str], int] = {}
    free = 0
    for cost in costed.costs:
        point = _point(cost)
        if point is None:
            name = (cost.op.scope, cost.op.name)
            unknown[name] = unknown.get(name, 0) + cost.op.times
        elif not any(point[figure] for figure in FIGURES[1:]):
            free += cost.op.times
        else:
            points.append(point)
    return {
        "points": _bounded(points),
        "free": free,
        "unknown": [
            {"scope": scope, "name": name, "count": count}
            for (scope, name), count in unknown.items()
        ],
    }


def _point(cost: OpCost) -> Record | None:
    """The figures of one op, all its executions together; None where one is not known."""
    macs, flops, traffic = cost.macs, op_flops(cost), cost.traffic
    if not (isinstance(macs, int) and isinstance(flops, int) and isinstance(traffic, Traffic)):
        return None
    return {
        "scope": cost.op.scope,
        "kind": cost.kind,
        "count": cost.op.times,
        "macs": macs,
        "flops": flops,
        "read": traffic.read,
        "weights": traffic.weights,
        "write": traffic.write,
    }


def _moved(point: Record) -> int:
    return int(point["read"] + point["weights"] + point["write"])


def _bounded(points: list[Record]) -> list[Record]:
    """Points by their own where there are few; else the largest, and one a kind for the rest."""
    if len(points) <= MOST_POINTS:
        return points
    all_flops = sum(point["flops"] for point in points) or 1
    all_bytes = sum(_moved(point) for point in points) or 1

    def weight(position: int) -> tuple[int, int]:
        """The larger of its parts of all flops and all bytes, on a common denominator."""
        point = points[position]
        return (-max(point["flops"] * all_bytes, _moved(point) * all_flops), position)

    kept = set(sorted(range(len(points)), key=weight)[:MOST_POINTS])
    rest = [point for position, point in enumerate(points) if position not in kept]
    return [points[position] for position in sorted(kept)] + _by_kind(rest)


def _by_kind(points: Iterable[Record]) -> list[Record]:
    """One point a kind, in order of first appearance; its scope is None."""
    sums: dict[str, Record] = {}
    for point in points:
        known = sums.setdefault(
            point["kind"], {"scope": None, "kind": point["kind"], **dict.fromkeys(FIGURES, 0)}
        )
        for figure in FIGURES:
            known[figure] += point[figure]
    return list(sums.values())
