"""Operations of the branches that data may take, as the census has those of the branch that is counted.

An If whose else_branch is counted drawn once::

    Branch("then_branch of If 'y'", "onnx::If", fork=0, within=-1, ops=(OpCount("erf", "onnx::Erf", 1, (("y", 1),)),))
    Branch("else_branch of If 'y'", "onnx::If", fork=0, within=-1, ops=(...), is_counted=True)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pytest_modelbudget.graph.graph import Fork, Graph, way
from pytest_modelbudget.metrics.compute import OpCount, census
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.ops.table import OpTable

PROGRAM = -1  # where a fork stands that is in no branch


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
    waiting = [(costed.graph, PROGRAM)]
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
    return more[PROGRAM], taken[PROGRAM]
