"""A graph cut into pieces by name, which together hold every node once, in its order.

Making an ONNX Runtime session takes time that grows with the square of the number of nodes
(18,370 nodes: 13 s), running one does not. So a large graph is run as consecutive pieces: what one
makes and a later one reads is handed on under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby

import onnx
from onnx import NodeProto

from pytest_modelbudget.transforms.onnx_stored import names_read

MOST_NODES = 400


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive nodes that run on one engine: what they read, store and make for others."""

    engine: str
    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stored: tuple[str, ...]


def pieces(
    graph: onnx.GraphProto,
    stored: AbstractSet[str],
    engine_of: Callable[[NodeProto], str],
    *,
    watched: frozenset[str] = frozenset(),
    most_nodes: int = MOST_NODES,
) -> tuple[Piece, ...]:
    """The pieces of a graph, in the order in which they run.

    stored are the names of its initialisers. Values that are watched are made for others too, like
    the graph's outputs.
    """
    wanted = {value.name for value in graph.output} | watched
    made: list[Piece] = []
    for engine, nodes in reversed(tuple(_groups(graph.node, engine_of, most_nodes))):
        results = {name for node in nodes for name in node.output if name}
        read = names_read(nodes)
        made.append(
            Piece(
                engine,
                nodes,
                tuple(sorted(name for name in read - results - stored if name)),
                tuple(sorted(results & wanted)),
                tuple(sorted(read & stored)),
            )
        )
        wanted |= read - results
    return tuple(reversed(made))


def _groups(
    nodes: Sequence[NodeProto], engine_of: Callable[[NodeProto], str], most_nodes: int
) -> Iterator[tuple[str, tuple[NodeProto, ...]]]:
    """(engine, consecutive nodes), each few enough for one session."""
    for engine, run in groupby(nodes, engine_of):
        group = tuple(run)
        for start in range(0, len(group), most_nodes):
            yield engine, group[start : start + most_nodes]
