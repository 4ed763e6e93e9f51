"""Integers that a model stores and dequantises for a weight: parameters, though torch keeps them in buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_modelbudget.graph.graph import Graph, Op, with_tensors, with_ways
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.lowering.groups import DEQUANTIZE, FLOATING, is_floating
from pytest_modelbudget.lowering.scaled_integers import scaled_integers
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable

PARAMETER, BUFFER = StorageKind.PARAMETER, StorageKind.BUFFER
QUANTISER, CONSTANT = StorageKind.QUANTISER, StorageKind.CONSTANT
STORED = frozenset({PARAMETER, BUFFER})
Kinds = Mapping[Storage, StorageKind]
Origins = dict[Storage, frozenset[Storage]]  # of memory: the stored tensors whose values, or rows, lie there
NOTHING: frozenset[Storage] = frozenset()


def with_dequantised_weights(graph: Graph, rules: OpTable) -> Graph:
    """The graph in which stored integers are parameters where they are dequantised for a weight, with their scales.

    It is the same whether they are dequantised as a whole or by the rows that are picked, by an operator or by a cast
    and a stored scale; what an operator hands out in floats is a weight, too. A graph that stores none is given back
    unchanged.
    """
    if not any(w.tensor.shape for w in graph.weights if w.tensor.dtype.name not in FLOATING):
        return graph
    programs = tuple(_programs(graph))
    others = {w.tensor.storage for w in graph.weights if w.kind is BUFFER or (w.kind is CONSTANT and w.persistent)}
    kinds: dict[Storage, StorageKind] = {}
    for program in programs:
        integers, scales = scaled_integers(program.ops, graph.weights, rules)
        kinds.update(dict.fromkeys(scales & others, QUANTISER))
        kinds.update(dict.fromkeys(integers & others, PARAMETER))
    if any(name in rules and rules[name].kind == DEQUANTIZE for name in {op.name for p in programs for op in p.ops}):
        kinds.update(_Reads(programs, rules).kinds())
    return _of_kinds(graph, kinds) if kinds else graph


def _programs(graph: Graph) -> Iterator[Graph]:
    """A graph, and then every way that data may take in it."""
    yield graph
    for fork in graph.forks:
        for way in fork.ways.values():
            yield from _programs(way)


class _Reads:
    """Where stored integers go, and with which scales."""

    def __init__(self, programs: Sequence[Graph], rules: OpTable) -> None:
        self._rules = rules
        stored = {weight.tensor.storage for weight in programs[0].weights if weight.kind in STORED}
        self._held: Origins = {storage: frozenset({storage}) for storage in stored}  # as they are stored
        self._floats: Origins = {}  # dequantised
        self._scales: Origins = {}  # those that memory was dequantised by
        self._weights: set[Storage] = set()  # memory that is read as a weight, or handed out
        for op in (op for program in programs for op in program.ops):
            self._follow(op)
        self._weights.update(output.storage for output in programs[0].outputs)

    def kinds(self) -> Iterator[tuple[Storage, StorageKind]]:
        """What of a buffer is another kind: (memory, kind)."""
        for kind, origins in ((QUANTISER, self._scales), (PARAMETER, self._floats)):
            found = (storage for memory in self._weights for storage in origins.get(memory, NOTHING))
            yield from ((storage, kind) for storage in found if storage.kind is BUFFER)

    def _follow(self, op: Op) -> None:
        operands = [*read_in_roles(op, self._rules.get(op.name))]
        for role, tensor in operands:
            memory = tensor.storage
            if role.dequantised and not is_floating(tensor):
                scales = [self._held.get(other.storage, NOTHING) for beside, other in operands if beside.quantises]
                _add(self._floats, op.outputs, self._held.get(memory, NOTHING))
                _add(self._scales, op.outputs, NOTHING.union(*scales))
            elif role.carried or role.picked:
                for origins in (self._held, self._floats, self._scales):
                    _add(origins, op.outputs, origins.get(memory, NOTHING))
            if role.weight or role.learnt:
                self._weights.add(memory)


def _add(origins: Origins, outputs: Collection[Tensor], found: frozenset[Storage]) -> None:
    if found:
        origins.update({out.storage: origins.get(out.storage, NOTHING) | found for out in outputs})


def _of_kinds(graph: Graph, kinds: Kinds) -> Graph:
    """The graph in which this memory is of other kinds, on every way."""
    homes = {storage: replace(storage, kind=kind) for storage, kind in kinds.items()}
    moved: dict[Tensor, Tensor] = {}

    def at_home(tensor: Tensor) -> Tensor:
        if tensor.storage not in homes:
            return tensor
        if tensor not in moved:
            sweeps = tensor.sweeps and at_home(tensor.sweeps)
            moved[tensor] = replace(tensor, storage=homes[tensor.storage], sweeps=sweeps)
        return moved[tensor]

    def there(way: Graph) -> Graph:
        return with_ways(
            replace(
                way,
                ops=tuple(with_tensors(op, at_home) for op in way.ops),
                inputs=tuple(map(at_home, way.inputs)),
                outputs=tuple(map(at_home, way.outputs)),
                states=tuple(map(at_home, way.states)),
                weights=tuple(replace(weight, tensor=at_home(weight.tensor)) for weight in way.weights),
            ),
            there,
        )

    return there(graph)
