"""Branches of an ONNX model that values choose: which of them a run executes, and their programs for comparing."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from onnx import AttributeProto

from pytest_modelbudget.formats.model import Branch, Branches
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.graph.tensor import ACTIVATION, Storage, StorageKind, Tensor, dense
from pytest_modelbudget.onnx_models.program import CONSTANT, COUNTING, SIZES, Body, Node, Program, StoredTensor
from pytest_modelbudget.onnx_models.protos import callee_of
from pytest_modelbudget.onnx_models.value_types import NOTHING_KNOWN

Known = Mapping[str, Tensor]  # what values are, by their names
IF, LOOP = "onnx::If", "onnx::Loop"
CHOOSING = {IF: 1, LOOP: 2}  # how many operands of a node say whether a body of it runs: its condition, or how often


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
    """The Ifs and Loops of a graph, without those of its bodies, that depend on values and not on shapes alone."""
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


def branches(program: Program, executed: Mapping[str, set[str]]) -> Branches:
    """The bodies of every If and Loop that values choose; of those inside of other bodies nobody knows which ran."""
    names = Counter(name for body in program.graph.everything() for name in body.stored)
    reader, chosen = ProgramReader(program), {node.result for node in decided(program.graph)}
    inputs = sorted({*program.graph.inputs} - program.graph.stored.keys())
    types = [str(program.graph.types[name]) for name in inputs]
    model = Op("a model", (), (), {"inputs": inputs, "types": types})
    graph = reader.graph(program.graph, {}, model, inputs)

    def name_of(tensor: Tensor) -> str:
        return tensor.name if names[tensor.name] == 1 and tensor.storage in reader.stored else ""

    def digest_of(tensor: Tensor) -> str:
        return _digest(reader.stored[tensor.storage]) if tensor.storage in reader.stored else ""

    def inside(body: Graph, around: tuple[Op, ...], *, is_open: bool) -> Iterator[Branch]:
        for fork in body.forks:
            key = str(fork.source)
            is_asked = fork.operator in CHOOSING if is_open else key in chosen
            for name, each in fork.ways.items():
                ran = None if is_open else name in executed.get(key, ())
                if is_asked:
                    yield Branch(key, name, fork.place, ran, each, around)
                if ran or is_open or not is_asked:
                    yield from inside(each, around + each.ops, is_open=True)

    return Branches(graph, tuple(inside(graph, graph.ops, is_open=False)), name_of, digest_of)


class ProgramReader:
    """Reads nodes as operations that are equal where they do the same: a body stands beside its node, as a fork.

    Sizes and types of values follow from those of inputs. stored are the stored tensors, by what stands for them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.stored: dict[Storage, StoredTensor] = {}

    def graph(self, body: Body, outside: Known, caller: Op, inputs: Sequence[str]) -> Graph:
        """A body that an operation gives its inputs, of these names."""
        own = {name: self._value(name, stored) for name, stored in body.stored.items()}
        given = {name: self._value(name) for name in inputs}
        entry = Op(f"inputs of {caller.name}", caller.operands, tuple(given.values()), caller.attributes)
        known, ops, forks = ChainMap({**given, **own}, {**outside}), [entry] if given else [], list[Fork]()
        for node in body.nodes:
            if node.operator == CONSTANT:
                continue
            ops.append(self._op(node, known))
            forks += [] if (fork := self._fork(node, known, ops[-1], len(ops))) is None else [fork]
            known.update(zip(filter(None, node.outputs), ops[-1].outputs, strict=True))
        return way(ops, [known[name] for name in body.outputs], forks)

    def _value(self, name: str, stored: StoredTensor | None = None) -> Tensor:
        storage = Storage(name, 0, ACTIVATION if stored is None else StorageKind.CONSTANT)
        if stored is not None:
            self.stored[storage] = stored
        return dense(name, (), NOTHING_KNOWN.dtype, storage)

    def _op(self, node: Node, known: Known) -> Op:
        attributes = sorted(
            attribute.SerializeToString(deterministic=True)
            for attribute in node.proto.attribute
            if attribute.type != AttributeProto.GRAPH
        )
        is_own = callee_of(node.proto) in self._program.functions
        operands = tuple(known[name] if name else None for name in node.inputs)
        outputs = tuple(map(self._value, filter(None, node.outputs)))
        said = {
            "attributes": attributes,
            "given": tuple(map(bool, node.outputs)),
            "overload": "" if is_own else node.proto.overload,
        }
        return Op("a function" if is_own else node.operator, operands, outputs, said)

    def _fork(self, node: Node, known: Known, op: Op, after: int) -> Fork | None:
        """What a node runs inside: its bodies, or the function that it calls; None of any other."""
        function = self._program.functions.get(callee_of(node.proto))
        if function is None and not node.bodies:
            return None
        ways = {name: self.graph(body, known, op, body.inputs) for name, body in sorted(node.bodies.items())}
        ways.update({} if function is None else {"": self.graph(function, {}, op, function.inputs)})
        place = f"{node.operator.rpartition('::')[2]} '{node.place}'"
        return Fork("a function" if function else node.operator, place, ways, source=node.result, after=after)


def _digest(tensor: StoredTensor) -> str:
    """Its values and their type in a few letters."""
    kind = str((tensor.dtype.name, *tensor.proto.dims)).encode()
    if tensor.is_sparse:
        return sha256(tensor.proto.SerializeToString(deterministic=True)).hexdigest()
    array: Any = tensor.array()
    values = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return sha256(kind + values).hexdigest()
