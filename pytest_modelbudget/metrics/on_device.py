"""Numbers of a program on a device: in its best order, in one arena, within its rates, on its array of multipliers.

They are measured of deployments alone, and so is whether a program fits the memories of a device. What the device does
not say leaves a number unknown, never zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from pytest_modelbudget.deployment.arena import Arena, buffers_of, planned
from pytest_modelbudget.deployment.array import Array, Counts, counts
from pytest_modelbudget.deployment.device import ACTIVATIONS, HOLDS, WEIGHTS, Memory
from pytest_modelbudget.deployment.order import BestOrder, best_order, reordered
from pytest_modelbudget.deployment.products import Products, products
from pytest_modelbudget.deployment.roofline import Prices, TimeBound, energies, times
from pytest_modelbudget.errors import DeviceError, UnmeasurableError
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.metrics.branches import bounded
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Unknown
from pytest_modelbudget.metrics.measurement import (
    Measurement,
    Metric,
    Share,
    Stage,
    UnmeasuredOp,
    shares_of,
    summed,
    unmeasured_ops,
)
from pytest_modelbudget.metrics.storage import Alive, peak_of, stored_nbytes, unsized_activations
from pytest_modelbudget.metrics.training import HELD_AS, TRAINING_PEAK
from pytest_modelbudget.ops.rule import multiplied_types

MOST_STATES = 2_000  # sets of operations looked at in one part: every deployment of a session is searched


def order(costed: CostedGraph) -> BestOrder:
    """The order of operations that needs the least memory, as far as it was proved."""
    return best_order(costed.graph, most_states=MOST_STATES)


def peak_activation_best(costed: CostedGraph) -> Measurement:
    """``peak_activation`` in the best order: where that is not proved, of the best that was found, an upper bound."""
    best, graph = costed.once(order), costed.graph
    unmeasured = unsized_activations(graph)
    owners = [(alive.scope, alive.storage.nbytes) for alive in peak_of(reordered(graph, best.order)).alive]
    number = summed(owners, "B", unmeasured)
    if best.proved or unmeasured:
        return number
    return Measurement(number.value, "B", number.shares, at_least=best.bound)


def arena(costed: CostedGraph) -> Arena:
    """The activations, placed as the device's runtime does it."""
    rules = costed.device.arena
    return planned(buffers_of(costed.graph, edges_inside=rules.io_inside), planner=rules.planner, align=rules.align)


def activation_arena(costed: CostedGraph) -> Measurement:
    """High-water mark of the arena. parts: what lives at once, and the gap that placing it costs."""
    placed = costed.once(arena)
    parts = {"alive": placed.bound, "gap": placed.gap}
    return Measurement(placed.nbytes, "B", (), unsized_activations(costed.graph), parts)


# Time: each operation by itself, as long as its products or its bytes take.


@dataclass(frozen=True, slots=True)
class TimedOp:
    """One operation, all its executions together: what it computes and moves, in bytes, and how long that takes.

    dtype is that of what it multiplies, "" where it multiplies nothing.
    """

    name: str
    scope: str
    kind: str
    macs: int
    dtype: str
    weights: int
    activations: int
    bound: TimeBound


@dataclass(frozen=True, slots=True)
class Timed:
    """Every operation whose time is bounded, and the (name, scope, why) of the others.

    lacking is the first figure that an operation needs and the device does not give.
    """

    ops: tuple[TimedOp, ...]
    missing: tuple[tuple[str, str, str], ...]
    lacking: str = ""


def timed(costed: CostedGraph) -> Timed:
    """The roofline of each operation; those that do nothing are left out."""
    return _priced(costed, times(costed.device))


def spent(costed: CostedGraph) -> Timed:
    """What each operation takes, its sides in joules; those that do nothing are left out."""
    return _priced(costed, energies(costed.device))


def _priced(costed: CostedGraph, prices: Prices) -> Timed:
    ops: list[TimedOp] = []
    missing: list[tuple[str, str, str]] = []
    lacking = ""
    for cost in costed.costs:
        try:
            bounded = _timed(cost, costed, prices)
        except (UnmeasurableError, DeviceError) as error:
            missing.append((cost.op.name, cost.op.scope, str(error)))
            lacking = lacking or (str(error) if isinstance(error, DeviceError) else "")
        else:
            ops += [bounded] if bounded.bound.sides else []
    return Timed(tuple(ops), tuple(missing), lacking)


def _timed(cost: OpCost, costed: CostedGraph, prices: Prices) -> TimedOp:
    macs, traffic = cost.macs, cost.traffic
    if isinstance(macs, Unknown):
        raise UnmeasurableError(macs.why)
    if isinstance(traffic, Unknown):
        raise UnmeasurableError(traffic.why)
    dtype, weights, activations = "", traffic.weights, traffic.read + traffic.write
    if macs:
        types = multiplied_types(cost.op, costed.rules[cost.op.name])
        dtype = "×".join(dict.fromkeys(each.name for each in types))
    try:
        bound = prices.of(macs=macs, dtype=dtype, weights=weights, activations=activations)
    except UnmeasurableError as error:
        raise DeviceError(str(error)) from error
    return TimedOp(cost.op.name, cost.op.scope, cost.kind, macs, dtype, weights, activations, bound)


def latency_bound(costed: CostedGraph) -> Measurement:
    """Seconds that the operations take one after another, each at the device's peak rates.

    Raises DeviceError where the device says too little to bound any of them.
    """
    return _sum_of(costed.once(timed), "s", lambda bound: bound.seconds)


def energy(costed: CostedGraph) -> Measurement:
    """Joules that all products and all bytes that move take; parts by what takes them: compute, and memories by name.

    Raises DeviceError where the device says too little for any operation.
    """
    found = costed.once(spent)
    number = _sum_of(found, "J", lambda bound: sum(bound.sides.values(), Fraction(0)))
    parts: dict[str, Fraction] = {}
    for side, joules in (item for each in found.ops for item in each.bound.sides.items()):
        parts[side] = parts.get(side, Fraction(0)) + joules
    return replace(number, parts=parts)


def _sum_of(found: Timed, unit: str, amount: Callable[[TimeBound], Fraction]) -> Measurement:
    if found.lacking and not found.ops:
        raise DeviceError(f"{found.lacking}: add it to the device, under hardware:")
    shares: dict[str, Fraction] = {}
    for each in found.ops:
        shares[each.scope] = shares.get(each.scope, Fraction(0)) + amount(each.bound)
    by_scope = tuple(Share(scope, value) for scope, value in shares.items())
    return Measurement(sum(shares.values(), Fraction(0)), unit, by_scope, unmeasured_ops(found.missing))


# The array of multipliers.


@dataclass(frozen=True, slots=True)
class ArrayOp:
    """One operation on an array, all its executions together."""

    op: Op
    products: Products
    counts: Counts
    macs: int
    widths: tuple[int, int, int]  # bits of an element of input, weight and output


@dataclass(frozen=True, slots=True)
class OnArray:
    """Every operation that an array multiplies, and the (name, scope, why) of those with unknown products."""

    array: Array
    ops: tuple[ArrayOp, ...]
    missing: tuple[tuple[str, str, str], ...]

    @property
    def unmeasured(self) -> tuple[UnmeasuredOp, ...]:
        return unmeasured_ops(self.missing)


def on_array(costed: CostedGraph) -> OnArray:
    """What each operation costs on the device's array. Raises DeviceError where it has none."""
    array = costed.device.array
    if array is None:
        raise DeviceError(f"{costed.device.name} has no array: add array: {{rows: 64, columns: 64}} to the device")
    ops: list[ArrayOp] = []
    missing: list[tuple[str, str, str]] = []
    for op in costed.graph.ops:
        try:
            made = products(op, costed.rules)
        except UnmeasurableError as error:
            missing.append((op.name, op.scope, str(error)))
            continue
        if made:
            first, second = multiplied_types(op, costed.rules[op.name])
            widths = (int(first.bits), int(second.bits), int(op.outputs[0].dtype.bits))
            ops.append(ArrayOp(op, made, counts(made, array), sum(product.macs for product in made), widths))
    return OnArray(array, tuple(ops), tuple(missing))


def array_cycles(costed: CostedGraph) -> Measurement:
    """Cycles of all products, one after another."""
    work = costed.once(on_array)
    return summed(((each.op.scope, each.counts.cycles) for each in work.ops), "cycle", work.unmeasured)


def array_traffic(costed: CostedGraph) -> Measurement:
    """Bytes that the array reads and writes: inputs, weights, and outputs with all partial sums, each in its type."""
    work = costed.once(on_array)
    odd = tuple((each.op.name, each.op.scope, "the width of its elements is not known")
                for each in work.ops if not all(each.widths))  # fmt: skip
    parts = {"inputs": 0, "weights": 0, "outputs": 0}
    moved = []
    for each in work.ops:
        amounts = (each.counts.inputs, each.counts.weights, each.counts.outputs)
        nbytes = [-(-elements * bits // 8) for elements, bits in zip(amounts, each.widths, strict=True)]
        for part, amount in zip(parts, nbytes, strict=True):
            parts[part] += amount
        moved.append((each.op.scope, sum(nbytes)))
    return summed(moved, "B", unmeasured_ops((*work.missing, *odd)), parts=parts)


def array_utilisation(costed: CostedGraph) -> Measurement:
    """Multiplications that work ÷ all that the array could do in its cycles."""
    return _share_of_cells(costed, lambda each: each.macs, lambda each: each.counts.cycles)


def array_mapping(costed: CostedGraph) -> Measurement:
    """Cells that hold a value ÷ all cells, over all passes."""
    return _share_of_cells(costed, lambda each: each.counts.cells, lambda each: each.counts.folds)


def _share_of_cells(
    costed: CostedGraph, used: Callable[[ArrayOp], int], passes: Callable[[ArrayOp], int]
) -> Measurement:
    """A ratio of the whole array's cells; its shares are the ratios of single scopes."""
    work = costed.once(on_array)
    cells = work.array.rows * work.array.columns
    above = {share.scope: share.value for share in shares_of((each.op.scope, used(each)) for each in work.ops)}
    below = shares_of((each.op.scope, cells * passes(each)) for each in work.ops)
    pair = sum(map(used, work.ops)), cells * sum(map(passes, work.ops))
    if not pair[1]:
        nothing = UnmeasuredOp("model", 1, "", "multiplies nothing on the array, so it has no ratio")
        return Measurement(Fraction(0), "%", unmeasured=(*work.unmeasured, nothing))
    shares = tuple(Share(each.scope, Fraction(above.get(each.scope, 0), each.value)) for each in below)
    return Measurement(Fraction(*pair), "%", shares, work.unmeasured, unreduced=pair)


RATIO = "a ratio is not the sum of its shares"
ROWS = (  # key, unit, definition, measure, why not by scope, what people also say
    ("peak_activation_best", "B", "peak_activation in the order of operations that needs least", peak_activation_best,
     "the peak is one moment of the whole model", ()),
    ("activation_arena", "B", "bytes of one buffer that holds all activations, placed by a planner", activation_arena,
     "the arena is one buffer of the whole model", ("arena", "arena_size", "tensor_arena", "tensor_arena_size")),
    ("latency_bound", "s", "least time of all operations one after another, at the device's peak rates", latency_bound,
     "", ("latency", "time", "inference_time", "runtime", "speed")),
    ("energy", "J", "joules of all products, and of all bytes that memories read and write, by the device's figures",
     energy, "", ("joules", "power")),
    ("array_cycles", "cycle", "cycles of all products on the device's array", array_cycles, "", ("cycles",)),
    ("array_utilisation", "%", "macs / (cycles x rows x columns)", array_utilisation,
     RATIO, ("utilization", "utilisation")),
    ("array_mapping", "%", "cells that hold a value, of all cells in all passes", array_mapping, RATIO, ()),
    ("array_traffic", "B", "bytes that the array reads and writes, partial sums included", array_traffic, "", ()),
)  # fmt: skip
ON_DEVICE = tuple(
    Metric(key, unit, says, of, not_scoped=why, stage=Stage.DEPLOYED, also=also)
    for key, unit, says, of, why, also in ROWS
)
ACTIVATION_ARENA = ON_DEVICE[1]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of weights and of activations in one memory; a lower bound where something is unmeasured."""

    memory: Memory
    weights: int = 0
    activations: int = 0
    unmeasured: tuple[UnmeasuredOp, ...] = ()

    @property
    def used(self) -> int:
        return self.weights + self.activations

    @property
    def headroom(self) -> int:
        """Bytes that are left of what a model may fill; negative where it does not fit."""
        return self.memory.room - self.used


@dataclass(frozen=True, slots=True)
class Moment:
    """The operation during which most activations live, and those, the largest first."""

    op: str
    scope: str
    alive: tuple[Alive, ...]


@dataclass(frozen=True, slots=True)
class Fitting:
    """How full each memory of a device is. lacking are those of ``HOLDS`` for which it names no memory.

    parts, of a training step, are bytes by what they hold: "saved".
    """

    uses: tuple[MemoryUse, ...]
    lacking: tuple[str, ...]
    moment: Moment
    parts: Mapping[str, int] = field(default_factory=dict)


def fitting(costed: CostedGraph, step: CostedGraph | None = None) -> Fitting:
    """The memories of the device, filled: all stored tensors of the program, and its arena; or a step of training.

    Stored tensors are all that the program holds, also buffers that a checkpoint leaves out: a device has no code that
    makes them anew. Inputs and outputs that lie outside the arena are the application's own, and in no memory here.
    What a step keeps for each parameter lies with the weights, and what backward passes read with the activations.
    """
    holding = {what: costed.device.holding(what) for what in HOLDS}
    parts: Mapping[str, int] = {}
    if step is None:
        placed = bounded(ACTIVATION_ARENA, costed)
        stored, moving = sum(nbytes for _, nbytes in costed.once(stored_nbytes)), int(placed.value)
    else:
        placed = bounded(TRAINING_PEAK, step)
        parts = {name: int(nbytes) for name, nbytes in placed.parts.items()}
        stored = sum(parts[name] for name in {*HELD_AS.values()})
        moving = int(placed.value) - stored
    uses = tuple(
        MemoryUse(
            memory,
            stored if memory == holding[WEIGHTS] else 0,
            moving if memory == holding[ACTIVATIONS] else 0,
            placed.unmeasured if memory == holding[ACTIVATIONS] else (),
        )
        for memory in costed.device.memories
    )
    peak = peak_of((step or costed).graph)
    largest = tuple(sorted(peak.alive, key=lambda each: -each.storage.nbytes))
    moment = Moment(peak.op.name if peak.op else "", peak.op.scope if peak.op else "", largest)
    lacking = tuple(what for what, memory in holding.items() if memory is None)
    return Fitting(uses, lacking, moment, parts)
