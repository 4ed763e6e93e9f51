"""What a device's figures make of a program, as a page draws it: a roofline of its operations, and its array in use."""

from collections import Counter
from fractions import Fraction

from pytest_modelbudget.deployment.roofline import COMPUTE
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.on_device import TimedOp, on_array, timed
from pytest_modelbudget.reports.html.packing import largest
from pytest_modelbudget.reports.show import Record

MOST_POINTS = 400  # the operations that take longest; the others are added up


def roofline_profile(costed: CostedGraph) -> Record:
    """The device's lines, and each operation at the memory that it waits longest for; seconds are of all, by side.

    Rates are in MAC/s by type, bandwidths in B/s by memory. missing are (why, operations without a bound).
    """
    device, found = costed.device, costed.once(timed)
    seconds: dict[str, Fraction] = {}
    for op in found.ops:
        seconds[op.bound.binds] = seconds.get(op.bound.binds, Fraction(0)) + op.bound.seconds
    bandwidths = {memory.name: memory.bandwidth for memory in device.memories if memory.bandwidth}
    longest, rest = largest(found.ops, MOST_POINTS, lambda op: op.bound.seconds)
    still = [op for op in found.ops if not op.macs]
    return {
        "rates": {name: float(rate) for name, rate in device.macs.items()},
        "bandwidths": {name: float(bandwidth) for name, bandwidth in bandwidths.items()},
        "points": [_point(op, bandwidths) for op in longest],
        "seconds": {side: float(each) for side, each in seconds.items()},
        "still": {"count": len(still), "seconds": float(sum(op.bound.seconds for op in still))},
        "rest": len(rest),
        "missing": [list(each) for each in Counter(why for _, _, why in found.missing).items()],
    }


def _point(op: TimedOp, bandwidths: dict[str, Fraction]) -> Record:
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
    longest, rest = largest(work.ops, MOST_POINTS, lambda each: each.counts.cycles)
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
