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

from onnx import NodeProto

from pytest_modelbudget.equivalence.onnx_stored import names_read

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
    nodes: Sequence[NodeProto],
    results: AbstractSet[str],
    stored: AbstractSet[str],
    engine_of: Callable[[NodeProto], str],
    *,
    most_nodes: int = MOST_NODES,
) -> tuple[Piece, ...]:
    """The pieces of a graph's nodes, in the order in which they run.

    results are the values that the whole run is asked for, stored the names of initialisers.
    """
    wanted = set(results)
    made: list[Piece] = []
    for engine, group in reversed(tuple(_groups(nodes, engine_of, most_nodes))):
        own = {name for node in group for name in node.output if name}
        read = names_read(group) - {""}
        made.append(
            Piece(
                engine,
                group,
                tuple(sorted(read - own - stored)),
                tuple(sorted(own & wanted)),
                tuple(sorted(read & stored)),
            )
        )
        wanted |= read - own
    return tuple(reversed(made))


def _groups(
    nodes: Sequence[NodeProto], engine_of: Callable[[NodeProto], str], most_nodes: int
) -> Iterator[tuple[str, tuple[NodeProto, ...]]]:
    """(engine, consecutive nodes), each few enough for one session."""
    for engine, run in groupby(nodes, engine_of):
        group = tuple(run)
        for start in range(0, len(group), most_nodes):
            yield engine, group[start : start + most_nodes]
