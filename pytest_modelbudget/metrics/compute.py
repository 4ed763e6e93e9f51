"""``macs``, ``flops`` and ``bops``: what a model computes."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from math import prod

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.metrics.costs import NO_RULE, Cost, CostedGraph, CostOf, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Term, summed, unmeasured_ops
from pytest_modelbudget.ops.multiplied import Types, multiplied_types
from pytest_modelbudget.ops.spellings import other_names
from pytest_modelbudget.ops.table import OpTable

FLOPS_CONVENTION = "flops/1"


def macs(costed: CostedGraph) -> Measurement:
    """Multiply-accumulates of all contractions; bias and elementwise work are none. Parts are by operands' types."""
    return replace(_computed("MAC", costed, lambda cost: cost.macs), parts=macs_by_type(costed))


def macs_by_type(costed: CostedGraph) -> Counter[str]:
    """Multiply-accumulates by the types of the two operands whose elements are multiplied: "float32×int8"."""
    by_type: Counter[str] = Counter()
    for _, amount, types in costed.once(multiplied):
        by_type["×".join(each.name for each in types)] += amount
    return by_type


def multiplied(costed: CostedGraph) -> list[tuple[Op, int, Types]]:
    """Every op with multiply-accumulates, their number, and the types of what it multiplies."""
    amounts = ((cost.op, cost.macs) for cost in costed.costs if isinstance(cost.macs, int) and cost.macs)
    return [(op, amount, multiplied_types(op, costed.rules[op.name])) for op, amount in amounts]


def op_flops(cost: OpCost) -> Cost:
    """Two FLOPs per multiply-accumulate, and what the convention adds for this kind of op."""
    if isinstance(cost.macs, Unknown) or isinstance(cost.flops, Unknown):
        return cost.macs if isinstance(cost.macs, Unknown) else cost.flops
    return 2 * cost.macs + cost.flops


def flops(costed: CostedGraph) -> Measurement:
    """Two per multiply-accumulate, plus everything else by convention ``flops/1``."""
    return _computed("FLOP", costed, op_flops, convention=FLOPS_CONVENTION)


def bits_multiplied(types: Types) -> tuple[int, int] | Unknown:
    """Bits of an element of each operand."""
    if not all(each.bits for each in types):
        return Unknown(f"multiplies {' by '.join(each.name for each in types)}, of which the bits are not known")
    return int(types[0].bits), int(types[1].bits)


def bops(costed: CostedGraph) -> Measurement:
    """Bit operations: each multiply-accumulate times the bits of one operand times those of the other."""
    bits = {op: bits_multiplied(types) for op, _, types in costed.once(multiplied)}

    def op_bops(cost: OpCost) -> Cost:
        if isinstance(cost.macs, Unknown):
            return cost.macs
        by = bits.get(cost.op, ())  # none of an op without multiply-accumulates
        return by if isinstance(by, Unknown) else cost.macs * prod(by)

    return _computed("BOP", costed, op_bops)


def factors(cost: OpCost, rules: OpTable) -> tuple[int, int] | Unknown:
    """The bits by which the multiply-accumulates of one op are multiplied."""
    return bits_multiplied(multiplied_types(cost.op, rules[cost.op.name]))


def _computed(unit: str, costed: CostedGraph, cost: CostOf, convention: str | None = None) -> Measurement:
    known, missing = costed.by_op(cost)
    return summed(known, unit, unmeasured_ops(missing), convention=convention)


MACS = Metric(
    "macs",
    "MAC",
    "multiply-accumulates of contractions; padding counts",
    macs,
    ByFormula((Term("macs"),)),
    drafted=True,
    also=("gmacs", "mmacs", "madds", "mult_adds", "multiply_adds", "multiply_accumulates"),
)
FLOPS = Metric(
    "flops",
    "FLOP",
    "2 x macs plus everything elementwise, by convention flops/1",
    flops,
    ByFormula((Term("macs", times=2), Term("flops", word="more flops"))),
    also=("gflops", "mflops", "tflops", "flop_count", "operations"),
)


BOPS = Metric(
    "bops",
    "BOP",
    "macs x bits of one operand x bits of the other",
    bops,
    ByFormula((Term("macs"),), by=factors),
    also=("bit_operations", "bit_ops"),
)


@dataclass(frozen=True, slots=True)
class OpCount:
    """Operations of one foreign name, the kind they are, and (scope, count) of each place.

    also are other names of the same computation, which refuse these operations as their own name does.
    """

    kind: str
    name: str
    count: int
    places: tuple[tuple[str, int], ...] = ()
    also: tuple[str, ...] = ()


def census(costed: CostedGraph) -> tuple[OpCount, ...]:
    """Executed operations by kind, foreign name and other names, in order of first appearance."""
    places: dict[tuple[str, str, tuple[str, ...]], Counter[str]] = defaultdict(Counter)
    for cost in costed.costs:
        places[cost.kind, cost.op.name, other_names(cost.op)][cost.op.scope] += cost.op.times
    return tuple(
        OpCount(kind, name, sum(counts.values()), tuple(counts.items()), also)
        for (kind, name, also), counts in places.items()
    )


def ops(costed: CostedGraph) -> Measurement:
    """The census as a measurement: parts by kind; ops of no known kind are unmeasured."""
    kinds: Counter[str] = Counter()
    for row in costed.once(census):
        kinds[row.kind] += row.count
    unruled = [(op.name, op.scope, NO_RULE) for op in costed.graph.ops if op.name not in costed.rules]
    executed = ((cost.op.scope, cost.op.times) for cost in costed.costs)
    return summed(executed, "op", unmeasured_ops(unruled), parts=kinds)


OPS = Metric(
    "ops",
    "op",
    "operations executed, by kind",
    ops,
    by_kind=True,
    also=("operators", "op_types", "op_kinds", "layers", "layer_types"),
)
