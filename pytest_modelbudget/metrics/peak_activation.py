"""``peak_activation``: the most memory that live activations take at any moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.liveness import Lifetime, lifetimes, live_nbytes
from pytest_modelbudget.graph.tensor import Storage
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import Measurement, Metric, shares_of, unmeasured_ops


def peak_activation(costed: CostedGraph) -> Measurement:
    """Largest sum of live bytes, after an op's outputs exist and before its operands are freed.

    Weights and kernel scratch memory are not in it. Shares are the storages that live at the
    (first) peak, under the scope of the op that made them; inputs under "".
    """
    graph = costed.graph
    alive = lifetimes(graph)
    live = live_nbytes(alive, positions=max(len(graph.ops), 1))
    peak_at = live.index(max(live))
    makers = {output.storage: op.scope for op in reversed(graph.ops) for output in op.fresh_outputs}
    owners = [
        (makers.get(storage, ""), storage.nbytes)
        for storage, life in alive.items()
        if life.first <= peak_at <= life.last
    ]
    return Measurement(
        sum(nbytes for _, nbytes in owners),
        "B",
        shares=shares_of(owners),
        unmeasured=unmeasured_ops(_unsized(graph, alive)),
    )


def _unsized(graph: Graph, alive: Mapping[Storage, Lifetime]) -> Iterator[tuple[str, str, str]]:
    """(op name, scope, why) of every live activation whose size is not known."""
    for tensor in graph.inputs:
        if tensor.storage.unsized:
            yield f"input {tensor.name}", "", tensor.storage.unsized
    for op in graph.ops:
        for output in op.fresh_outputs:
            if output.storage.unsized and output.storage in alive:
                yield op.name, op.scope, output.storage.unsized


PEAK_ACTIVATION = Metric(
    "peak_activation",
    "B",
    "most bytes of activations alive at once, in execution order",
    peak_activation,
    not_scoped="the peak is one moment of the whole model",
    drafted=True,
)
