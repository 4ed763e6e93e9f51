"""A graph with the cost of every op worked out once, for all metrics to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Union

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.ir.graph import Graph, Op, Operand
from pytest_modelbudget.ir.liveness import dead_storages
from pytest_modelbudget.ir.tensor import Storage, Tensor, distinct_nbytes
from pytest_modelbudget.ops.op_rule import OpRule, nothing
from pytest_modelbudget.ops.op_table import OpTable

NO_RULE = "no rule"
NO_ROWS: Mapping[Tensor, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unknown:
    """A cost that no formula gives, and why."""

    why: str


Cost = Union[int, Unknown]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one op moves: activations it reads, weights it reads, results it writes.

    whole are the weight tensors read entirely, rows the bytes of those read only in part.
    """

    read: int = 0
    weights: int = 0
    write: int = 0
    whole: tuple[Tensor, ...] = ()
    rows: Mapping[Tensor, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.read + self.weights + self.write


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one op costs, all its ``times`` executions together."""

    op: Op
    kind: str
    macs: Cost
    flops: Cost
    traffic: Traffic | Unknown


CostOf = Callable[[OpCost], Union[Cost, Traffic]]


class CostedGraph:
    """A graph, and what each of its ops costs under a table of rules."""

    def __init__(self, graph: Graph, rules: OpTable) -> None:
        self.graph = graph
        self.rules = rules

    @cached_property
    def costs(self) -> tuple[OpCost, ...]:
        """One cost per op, in execution order."""
        dead = dead_storages(self.graph)
        return tuple(_cost(op, self.rules.get(op.name), dead) for op in self.graph.ops)

    def known(self, cost: CostOf) -> Iterator[tuple[str, int]]:
        """(scope, cost) of every op whose cost is known."""
        for each in self.costs:
            value = cost(each)
            if isinstance(value, int):
                yield each.op.scope, value

    def missing(self, cost: CostOf) -> Iterator[tuple[str, str, str]]:
        """(op name, scope, why) of every op whose cost is not known."""
        for each in self.costs:
            value = cost(each)
            if isinstance(value, Unknown):
                yield each.op.name, each.op.scope, value.why


def _cost(op: Op, rule: OpRule | None, dead: frozenset[Storage]) -> OpCost:
    """The cost of one op; without a rule its traffic is still what its operands show."""
    if rule is None:
        unknown = Unknown(NO_RULE)
        return OpCost(op, "unknown", unknown, unknown, _traffic(op, dead))
    try:
        bound = rule.bind(op)
    except UnmeasurableError as error:
        unknown = Unknown(str(error))
        return OpCost(op, rule.kind, unknown, unknown, _traffic(op, dead))
    if op.is_view or op.is_shape_computation:
        return OpCost(op, rule.kind, 0, 0, Traffic())
    return OpCost(
        op,
        rule.kind,
        macs=_evaluated(rule, rule.macs, op, bound),
        flops=_evaluated(rule, rule.flops, op, bound),
        traffic=_ruled_traffic(op, rule, bound, dead),
    )


def _evaluated(
    rule: OpRule, formula: Callable[..., int] | None, op: Op, bound: Mapping[str, Operand]
) -> Cost:
    if formula is None:
        return Unknown(rule.because)
    if formula is nothing:
        return 0
    if op.unsized:
        return Unknown(op.unsized)
    try:
        return rule.evaluate(formula, op, bound) * op.times
    except UnmeasurableError as error:
        return Unknown(str(error))


def _ruled_traffic(
    op: Op, rule: OpRule, bound: Mapping[str, Operand], dead: frozenset[Storage]
) -> Traffic | Unknown:
    if op.unsized or (rule.reads is None and rule.writes is None):
        return _traffic(op, dead)
    try:
        in_part = rule.evaluate(rule.reads, op, bound) if rule.reads else {}
        written = rule.evaluate(rule.writes, op, bound) if rule.writes else None
    except UnmeasurableError as error:
        return Unknown(str(error))
    parts = [(bound[role], nbytes) for role, nbytes in in_part.items()]
    rows = {tensor: nbytes for tensor, nbytes in parts if isinstance(tensor, Tensor)}
    return _traffic(op, dead, rows, written)


def _traffic(
    op: Op,
    dead: frozenset[Storage],
    rows: Mapping[Tensor, int] = NO_ROWS,
    written: int | None = None,
) -> Traffic | Unknown:
    """Each distinct operand region once (or the rows named), and the outputs that matter."""
    if op.is_view or op.is_shape_computation:
        return Traffic()
    if op.unsized:
        return Unknown(op.unsized)
    whole = [t for t in op.tensors() if t not in rows and not t.is_immediate]
    activations = [tensor for tensor in whole if tensor.storage.is_activation]
    weights = tuple(tensor for tensor in whole if not tensor.storage.is_activation)
    read = distinct_nbytes(activations)
    read += sum(nbytes for tensor, nbytes in rows.items() if tensor.storage.is_activation)
    weight_rows = {t: nbytes for t, nbytes in rows.items() if not t.storage.is_activation}
    if written is None:
        results = op.outputs if op.mutates else op.fresh_outputs()
        written = distinct_nbytes(out for out in results if out.storage not in dead)
    return Traffic(
        read=read * op.times,
        weights=(distinct_nbytes(weights) + sum(weight_rows.values())) * op.times,
        write=written * op.times,
        whole=weights,
        rows=weight_rows,
    )
