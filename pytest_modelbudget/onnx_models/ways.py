"""Bodies of an ONNX model that values choose: which of them runs have entered, and what each does, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from onnx import AttributeProto

from pytest_modelbudget.equivalence.untaken import Entering
from pytest_modelbudget.formats.model import Reads, Way
from pytest_modelbudget.graph.tensor import kept
from pytest_modelbudget.onnx_models.program import CONSTANT, SIZES, Body, Node, Program, StoredTensor

IF, LOOP = "onnx::If", "onnx::Loop"
CHOOSING = {IF: 1, LOOP: 2}  # how many operands of a node say whether a body of it runs: its condition, or how often
# Operators whose results are as large as values say; beside them are those with an operand that only says how large.
COUNTING = frozenset({"onnx::Compress", "onnx::NonMaxSuppression", "onnx::NonZero", "onnx::Unique"})


def choosers(node: Node) -> tuple[str, ...]:
    """The values that say which body of a node runs, or whether it does; none of a node that they do not choose for."""
    return tuple(filter(None, node.inputs[: CHOOSING.get(node.operator, 0)]))


def way_taken(node: Node, value_of: Callable[[str], Any]) -> str:
    """The body that a run enters; "" for that of a loop which ends before its first run."""
    goes = all(np.ravel(value_of(name))[0] > 0 for name in choosers(node))
    if node.operator == LOOP:
        return "body" if goes else ""
    return "then_branch" if goes else "else_branch"


def decided(graph: Body) -> tuple[Node, ...]:
    """The Ifs and Loops of a graph, those of its bodies left out, that hang on values and not on shapes alone."""
    if all(node.operator not in CHOOSING for node in graph.branching):
        return ()
    moving = {*graph.inputs} - graph.stored.keys()
    sized = set[str]()  # values that are as large as others say
    found = []
    for node in graph.nodes:
        read = node.reads
        if not moving.isdisjoint(choosers(node)):
            found.append(node)
        if not sized.isdisjoint(read) or (not moving.isdisjoint(read) and _says_how_large(node, moving)):
            sized.update(filter(None, node.outputs))
        if not (sized if node.operator in SIZES else moving).isdisjoint(read):
            moving.update(filter(None, node.outputs))
    return tuple(found)


def _says_how_large(node: Node, moving: set[str]) -> bool:
    """Whether values that a node reads, some of which move, may say how large its results are."""
    if node.rule is None or node.bodies or node.operator in COUNTING:
        return True
    return any(node.inputs[at] in moving for at in node.signature.sizing)


def ways(program: Program, reads: Reads) -> Iterator[Way]:
    """The bodies of every If and Loop that values choose; of those inside of other bodies nobody knows which ran."""
    graph = program.graph
    seen = {node.result: reads.taken.get(node.result, set()) for node in decided(graph)}
    entering = {name: Entering(name, tuple(values)) for name, values in reads.entering.items()}
    spellings = {True: Spelling(graph, entering), False: Spelling(graph)}

    def does(body: Body, around: tuple[Body, ...], by_name: bool) -> object:
        return spellings[by_name].way(body, around)

    for holder, around, is_open in (*_holders(graph, seen, ()), *((each, (), True) for each in _called(program))):
        for node in holder.branching:
            if not (_is_open(node, (*around, holder)) if is_open else node.result in seen):
                continue
            place = f"{node.operator.rpartition('::')[2]} '{node.scope}'"
            for name, body in node.bodies.items():
                taken = None if is_open else name in seen[node.result]
                yield Way(node.result, name, place, taken, partial(does, body, (*around, holder)))


def _is_open(node: Node, around: tuple[Body, ...]) -> bool:
    """Whether something that is not stored says which body of a node runs."""
    return any(all(name not in body.stored for body in around) for name in choosers(node))


def _called(program: Program) -> Iterator[Body]:
    """The model's own functions, and every body inside them."""
    for function in program.functions.values():
        yield from function.everything()


def _holders(
    body: Body, seen: Mapping[str, set[str]], around: tuple[Body, ...]
) -> Iterator[tuple[Body, tuple[Body, ...], bool]]:
    """Bodies, those around each, and whether runs do not tell of it; none inside of a branch that never ran."""
    yield body, around, bool(around)
    for node in body.branching:
        for name, inner in node.bodies.items():
            if around or node.result not in seen or name in seen[node.result]:
                yield from _holders(inner, seen, (*around, body))


class Spelling:
    """What nodes do, as plain data that is equal where they do the same.

    Results are numbered. Where those that enter are given, they and stored tensors are known by their names; else by
    what they are made of, and by their values. Tensors that share a name, in two branches, always are.
    """

    def __init__(self, graph: Body, entering: Mapping[str, object] | None = None) -> None:
        self._graph = graph
        self._by_name = entering is not None
        self._entering = entering or {}
        names = Counter(name for body in graph.everything() for name in body.stored)
        self._shared = {name for name, count in names.items() if count > 1}

    def way(self, body: Body, around: tuple[Body, ...]) -> object:
        """A branch, and the bodies around it."""
        stored = {name: tensor for outer in around for name, tensor in outer.stored.items()}
        read = {name: self._tensor(stored[name]) for name in body.reads_outside & stored.keys()}
        return self._body(body, {**self._made, **read}, 0)

    @kept
    def _made(self) -> Mapping[str, object]:
        """What each value of the graph is made of, down to inputs and stored tensors; by names, those that enter."""
        made: dict[str, object] = {**self._entering}
        if self._by_name:
            return made
        made.update({name: self._tensor(tensor) for name, tensor in self._graph.stored.items()})
        for node in self._graph.nodes:
            if node.operator != CONSTANT:
                digest = sha256(repr(self._node(node, made, 0)).encode()).hexdigest()
                made.update({name: (digest, at) for at, name in enumerate(node.outputs) if name})
        return made

    def _body(self, body: Body, outside: Mapping[str, object], depth: int) -> object:
        """Nodes in their order, and what they give; depth tells results of a body from those of others."""
        known = {**outside, **{name: ("input", depth, at) for at, name in enumerate(body.inputs)}}
        known.update({name: self._tensor(tensor) for name, tensor in body.stored.items()})
        nodes: list[object] = []
        for node in body.nodes:
            if node.operator != CONSTANT:
                nodes.append(self._node(node, known, depth + 1))
                known.update({name: ("made", depth, len(nodes), at) for at, name in enumerate(node.outputs) if name})
        return tuple(nodes), tuple(known.get(name, name) for name in body.outputs)

    def _node(self, node: Node, known: Mapping[str, object], depth: int) -> object:
        operands = tuple(known.get(name, name) for name in node.inputs)
        attributes = sorted(
            attribute.SerializeToString(deterministic=True)
            for attribute in node.proto.attribute
            if attribute.type != AttributeProto.GRAPH
        )
        bodies = tuple((name, self._body(body, known, depth)) for name, body in sorted(node.bodies.items()))
        given = tuple(map(bool, node.outputs))
        return node.operator, node.proto.overload, tuple(attributes), operands, bodies, given

    def _tensor(self, tensor: StoredTensor) -> object:
        """A stored tensor, by its name or its values."""
        kind = tensor.dtype.name, tensor.proto.dims[:], tensor.is_sparse
        if self._by_name and tensor.name not in self._shared:
            return ("named", tensor.name, *map(str, kind))
        return ("stored", _digest(tensor), *map(str, kind))


def _digest(tensor: StoredTensor) -> str:
    """Its values in a few letters."""
    if tensor.is_sparse:
        return sha256(tensor.proto.SerializeToString(deterministic=True)).hexdigest()
    array: Any = tensor.array()
    values = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return sha256(values).hexdigest()
