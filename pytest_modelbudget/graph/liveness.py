"""When each activation lives: a pure function of a graph's execution order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import Storage


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last op, by position and inclusive, during which a storage holds its memory."""

    first: int
    last: int


def lifetimes(graph: Graph) -> Mapping[Storage, Lifetime]:
    """Lifetime of every activation storage that costs memory, in order of appearance.

    Inputs live from the first op to their last use, graph outputs to the last op. An input that
    nobody reads lives during the first op; an op's result that nobody reads and the caller does
    not get costs nothing and is left out. To ask for a shape keeps nothing alive.
    """
    end = max(len(graph.ops) - 1, 0)
    first: dict[Storage, int] = {tensor.storage: 0 for tensor in graph.inputs}
    last: dict[Storage, int] = dict.fromkeys(first, 0)
    for position, op in enumerate(graph.ops):
        if op.is_shape_computation:
            continue
        for tensor in op.tensors():
            last[tensor.storage] = position
        for output in op.outputs:
            first.setdefault(output.storage, position)
    for output in graph.outputs:
        last[output.storage] = end
    return {
        storage: Lifetime(first[storage], last[storage])
        for storage in first
        if storage in last and storage.is_activation
    }


def live_nbytes(alive: Mapping[Storage, Lifetime], positions: int) -> list[int]:
    """Bytes that live during each op: after its outputs exist, before its operands are freed."""
    change = [0] * (positions + 1)
    for storage, life in alive.items():
        change[life.first] += storage.nbytes
        change[life.last + 1] -= storage.nbytes
    return list(accumulate(change[:positions]))


def dead_storages(graph: Graph) -> frozenset[Storage]:
    """Storages that an op writes, nobody reads and the caller does not get."""
    reading = (op for op in graph.ops if not op.is_shape_computation)
    needed = {tensor.storage for op in reading for tensor in op.tensors()}
    needed.update(tensor.storage for tensor in graph.outputs)
    needed.update(tensor.storage for tensor in graph.inputs)
    written = {output.storage for op in graph.ops for output in op.outputs}
    return frozenset(written - needed)
