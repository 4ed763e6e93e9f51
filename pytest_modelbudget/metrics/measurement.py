"""A measured number, who it is made of, and what it does not cover."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Real
from operator import ge, gt, index, le, lt
from typing import Any, Protocol, Union

from pytest_modelbudget.errors import ExtensionError, UnmeasurableError
from pytest_modelbudget.graph.graph import Weight, is_in_scope, may_be_in_scope
from pytest_modelbudget.metrics.costs import CostedGraph, OpCost, Unknown
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import Number, readable, unit_named


@dataclass(frozen=True, slots=True)
class Share:
    """The contribution of one scope (a module path, "" for the model itself) to a number."""

    scope: str
    value: Number


FORMULA = "formula"  # convention of a number that needs no program
PROGRAM = "program"  # stands for every operation of a graph that knows none
UNPLACED = "in a script, the layer of operations that read no weight is not known"


@dataclass(frozen=True, slots=True)
class UnmeasuredOp:
    """Operations of one name in one scope that a number does not cover, and why."""

    op: str
    count: int
    scope: str
    why: str

    def may_be_in(self, glob: str | None) -> bool:
        """Whether it belongs to the scopes of a glob; a program that nobody knows belongs to all."""
        return self.op == PROGRAM or may_be_in_scope(self.scope, glob)


@dataclass(frozen=True, slots=True)
class OtherPath:
    """A number where data take other branches, which op chooses: all of it, and its differences from the counted one.

    Differences are by scope, in all but a ratio. unmeasured are operations beyond those that the counted number does
    not cover; where is_known is false, they stand in every scope that the path may change, and the value is the counted
    one. at_least is as a Measurement has it.
    """

    op: str
    branches: str
    value: Number
    differences: tuple[Share, ...] = ()
    unmeasured: tuple[UnmeasuredOp, ...] = ()
    at_least: Number | None = None
    is_known: bool = True

    @property
    def is_open(self) -> bool:
        """Whether its amount is unknown, even as a bound."""
        return bool(self.unmeasured) and not self.is_known

    @property
    def least(self) -> Number:
        """What it has at least."""
        return self.value if self.at_least is None else self.at_least

    def within(self, glob: str, counted: Number) -> OtherPath:
        """The part of it under a glob, of which so much is counted."""
        differences = tuple(share for share in self.differences if is_in_scope(share.scope, glob))
        value = counted + sum(share.value for share in differences)
        unmeasured = tuple(op for op in self.unmeasured if op.may_be_in(glob))
        return replace(self, value=value, differences=differences, unmeasured=unmeasured)


@dataclass(frozen=True, slots=True, repr=False)
class Measurement:
    """One number: an exact int, or a Fraction for a ratio. It can be compared, and taken for one by ``int()``.

    shares stand in execution order and add up to the value, unless it is a ratio. parts split the
    value by another view (bandwidth: read, weights, write). unreduced is the pair a ratio was
    made from. With unmeasured ops the value is a lower bound. at_least is a proved lower bound of a
    value that is an upper bound only: nobody has proved a better one, nor that there is none.
    others are what data may make of it by other branches than those that are counted.

    Raises ExtensionError where the shares of an int do not add up to it.
    """

    value: Number
    unit: str
    shares: tuple[Share, ...] = ()
    unmeasured: tuple[UnmeasuredOp, ...] = ()
    parts: Mapping[str, Number] = field(default_factory=dict)
    unreduced: tuple[int, int] | None = None
    convention: str | None = None
    at_least: Number | None = None
    others: tuple[OtherPath, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.value, int) and self.shares and sum([share.value for share in self.shares]) != self.value:
            raise ExtensionError(f"the shares of {self.value} {self.unit} do not add up to it")

    def __repr__(self) -> str:
        return f"<Measurement {self.sign}{self.value} {unit_named(self.unit).shown}".rstrip() + ">"

    def __int__(self) -> int:
        return int(self._exact())

    def __float__(self) -> float:
        return float(self._exact())

    def __index__(self) -> int:
        return index(self._exact())  # type: ignore[arg-type]  # a ratio is refused

    def _exact(self) -> Number:
        if not self.complete:
            raise UnmeasurableError(f"{self!r} is a bound and no number: .value is what is known of it")
        return self.value

    @property
    def _ends(self) -> tuple[Number, Number | float]:
        """The least and the most that it can be, whatever path data take."""
        least = self.least if self.at_least is None else min(self.least, self.at_least)
        return least, self.most if self._is_covered else math.inf

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Real):
            return self._ends == (other, other)
        if isinstance(other, Measurement):
            return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._decided(other, lt)

    def __le__(self, other: object) -> bool:
        return self._decided(other, le)

    def __gt__(self, other: object) -> bool:
        return self._decided(other, gt)

    def __ge__(self, other: object) -> bool:
        return self._decided(other, ge)

    def _decided(self, other: object, holds: Callable[[Any, Any], bool]) -> bool:
        """Whether a relation holds; raises UnmeasurableError where it does for some numbers within the bounds alone."""
        if isinstance(other, Real):
            theirs: tuple[Any, ...] = (other,)
        elif isinstance(other, Measurement) and other.unit == self.unit:
            theirs = other._ends
        else:
            return NotImplemented  # type: ignore[no-any-return]  # Python tries the other side
        answers = {holds(mine, end) for mine in self._ends for end in theirs}
        if len(answers) > 1:
            raise UnmeasurableError(f"{self!r} is a bound: how it compares with {other!r} is unknown")
        return bool(answers.pop())

    @property
    def complete(self) -> bool:
        """Whether everything was covered and proved, so that the value is exact."""
        return not self.unmeasured and self.at_least is None

    @property
    def least(self) -> Number:
        """The least of it that is known on any path that data may take: what a minimum is held against."""
        return min([self.value, *(other.least for other in self.others if not other.is_open)])

    @property
    def most(self) -> Number:
        """The most of it that is known on any path that data may take: what a maximum is held against."""
        return max([self.value, *(other.value for other in self.others if not other.is_open)])

    @property
    def is_known_on_all_paths(self) -> bool:
        """Whether everything was covered and proved, whatever data take."""
        return self._is_covered and self.at_least is None and all(other.at_least is None for other in self.others)

    @property
    def _is_covered(self) -> bool:
        own = set(self.unmeasured) - set(surpluses(self))
        return not own and not any(other.unmeasured for other in self.others)

    @property
    def sign(self) -> str:
        """How the number itself lies to the value, before it: "" of an exact one, ">= " or "<= " of a bound."""
        return bound(self, ">= ", "<= ")

    @property
    def is_ratio(self) -> bool:
        """Whether it is no amount that parts add up to."""
        return self.unreduced is not None or not (isinstance(self.value, int) or unit_named(self.unit).adds)


def part_of(number: Measurement, glob: str | None) -> Measurement:
    """The part of a number that scopes under a glob make up.

    A lower bound where another path has more of it there, or operations may belong there of which nobody knows.
    """
    if glob is None:
        return number
    shares = tuple(share for share in number.shares if is_in_scope(share.scope, glob))
    value, of_all = sum(share.value for share in shares), set(surpluses(number))
    own = (op for op in number.unmeasured if op not in of_all and op.may_be_in(glob))
    astray = (share.scope for share in number.shares if share not in shares and may_be_in_scope(share.scope, glob))
    unplaced = (UnmeasuredOp(PROGRAM, 1, scope, UNPLACED) for scope in astray)
    others = tuple(other.within(glob, value) for other in number.others)
    part = replace(number, value=value, shares=shares, unmeasured=(*own, *unplaced), parts={}, others=others)
    return replace(part, unmeasured=(*part.unmeasured, *surpluses(part)))


def surpluses(number: Measurement) -> tuple[UnmeasuredOp, ...]:
    """The operators by which data choose a path with more than is counted, or one of which that is not known."""
    more: dict[str, UnmeasuredOp] = {}
    for other in sorted(number.others, key=lambda each: -each.value):
        if other.op not in more and (why := _surplus(number, other)):
            more[other.op] = UnmeasuredOp(other.op, 1, "", why)
    return tuple(more.values())


def _surplus(number: Measurement, other: OtherPath) -> str:
    """What a path has more than is counted; "" where it has not."""
    if other.is_open:
        return f"how much {other.branches} has is not known"
    if other.value != number.value if number.is_ratio else other.value > number.value:
        return f"{readable(other.value, number.unit)} where data take {other.branches}"
    return f"{other.branches} has operations that are not measured" if other.unmeasured else ""


class Bounded(Protocol):
    """A number that may be a bound alone."""

    @property
    def complete(self) -> bool: ...

    @property
    def at_least(self) -> Number | None: ...


def bound(number: Bounded, above: str, below: str) -> str:
    """The word for a number that is a bound alone: of one that may be more, or less; "" of an exact one."""
    return "" if number.complete else above if number.at_least is None else below


@dataclass(frozen=True, slots=True)
class ByWeight:
    """A number that stored tensors make up, and what each of them adds to it."""

    amounts: Callable[[CostedGraph], Iterable[tuple[Weight, int]]]


@dataclass(frozen=True, slots=True)
class Term:
    """One of an op's formulas ("macs" or "flops"), how often it counts, and what it is called."""

    formula: str
    times: int = 1
    word: str = ""


@dataclass(frozen=True, slots=True)
class ByFormula:
    """A number that the formulas of the op rules make up: the sum of these terms for each op.

    by gives factors of an op with such a number, by which its sum is multiplied.
    """

    terms: tuple[Term, ...]
    by: Callable[[OpCost, OpTable], tuple[int, ...] | Unknown] | None = None


@dataclass(frozen=True, slots=True)
class ByTraffic:
    """A number that the bytes of each op make up, in these directions: read, weights, write."""

    directions: tuple[str, ...]


How = Union[ByWeight, ByFormula, ByTraffic]


class Stage(Enum):
    """The program of a model that a metric is measured on; those but the first only where they are asked for."""

    WRITTEN = "the model as its format has it"
    DEPLOYED = "what a device runs"
    TRAINED = "one training step, forward and backward"
    SERVED = "one decode step of a language model behind its cache"
    EVALUATED = "the answers on labelled data, which 'evaluate' of a budget names"


@dataclass(frozen=True, slots=True)
class Metric:
    """A key of the budget file, and all that tables, drafts, explanations and editors need of it.

    measure works the number out, in unit; definition says in words what it counts. how is what its shares come about
    by, where that can be followed further than to a scope. not_scoped says why a part of a model has no such number,
    and is "" where it has one. A drafted metric is held by a budget's first draft. A
    by_kind metric is limited by kinds of operation and not by an amount. stage is the program that it is measured on;
    metrics of the model as written are measured on what a device runs, too. also are words that people say for it,
    which it is suggested for.
    """

    key: str
    unit: str
    definition: str
    measure: Callable[[CostedGraph], Measurement]
    how: How | None = None
    not_scoped: str = ""
    drafted: bool = False
    by_kind: bool = False
    stage: Stage = Stage.WRITTEN
    also: tuple[str, ...] = ()

    @property
    def needs_no_run(self) -> bool:
        """Whether what a model stores is all that makes it up."""
        return isinstance(self.how, ByWeight) and self.stage is Stage.WRITTEN

    def of(self, costed: CostedGraph) -> Measurement:
        """The number of a graph; a lower bound where operations make it up, and the graph knows none."""
        measurement, why = costed.once(self.measure), costed.graph.operations_unknown
        if not why or self.needs_no_run or measurement.convention == FORMULA:
            return measurement
        return replace(measurement, unmeasured=(UnmeasuredOp(PROGRAM, 1, "", why),))


def shares_of(contributions: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    """Contributions added up by scope, in order of first appearance; zeros are left out."""
    totals: dict[str, int] = {}
    for scope, value in contributions:
        if value:
            totals[scope] = totals.get(scope, 0) + value
    return tuple(map(Share, totals, totals.values()))


def summed(
    contributions: Iterable[tuple[str, int]],
    unit: str,
    unmeasured: tuple[UnmeasuredOp, ...] = (),
    *,
    parts: Mapping[str, int] | None = None,
    convention: str | None = None,
) -> Measurement:
    """The sum of (scope, amount) contributions, with a share for each scope."""
    amounts = list(contributions)
    value = sum([amount for _, amount in amounts])
    return Measurement(value, unit, shares_of(amounts), unmeasured, parts or {}, convention=convention)


def unmeasured_ops(missing: Iterable[tuple[str, str, str]]) -> tuple[UnmeasuredOp, ...]:
    """(op name, scope, why) triples counted, in order of first appearance, or as often as a mapping of them says."""
    counts = missing if isinstance(missing, Mapping) else Counter(missing)
    return tuple(UnmeasuredOp(op, count, scope, why) for (op, scope, why), count in counts.items())
