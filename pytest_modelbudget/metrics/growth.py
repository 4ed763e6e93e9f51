"""The parts of a number, finely enough to say what grew: single weights, or layers.

A classifier widened from 1000 to 1175 outputs, drawn once::

    Part("classifier.1", 1_280_000, "weight", (1000, 1280))     locked
    Part("classifier.1", 1_504_000, "weight", (1175, 1280))     today
    Difference("classifier.1", "weight", 1_280_000, 1_504_000, (1000, 1280), (1175, 1280))
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.measurement import ByWeight, Measurement, Metric

MOST_DIFFERENCES = 5  # that one blame names; the rest is summed up
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The amount that one stored tensor (name is set) or one layer adds to a number.

    shape is that of the tensor, or of the largest result of the layer; None where nobody knows.
    """

    scope: str
    value: int
    name: str | None = None
    shape: Shape | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Its key among the number's parts, then and now."""
        return self.scope, self.name


@dataclass(frozen=True, slots=True)
class Difference:
    """One part then and now; None where it is new, or gone."""

    scope: str
    name: str | None
    before: int | None
    after: int | None
    shape_before: Shape | None = None
    shape_after: Shape | None = None

    @property
    def delta(self) -> int:
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True, slots=True)
class Blame:
    """The parts that a change is due to, the largest first; all deltas and rest add up to it.

    rest is the sum of what ``others`` further parts changed.
    """

    differences: tuple[Difference, ...] = ()
    rest: int = 0
    others: int = 0


def parts(
    metric: Metric, measurement: Measurement, costed: CostedGraph, shapes: Mapping[str, Shape]
) -> tuple[Part, ...]:
    """The parts of a measured number, the largest first; none of a ratio.

    shapes are the ``result_shapes`` of the graph, the same for all metrics.
    """
    if isinstance(metric.how, ByWeight):
        amounts = [
            Part(weight.scope, value, weight.tensor.name.rpartition(".")[2], weight.tensor.shape)
            for weight, value in metric.how.amounts(costed)
            if value
        ]
    else:
        amounts = [
            Part(share.scope, share.value, None, shapes.get(share.scope))
            for share in measurement.shares
            if isinstance(share.value, int)
        ]
    return tuple(sorted(amounts, key=lambda part: (-part.value, part.scope, part.name or "")))  # in no execution order


def result_shapes(graph: Graph) -> Mapping[str, Shape]:
    """The shape of the largest result of each layer's operations, by module path."""
    largest: dict[str, tuple[int, Shape]] = {}
    for op in graph.ops:
        for output in op.outputs:
            known = largest.get(op.scope)
            if not output.unsized and (known is None or output.elements > known[0]):
                largest[op.scope] = (output.elements, output.shape)
    return {scope: shape for scope, (_, shape) in largest.items()}


def blame(before: Iterable[Part], after: Iterable[Part], *, total: int, cut: int = 0) -> Blame:
    """Find the parts that a growth by ``total`` is due to.

    cut is how many parts ``before`` lacks because a file keeps only the largest: what is new today
    may then have been one of them, so it stands in the sum only.
    """
    then, now = {part.key: part for part in before}, {part.key: part for part in after}
    pairs = ((key, then.get(key), now.get(key)) for key in dict.fromkeys((*then, *now)) if key in then or not cut)
    changes = (
        Difference(
            *key,
            was.value if was else None,
            part.value if part else None,
            was.shape if was else None,
            part.shape if part else None,
        )
        for key, was, part in pairs
    )
    changed = [change for change in changes if change.delta]
    changed.sort(key=lambda change: (-abs(change.delta), change.scope, change.name or ""))
    named = tuple(changed[:MOST_DIFFERENCES])
    others = len(changed) - len(named) + (sum(key not in then for key in now) if cut else 0)
    return Blame(named, total - sum(change.delta for change in named), others)
