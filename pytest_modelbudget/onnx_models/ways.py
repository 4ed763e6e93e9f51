"""Bodies of an ONNX model that values choose: which of them runs have entered, and what each does, as plain data."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from onnx import AttributeProto

from pytest_modelbudget.equivalence.untaken import Entering, unlike_any
from pytest_modelbudget.formats.model import Reads, Way
from pytest_modelbudget.graph.tensor import kept
from pytest_modelbudget.onnx_models.program import CONSTANT, SIZES, Body, Node, Program, StoredTensor
from pytest_modelbudget.onnx_models.protos import Callee, callee_of

Known = MutableMapping[str, object]  # what values are, by their names
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
    entering = {name: Entering(name, tuple(values), reads.near) for name, values in reads.entering.items()}
    told, untold = (Spelling(program, entering, is_told=each) for each in (True, False))
    made = Spelling(program)

    def does(body: Body, holder: Body, named: Spelling, by_name: bool) -> object:
        return (named if by_name else made).way(body, holder)

    for holder, around, is_open in (*_holders(graph, seen, ()), *((each, (), True) for each in _called(program))):
        for node in holder.branching:
            if not (_is_open(node, (*around, holder)) if is_open else node.result in seen):
                continue
            place = f"{node.operator.rpartition('::')[2]} '{node.place}'"
            for name, body in node.bodies.items():
                taken = None if is_open else name in seen[node.result]
                does_it = partial(does, body, holder, untold if is_open else told)
                yield Way(node.result, name, place, taken, does_it)


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

    Results are numbered. Where those that enter are given, these are known by their names, and others like none; else
    by what they are made of. Stored tensors are known by their names where is_told says that runs tell which are read;
    else by their values, as are those that share a name, in two branches, and those of functions.
    """

    def __init__(
        self, program: Program, entering: Mapping[str, object] | None = None, *, is_told: bool = False
    ) -> None:
        self._graph, self._functions = program.graph, program.functions
        self._entering = entering
        self._is_told = is_told
        self._hashes: dict[Callee, str] = {}  # of functions
        names = Counter(name for body in self._graph.everything() for name in body.stored)
        called = (name for body in _called(program) for name in body.stored)
        self._valued = {*(name for name, count in names.items() if count > 1), *called}

    def way(self, body: Body, holder: Body) -> object:
        """A body of a node of another one, or of the graph."""
        return self._body(body, self._known[id(holder)], 0)

    @kept
    def _known(self) -> Mapping[int, Known]:
        """What each value is, by its name, in every body by identity."""
        found: dict[int, Known] = {}
        self._follow(self._graph, {}, self._graph.inputs, found)
        for function in self._functions.values():
            self._follow(function, {}, range(len(function.inputs)), found)
        return found

    def _follow(self, body: Body, outside: Known, given: Sequence[object], found: dict[int, Known]) -> None:
        """Say what the values of a body are that is given these."""
        own = {**dict(zip(body.inputs, given, strict=True)), **body.stored}
        known = ChainMap(own, outside)
        for node in body.nodes:
            if node.operator != CONSTANT:
                self._follow_node(node, known, found)
        found[id(body)] = known

    def _follow_node(self, node: Node, known: Known, found: dict[int, Known]) -> None:
        entering = self._entering
        for inner in node.bodies.values():
            operands = "" if entering is not None else _hashed(self._operands(node.inputs, known))
            given = [(operands, at) if operands else unlike_any() for at in range(len(inner.inputs))]
            self._follow(inner, known, given, found)
        if entering is None:
            does = _hashed(self._node(node, known, 0))
            known.update({name: (does, at) for at, name in enumerate(node.outputs) if name})
        else:  # which are of the graph: a function may have results of the same names
            told = entering if self._graph.makers.get(node.result) is node else {}
            known.update({name: told.get(name) or unlike_any() for name in filter(None, node.outputs)})

    def _body(self, body: Body, outside: Known, depth: int) -> object:
        """Nodes in their order, and what they give; depth tells results of a body from those of others."""
        own: dict[str, object] = {name: ("input", depth, at) for at, name in enumerate(body.inputs)}
        own.update(body.stored)
        known = ChainMap(own, outside)
        nodes: list[object] = []
        for node in body.nodes:
            if node.operator != CONSTANT:
                nodes.append(self._node(node, known, depth + 1))
                known.update({name: ("made", depth, len(nodes), at) for at, name in enumerate(node.outputs) if name})
        return tuple(nodes), self._operands(body.outputs, known)

    def _node(self, node: Node, known: Known, depth: int) -> object:
        attributes = sorted(
            attribute.SerializeToString(deterministic=True)
            for attribute in node.proto.attribute
            if attribute.type != AttributeProto.GRAPH
        )
        bodies = tuple((name, self._body(body, known, depth)) for name, body in sorted(node.bodies.items()))
        given = tuple(map(bool, node.outputs))
        return self._operator(node), tuple(attributes), self._operands(node.inputs, known), bodies, given

    def _operator(self, node: Node) -> object:
        """An operator, by its name, and a function of the file, by what it does."""
        callee = callee_of(node.proto)
        if callee not in self._functions:
            return node.operator, node.proto.overload
        if callee not in self._hashes:
            self._hashes[callee] = _hashed(self._body(self._functions[callee], {}, 0))
        return self._hashes[callee]

    def _operands(self, names: Sequence[str], known: Known) -> tuple[object, ...]:
        values = (known.get(name, name) for name in names)
        return tuple(self._tensor(value) if isinstance(value, StoredTensor) else value for value in values)

    def _tensor(self, tensor: StoredTensor) -> object:
        """A stored tensor, by its name or its values."""
        kind = tensor.dtype.name, tensor.proto.dims[:], tensor.is_sparse
        if self._is_told and tensor.name not in self._valued:
            return ("named", tensor.name, *map(str, kind))
        return ("stored", _digest(tensor), *map(str, kind))


def _hashed(does: object) -> str:
    return sha256(repr(does).encode()).hexdigest()


def _digest(tensor: StoredTensor) -> str:
    """Its values in a few letters."""
    if tensor.is_sparse:
        return sha256(tensor.proto.SerializeToString(deterministic=True)).hexdigest()
    array: Any = tensor.array()
    values = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return sha256(values).hexdigest()
