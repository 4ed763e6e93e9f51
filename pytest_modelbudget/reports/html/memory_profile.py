"""Activations as a page draws them: bytes alive at each step, what lives at the peak, where an arena has them."""

from collections.abc import Iterator, Mapping, Sequence

from pytest_modelbudget.deployment.arena import placed_storages
from pytest_modelbudget.graph.graph import Graph, Lifetime, Op, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.on_device import arena
from pytest_modelbudget.reports.html.packing import largest
from pytest_modelbudget.reports.show import Record

MOST_POINTS = 500  # more steps than this share points, of which each keeps its largest
MOST_OWNERS = 25  # named one by one at the peak; the others are added up


def memory_profile(graph: Graph) -> Record:
    """Live bytes by step, and what lives at the first step that has most of them."""
    alive = lifetimes(graph)
    live = live_nbytes(alive, positions=max(len(graph.ops), 1))
    peak = max(live)
    step = live.index(peak)
    points = list(_points(live))
    at_peak = [(storage, life) for storage, life in alive.items() if life.first <= step <= life.last]
    at_peak.sort(key=lambda entry: -entry[0].nbytes)  # stable: equals stay in order of appearance
    named, rest = at_peak[:MOST_OWNERS], at_peak[MOST_OWNERS:]
    makers = _makers(graph)
    return {
        "steps": len(graph.ops),
        "complete": not any(storage.unsized for storage in alive),
        "peak": peak,
        "step": step,
        "points": points,
        # Scope and foreign name of the op; a graph without ops has a step all the same.
        "names": [[graph.ops[at].scope, graph.ops[at].name] if graph.ops else ["", ""] for _, _, at, _ in points],
        "owners": [_owner(storage, life, *makers[storage]) for storage, life in named],
        "rest": {"count": len(rest), "bytes": sum(storage.nbytes for storage, _ in rest)},
    }


def _points(live: Sequence[int]) -> Iterator[list[int]]:
    """Spans of equal length, each with the step where most bytes live: no peak gets lost."""
    span = -(-len(live) // MOST_POINTS)
    for first in range(0, len(live), span):
        last = min(first + span, len(live)) - 1
        most_at = max(range(first, last + 1), key=live.__getitem__)
        yield [first, last, most_at, live[most_at]]


def _makers(graph: Graph) -> Mapping[Storage, tuple[Tensor, Op | None]]:
    """For each storage the first tensor on it, and the op that allocated it; none made inputs."""
    makers: dict[Storage, tuple[Tensor, Op | None]] = {tensor.storage: (tensor, None) for tensor in graph.inputs}
    for op in graph.ops:
        for output in op.fresh_outputs:
            makers.setdefault(output.storage, (output, op))
    return makers


def _owner(storage: Storage, life: Lifetime, tensor: Tensor, op: Op | None) -> Record:
    """One activation, and the steps that it lives for; op is "" for an input of the model."""
    return {
        "scope": op.scope if op else "", "op": op.name if op else "",
        "shape": list(tensor.shape), "dtype": tensor.dtype.name, "bytes": storage.nbytes,
        "first": life.first, "last": life.last,
    }  # fmt: skip


MOST_BUFFERS = 600  # the largest rectangles of bytes and steps; the others are counted


def arena_profile(costed: CostedGraph) -> Record:
    """Buffers by offset and steps; step is the first at which most of them live, rest those too small to be drawn."""
    placed, makers = costed.once(arena), _makers(costed.graph)
    storages = placed_storages(costed.graph, edges_inside=costed.device.arena.io_inside)
    entries = [
        (storage, life, offset)
        for (storage, life), offset in zip(storages.items(), placed.offsets, strict=True)
        if storage.nbytes
    ]
    kept, rest = largest(entries, MOST_BUFFERS, lambda entry: entry[0].nbytes * entry[1].steps)
    live = live_nbytes(storages, positions=max(len(costed.graph.ops), 1))
    return {
        "planner": placed.planner, "align": placed.align, "bytes": placed.nbytes, "bound": placed.bound,
        "inside": costed.device.arena.io_inside, "steps": len(costed.graph.ops),
        "step": live.index(max(live)),
        "buffers": [
            {**_owner(storage, life, *makers[storage]), "offset": offset}
            for storage, life, offset in kept
        ],
        "rest": {"count": len(rest), "bytes": sum(storage.nbytes for storage, _, _ in rest)},
    }  # fmt: skip
