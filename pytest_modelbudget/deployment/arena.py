"""Activations placed in one arena: offsets, by several planners, and the bytes that they need.

Two buffers that live at the same time never share a byte; each offset is a multiple of the alignment. Sources:
TensorFlow Lite for Microcontrollers, greedy_memory_planner.cc (by size); Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020, section 5 (by size, by breadth).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from types import MappingProxyType

from pytest_modelbudget.errors import DeviceError, GraphError
from pytest_modelbudget.graph.graph import Graph, Lifetime, lifetimes
from pytest_modelbudget.graph.tensor import Storage

SHUFFLES = 20  # seeded orders that planner "best" tries beside the others
BLOCK = 64  # moments whose buffers are kept together


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that one activation needs, from its first to its last operation, inclusive; offset is a plan's own."""

    name: str
    nbytes: int
    life: Lifetime
    offset: int | None = None

    def __post_init__(self) -> None:
        if self.nbytes < 0 or not 0 <= self.life.first <= self.life.last:
            raise GraphError(f"no buffer: {self.name}, {self.nbytes} B from {self.life.first} to {self.life.last}")


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each buffer lies, and the high-water mark of all of them.

    bound is the most that lives at one moment: no planner needs less.
    """

    planner: str
    align: int
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    nbytes: int
    bound: int

    @property
    def gap(self) -> int:
        """Bytes above what lives at once: the price of fragments and alignment."""
        return self.nbytes - self.bound


Order = Iterable[int]  # buffers by index, in the order in which they are placed


def placed_storages(graph: Graph, *, edges_inside: bool = True) -> Mapping[Storage, Lifetime]:
    """Each activation storage of a graph that lies in the arena; without its inputs and outputs on request."""
    outside: set[Storage] = set()
    if not edges_inside:
        outside = {tensor.storage for tensor in (*graph.inputs, *graph.outputs)}
    return {storage: life for storage, life in lifetimes(graph).items() if storage not in outside}


def buffers_of(graph: Graph, *, edges_inside: bool = True) -> tuple[Buffer, ...]:
    """One buffer for each of ``placed_storages``: views are merged."""
    storages = placed_storages(graph, edges_inside=edges_inside)
    return tuple(Buffer(each.name, each.nbytes, life, graph.offsets.get(each)) for each, life in storages.items())


def planned(buffers: Sequence[Buffer], *, planner: str = "greedy_by_size", align: int = 16) -> Arena:
    """The buffers, placed by a planner of ``PLANNERS``.

    Those that have an offset stay there. Raises DeviceError for an unknown planner, and for an alignment below 1;
    GraphError where offsets overlap.
    """
    if align < 1:
        raise DeviceError(f"an alignment of {align} B: it is 1 or more")
    if planner not in PLANNERS:
        raise DeviceError(f"there is no planner '{planner}': {', '.join(PLANNERS)}")
    bound = most_alive(buffers)
    orders = PLANNERS[planner]([replace(each, nbytes=_aligned(each.nbytes, align)) for each in buffers])
    fewest: tuple[int, list[int]] | None = None
    for order in orders:
        offsets = _placed(buffers, order, align)
        high = max((offset + buffer.nbytes for offset, buffer in zip(offsets, buffers, strict=True)), default=0)
        if fewest is None or high < fewest[0]:
            fewest = high, offsets
        if high == bound:
            break
    assert fewest is not None  # every planner gives an order
    return Arena(planner, align, tuple(buffers), tuple(fewest[1]), fewest[0], bound)


def most_alive(buffers: Iterable[Buffer]) -> int:
    """The most bytes that live at one moment."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.life.first] = change.get(buffer.life.first, 0) + buffer.nbytes
        change[buffer.life.last + 1] = change.get(buffer.life.last + 1, 0) - buffer.nbytes
    return max(accumulate(change[moment] for moment in sorted(change)), default=0)


# Orders of placing. All are stable: buffers that are equal to a planner keep the order of the program.


def _by_size(buffers: Sequence[Buffer]) -> list[int]:
    return sorted(range(len(buffers)), key=lambda index: -buffers[index].nbytes)


def _by_breadth(buffers: Sequence[Buffer]) -> list[int]:
    """Largest first of the moment at which most lives, then of the next such moment."""
    bytes_at: dict[int, int] = {}
    placed = _Placed(buffers)
    for index in range(len(buffers)):
        placed.add(index)
    moments = sorted({buffer.life.first for buffer in buffers})
    alive = {moment: list(placed.overlapping(Lifetime(moment, moment))) for moment in moments}
    bytes_at = {moment: sum(buffers[index].nbytes for index in indices) for moment, indices in alive.items()}
    by_breadth = sorted(moments, key=lambda moment: -bytes_at[moment])
    order = (i for moment in by_breadth for i in sorted(alive[moment], key=lambda i: (-buffers[i].nbytes, i)))
    return list(dict.fromkeys(order))


def _best(buffers: Sequence[Buffer]) -> Iterator[Order]:
    yield _by_size(buffers)
    yield _by_breadth(buffers)
    yield sorted(range(len(buffers)), key=lambda index: (buffers[index].life.first, -buffers[index].nbytes))
    yield sorted(range(len(buffers)), key=lambda index: -buffers[index].nbytes * buffers[index].life.steps)
    random = Random(0)  # orders by size in which sizes are scaled at random, the same in every run
    for _ in range(SHUFFLES):
        scaled = [buffer.nbytes * random.uniform(0.5, 1.5) for buffer in buffers]
        yield sorted(range(len(buffers)), key=lambda index: -scaled[index])


PLANNERS: Mapping[str, Callable[[Sequence[Buffer]], Iterable[Order]]] = MappingProxyType(
    {
        "greedy_by_size": lambda buffers: [_by_size(buffers)],
        "greedy_by_breadth": lambda buffers: [_by_breadth(buffers)],
        "best": _best,
    }
)


# Placing: each buffer goes to the lowest offset that is free during its whole life.


class _Placed:
    """Buffers placed so far, found by when they live: a segment tree over moments, and blocks by first moment."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers
        self._moments = max((buffer.life.last for buffer in buffers), default=0) + 1
        self._nodes: list[list[int]] = [[] for _ in range(2 * self._moments)]
        self._beginning: defaultdict[int, list[int]] = defaultdict(list)  # by block of moments

    def add(self, index: int) -> None:
        """Put it at the few nodes that together cover its life: each moment lies below one of them."""
        life = self._buffers[index].life
        low, high = life.first + self._moments, life.last + self._moments + 1
        while low < high:
            if low & 1:
                self._nodes[low].append(index)
                low += 1
            if high & 1:
                high -= 1
                self._nodes[high].append(index)
            low, high = low >> 1, high >> 1
        self._beginning[life.first // BLOCK].append(index)

    def overlapping(self, life: Lifetime) -> Iterator[int]:
        """Those that live at the first moment, then those that begin after it."""
        node = life.first + self._moments
        while node:
            yield from self._nodes[node]
            node >>= 1
        for block in range(life.first // BLOCK, life.last // BLOCK + 1):
            for index in self._beginning.get(block, ()):
                if life.first < self._buffers[index].life.first <= life.last:
                    yield index


def _placed(buffers: Sequence[Buffer], order: Order, align: int) -> list[int]:
    offsets = [buffer.offset or 0 for buffer in buffers]
    placed = _Placed(buffers)
    for index in sorted(order, key=lambda index: buffers[index].offset is None):
        buffer = buffers[index]
        if not buffer.nbytes:
            continue
        taken = sorted((offsets[i], offsets[i] + buffers[i].nbytes) for i in placed.overlapping(buffer.life))
        if buffer.offset is None:
            offsets[index] = _lowest_gap(taken, buffer.nbytes, align)
        elif any(start < buffer.offset + buffer.nbytes and buffer.offset < end for start, end in taken):
            raise GraphError(
                f"the plan puts '{buffer.name}' at {buffer.offset:,}, where another tensor lives meanwhile"
            )
        placed.add(index)
    return offsets


def _aligned(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align


def _lowest_gap(taken: Iterable[tuple[int, int]], nbytes: int, align: int) -> int:
    offset = 0
    for start, end in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, _aligned(end, align))
    return offset


# What tools of others read.


def as_json(arena: Arena) -> list[dict[str, object]]:
    """Name, offset, bytes, first and last operation of each buffer."""
    return [
        {
            "name": buffer.name,
            "offset": offset,
            "nbytes": buffer.nbytes,
            "first": buffer.life.first,
            "last": buffer.life.last,
        }
        for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)
    ]


def as_offline_plan(arena: Arena) -> list[int]:
    """The plan of TensorFlow Lite for Microcontrollers, metadata ``OfflineMemoryAllocation``.

    int32 version, subgraph, number of offsets, then the offset of each buffer in order.
    """
    return [1, 0, len(arena.offsets), *arena.offsets]
