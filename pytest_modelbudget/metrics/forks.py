"""Each number held against those of the other branches that data may take: a smaller one is a lower bound.

The branch that is counted has most multiply-accumulates. Another one may hold more memory, or move more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.graph import Fork, Graph, Op, rewritten, with_tensors
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import ByFormula, Measurement, Metric, Term, UnmeasuredOp
from pytest_modelbudget.units import readable

MOST_ROUTES = 16
MOST_COUNTED = ByFormula((Term("macs"),))


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """The program where data take other branches of some forks, which are named by operator and place.

    costed is None where nobody can tell that program: the branch is no part of the program any more as it was read, or
    there are too many. is_mixed says that runs of a body take different branches: what one has by shapes alone is no
    more than in all runs the same, and what lives between two of them may be.
    """

    operator: str
    branches: str
    costed: CostedGraph | None
    is_mixed: bool = False


def bounded(metric: Metric, costed: CostedGraph) -> Measurement:
    """The number of a graph; a lower bound where another route has more, or nobody knows how much it has.

    Limits on kinds of operations hold every branch by themselves.
    """
    number = metric.of(costed)
    if metric.by_kind or metric.needs_no_run or not costed.graph.forks:
        return number
    more: dict[str, UnmeasuredOp] = {}
    for route in costed.once(other_routes):
        if why := _excess(metric, number, route):
            more.setdefault(route.operator, UnmeasuredOp(route.operator, 1, "", why))
    return replace(number, unmeasured=(*number.unmeasured, *more.values())) if more else number


def _excess(metric: Metric, number: Measurement, route: Route) -> str:
    """What a route has more; "" where it has not."""
    if metric.how == MOST_COUNTED or (route.is_mixed and isinstance(metric.how, ByFormula)):
        return ""  # of each fork the branch is counted that has most of them; what shapes say, all runs have alike
    if route.costed is None:
        return f"how much {route.branches} has is not known"
    other = metric.of(route.costed)
    if not other.complete and number.complete:
        return f"{route.branches} has operations that are not measured"
    is_more = other.value != number.value if number.is_ratio else other.value > number.value
    return f"{readable(other.value, other.unit)} where data take {route.branches}" if is_more else ""


def other_routes(costed: CostedGraph) -> tuple[Route, ...]:
    """Every program but the counted one; where they are many, one that stands for all and is not known."""
    forks = costed.graph.forks
    if _count(forks) > MOST_ROUTES:
        operator = next(fork.operator for fork in forks if fork.counted)
        return (Route(operator, f"another of more than {MOST_ROUTES} paths", None),)
    routes = (_route(*each, costed) for each in _routes(costed.graph) if each[0])
    mixed = dict.fromkeys((fork.operator, fork.place) for fork in _open_forks(forks) if fork.varies)
    said = "a loop whose runs take different branches of"
    return (*routes, *(Route(operator, f"{said} {place}", None, is_mixed=True) for operator, place in mixed))


def _open_forks(forks: Iterable[Fork]) -> Iterator[Fork]:
    """Forks with several ways, and those within all ways."""
    for fork in forks:
        if fork.counted and len(fork.ways) > 1:
            yield fork
        for way in fork.ways.values() if fork.counted else ():
            yield from _open_forks(way.forks)


def _route(names: Names, graph: Graph | None, costed: CostedGraph) -> Route:
    said = ", ".join(f"the {taken.name} of {taken.place}" for taken in names)
    return Route(names[0].operator, said, CostedGraph(graph, costed.rules, costed.device) if graph else None)


@dataclass(frozen=True, slots=True)
class Taken:
    """A branch that is not the counted one."""

    operator: str
    name: str
    place: str


Names = tuple[Taken, ...]


def _count(forks: Iterable[Fork]) -> int:
    """How many routes there are through forks, and those within their branches."""
    sources = {_source(fork): fork for fork in forks if fork.counted}
    return prod(sum(_count(way.forks) for way in fork.ways.values()) for fork in sources.values())


def _routes(graph: Graph) -> Iterator[tuple[Names, Graph | None]]:
    """Every way through the forks of a graph, the branches that are not counted, and the program; first the counted."""
    forks = _that_differ(graph.forks)
    if not forks:
        yield (), graph
        return
    graph, fork = replace(graph, forks=forks), forks[0]
    alike = [other for other in forks if _source(other) == _source(fork)]
    rest = tuple(other for other in forks if other not in alike)
    yield from _routes(replace(graph, forks=(*rest, *(each for one in alike for each in one.ways[one.counted].forks))))
    for name in fork.ways:
        if any(name != each.counted for each in alike):
            taken = Taken(fork.operator, name, fork.place)
            program = _taking(graph, fork, name)
            if program is None:
                yield (taken,), None
                continue
            for names, each in _routes(program):
                yield (taken, *names), each


def _source(fork: Fork) -> object:
    return fork if fork.source is None else fork.source


def _taking(graph: Graph, fork: Fork, name: str) -> Graph | None:
    """The graph with a branch taken at all forks of the source of one; None where one is not found."""
    source, program = _source(fork), graph
    for _ in range(sum(_source(each) == source for each in graph.forks)):
        at = next(each for each in program.forks if _source(each) == source)
        rest = tuple(other for other in program.forks if other is not at)
        program = replace(program, forks=rest)
        if name == at.counted:
            program = replace(program, forks=(*rest, *at.ways[name].forks))
        elif (other := _with_branch(program, at, name)) is None:
            return None
        else:
            program = other
    return program


def _that_differ(forks: Iterable[Fork]) -> tuple[Fork, ...]:
    """Forks with several ways, those in place of one with a single way that are within it."""
    open_forks = [*forks]
    for fork in open_forks:  # which grows
        if fork.counted and len(fork.ways) == 1:
            open_forks += fork.ways[fork.counted].forks
    return tuple(fork for fork in open_forks if fork.counted and len(fork.ways) > 1)


def _with_branch(graph: Graph, fork: Fork, name: str) -> Graph | None:
    """The graph with another branch of a fork in the place of the counted one; None where that is not found."""
    counted, other = fork.ways[fork.counted], fork.ways[name]
    moved = _results(counted, other)
    start = None if moved is None else _start(graph, counted, moved)
    if moved is None or start is None:
        return None
    place = _Placed(moved)
    behind = (place.op(op) for op in graph.ops[start + len(counted.ops) :])
    ops = (*graph.ops[:start], *other.ops, *behind)
    forks = (*(place.fork(each) for each in graph.forks), *other.forks)
    try:
        return replace(graph, ops=ops, outputs=tuple(map(place.tensor, graph.outputs)), forks=forks)
    except GraphError:  # a rewritten program reads what the branch around it no longer writes
        return None


def _start(graph: Graph, counted: Graph, moved: Mapping[Storage, Storage]) -> int | None:
    """The position of a branch's operations, and of one without any where its results are read first."""
    if not counted.ops:
        readers = (at for at, op in enumerate(graph.ops) if any(tensor.storage in moved for tensor in op.tensors()))
        return next(readers, len(graph.ops))
    start = next((at for at, op in enumerate(graph.ops) if op is counted.ops[0]), len(graph.ops))
    return start if graph.ops[start : start + len(counted.ops)] == counted.ops else None


def _results(counted: Graph, other: Graph) -> Mapping[Storage, Storage] | None:
    """Where the results of a branch lie in place of those of the counted one; None where they cannot be told apart."""
    if len(counted.outputs) != len(other.outputs):
        return None
    moved: dict[Storage, Storage] = {}
    read = {tensor.storage for tensor in counted.inputs}
    for mine, theirs in zip(counted.outputs, other.outputs, strict=True):
        if mine.storage is theirs.storage:
            continue
        if mine.storage in read or moved.setdefault(mine.storage, theirs.storage) is not theirs.storage:
            return None
    return moved


@dataclass(frozen=True, slots=True)
class _Placed:
    """What stands behind a fork, on the memory of another branch's results; each is made once."""

    moved: Mapping[Storage, Storage]
    tensors: dict[Tensor, Tensor] = field(default_factory=dict)
    ops: dict[Op, Op] = field(default_factory=dict)

    def tensor(self, tensor: Tensor) -> Tensor:
        if tensor.storage not in self.moved:
            return tensor
        if tensor not in self.tensors:
            self.tensors[tensor] = replace(tensor, storage=self.moved[tensor.storage])
        return self.tensors[tensor]

    def op(self, op: Op) -> Op:
        if op not in self.ops:
            self.ops[op] = rewritten(op, with_tensors(op, self.tensor))
        return self.ops[op]

    def _all(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(self.tensor, tensors))

    def fork(self, fork: Fork) -> Fork:
        return replace(fork, ways={name: self.graph(each) for name, each in fork.ways.items()})

    def graph(self, graph: Graph) -> Graph:
        ops = tuple(map(self.op, graph.ops))
        forks = tuple(map(self.fork, graph.forks))
        return replace(graph, ops=ops, inputs=self._all(graph.inputs), outputs=self._all(graph.outputs), forks=forks)
