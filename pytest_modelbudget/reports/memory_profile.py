"""Memory over execution order: how many bytes of activations live during each step, and whose.

Three steps and a peak of 120 bytes at the second, drawn once::

    {"steps": 3, "complete": True, "peak": 120, "step": 1,
     "points": [[0, 0, 0, 80], [1, 1, 1, 120], [2, 2, 2, 60]],
     "names": [["fc", "aten::linear"], ["act", "aten::relu"], ["", "aten::sum"]],
     "owners": [{"scope": "fc", "op": "aten::linear", "shape": [1, 20], "dtype": "float32",
                 "bytes": 80, "first": 0, "last": 1}],
     "rest": {"count": 0, "bytes": 0}}

A point is [first step, last step, the step with most bytes among them, its bytes]; names are the
scope and the operation of that step, one pair a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_modelbudget.ir.graph import Graph, Op
from pytest_modelbudget.ir.liveness import Lifetime, lifetimes, live_nbytes
from pytest_modelbudget.ir.tensor import Storage, Tensor
from pytest_modelbudget.reports.report import Record

MOST_POINTS = 500  # more steps than this share points, of which each keeps its largest
MOST_OWNERS = 25  # named one by one at the peak; the others are added up


def memory_profile(graph: Graph) -> Record:
    """Live bytes by step, and what lives at the first step that has most of them."""
    alive = lifetimes(graph)
    live = live_nbytes(alive, positions=max(len(graph.ops), 1))
    peak = max(live)
    step = live.index(peak)
    points = list(_points(live))
    at_peak = [(each, life) for each, life in alive.items() if life.first <= step <= life.last]
    at_peak.sort(key=lambda entry: -entry[0].nbytes)  # stable: equals stay in order of appearance
    named, rest = at_peak[:MOST_OWNERS], at_peak[MOST_OWNERS:]
    makers = _makers(graph)
    return {
        "steps": len(graph.ops),
        "complete": not any(storage.unsized for storage in alive),
        "peak": peak,
        "step": step,
        "points": points,
        "names": [_name(graph.ops, most_at) for _, _, most_at, _ in points],
        "owners": [_owner(storage, life, makers) for storage, life in named],
        "rest": {"count": len(rest), "bytes": sum(storage.nbytes for storage, _ in rest)},
    }


def _points(live: Sequence[int]) -> Iterator[list[int]]:
    """Spans of equal length, each with the step where most bytes live: no peak gets lost."""
    span = -(-len(live) // MOST_POINTS)
    for first in range(0, len(live), span):
        last = min(first + span, len(live)) - 1
        most_at = max(range(first, last + 1), key=live.__getitem__)
        yield [first, last, most_at, live[most_at]]


def _name(ops: Sequence[Op], step: int) -> list[str]:
    """Scope and foreign name of an op; a graph without ops has a step all the same."""
    return [ops[step].scope, ops[step].name] if ops else ["", ""]


def _makers(graph: Graph) -> Mapping[Storage, tuple[Tensor, Op | None]]:
    """For each storage the first tensor on it, and the op that allocated it; none made inputs."""
    makers: dict[Storage, tuple[Tensor, Op | None]] = {
        tensor.storage: (tensor, None) for tensor in graph.inputs
    }
    for op in graph.ops:
        for output in op.fresh_outputs:
            makers.setdefault(output.storage, (output, op))
    return makers


def _owner(
    storage: Storage, life: Lifetime, makers: Mapping[Storage, tuple[Tensor, Op | None]]
) -> Record:
    """One activation that lives at the peak; op is "" for an input of the model."""
    tensor, op = makers[storage]
    return {
        "scope": op.scope if op else "",
        "op": op.name if op else "",
        "shape": list(tensor.shape),
        "dtype": tensor.dtype.name,
        "bytes": storage.nbytes,
        "first": life.first,
        "last": life.last,
    }
