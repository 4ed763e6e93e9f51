"""The profile of one program that a page shows: its layers, memory over time, operations; or what it is on a device.

Worked out only where a report asks for it (``FileReport.profile``): it takes the graph, and
is larger than all the rest of a model's record. So it is JSON text from the start: carried from
process to process and into the page without being read on its way.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from pytest_modelbudget.budget.lock_file import LockedValue
from pytest_modelbudget.deployment.arena import placed_storages
from pytest_modelbudget.deployment.roofline import COMPUTE
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.graph.graph import Graph, Lifetime, Op, lifetimes, live_nbytes, paths
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.metrics.compute import op_flops
from pytest_modelbudget.metrics.costs import NO_DEVICE, CostedGraph, OpCost, Traffic
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.metrics.on_device import TimedOp, arena, on_array, timed
from pytest_modelbudget.metrics.serving import ServedGraph, memory_by_context
from pytest_modelbudget.metrics.storage import peak_activation, weight_memory
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.reports.layer_table import OWN_OPERATIONS, OWN_PARAMETERS, LayerRow, layer_table
from pytest_modelbudget.reports.show import Record, calls_record

Item = TypeVar("Item")


def largest(items: Sequence[Item], most: int, size: Callable[[Item], Any]) -> tuple[list[Item], list[Item]]:
    """The largest items, at most so many, and the others, both in their order; of equal ones the first are kept."""
    by_size = sorted(range(len(items)), key=lambda at: size(items[at]), reverse=True)
    kept, rest = (sorted(some) for some in (by_size[:most], by_size[most:]))
    return [items[at] for at in kept], [items[at] for at in rest]


# Layers and operations, as the program is written.

MOST_ROWS = 2000
FIGURES = ("params", "weight_bytes", "macs", "output_bytes", "peak", "traffic", "unmeasured", "unwritten")
SMALLER = "(smaller layers)"


def layer_profile(model: Model, costed: CostedGraph) -> Record:
    """The rows as deep as they fit; where even the first level does not, its largest rows."""
    table, folded_at = layer_table(model, costed), None
    deepest = max((row.depth for row in table.rows), default=0)
    while len(table.rows) > MOST_ROWS and deepest > 1:
        folded_at = deepest = deepest - 1
        table = layer_table(model, costed, depth=deepest)
    stored, moved, alive = (_Amounts(metric(costed)) for metric in (weight_memory, bandwidth, peak_activation))
    rows = [
        {**calls_record(row), "params": row.params, "weight_bytes": stored.of(row), "macs": row.macs,
         "output_bytes": row.output_nbytes, "peak": alive.of(row), "traffic": moved.of(row),
         "unmeasured": row.unmeasured, "unwritten": row.unwritten, "lacks": row.lacks}
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
    nowhere: Record = {"scope": None, "depth": 1, "type": SMALLER, "calls": 0, "inputs": [], "outputs": [], "lacks": ""}
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


# Activations: bytes alive at each step, what lives at the peak, where an arena has them.

MOST_SPANS = 500  # more steps than this share points, of which each keeps its largest
MOST_OWNERS = 25  # named one by one at the peak; the others are added up


def memory_profile(graph: Graph) -> Record:
    """Live bytes by step, and what lives at the first step that has most of them."""
    alive = lifetimes(graph)
    live = live_nbytes(alive, positions=max(len(graph.ops), 1))
    peak = max(live)
    step = live.index(peak)
    points = list(_spans(live))
    at_peak = [(storage, life) for storage, life in alive.items() if life.first <= step <= life.last]
    at_peak.sort(key=lambda entry: -entry[0].nbytes)  # stable: equals stay in order of appearance
    named, rest = at_peak[:MOST_OWNERS], at_peak[MOST_OWNERS:]
    makers = _makers(graph)
    return {
        "steps": len(graph.ops),
        "complete": not any(storage.unsized for storage in alive),
        "peak": peak,
        "step": step,
        "points": points,
        # Scope and foreign name of the op; a graph without ops has a step all the same.
        "names": [[graph.ops[at].scope, graph.ops[at].name] if graph.ops else ["", ""] for _, _, at, _ in points],
        "owners": [_owner(storage, life, *makers[storage]) for storage, life in named],
        "rest": {"count": len(rest), "bytes": sum(storage.nbytes for storage, _ in rest)},
    }


def _spans(live: Sequence[int]) -> Iterator[list[int]]:
    """Spans of equal length, each with the step where most bytes live: no peak gets lost."""
    span = -(-len(live) // MOST_SPANS)
    for first in range(0, len(live), span):
        last = min(first + span, len(live)) - 1
        most_at = max(range(first, last + 1), key=live.__getitem__)
        yield [first, last, most_at, live[most_at]]


def _makers(graph: Graph) -> Mapping[Storage, tuple[Tensor, Op | None]]:
    """For each storage the first tensor on it, and the op that allocated it; none made inputs."""
    makers: dict[Storage, tuple[Tensor, Op | None]] = {tensor.storage: (tensor, None) for tensor in graph.inputs}
    for op in graph.ops:
        for output in op.fresh_outputs:
            makers.setdefault(output.storage, (output, op))
    return makers


def _owner(storage: Storage, life: Lifetime, tensor: Tensor, op: Op | None) -> Record:
    """One activation, and the steps that it lives for; op is "" for an input of the model."""
    return {
        "scope": op.scope if op else "", "op": op.name if op else "",
        "shape": list(tensor.shape), "dtype": tensor.dtype.name, "bytes": storage.nbytes,
        "first": life.first, "last": life.last,
    }  # fmt: skip


MOST_BUFFERS = 600  # the largest rectangles of bytes and steps; the others are counted


def arena_profile(costed: CostedGraph) -> Record:
    """Buffers by offset and steps; step is the first at which most of them live, rest those too small to be drawn."""
    placed, makers = costed.once(arena), _makers(costed.graph)
    storages = placed_storages(costed.graph, edges_inside=costed.device.arena.io_inside)
    entries = [
        (storage, life, offset)
        for (storage, life), offset in zip(storages.items(), placed.offsets, strict=True)
        if storage.nbytes
    ]
    kept, rest = largest(entries, MOST_BUFFERS, lambda entry: entry[0].nbytes * entry[1].steps)
    live = live_nbytes(storages, positions=max(len(costed.graph.ops), 1))
    return {
        "planner": placed.planner, "align": placed.align, "bytes": placed.nbytes, "bound": placed.bound,
        "inside": costed.device.arena.io_inside, "steps": len(costed.graph.ops),
        "step": live.index(max(live)),
        "buffers": [
            {**_owner(storage, life, *makers[storage]), "offset": offset}
            for storage, life, offset in kept
        ],
        "rest": {"count": len(rest), "bytes": sum(storage.nbytes for storage, _, _ in rest)},
    }  # fmt: skip


# What a device's figures make of a program: a roofline of its operations, and its array in use.

MOST_TIMED = 400  # the operations that take longest; the others are added up


def roofline_profile(costed: CostedGraph) -> Record:
    """The device's lines, and each operation at the memory that it waits longest for; seconds are of all, by side.

    Rates are in MAC/s by type, bandwidths in B/s by memory. missing are (why, operations without a bound).
    """
    device, found = costed.device, costed.once(timed)
    seconds: dict[str, Fraction] = {}
    for op in found.ops:
        seconds[op.bound.binds] = seconds.get(op.bound.binds, Fraction(0)) + op.bound.seconds
    bandwidths = {memory.name: memory.bandwidth for memory in device.memories if memory.bandwidth}
    longest, rest = largest(found.ops, MOST_TIMED, lambda op: op.bound.seconds)
    still = [op for op in found.ops if not op.macs]
    return {
        "rates": {name: float(rate) for name, rate in device.macs.items()},
        "bandwidths": {name: float(bandwidth) for name, bandwidth in bandwidths.items()},
        "points": [_timed_point(op, bandwidths) for op in longest],
        "seconds": {side: float(each) for side, each in seconds.items()},
        "still": {"count": len(still), "seconds": float(sum(op.bound.seconds for op in still))},
        "rest": len(rest),
        "missing": [list(each) for each in Counter(why for _, _, why in found.missing).items()],
    }


def _timed_point(op: TimedOp, bandwidths: dict[str, Fraction]) -> Record:
    """memory is the slowest of an operation, and bytes what it moves there; "" and 0 where it moves nothing."""
    sides = {side: seconds for side, seconds in op.bound.sides.items() if side != COMPUTE}
    memory = max(sides, key=lambda side: sides[side], default="")
    return {
        "scope": op.scope, "kind": op.kind, "macs": op.macs, "dtype": op.dtype, "memory": memory,
        "bytes": int(sides[memory] * bandwidths[memory]) if memory else 0, "binds": op.bound.binds,
        "seconds": float(op.bound.seconds),
    }  # fmt: skip


def array_profile(costed: CostedGraph) -> Record:
    """Operations on the array in their order, those with most cycles; rest are the others together."""
    work = costed.once(on_array)
    cycles, macs = sum(each.counts.cycles for each in work.ops), sum(each.macs for each in work.ops)
    longest, rest = largest(work.ops, MOST_TIMED, lambda each: each.counts.cycles)
    rows = [
        {"scope": each.op.scope, "op": each.op.name, "macs": each.macs, "cycles": each.counts.cycles,
         "products": [[product.m, product.k, product.n, product.count] for product in each.products[:1]],
         "more": len(each.products) - 1}
        for each in longest
    ]  # fmt: skip
    return {
        "rows": rows, "cells": [work.array.rows, work.array.columns], "dataflow": work.array.dataflow,
        "cycles": cycles, "macs": macs, "used": macs / (work.array.rows * work.array.columns * cycles or 1),
        "rest": {"count": len(rest), "cycles": sum(each.counts.cycles for each in rest)},
        "missing": len(work.missing),
    }  # fmt: skip


# All of it.

LARGEST_EXACT = 2**53 - 1  # a larger whole number goes as text: JavaScript would round it


def profile(model: Model, costed: CostedGraph, served: CostedGraph | None = None) -> str:
    """JSON, the same for the same graph, of bounded size; of a program on a device its arena and roofline."""
    parts = {"memory": memory_profile(model.graph)}
    if isinstance(served, ServedGraph):
        points = [{"context": tokens, **amounts} for tokens, amounts in memory_by_context(served)]
        parts["serving"] = {"context": served.service.context, "room": served.service.room, "points": points}
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


def with_base(profile: str, base: Mapping[str, LockedValue | None]) -> str:
    """A profile with what each layer added to a number at the base: {"macs": {"cut": 0, "layers": {"fc": 51200}}}."""
    numbers: Record = {}
    for key, locked in base.items():
        if locked is None:
            continue
        layers: Counter[str] = Counter()
        for part in locked.parts:
            layers[part.scope] += part.value
        numbers[key] = {"cut": locked.cut, "layers": layers}
    text = json.dumps(readable_by_scripts(numbers), separators=(",", ":"))
    return f'{profile[:-1]},"base":{text}}}'


def packed(rows: Sequence[Record]) -> Record:
    """Rows without their keys, which are above them once: half the size."""
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in rows]}


def readable_by_scripts(value: Any) -> Any:
    """The same with whole numbers as text where JavaScript would not know every digit."""
    if isinstance(value, dict):
        return {key: readable_by_scripts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [readable_by_scripts(inner) for inner in value]
    return str(value) if isinstance(value, int) and abs(value) > LARGEST_EXACT else value
