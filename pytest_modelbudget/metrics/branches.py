"""Each number compared with those of the other branches that data may take, and the operations of every branch.

A smaller number is a lower bound. The branch that is counted has most multiply-accumulates. Another one may hold more
memory, or move more of it, or have more of anything in one part of the model. The census of a branch is drawn once, of
an If whose else_branch is counted::

    Branch("then_branch of If 'y'", "onnx::If", fork=0, within=-1, ops=(OpCount("erf", "onnx::Erf", 1, (("y", 1),)),))
    Branch("else_branch of If 'y'", "onnx::If", fork=0, within=-1, ops=(...), is_counted=True)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.graph import Fork, Graph, way
from pytest_modelbudget.graph.rewrite import StorageMap, with_tensors
from pytest_modelbudget.graph.tensor import Storage
from pytest_modelbudget.metrics.compute import OpCount, census
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import (
    PROGRAM,
    ByFormula,
    Measurement,
    Metric,
    OtherPath,
    Share,
    Term,
    UnmeasuredOp,
    surpluses,
)
from pytest_modelbudget.ops.table import OpTable

MOST_ROUTES = 16
MOST_COUNTED = ByFormula((Term("macs"),))


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """The program where data take other branches of some forks, which are named by operator and place.

    costed is None where that program is not known: its branch was rewritten away, or there are too many routes.
    is_mixed says that the runs of one loop may take different branches. A metric that shapes alone decide is then never
    more than where all runs agree; live memory may be.
    """

    operator: str
    branches: str
    costed: CostedGraph | None
    is_mixed: bool = False


def bounded(metric: Metric, costed: CostedGraph) -> Measurement:
    """The number of a graph with those of other routes; a lower bound where one has more, or nobody knows how much.

    Limits on kinds of operations hold every branch by themselves.
    """
    number = metric.of(costed)
    if metric.by_kind or metric.needs_no_run or not costed.graph.forks:
        return number
    paths = (_path(metric, number, route, costed) for route in costed.once(other_routes))
    number = replace(number, others=tuple(path for path in paths if path))
    if metric.how == MOST_COUNTED and number.complete:
        return number  # of each fork the branch is counted that has most of them
    return replace(number, unmeasured=(*number.unmeasured, *surpluses(number)))


def _path(metric: Metric, number: Measurement, route: Route, costed: CostedGraph) -> OtherPath | None:
    """The number of a route compared with the counted one; None where it is between those of other routes."""
    by_shapes = isinstance(metric.how, ByFormula)
    if route.is_mixed and by_shapes:
        return None  # what shapes say, all runs have alike
    if route.costed is None:
        why = "which path is taken is not known"
        scopes = costed.once(_scopes_at_forks) if by_shapes else ()
        doubts = tuple(UnmeasuredOp(route.operator, 1, scope, why) for scope in scopes)
        doubts = doubts or (UnmeasuredOp(PROGRAM, 1, "", why),)
        return OtherPath(route.operator, route.branches, number.value, unmeasured=doubts, is_known=False)
    other = metric.of(route.costed)
    differences = () if number.is_ratio else _differences(number.shares, other.shares)
    unmeasured = _beyond(number.unmeasured, other.unmeasured)
    return OtherPath(route.operator, route.branches, other.value, differences, unmeasured, other.at_least)


def _differences(counted: Iterable[Share], others: Iterable[Share]) -> tuple[Share, ...]:
    """By how much each scope has more than what is counted, or less."""
    more = {share.scope: share.value for share in others}
    for share in counted:
        more[share.scope] = more.get(share.scope, 0) - share.value
    return tuple(Share(scope, value) for scope, value in more.items() if value)


def _beyond(counted: Iterable[UnmeasuredOp], others: Iterable[UnmeasuredOp]) -> tuple[UnmeasuredOp, ...]:
    """Operations that a route does not cover beyond those that the counted number does not."""
    known = {(op.op, op.scope, op.why): op.count for op in counted}
    more = (replace(op, count=op.count - known.get((op.op, op.scope, op.why), 0)) for op in others)
    return tuple(op for op in more if op.count > 0)


def _scopes_at_forks(costed: CostedGraph) -> tuple[str, ...]:
    """The scopes of all that any branch runs, and of what reads or writes the same memory around it."""
    scopes: dict[str, None] = {}
    at_forks: set[Storage] = set()
    waiting = list(costed.graph.forks)
    for fork in waiting:  # which grows
        for each in fork.ways.values():
            scopes.update(dict.fromkeys(op.scope for op in each.ops))
            at_forks.update(tensor.storage for tensor in (*each.inputs, *each.outputs))
            waiting += each.forks
    beside = (
        op.scope for op in costed.graph.ops if any(each.storage in at_forks for each in (*op.tensors(), *op.outputs))
    )
    return tuple(scopes | dict.fromkeys(beside))


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
        for each in fork.ways.values() if fork.counted else ():
            yield from _open_forks(each.forks)


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
    try:
        placed = with_tensors(graph, StorageMap(moved))
        ops = (*placed.ops[:start], *other.ops, *placed.ops[start + len(counted.ops) :])
        return replace(placed, ops=ops, forks=(*placed.forks, *other.forks))
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


OUTERMOST = -1  # where a fork stands that is in no branch


@dataclass(frozen=True, slots=True)
class Branch:
    """What one way from a fork runs: in its place, nothing of the other ways of the same fork does.

    within is the position of the branch that the fork stands in, and that has the ops of the way counted there. unruled
    names the ops that no rule knows. Of one that is not certain nobody knows how often it runs.
    """

    name: str
    operator: str
    fork: int
    within: int
    ops: tuple[OpCount, ...]
    unruled: tuple[str, ...] = ()
    is_counted: bool = False
    is_certain: bool = True


def branches(costed: CostedGraph) -> tuple[Branch, ...]:
    """Every branch of a graph's forks, those of its own and then those within them."""
    found: list[Branch] = []
    numbers = count()
    waiting = [(costed.graph, OUTERMOST)]
    for graph, within in waiting:  # which grows
        for fork in _joined(graph.forks):
            number = next(numbers)
            for name, each in fork.ways.items():
                waiting.append((each, len(found)))
                is_counted, is_certain = name == fork.counted, bool(fork.counted)
                ops, unruled = _census(each, costed.rules)
                named = f"{name} of {fork.place}"
                found.append(Branch(named, fork.operator, number, within, ops, unruled, is_counted, is_certain))
    return tuple(found)


def _joined(forks: Iterable[Fork]) -> Iterator[Fork]:
    """Forks, as one those of one source where the same way is counted: they run one behind the other."""
    alike: dict[object, list[Fork]] = {}
    for fork in forks:
        alike.setdefault((fork.source or fork, fork.counted), []).append(fork)
    for first, *others in alike.values():
        ways = {name: [each, *(other.ways[name] for other in others)] for name, each in first.ways.items()}
        yield replace(first, ways={name: _one_after_another(each) for name, each in ways.items()}) if others else first


def _one_after_another(ways: Sequence[Graph]) -> Graph:
    return way([op for each in ways for op in each.ops], (), [fork for each in ways for fork in each.forks])


def _census(each: Graph, rules: OpTable) -> tuple[tuple[OpCount, ...], tuple[str, ...]]:
    """The operations of a way, and the names of those that no rule knows."""
    ops = census(CostedGraph(each, rules))
    return ops, tuple(row.name for row in ops if row.name not in rules)


def surplus(found: Sequence[Branch], amount: Callable[[Branch], int]) -> tuple[int, list[Branch]]:
    """How much more of something the path with most of it runs than what is counted, and the branches that it takes.

    amount is that of a branch with what is counted within it.
    """
    forks: dict[int, list[int]] = {}
    for at, branch in enumerate(found):
        if branch.is_certain:
            forks.setdefault(branch.fork, []).append(at)
    more: dict[int, int] = defaultdict(int)  # by the branch that it is in
    taken: dict[int, list[Branch]] = defaultdict(list)
    for ways in reversed(forks.values()):  # those within others stand behind these
        within = found[ways[0]].within
        amounts = {at: amount(found[at]) for at in ways}
        counted = next(at for at in ways if found[at].is_counted)
        path = max([counted, *ways], key=lambda at: amounts[at] + more[at])
        more[within] += amounts[path] + more[path] - amounts[counted]
        taken[within] = [*([] if path == counted else [found[path]]), *taken[path], *taken[within]]
    return more[OUTERMOST], taken[OUTERMOST]
