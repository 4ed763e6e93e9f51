"""A graph with the cost of every op worked out once, for all metrics to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import index
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, Union, cast

from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Graph, Op, Operand, dead_storages
from pytest_modelbudget.graph.tensor import ACTIVATION, Storage, Tensor, nbytes_by_storage
from pytest_modelbudget.ops.rule import OpRule, nothing
from pytest_modelbudget.ops.table import OpTable

Answer = TypeVar("Answer")

NO_RULE = "no rule"
NO_BYTES: Mapping[Any, int] = MappingProxyType({})
NO_DEVICE = Device("the device")  # of which nothing is known


@dataclass(frozen=True, slots=True)
class Unknown:
    """A cost that no formula gives, and why."""

    why: str


Cost = Union[int, Unknown]


class Traffic(NamedTuple):
    """Bytes one op moves: activations it reads, weights it reads, results it writes.

    whole are the operands read entirely, rows the bytes of those read only in part, written the
    bytes of results by the memory they land in.
    """

    read: int = 0
    weights: int = 0
    write: int = 0
    whole: tuple[Tensor, ...] = ()
    rows: Mapping[Tensor, int] = NO_BYTES
    written: Mapping[Storage, int] = NO_BYTES

    @property
    def total(self) -> int:
        return self.read + self.weights + self.write


NO_TRAFFIC = Traffic()


class OpCost(NamedTuple):
    """The cost of one op, all its ``times`` executions together."""

    op: Op
    kind: str
    macs: Cost
    flops: Cost
    traffic: Traffic | Unknown


CostOf = Callable[[OpCost], Cost]


class CostedGraph:
    """A graph, and what each of its ops costs under a table of rules; device is what it runs on, if that is asked."""

    def __init__(self, graph: Graph, rules: OpTable, device: Device = NO_DEVICE) -> None:
        self.graph = graph
        self.rules = rules
        self.device = device
        self._answers: dict[Callable[[CostedGraph], object], object] = {}

    def once(self, question: Callable[[CostedGraph], Answer]) -> Answer:
        """The answer of a function to this graph, asked once however many metrics build on it."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return cast("Answer", self._answers[question])

    @cached_property
    def ruled(self) -> Mapping[str, OpRule | None]:
        """The rule of each foreign name in the graph; None where there is none."""
        return {name: self.rules.get(name) for name in {op.name for op in self.graph.ops}}

    @cached_property
    def costs(self) -> tuple[OpCost, ...]:
        """One cost per op, in execution order."""
        dead, rules = dead_storages(self.graph), self.ruled
        return tuple([_cost(op, rules[op.name], dead) for op in self.graph.ops])

    def by_op(self, cost: CostOf) -> tuple[list[tuple[str, int]], Mapping[tuple[str, str, str], int]]:
        """(scope, cost) of every op whose cost is known, and how often all others run, by (op name, scope, why)."""
        return by_op(self.costs, cost)

    def known(self, cost: CostOf) -> list[tuple[str, int]]:
        """(scope, cost) of every op whose cost is known: what metrics of extensions add up."""
        return self.by_op(cost)[0]

    def missing(self, cost: CostOf) -> Mapping[tuple[str, str, str], int]:
        """(op name, scope, why) of the ops whose cost is not known, and how often they run."""
        return self.by_op(cost)[1]


def by_op(costs: Iterable[OpCost], cost: CostOf) -> tuple[list[tuple[str, int]], Mapping[tuple[str, str, str], int]]:
    """(scope, cost) of those of these ops whose cost is known, and how often all others run."""
    values = [(op_cost.op, cost(op_cost)) for op_cost in costs]
    known = [(op.scope, value) for op, value in values if isinstance(value, int)]
    if len(known) == len(values):
        return known, NO_BYTES
    return known, runs_of([(op, value.why) for op, value in values if isinstance(value, Unknown)])


def runs_of(unknown: Iterable[tuple[Op, str]]) -> Mapping[tuple[str, str, str], int]:
    """How often operations run, by (op name, scope, why)."""
    counts: dict[tuple[str, str, str], int] = {}
    for op, why in unknown:
        counts[op.name, op.scope, why] = counts.get((op.name, op.scope, why), 0) + op.times
    return counts


def _cost(op: Op, rule: OpRule | None, dead: frozenset[Storage]) -> OpCost:
    """The cost of one op; without a rule its traffic is still what its operands show."""
    if rule is None:
        return OpCost(op, "unknown", Unknown(NO_RULE), Unknown(NO_RULE), _traffic(op, dead))
    try:
        bound = rule.bind(op)
    except UnmeasurableError as error:
        return OpCost(op, rule.kind, Unknown(str(error)), Unknown(str(error)), _traffic(op, dead))
    if op.is_view or op.is_shape_computation:
        return OpCost(op, rule.kind, 0, 0, NO_TRAFFIC)
    return OpCost(
        op,
        rule.kind,
        macs=_evaluated(rule, rule.macs, op, bound, absent=rule.because),
        flops=_evaluated(rule, rule.flops, op, bound, absent=f"convention flops/1 has no figure for {rule.kind}"),
        traffic=_ruled_traffic(op, rule, bound, dead),
    )


def _evaluated(
    rule: OpRule, formula: Callable[..., int] | None, op: Op, bound: Mapping[str, Operand], *, absent: str
) -> Cost:
    """The value of one formula; ``absent`` says why there is none."""
    if formula is None:  # what hides the size comes first: without it, a loop may have a known length
        return Unknown(op.unsized or absent)
    if formula is nothing:
        return 0
    if op.unsized:
        return Unknown(op.unsized)
    try:
        return _whole(rule.evaluate(formula, op, bound)) * op.times
    except UnmeasurableError as error:
        return Unknown(str(error))


def _whole(amount: object) -> int:
    """What a formula gives, numpy's whole numbers too; raises UnmeasurableError for what is none from 0 on."""
    with suppress(TypeError):
        if (count := index(amount)) >= 0:  # type: ignore[arg-type]  # which it is asked here
            return count
    raise UnmeasurableError(f"its formula gives {amount!r}, which is no whole number from 0 on")


def _by_role(amounts: object, bound: Mapping[str, Operand]) -> Mapping[str, object]:
    """What a formula gives of operands by their roles; raises UnmeasurableError where it gives anything else."""
    if isinstance(amounts, Mapping) and amounts.keys() <= bound.keys():
        return amounts
    raise UnmeasurableError(f"its formula gives {amounts!r}, and no bytes by roles ({', '.join(bound)})")


def _ruled_traffic(op: Op, rule: OpRule, bound: Mapping[str, Operand], dead: frozenset[Storage]) -> Traffic | Unknown:
    if op.unsized or (rule.reads is None and rule.writes is None):
        return _traffic(op, dead)
    try:
        in_part = rule.evaluate(rule.reads, op, bound) if rule.reads else {}
        parts = [(bound[role], _whole(nbytes)) for role, nbytes in _by_role(in_part, bound).items()]
        written = _whole(rule.evaluate(rule.writes, op, bound)) if rule.writes else None
    except UnmeasurableError as error:
        return Unknown(str(error))
    return _traffic(op, dead, {tensor: nbytes for tensor, nbytes in parts if isinstance(tensor, Tensor)}, written)


def _traffic(
    op: Op, dead: frozenset[Storage], rows: Mapping[Tensor, int] = NO_BYTES, written: int | None = None
) -> Traffic | Unknown:
    """Each distinct operand region once (or the rows named), and the outputs that matter."""
    if op.is_view or op.is_shape_computation:
        return NO_TRAFFIC
    if op.unsized:
        return Unknown(op.unsized)
    whole = tuple([t for t in op.tensors() if (t.storage.kind is ACTIVATION or not t.is_immediate) and t not in rows])
    read, weights = _amounts_read(whole, rows)
    results = [out for out in (op.outputs if op.mutates else op.fresh_outputs) if out.storage not in dead]
    if written is not None:
        landed = {op.outputs[0].storage: written}
    elif len(results) == 1:
        landed = {results[0].storage: results[0].touched_nbytes}
    else:
        landed = nbytes_by_storage(results)
    if op.times == 1:
        return Traffic(read, weights, sum(landed.values()), whole, rows, landed)
    rows = {tensor: nbytes * op.times for tensor, nbytes in rows.items()}
    landed = {storage: nbytes * op.times for storage, nbytes in landed.items()}
    return Traffic(read * op.times, weights * op.times, sum(landed.values()), whole, rows, landed)


def _amounts_read(whole: Sequence[Tensor], rows: Mapping[Tensor, int]) -> tuple[int, int]:
    """Bytes read of activations, and of everything else."""
    amounts = [(tensor.storage, tensor.touched_nbytes) for tensor in whole]
    if len(amounts) > 1 and len(dict(amounts)) < len(amounts):
        amounts = list(nbytes_by_storage(whole).items())
    if rows:
        amounts += [(tensor.storage, nbytes) for tensor, nbytes in rows.items()]
    activations = others = 0
    for storage, nbytes in amounts:
        if storage.kind is ACTIVATION:
            activations += nbytes
        else:
            others += nbytes
    return activations, others
