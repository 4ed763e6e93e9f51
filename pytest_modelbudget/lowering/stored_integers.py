"""Integers that a model stores for a weight: parameters where they are dequantised, unknown where they are packed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pytest_modelbudget.graph.graph import Graph, Op, Reader, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.lowering.groups import DEQUANTIZE, FLOATING, is_floating
from pytest_modelbudget.lowering.scaled_integers import scaled_integers
from pytest_modelbudget.ops.rule import OpRule, contracted, read_in_roles
from pytest_modelbudget.ops.table import OpTable

PARAMETER, BUFFER = StorageKind.PARAMETER, StorageKind.BUFFER
QUANTISER, CONSTANT = StorageKind.QUANTISER, StorageKind.CONSTANT
STORED = frozenset({PARAMETER, BUFFER})
MAY_BE_PACKED = frozenset({PARAMETER, BUFFER, CONSTANT})
Origins = dict[Storage, frozenset[Storage]]  # of memory: the stored tensors whose values, or rows, lie there
NOTHING: frozenset[Storage] = frozenset()


def with_dequantised_weights(graph: Graph, rules: OpTable) -> Graph:
    """The graph in which stored integers are parameters where they are dequantised for a weight, with their scales.

    Integers that are read as packed weights get their number of weights, or the operator that unpacks them as their
    unknown reader.

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
    packed = _Packed(programs, rules)
    if packed.counts or packed.readers:
        graph = replace(graph, weights=tuple(map(packed.marked, graph.weights)))
    kinds.update(packed.kinds)
    return with_storages(graph, {storage: replace(storage, kind=kind) for storage, kind in kinds.items()})


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


UNPACKING = frozenset({"shift", "logical", "div"})  # kinds: >> and <<, &, // and %, of integers
PRODUCTS = frozenset({"matmul", "linear"})


class _Packed:
    """Where integers go that hold several weights each: counts, kinds and readers of their memory.

    Shifts, masks, remainders and views of another size take weights out of integers; so does a table that integers pick
    from, where it is smaller than the result. A product that reads what was taken out has packed weights. A buffer of
    more than 8 bits that picks rows, or parameters, holds indices: the table has the weights.
    """

    def __init__(self, programs: Sequence[Graph], rules: OpTable) -> None:
        self.kinds: dict[Storage, StorageKind] = {}
        self.counts: dict[Storage, int] = {}  # weights in a memory, where an operator shows it
        self.readers: dict[Storage, Reader] = {}  # operators that unpack a memory, or that no rule knows
        stored = [weight for weight in programs[0].weights if weight.packed is None and weight.kind in MAY_BE_PACKED]
        self._integers = {w.tensor.storage: w for w in stored if w.tensor.elements > 1 and w.tensor.dtype.is_integer}
        self._held: Origins = {storage: frozenset({storage}) for storage in self._integers}
        self._unpacked: Origins = {}
        self._learnt = {  # memory that comes from floating parameters, and the elements of the largest of them
            w.tensor.storage: w.tensor.elements for w in stored if w.kind is PARAMETER and is_floating(w.tensor)
        }
        self._unpacks: dict[Storage, str] = {}  # stored memory, and the first operator that unpacks it
        self._moving = {tensor.storage for tensor in programs[0].inputs}  # what depends on an input
        for op in (op for program in programs for op in program.ops) if self._integers else ():
            if not op.is_shape_computation:
                self._follow(op, rules.get(op.name))
        self.readers = {each: reader for each, reader in self.readers.items() if each not in self._moving}  # no cache

    def marked(self, weight: Weight) -> Weight:
        """A stored tensor with its number of weights, or with what unpacks it."""
        memory = weight.tensor.storage
        if memory not in self._integers:
            return weight
        if memory in self.readers:
            return replace(weight, unknown_reader=self.readers[memory])
        count = self.counts.get(memory, 0)
        return replace(weight, packed=count) if count > weight.tensor.elements else weight

    def _follow(self, op: Op, rule: OpRule | None) -> None:
        if rule is None:
            self._note_unknown(op)
            self._moving.update(out.storage for out in op.fresh_outputs)
        elif op.outputs:
            factors = [*contracted(op, rule)]
            for weight in factors:
                self._multiply(op, rule, factors[0], weight)
            self._hand_on(op, rule)

    def _hand_on(self, op: Op, rule: OpRule) -> None:
        """What a result comes from: rows come from their table, and not from the indices that pick them."""
        operands = [(role, tensor) for role, tensor in read_in_roles(op, rule) if not (role.shape or role.unread)]
        tables = [tensor for role, tensor in operands if role.picked or (rule.kind == "embedding" and role.weight)]
        indices = [tensor for _, tensor in operands if tensor not in tables] if tables else []
        values = tables or [tensor for _, tensor in operands]
        # Rows of floats are an activation where an input picks them; rows of integers may be packed weights.
        movers = values if any(tensor.storage in self._held for tensor in values) else [*values, *indices]
        if any(tensor.storage in self._moving for tensor in movers):
            self._moving.update(out.storage for out in op.outputs)
            return
        is_unpacking = rule.kind in UNPACKING and op.outputs[0].dtype.is_integer
        values = _taken_apart(op, rule, values) if is_unpacking else values
        parts = values if is_unpacking else [each for each in values if _is_split(each, op.outputs[0])]
        taken = NOTHING.union(*(self._held.get(each.storage, NOTHING) for each in parts))
        taken |= self._looked_up(op, tables, indices)
        for memory in taken:
            self._unpacks.setdefault(memory, op.name)
        _add(self._unpacked, op.outputs, taken)
        for tensor in values:
            for origins in (self._held, self._unpacked):
                _add(origins, op.outputs, origins.get(tensor.storage, NOTHING))
            if size := self._learnt.get(tensor.storage):
                self._learnt.update({o.storage: max(size, self._learnt.get(o.storage, 0)) for o in op.outputs})

    def _looked_up(self, op: Op, tables: Sequence[Tensor], indices: Sequence[Tensor]) -> frozenset[Storage]:
        """The stored integers by which an operation picks more numbers than its table has."""
        found = NOTHING.union(*(self._held.get(each.storage, NOTHING) for each in indices))
        if not found or op.outputs[0].elements <= max(table.elements for table in tables):
            return NOTHING
        gives_numbers = op.outputs[0].elements == max(each.elements for each in indices)
        if gives_numbers and all(table.storage not in self._learnt for table in tables):
            return found
        return frozenset(
            each for each in found if each.kind is PARAMETER or self._integers[each].tensor.dtype.bits <= 8
        )

    def _multiply(self, op: Op, rule: OpRule, x: Tensor, weight: Tensor) -> None:
        memory, out = weight.storage, op.outputs[0]
        if memory in self._moving:
            return
        if self._learnt.get(memory, 0) < weight.region.elements:  # else it is a mask of a weight
            for stored in self._unpacked.get(memory, NOTHING):
                self.readers.setdefault(stored, Reader(self._unpacks[stored], "", unpacks=True))
        if memory not in self._integers or rule.kind not in PRODUCTS or not weight.dtype.is_integer:
            return
        if is_floating(x) and is_floating(out) and x.shape and out.shape:  # the operator dequantises, and unpacks
            whole = self._integers[memory].tensor
            self.counts[memory] = x.shape[-1] * out.shape[-1] * whole.elements // max(weight.elements, 1)
            scales = [each.storage for role, each in read_in_roles(op, rule) if role.quantises]
            self.kinds.update({scale: QUANTISER for scale in scales if scale.kind is BUFFER})
            self.kinds.update({memory: PARAMETER} if memory.kind is BUFFER else {})

    def _note_unknown(self, op: Op) -> None:
        """What an operator without a rule reads of stored integers: parameters, and matrices of no indices."""
        for tensor in op.tensors():
            for memory in self._held.get(tensor.storage, NOTHING) | self._unpacked.get(tensor.storage, NOTHING):
                stored = self._integers[memory]
                if stored.kind is PARAMETER or (stored.kind is BUFFER and _may_hold_weights(stored.tensor)):
                    self.readers.setdefault(memory, Reader(op.name, ""))


def _taken_apart(op: Op, rule: OpRule, values: Sequence[Tensor]) -> list[Tensor]:
    """The operand that a shift or a division takes apart, and not by what; the largest operands of a mask."""
    if rule.kind == "logical":
        return [each for each in values if each.elements == max(other.elements for other in values)]
    return [each for each in values if each is op.operands[0]]


def _is_split(tensor: Tensor, view: Tensor) -> bool:
    """Whether a view of memory has elements of another size, or of several values."""
    return view.storage is tensor.storage and (view.dtype.bits, view.dtype.values) != (tensor.dtype.bits, 1)


def _may_hold_weights(tensor: Tensor) -> bool:
    """Whether it has rows and columns, and is of no type of indices."""
    return tensor.dtype.bits < 64 and sum(size > 1 for size in tensor.shape) > 1


def _add(origins: Origins, outputs: Collection[Tensor], found: frozenset[Storage]) -> None:
    if found:
        origins.update({out.storage: origins.get(out.storage, NOTHING) | found for out in outputs})
