"""What runs of a model multiply, compared with its graph."""

from collections import Counter
from collections.abc import Sequence

from pytest_modelbudget.formats.model import Product
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.ops.rule import nothing
from pytest_modelbudget.ops.table import OpTable

STORED = (StorageKind.PARAMETER, StorageKind.BUFFER)


def multiplies(name: str, rules: OpTable) -> bool:
    """Whether a rule gives this operator MACs."""
    return name in rules and rules[name].macs not in (None, nothing)


def products_of(graph: Graph, rules: OpTable) -> Counter[Product]:
    """What a graph says that a run multiplies: operators, by the shape of the weight they read."""
    counts: Counter[Product] = Counter()
    for op in graph.ops:
        if multiplies(op.name, rules):
            weights = (t.shape for t in op.tensors() if t.storage.kind in STORED)
            counts[op.name, next(weights, ())] += op.times
    return counts


MOST_ROUTES = 1024  # that differ in what they multiply


def routes_of(graph: Graph, rules: OpTable) -> Sequence[Counter[Product]]:
    """What a graph says that runs multiply, whichever ways data take from its forks: first as it is counted."""
    routes = [products_of(graph, rules)]
    for fork in graph.forks:
        if fork.counted:
            counted = products_of(fork.ways[fork.counted], rules)
            ways = [each for way in fork.ways.values() for each in routes_of(way, rules)]
            other = (_swapped(route, counted, way) for route in routes for way in (counted, *ways))
            routes = list({frozenset(each.items()): each for each in other}.values())[:MOST_ROUTES]
    return routes


def _swapped(route: Counter[Product], counted: Counter[Product], way: Counter[Product]) -> Counter[Product]:
    """What is multiplied with one way of a fork in the place of the one that is counted."""
    made = route.copy()
    made.update(way)
    made.subtract(counted)
    return +made


def operators_of(graph: Graph, rules: OpTable) -> Counter[Product]:
    """The same for runs that tell operators alone: as often as each stands in the graph."""
    return Counter((op.name, None) for op in graph.ops if multiplies(op.name, rules))


def keeps(executed: Counter[Product], promised: Counter[Product]) -> bool:
    """Whether a run multiplied what was promised."""
    return _comparable(executed, promised) == promised


def disagreement(executed: Counter[Product], promised: Counter[Product]) -> str:
    """The first product that the graph and a run do not count alike; "" where there is none."""
    done = _comparable(executed, promised)
    for product in sorted({*promised, *done}, key=_by_shape):
        if promised[product] != done[product]:
            name, shape = product
            size = f" by weights {list(shape)}" if shape else ""
            return f"the graph has {promised[product]:,} {name}{size}, and the run executes {done[product]:,}"
    return ""


def _comparable(executed: Counter[Product], promised: Counter[Product]) -> Counter[Product]:
    """What a run multiplied, as far as it can be compared with what was promised."""
    if any(shape is None for _, shape in promised):
        return Counter({product: executed[product] for product in promised})
    return attributed(executed, promised)


def attributed(counts: Counter[Product], promised: Counter[Product]) -> Counter[Product]:
    """What a run multiplied, where products by nameless weights stand for promised ones.

    Autocast reads a copy of a weight, and quantised layers read packed ones: such a product counts
    as () and may be any that the graph has and the run lacks, of the same operator.
    """
    executed = counts.copy()
    for product in sorted(promised - counts, key=_by_shape):
        nameless = product[0], ()
        spare = executed[nameless] - promised[nameless]
        taken = min(spare, promised[product] - counts[product])
        if taken > 0:
            executed[product] += taken
            executed[nameless] -= taken
    return +executed


def _by_shape(product: Product) -> tuple[str, Sequence[int]]:
    return product[0], product[1] or ()
