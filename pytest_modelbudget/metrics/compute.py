"""``macs``, ``flops`` and ``bops``: what a model computes, and its operations for a comparison of two graphs."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import attrgetter

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.metrics.costs import NO_RULE, Cost, CostedGraph, OpCost, Unknown, by_op
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Term, summed, unmeasured_ops
from pytest_modelbudget.ops.aliases import other_names
from pytest_modelbudget.ops.rule import Types, multiplied_types
from pytest_modelbudget.ops.table import OpTable

FLOPS_CONVENTION = "flops/1"


def macs(costed: CostedGraph) -> Measurement:
    """Multiply-accumulates of all contractions; bias and elementwise work are none. Parts are by operands' types."""
    known, missing = by_op(costed.once(multiplying), attrgetter("macs"))
    return summed(known, "MAC", unmeasured_ops(missing), parts=macs_by_type(costed))


def macs_by_type(costed: CostedGraph) -> Counter[str]:
    """Multiply-accumulates by the types of the two operands whose elements are multiplied: "float32×int8"."""
    by_type: Counter[str] = Counter()
    for _, amount, types in costed.once(multiplied):
        by_type["×".join(each.name for each in types)] += amount
    return by_type


def multiplying(costed: CostedGraph) -> list[OpCost]:
    """The costs of every op with multiply-accumulates, known or not."""
    return [cost for cost in costed.costs if cost.macs]


def multiplied(costed: CostedGraph) -> list[tuple[Op, int, Types]]:
    """Every op with multiply-accumulates, their number, and the types of what it multiplies."""
    amounts = ((cost.op, cost.macs) for cost in costed.once(multiplying) if isinstance(cost.macs, int))
    return [(op, amount, multiplied_types(op, costed.rules[op.name])) for op, amount in amounts]


def op_flops(cost: OpCost) -> Cost:
    """Two FLOPs per multiply-accumulate, and what the convention adds for this kind of op."""
    if isinstance(cost.macs, Unknown) or isinstance(cost.flops, Unknown):
        return cost.macs if isinstance(cost.macs, Unknown) else cost.flops
    return 2 * cost.macs + cost.flops


def flops(costed: CostedGraph) -> Measurement:
    """Two per multiply-accumulate, plus everything else by convention ``flops/1``."""
    computing = [cost for cost in costed.costs if cost.macs or cost.flops]
    known, missing = by_op(computing, op_flops)
    return summed(known, "FLOP", unmeasured_ops(missing), convention=FLOPS_CONVENTION)


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
        by = bits.get(cost.op, ())
        return by if isinstance(by, Unknown) else cost.macs * prod(by)

    known, missing = by_op(costed.once(multiplying), op_bops)
    return summed(known, "BOP", unmeasured_ops(missing))


def factors(cost: OpCost, rules: OpTable) -> tuple[int, int] | Unknown:
    """The bits by which the multiply-accumulates of one op are multiplied."""
    return bits_multiplied(multiplied_types(cost.op, rules[cost.op.name]))


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
    places: dict[tuple[str, str, tuple[str, ...]], dict[str, int]] = defaultdict(dict)
    for cost in costed.costs:
        op = cost.op
        counts = places[cost.kind, op.name, other_names(op)]
        counts[op.scope] = counts.get(op.scope, 0) + op.times
    return tuple(
        OpCount(kind, name, sum(counts.values()), tuple(counts.items()), also)
        for (kind, name, also), counts in places.items()
    )


def ops(costed: CostedGraph) -> Measurement:
    """The census as a measurement: parts by kind; ops of no known kind are unmeasured."""
    kinds: Counter[str] = Counter()
    for row in costed.once(census):
        kinds[row.kind] += row.count
    unruled = [(op.name, op.scope, NO_RULE) for op in costed.graph.ops if costed.ruled[op.name] is None]
    executed = [(op.scope, op.times) for op in costed.graph.ops]
    return summed(executed, "op", unmeasured_ops(unruled), parts=kinds)


OPS = Metric(
    "ops",
    "op",
    "operations executed, by kind",
    ops,
    by_kind=True,
    also=("operators", "op_types", "op_kinds", "layers", "layer_types"),
)


STORED = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.CONSTANT})


@dataclass(frozen=True, slots=True)
class Operation:
    """Operations of one kind in one scope whose results, and the weights that they read, are alike.

    Both are spelled as budgets spell inputs: "float32 1x64x56x56"; a scalar is "float32 ()".
    """

    scope: str
    kind: str
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    count: int = 1


def operations(costed: CostedGraph) -> tuple[Operation, ...]:
    """All executed operations but views and computations of shapes, which cost nothing, in their order."""
    counts: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for cost in costed.costs:
        op = cost.op
        if not (op.is_view or op.is_shape_computation):
            counts[op.scope, cost.kind, tuple([_spec(output) for output in op.outputs]), _weights(op)] += op.times
    return tuple(Operation(*key, count) for key, count in counts.items())


def _weights(op: Op) -> tuple[str, ...]:
    return tuple([_spec(tensor) for tensor in op.tensors() if tensor.shape and tensor.storage.kind in STORED])


def _spec(tensor: Tensor) -> str:
    return _spelled(tensor.dtype.name, tensor.shown_shape)


@lru_cache(maxsize=4096)  # shapes repeat from layer to layer
def _spelled(dtype: str, shape: tuple[int | str, ...]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or '()'}"
