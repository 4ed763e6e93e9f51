"""Branches of torch.cond: which of them runs have taken, and what each does, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from pytest_modelbudget.equivalence.untaken import Entering, unlike_any
from pytest_modelbudget.formats.model import Brief, Reads, Way
from pytest_modelbudget.graph.graph import Fork, Graph, Op, Operand
from pytest_modelbudget.graph.tensor import Storage, Tensor, kept
from pytest_modelbudget.torch_models.bodies import COND

Tables = Mapping[str, Callable[[], Any]]


def ways(graph: Graph, tables: Tables, reads: Reads) -> Iterator[Way]:
    """Both branches of every torch.cond: its calls in a run are those of the trace, in their order."""
    spellings = {by_name: Spelling(graph, tables, by_name=by_name) for by_name in (True, False)}

    def does(fork: Fork, way: Graph, by_name: bool) -> object:
        return spellings[by_name].way(way, fork.given), fork.held

    def enters(fork: Fork, key: str) -> object:
        values = {at: tuple(reads.entering.get(operand_key(key, at), ())) for at in range(1, len(fork.given))}
        return spellings[True].entering(fork.given, values, reads.near)

    def below(forks: Sequence[Fork], before: str) -> Iterator[Way]:
        conds = [fork for fork in forks if fork.operator == COND]
        is_told = f"{before}{len(conds) + 1}" not in reads.taken  # else runs call more of them
        for at, fork in enumerate(conds, 1):
            key = f"{before}{at}"
            for name, way in fork.ways.items():
                taken = name in reads.taken.get(key, ()) if is_told else None
                yield Way(key, name, place_of(key), taken, partial(does, fork, way), partial(enters, fork, key))
                if taken:
                    yield from below(way.forks, inside(key, name))

    yield from below(graph.forks, "")


def inside(key: str, way: str) -> str:
    """How keys of calls begin that a branch of another call makes."""
    return f"{key}, {way}, "


def operand_key(key: str, at: int) -> str:
    """One value that a call is given, by its place."""
    return f"{key}: {at}"


def place_of(key: str) -> str:
    """A call for eyes: "torch.cond #1"."""
    return f"torch.cond #{key}"


InRuns = tuple[Brief, ...]  # a value, run by run


class Spelling:
    """What operations do, as plain data that is equal where they do the same.

    Results are numbered. By name, stored tensors are known by their names, and values from outside by their order, the
    module that makes them and what they were in the runs; else by their values, and by what they are made of.
    """

    def __init__(self, graph: Graph, tables: Tables, *, by_name: bool) -> None:
        self._graph = graph
        self._tables = tables
        self._by_name = by_name
        self._written: dict[Storage, object] = {}  # what wrote last into memory that there was

    def way(self, way: Graph, given: Sequence[Tensor | None]) -> object:
        """A branch that is given these values from outside; by name, they are known by their order."""
        if not self._by_name:
            return self._way(way, self._outside, 0)
        known = {tensor: (at, self._name(tensor)) for at, tensor in enumerate(given) if tensor is not None}
        return self._way(way, known, 0)

    def entering(self, given: Sequence[Tensor | None], values: Mapping[int, InRuns], near: float) -> object:
        """The values from outside of these places, and what they were in the runs."""
        tensors = ((given[at], each) for at, each in values.items())
        return tuple(
            Entering(self._name(tensor), each, near) if each else unlike_any()
            for tensor, each in tensors
            if tensor is not None and (tensor.storage.is_activation or tensor.storage in self._changing)
        )

    def _name(self, tensor: Tensor) -> object:
        return self._outside.get(tensor, _type(tensor))

    def _way(self, way: Graph, outside: Mapping[Tensor, object], depth: int) -> object:
        """Operations in their order, branches among them, and what they give; depth tells their results from others."""
        known, ops = {**outside}, []
        for op in way.ops:
            ops.append(self._op(op, known))
            known.update({tensor: ("made", depth, len(ops), at) for at, tensor in enumerate(op.outputs)})
        forks = tuple(
            (fork.operator, self._operand(fork.given, known), fork.held,
             *(self._way(each, known, depth + 1) for each in fork.ways.values()))
            for fork in way.forks
        )  # fmt: skip
        return tuple(ops), forks, self._operand(way.outputs, known)

    @kept
    def _outside(self) -> Mapping[Tensor, object]:
        """What inputs and results of the graph are."""
        made: dict[Tensor, object] = {tensor: ("input", at) for at, tensor in enumerate(self._graph.inputs)}
        seen = {tensor.storage for tensor in made}
        for op in self._graph.ops:
            does: object = op.scope
            if not self._by_name:
                does = sha256(repr(self._op(op, made)).encode()).hexdigest()
                self._written.update(dict.fromkeys(_writes(op, seen), does))
                seen.update(tensor.storage for tensor in op.outputs)
            made.update({tensor: (does, *_type(tensor)) for tensor in op.outputs})
        return made

    @kept
    def _changing(self) -> set[Storage]:
        """Stored memory that the pass writes into: what it stores is not what a branch reads."""
        return {storage for op in self._graph.ops for storage in _writes(op) if not storage.is_activation}

    def _op(self, op: Op, known: Mapping[Tensor, object]) -> object:
        operands = tuple(self._operand(operand, known) for operand in op.operands)
        attributes = tuple(sorted((name, repr(value)) for name, value in op.attributes.items()))
        return op.name, operands, attributes, tuple(map(_type, op.outputs))

    def _operand(self, operand: Operand, known: Mapping[Tensor, object]) -> object:
        if isinstance(operand, tuple):
            return tuple(self._operand(part, known) for part in operand)
        if operand is None or operand in known:
            return operand and (known[operand], self._written.get(operand.storage))
        if operand.storage.is_activation or (self._by_name and operand.storage in self._changing):
            return unlike_any()
        written = self._written.get(operand.storage)
        return self._stored(operand), written, operand.offset, operand.strides, *_type(operand)

    def _stored(self, tensor: Tensor) -> str:
        """A stored tensor, by its name or its values."""
        name = tensor.storage.name
        if self._by_name or name not in self._tables:
            return name
        return sha256(self._tables[name]().tobytes()).hexdigest()


def _writes(op: Op, seen: Container[Storage] = ()) -> Iterator[Storage]:
    """Memory that an operation writes into, of that which there was before it: stored, or seen."""
    for tensor in () if op.is_view else op.outputs:
        if not tensor.storage.is_activation or tensor.storage in seen:
            yield tensor.storage


def _type(tensor: Tensor) -> tuple[str, str]:
    return tensor.dtype.name, str(tensor.shown_shape)
