"""Branches of torch.cond: which of them runs have taken, and what each does, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from pytest_modelbudget.formats.model import Reads, Way
from pytest_modelbudget.graph.graph import Fork, Graph, Op, Operand
from pytest_modelbudget.graph.tensor import Tensor, kept
from pytest_modelbudget.torch_models.bodies import COND

Tables = Mapping[str, Callable[[], Any]]


def ways(graph: Graph, tables: Tables, reads: Reads) -> Iterator[Way]:
    """Both branches of every torch.cond: its calls in a run are those of the trace, in their order."""
    spellings = {by_name: Spelling(graph, tables, by_name=by_name) for by_name in (True, False)}

    def does(fork: Fork, way: Graph, by_name: bool) -> object:
        return spellings[by_name].way(way, fork), fork.held

    def below(forks: Sequence[Fork], before: str) -> Iterator[Way]:
        conds = [fork for fork in forks if fork.operator == COND]
        is_told = f"{before}{len(conds) + 1}" not in reads.taken  # else runs call more of them
        for at, fork in enumerate(conds, 1):
            key = f"{before}{at}"
            for name, way in fork.ways.items():
                taken = name in reads.taken.get(key, ()) if is_told else None
                yield Way(key, name, place_of(key), taken, partial(does, fork, way))
                if taken:
                    yield from below(way.forks, inside(key, name))

    yield from below(graph.forks, "")


def inside(key: str, way: str) -> str:
    """How keys of calls begin that a branch of another call makes."""
    return f"{key}, {way}, "


def place_of(key: str) -> str:
    """A call for eyes: "torch.cond #1"."""
    return f"torch.cond #{key}"


class Spelling:
    """What operations do, as plain data that is equal where they do the same.

    Results are numbered. Stored tensors are known by their names, and values from outside by the module that makes
    them and their order among those that the fork reads; else by their values, and by what they are made of.
    """

    def __init__(self, graph: Graph, tables: Tables, *, by_name: bool) -> None:
        self._graph = graph
        self._tables = tables
        self._by_name = by_name

    def way(self, way: Graph, fork: Fork) -> object:
        """A branch of a fork."""
        read = {tensor for each in fork.ways.values() for tensor in each.inputs}
        entering = [(tensor, does) for tensor, does in self._outside.items() if tensor in read]
        known: dict[Tensor, object] = {tensor: (at, does) for at, (tensor, does) in enumerate(entering)}
        ops = []
        for op in way.ops:
            ops.append(self._op(op, known))
            known.update({tensor: ("made", len(ops), at) for at, tensor in enumerate(op.outputs)})
        return tuple(ops), self._operand(way.outputs, known)

    @kept
    def _outside(self) -> Mapping[Tensor, object]:
        """What inputs and results of the graph are."""
        made: dict[Tensor, object] = {tensor: ("input", at) for at, tensor in enumerate(self._graph.inputs)}
        for op in self._graph.ops:
            does: object = op.scope
            if not self._by_name:
                does = sha256(repr(self._op(op, made)).encode()).hexdigest()
            made.update({tensor: (does, *_type(tensor)) for tensor in op.outputs})
        return made

    def _op(self, op: Op, known: Mapping[Tensor, object]) -> object:
        operands = tuple(self._operand(operand, known) for operand in op.operands)
        attributes = tuple(sorted((name, repr(value)) for name, value in op.attributes.items()))
        return op.name, operands, attributes, tuple(map(_type, op.outputs))

    def _operand(self, operand: Operand, known: Mapping[Tensor, object]) -> object:
        if isinstance(operand, tuple):
            return tuple(self._operand(part, known) for part in operand)
        if operand is None or operand in known:
            return operand and known[operand]
        if operand.storage.is_activation:
            return _type(operand)  # of another branch around it
        return self._stored(operand), operand.offset, operand.strides, *_type(operand)

    def _stored(self, tensor: Tensor) -> str:
        """A stored tensor, by its name or its values."""
        name = tensor.storage.name
        if self._by_name or name not in self._tables:
            return name
        return sha256(self._tables[name]().tobytes()).hexdigest()


def _type(tensor: Tensor) -> tuple[str, str]:
    return tensor.dtype.name, str(tensor.shown_shape)
