"""The profile of one program that a page shows: its layers, memory over time, operations; or what it is on a device.

Worked out only where a report asks for it (``FileReport.profile``): it takes the graph, and
is larger than all the rest of a model's record. So it is JSON text from the start: carried from
process to process and into the page without being read on its way.
"""

import json
from collections import Counter

from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.graph.graph import paths
from pytest_modelbudget.metrics.compute import op_flops
from pytest_modelbudget.metrics.costs import NO_DEVICE, CostedGraph, OpCost, Traffic
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.storage import weight_memory
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.reports.html.device_profile import array_profile, roofline_profile
from pytest_modelbudget.reports.html.memory_profile import arena_profile, memory_profile
from pytest_modelbudget.reports.html.packing import largest, packed, readable_by_scripts
from pytest_modelbudget.reports.layer_table import OWN_OPERATIONS, OWN_PARAMETERS, LayerRow, layer_table
from pytest_modelbudget.reports.show import Record, calls_record

MOST_ROWS = 2000
FIGURES = ("params", "weight_bytes", "macs", "output_bytes", "traffic", "unmeasured", "unwritten")
SMALLER = "(smaller layers)"


def layer_profile(model: Model, costed: CostedGraph) -> Record:
    """The rows as deep as they fit; where even the first level does not, its largest rows.

    folded_at is the level below which layers were added up, left_out how many rows were.
    """
    table, folded_at = layer_table(model, costed), None
    deepest = max((row.depth for row in table.rows), default=0)
    while len(table.rows) > MOST_ROWS and deepest > 1:
        folded_at = deepest = deepest - 1
        table = layer_table(model, costed, depth=deepest)
    stored, moved = _Amounts(weight_memory(costed)), _Amounts(bandwidth(costed))
    rows = [
        {**calls_record(row), "params": row.params, "weight_bytes": stored.of(row), "macs": row.macs,
         "output_bytes": row.output_nbytes, "traffic": moved.of(row), "unmeasured": row.unmeasured,
         "unwritten": row.unwritten}
        for row in table.rows
    ]  # fmt: skip
    return {"rows": _largest(rows), "folded_at": folded_at, "left_out": max(0, len(rows) - MOST_ROWS)}


class _Amounts:
    """The contribution of each module path to a metric, alone and with all that lies below it."""

    def __init__(self, measurement: Measurement) -> None:
        self._own: dict[str, int] = {}
        self._below: dict[str, int] = {}
        for share in measurement.shares:
            value = int(share.value)
            self._own[share.scope] = value
            for path in {*paths(share.scope), ""}:
                self._below[path] = self._below.get(path, 0) + value

    def of(self, row: LayerRow) -> int | None:
        """The amount that belongs to a row; None where its layers stand below it."""
        if row.params is None:
            return None
        is_own = row.type in {OWN_OPERATIONS, OWN_PARAMETERS}
        return (self._own if is_own else self._below).get(row.scope, 0)


def _largest(rows: list[Record]) -> list[Record]:
    """At most MOST_ROWS of them, in their order; the others in one row at the end."""
    if len(rows) <= MOST_ROWS:
        return rows
    totals = {figure: sum(row[figure] or 0 for row in rows) or 1 for figure in FIGURES}

    def part(row: Record) -> float:
        """A container comes first, then the largest part of any column."""
        return 2.0 if row["params"] is None else max((row[figure] or 0) / totals[figure] for figure in FIGURES)

    kept, rest = largest(rows, MOST_ROWS - 1, part)
    summed = {figure: sum(row[figure] or 0 for row in rest) for figure in FIGURES}
    nowhere: Record = {"scope": None, "depth": 1, "type": SMALLER, "calls": 0, "inputs": [], "outputs": []}
    return [*kept, {**nowhere, **summed}]


MOST_OP_POINTS = 400  # the largest ones; the others are added up by kind
POINT_FIGURES = ("count", "macs", "flops", "read", "weights", "write")


def op_profile(costed: CostedGraph) -> Record:
    """Points in execution order, then those that were added up; what is free; what is unknown."""
    points: list[Record] = []
    unknown: Counter[tuple[str, str]] = Counter()
    free = 0
    for cost in costed.costs:
        point = _point(cost)
        if point is None:
            unknown[cost.op.scope, cost.op.name] += cost.op.times
        elif not any(point[figure] for figure in POINT_FIGURES[1:]):
            free += cost.op.times
        else:
            points.append(point)
    return {
        "points": _bounded(points),
        "free": free,
        "unknown": [{"scope": scope, "name": name, "count": count} for (scope, name), count in unknown.items()],
    }


def _point(cost: OpCost) -> Record | None:
    """The figures of one op, all its executions together; None where one is not known."""
    macs, flops, traffic = cost.macs, op_flops(cost), cost.traffic
    if not (isinstance(macs, int) and isinstance(flops, int) and isinstance(traffic, Traffic)):
        return None
    return {
        "scope": cost.op.scope, "kind": cost.kind, "count": cost.op.times, "macs": macs, "flops": flops,
        "read": traffic.read, "weights": traffic.weights, "write": traffic.write,
    }  # fmt: skip


def _moved(point: Record) -> int:
    return int(point["read"] + point["weights"] + point["write"])


def _bounded(points: list[Record]) -> list[Record]:
    """Points by their own where there are few; else the largest, and one a kind for the rest, without a scope."""
    if len(points) <= MOST_OP_POINTS:
        return points
    all_flops = sum(point["flops"] for point in points) or 1
    all_bytes = sum(_moved(point) for point in points) or 1

    def part(point: Record) -> int:
        """The larger of its parts of all flops and all bytes, on a common denominator."""
        return max(int(point["flops"]) * all_bytes, _moved(point) * all_flops)

    kept, rest = largest(points, MOST_OP_POINTS, part)
    by_kind: dict[str, Record] = {}
    for point in rest:
        blank = {"scope": None, "kind": point["kind"], **dict.fromkeys(POINT_FIGURES, 0)}
        known = by_kind.setdefault(point["kind"], blank)
        for figure in POINT_FIGURES:
            known[figure] += point[figure]
    return [*kept, *by_kind.values()]


def profile(model: Model, costed: CostedGraph) -> str:
    """JSON, the same for the same graph; its size is bounded, whatever the model's.

    Of a program on a device: its memory over time, where its arena has it, and what the device's figures make of it.
    """
    parts = {"memory": memory_profile(model.graph)}
    if costed.device is NO_DEVICE:
        parts |= {"layers": layer_profile(model, costed), "ops": op_profile(costed)}
    else:
        parts |= {"arena": arena_profile(costed), "roofline": roofline_profile(costed)}
        parts |= {"array": array_profile(costed)} if costed.device.array else {}
    rows = ("rows", "points", "buffers")
    packing = {
        name: {key: packed(value) if key in rows and name != "memory" else value for key, value in part.items()}
        for name, part in parts.items()
    }
    return json.dumps(readable_by_scripts(packing), separators=(",", ":"))
