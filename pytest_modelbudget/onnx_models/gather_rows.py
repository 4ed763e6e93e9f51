"""Which elements of stored tensors a run of an ONNX model reads: rows of tables, branches; of trees none are told.

A Gather leaves all rows unread that no index names, an If the tensors of the branch that it does not take.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union
from zlib import crc32

import numpy as np

from pytest_modelbudget.formats.model import Coverage
from pytest_modelbudget.onnx_models.control_flow import choosers, decided, way_taken
from pytest_modelbudget.onnx_models.program import Body, Node
from pytest_modelbudget.onnx_models.value_types import ValueType

Values = Any
ValueOf = Callable[[str], Values]
Shape = Union["tuple[int, ...]", None]
Types = Callable[[str], ValueType]


class Rows(NamedTuple):
    """Rows of an operand that a node reads: those that a value names along an axis, or as many as it has columns."""

    indices: str
    axis: int = 0
    is_counted: bool = False

    def mark(self, mask: Values, value_of: ValueOf) -> None:
        """Mark them in a mask of the operand's shape."""
        indices = np.asarray(value_of(self.indices))
        rows = np.arange(indices.shape[-1]) if self.is_counted else indices.ravel().astype(np.int64)
        np.moveaxis(mask, self.axis, 0)[rows] = True


EMBEDDINGS = ("com.microsoft::EmbedLayerNormalization", "com.microsoft::QEmbedLayerNormalization")
INDICES = {2: 0, 3: 8, 4: 1}  # of their tables (words, positions, segments) by the positions of both


def _rows_of(node: Node, position: int) -> Rows | None:
    """The rows that a node reads of an operand; None of all."""
    if node.operator == "onnx::Gather" and position == 0:
        return Rows(node.inputs[1], node.attributes.get("axis", 0))
    if node.operator == "com.microsoft::GatherBlockQuantized" and position != 1:
        return Rows(node.inputs[1], node.attributes.get("gather_axis", 0))
    if node.operator in EMBEDDINGS and position in INDICES:
        at = INDICES[position]
        if name := node.inputs[at] if at < len(node.inputs) else "":
            return Rows(name)
        return Rows(node.inputs[0], is_counted=True) if position == 3 else None
    return None


@dataclass(frozen=True, slots=True)
class _Table:
    """A stored tensor of which only rows are read."""

    name: str
    shape: tuple[int, ...]
    picks: tuple[tuple[Shape, Rows], ...]  # with the shape of what is picked from, None where it is not known

    def mask(self, value_of: ValueOf) -> Values:
        """What one run has read, by the values that it had."""
        mask = np.zeros(self.shape, bool)
        for shape, rows in self.picks:
            if shape is None:
                continue
            read = np.zeros(shape, bool)
            rows.mark(read, value_of)
            if shape == self.shape:
                mask |= read
            else:  # computed from it, with a row for each of its own
                mask[read.reshape(len(read), -1).any(1)] = True
        return mask


@dataclass(frozen=True, eq=False)
class PartialReads:
    """The parts of a graph that are read by row, and the values that a run must report for them."""

    graph: Body
    tables: tuple[_Table, ...] = ()
    watched: tuple[str, ...] = ()
    trees: Mapping[str, Values] = field(default_factory=dict)
    branches: Mapping[str, tuple[Node, str]] = field(default_factory=dict)  # what chooses, and which body
    deciding: tuple[str, ...] = ()  # stored tensors that conditions alone hang on, which no output shows
    decided: tuple[Node, ...] = ()  # the Ifs and Loops whose body values choose

    def add_to(self, coverage: Coverage, value_of: ValueOf) -> None:
        """Mark what one run has read, by the values that it had."""
        for table in self.tables:
            coverage.read(table.name, table.mask(value_of))
        for name, array in self.trees.items():  # the leaves that rows come to are not followed
            coverage.read(name, np.zeros(array.shape, bool))
        stored = stored_everywhere(self.graph)

        def chooses(name: str) -> Values:
            return stored[name].array() if name in self.graph.stored else value_of(name)

        for name, (node, way) in self.branches.items():
            coverage.read(name, np.full(stored[name].shape, way_taken(node, chooses) == way))
        for name in self.deciding:
            coverage.read(name, np.zeros(stored[name].shape, bool))
        for node in self.decided:
            coverage.execute(node.result, way_taken(node, chooses))


def partial_reads(graph: Body, types: Types) -> PartialReads:
    """Every stored tensor of a graph that is read by row, every tree and every branch."""
    tables, watched = [], dict[str, None]()
    for name, stored in graph.stored.items():
        is_shape = name in graph.shaping and not stored.is_floating
        if stored.is_sparse or not stored.shape or is_shape:
            continue
        picks = _picks_of(name, graph, types)
        if picks:
            tables.append(_Table(name, stored.shape, tuple(picks)))
            watched.update(dict.fromkeys(rows.indices for _, rows in picks))
    branches = dict(_branches(graph))
    chosen = decided(graph)
    choosing = (name for node in (*(node for node, _ in branches.values()), *chosen) for name in choosers(node))
    watched.update(dict.fromkeys(name for name in choosing if name not in graph.stored))
    trees, deciding = tree_arrays(graph), tuple(_deciding(graph))
    return PartialReads(graph, tuple(tables), tuple(watched), trees, branches, deciding, chosen)


def stored_everywhere(graph: Body) -> Mapping[str, Any]:
    """Every stored tensor, those of bodies among them."""
    return {name: stored for body in graph.everything() for name, stored in body.stored.items()}


def _picks_of(name: str, graph: Body, types: Types) -> list[tuple[Shape, Rows]]:
    """Every part of a tensor that is read; none where all of it is.

    What is computed from stored tensors alone is read where something else reads it; the shape is
    None where nobody knows which of its rows are whose. A table that is picked from has been read
    as far as that, whoever else reads all of it.
    """
    own = graph.stored[name].shape
    names, picks = [name], []
    for made in names:  # which grows
        shape = own if made == name else types(made).sizes
        fits = shape if shape and shape[0] == own[0] else None
        for use in graph.uses(made):
            at = use.node.inputs.index(made) if made in use.node.inputs else -1  # which its body reads
            rows = _rows_of(use.node, at)
            if rows and (rows.indices in graph.makers or rows.indices in graph.stored or rows.indices in graph.inputs):
                picks.append((fits, rows))
            elif use.node.result in graph.constants and not use.node.bodies:
                names.extend(result for result in use.node.outputs if result and result not in names)
    return picks


def _branches(graph: Body) -> Iterator[tuple[str, tuple[Node, str]]]:
    """Stored tensors that one branch of an If, or the body of a Loop, alone reads, with that node and the body."""
    readers: dict[str, set[int]] = {}
    for body in graph.everything():
        for node in body.nodes:
            for name in node.inputs:
                readers.setdefault(name, set()).add(id(body))
    for node in graph.nodes:
        if graph.constants.issuperset(choosers(node)):
            continue
        for which, body in node.bodies.items():
            inside = [*body.everything()]
            own = {name for part in inside for name in part.stored}
            outer = {n for n in graph.stored if n in readers and readers[n] <= {id(part) for part in inside}}
            yield from ((name, (node, which)) for name in (*own, *outer))


def _deciding(graph: Body) -> Iterator[str]:
    """Stored tensors, of any rank, that nothing but conditions of an If hangs on: thresholds, however far off."""
    bodies = [*graph.everything()]
    used = {name for body in bodies for node in body.nodes for name in node.inputs if name}
    shown = {name for body in bodies for name in body.outputs}
    for node in (node for body in reversed(bodies) for node in reversed(body.nodes)):  # readers before what they read
        is_choice = node.operator == "onnx::If" and node.inputs[0] not in graph.constants
        has_readers = bool(used.intersection(node.outputs))
        if not is_choice and (node.bodies or not has_readers or not shown.isdisjoint(node.outputs)):
            shown.update(node.inputs)
    yield from (name for name in stored_everywhere(graph) if name in used and name not in shown)


# Trees.

KINDS = {"ai.onnx.ml::TreeEnsembleRegressor": "target", "ai.onnx.ml::TreeEnsembleClassifier": "class"}
LEAF = b"LEAF"


def tree_arrays(graph: Body) -> Mapping[str, Values]:
    """Thresholds, features and comparisons of the inner nodes of each tree ensemble, and weights of its leaves."""
    trees = (node for node in graph.nodes if node.operator in KINDS and node.attributes.get("nodes_values"))
    return {name: array for tree in trees for name, array in _arrays_of(tree)}


def _arrays_of(node: Node) -> Iterator[tuple[str, Values]]:
    attributes = {each.name: each for each in node.proto.attribute}
    modes = list(attributes["nodes_modes"].strings)
    inner = [mode != LEAF for mode in modes]
    columns = {
        "values": attributes["nodes_values"].floats,
        "featureids": attributes["nodes_featureids"].ints,
        "modes": [*map(crc32, modes)],
    }
    for name, column in columns.items():
        yield f"{node.result}.nodes_{name}", np.asarray(column, np.float64)[inner]
    weights = f"{KINDS[node.operator]}_weights"
    yield f"{node.result}.{weights}", np.asarray(attributes[weights].floats, np.float64)
