"""Integers that a model stores for a weight: parameters where they are dequantised, unknown where they are packed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_modelbudget.graph.graph import Graph, Op, Reader, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor, distinct_values
from pytest_modelbudget.lowering.groups import DEQUANTIZE, FLOATING, is_floating
from pytest_modelbudget.ops.rule import OpRule, contracted, read_in_roles
from pytest_modelbudget.ops.table import OpTable

PARAMETER, BUFFER = StorageKind.PARAMETER, StorageKind.BUFFER
QUANTISER, CONSTANT = StorageKind.QUANTISER, StorageKind.CONSTANT
STORED = frozenset({PARAMETER, BUFFER, QUANTISER, CONSTANT})
MAY_BE_PACKED = frozenset({PARAMETER, BUFFER, CONSTANT})
LITERAL = "aten::lift_fresh"  # takes what torch.tensor(...) makes
NARROW = frozenset({"int8", "uint8"})  # wider integers are places and counts
Storages = frozenset[Storage]
Origins = dict[Storage, Storages]  # of memory: the stored tensors whose values, or rows, are in it
NOTHING: Storages = frozenset()


def with_dequantised_weights(graph: Graph, rules: OpTable) -> Graph:
    """The graph in which stored integers are parameters where they are dequantised for a weight, with their scales.

    It is the same whether they are dequantised as a whole or by the rows that are picked, by an operator or by a cast
    and a stored scale; the result of an operator that is returned in floats is a weight, too. Integers that are read
    as packed weights get their number of weights, or the operator that unpacks them as their unknown reader. A graph
    that stores none is returned unchanged.
    """
    programs = tuple(_programs(graph))
    opaque = _opaque(programs, rules)
    if not (opaque or any(w.tensor.shape for w in graph.weights if w.tensor.dtype.name not in FLOATING)):
        return graph
    others = {w.tensor.storage for w in graph.weights if w.kind is BUFFER or (w.kind is CONSTANT and w.persistent)}
    found = _Dequantised(programs, rules).found()
    kinds = dict.fromkeys(NOTHING.union(*(codes.scales for codes in found)) & may_scale(graph), QUANTISER)
    kinds.update(dict.fromkeys(NOTHING.union(*(codes.integers for codes in found)) & others, PARAMETER))
    packed = _Packed(programs, rules, opaque)
    if packed.counts or packed.readers:
        graph = replace(graph, weights=tuple(map(packed.marked, graph.weights)))
    kinds.update(packed.kinds())
    return with_storages(graph, {storage: replace(storage, kind=kind) for storage, kind in kinds.items()})


def may_scale(graph: Graph) -> Storages:
    """Memory of stored tensors that are scales, zero points or code books where weights meet them.

    None that learns, unless compressed-tensors names it as the scale of a packed weight, and none that the program
    makes of numbers in its text.
    """
    names = (weight.tensor.name for weight in graph.weights)
    scales = {f"{name.removesuffix('_packed')}_scale" for name in names if name.endswith("_packed")}
    literals = {tensor.storage for op in graph.ops if op.name == LITERAL for tensor in op.tensors()}
    stored = (weight for weight in graph.weights if weight.kind in MAY_BE_PACKED)
    fixed = (w.tensor.storage for w in stored if w.kind is not PARAMETER or not w.trainable or w.tensor.name in scales)
    return frozenset(fixed) - literals


def _programs(graph: Graph) -> Iterator[Graph]:
    """A graph, and then every way that data may take in it."""
    yield graph
    for fork in graph.forks:
        for way in fork.ways.values():
            yield from _programs(way)


def _opaque(programs: Iterable[Graph], rules: OpTable) -> Storages:
    """Memory, of whatever type, in which operators find several weights in each element, in a layout of their own."""
    ops = [op for program in programs for op in program.ops]
    rules_of = {name: rules[name] for name in {op.name for op in ops} if name in rules}
    packing = {name for name, rule in rules_of.items() if any(role.packed for role in rule.roles[name])}
    read = ((role, tensor) for op in ops if op.name in packing for role, tensor in read_in_roles(op, rules_of[op.name]))
    return frozenset(tensor.storage for role, tensor in read if role.packed)


@dataclass(frozen=True, slots=True)
class Codes:
    """The stored integers that some memory comes from, with the zero points and scales that they met."""

    integers: Storages
    elements: int
    scales: Storages = NOTHING
    is_picked: bool = False  # by rows, which are then no matrix that is multiplied
    by_operator: bool = False
    most: int = 1  # elements of the largest scale

    def with_scales(self, scales: Storages, elements: int = 1) -> Codes:
        return replace(self, scales=self.scales | scales, most=max(self.most, elements))


class _Dequantised:
    """Follows stored integers of 8 bits from where they are stored to where their floats are multiplied.

    An operator dequantises them, of any width; or the program casts them and scales them, before the product,
    w.to(x.dtype) * s, or behind it, (x @ w) * s. Of rows that are picked the scale is enough. It is a stored tensor,
    as a mask or a fixed filter that is cast has none, of fewer elements than there are integers: of as many it is the
    weight, and they are its mask. What a product with floats casts itself is cast, zero points may be taken off
    before, and numbers and more scales come anywhere; behind a product those of channels come once, and what x makes
    scales rows. What the program writes into is no weight.
    """

    def __init__(self, programs: Sequence[Graph], rules: OpTable) -> None:
        tensors = [weight.tensor for weight in programs[0].weights if weight.kind in STORED]
        self._sizes = {t.storage: t.elements for t in tensors if not t.is_immediate}  # a literal is no stored scale
        self._held: Origins = {storage: frozenset({storage}) for storage in self._sizes}  # handed on as they are
        self._made: Origins = {}  # floats that are computed of stored ones alone, as a scale of scales is
        self._integers = {t.storage: Codes(frozenset({t.storage}), t.elements) for t in tensors if _is_matrix(t)}
        self._cast: dict[Storage, Codes] = {}  # floating, and not yet scaled
        self._scaled: dict[Storage, Codes] = {}
        self._products: dict[Storage, Codes] = {}  # of inputs with what is not yet scaled, or cast
        self._weights: list[Codes] = []
        self._written: set[Storage] = set()  # stored memory that the program changes, such as a cache
        ops = [op for program in programs for op in program.ops]
        names = {op.name for op in ops}
        if self._integers or any(name in rules and rules[name].kind == DEQUANTIZE for name in names):
            for op in ops:
                rule = rules.get(op.name)
                if rule is not None and op.outputs:
                    self._follow(op, rule)
        for output in programs[0].outputs:
            self._use(output, by_operator=True)

    def found(self) -> list[Codes]:
        """The integers that are weights."""
        return [codes for codes in self._weights if self._written.isdisjoint(codes.integers)]

    def _follow(self, op: Op, rule: OpRule) -> None:
        operands, views = [*read_in_roles(op, rule)], set[Storage]()
        for role, tensor in operands:
            if role.dequantised and not is_floating(tensor):
                scales = [self._scales_in(beside)[0] for other, beside in operands if other.quantises]
                integers = self._held.get(tensor.storage, NOTHING)
                codes = Codes(integers, tensor.elements, NOTHING.union(*scales), by_operator=True)
                self._scaled.update({out.storage: codes for out in op.outputs if integers})
            elif role.carried or role.picked:
                views.add(tensor.storage)
                for out in op.outputs:
                    self._hand_on(tensor.storage, out, is_picked=role.picked)
            if role.weight or role.learnt:
                self._use(tensor, by_operator=True)
        self._written.update(made.storage for made in op.outputs if made.storage not in views)
        if rule.kind == "sub":
            self._subtract(op)
        elif rule.kind in RESCALING:
            self._scale(op, is_product=rule.kind == "mul")
        self._make(op, [tensor for role, tensor in operands if not role.shape])
        for weight in contracted(op, rule):
            self._use(weight)
            scaled = self._scaled.get(weight.storage)
            if factor := self._unscaled(weight) or (scaled if scaled and not scaled.by_operator else None):
                self._products[op.outputs[0].storage] = factor

    def _use(self, tensor: Tensor, *, by_operator: bool = False) -> None:
        """Take a tensor for a weight, where it is one that was scaled; by_operator: only where an operator did."""
        codes = self._scaled.get(tensor.storage)
        if codes and (codes.by_operator or not by_operator):
            self._weights.append(codes)

    def _hand_on(self, memory: Storage, out: Tensor, *, is_picked: bool) -> None:
        if memory in self._held:
            self._held.setdefault(out.storage, self._held[memory])
        if memory in self._integers:
            codes = self._integers[memory]
            now = self._cast if is_floating(out) else self._integers
            now[out.storage] = replace(codes, is_picked=is_picked or codes.is_picked)
        for found in (self._cast, self._scaled, self._products):
            if memory in found:
                found[out.storage] = found[memory]

    def _subtract(self, op: Op) -> None:
        """A zero point, of integers or of what is cast."""
        operands, out = [operand for operand in op.operands if isinstance(operand, Tensor)], op.outputs[0]
        zeros = [self._held.get(other.storage, NOTHING) for other in operands[1:]]
        codes = self._unscaled(operands[0]) if operands and all(zeros) else None
        if codes:
            now = self._cast if is_floating(out) else self._integers
            now[out.storage] = codes.with_scales(NOTHING.union(*zeros))

    def _scale(self, op: Op, *, is_product: bool) -> None:
        """A scale, of integers or what is cast or scaled, or of its product; a number leaves it as it is."""
        operands = [operand for operand in op.operands if isinstance(operand, Tensor) and not operand.is_immediate]
        out = op.outputs[0]
        if len(operands) == 1 and is_floating(out):
            self._hand_on(operands[0].storage, out, is_picked=False)
        orders = (operands, operands[::-1])[: 1 + is_product]
        for one, other in orders if len(operands) == 2 else ():
            scales, size = self._scales_in(other)
            if not is_floating(other):
                continue
            product = self._products.get(one.storage)
            codes = self._scaled.get(one.storage) or self._unscaled(one)
            if product and not scales and other.elements < out.elements:  # a scale of each row of x
                self._products[out.storage] = product
            elif product and scales and size < product.elements and 1 in (size, product.most):
                self._products[out.storage] = scaled = product.with_scales(scales, size)
                self._weights.append(scaled)
            elif codes and scales and size < codes.elements:
                self._scaled[out.storage] = scaled = codes.with_scales(scales, size)
                self._weights += [scaled] if codes.is_picked else []

    def _scales_in(self, tensor: Tensor) -> tuple[Storages, int]:
        """The stored tensors that it is, a part of, or computed of alone, and the elements that are read of them."""
        held, made = (origins.get(tensor.storage, NOTHING) for origins in (self._held, self._made))
        elements = sum(self._sizes[each] for each in held or made)
        return held or made, min(tensor.elements, elements) if held else elements

    def _make(self, op: Op, operands: Sequence[Tensor]) -> None:
        """Note what an operation computes of stored floats alone."""
        read = [tensor for tensor in operands if not tensor.is_immediate]
        if any(tensor.storage in self._scaled or self._unscaled(tensor) for tensor in read):
            return
        origins = [self._scales_in(tensor)[0] for tensor in read]
        if all(origins):
            _add(self._made, [out for out in op.outputs if is_floating(out)], NOTHING.union(*origins))

    def _unscaled(self, tensor: Tensor) -> Codes | None:
        """The integers that it is, or is cast of."""
        return self._cast.get(tensor.storage) or self._integers.get(tensor.storage)


def _is_matrix(tensor: Tensor) -> bool:
    """Return whether these are integers of 8 bits with rows and columns."""
    return tensor.dtype.name in NARROW and sum(size > 1 for size in tensor.shape) > 1


UNPACKING = frozenset({"shift", "logical", "div"})  # kinds: >> and <<, &, // and %, of integers
PRODUCTS = frozenset({"matmul", "linear"})
PACKING = frozenset({"logical", "add"})
JOINED = "cat"  # the kind that puts tensors behind one another
RESCALING = frozenset({"mul", "div"})


@dataclass(frozen=True, slots=True)
class Taken:
    """How many numbers of some memory were taken out of stored integers, and out of which tensors of these."""

    count: int
    parts: frozenset[Tensor]

    def joined(self, other: Taken) -> Taken:
        return Taken(self.count + other.count, self.parts | other.parts)

    def or_more(self, other: Taken) -> Taken:
        return Taken(max(self.count, other.count), self.parts | other.parts)


NO_NUMBERS = Taken(0, frozenset())


class _Packed:
    """Follows integers that hold several weights each: counts, kinds and readers of their memory.

    Shifts, masks, remainders and views of another size take weights out of integers; so does a table that integers pick
    from, where it is smaller than the result. A product that reads what was taken out has packed weights: as many as it
    reads, where all of it comes from one memory, or an unknown number. What they meet on the way are their scales,
    zero points and code books. A buffer of more than 8 bits that picks rows, or parameters, holds indices: the table
    has the weights.
    """

    def __init__(self, programs: Sequence[Graph], rules: OpTable, opaque: Storages) -> None:
        self.counts: dict[Storage, int] = {}  # weights in a memory, where an operation shows it
        self.readers: dict[Storage, Reader] = {}  # operators that unpack a memory, or that no rule knows
        stored = [weight for weight in programs[0].weights if weight.packed is None and weight.kind in MAY_BE_PACKED]
        several = [w for w in stored if w.tensor.elements > 1]
        packed = [w for w in several if w.tensor.dtype.is_integer or w.tensor.storage in opaque]
        self._integers = {w.tensor.storage: w for w in packed}
        self._opaque = opaque
        self._held: Origins = {storage: frozenset({storage}) for storage in self._integers}
        self._words: dict[Storage, int] = {}  # different integers in a copy of stored ones, which may repeat them
        self._taken: dict[Storage, dict[Storage, Taken]] = {}  # by memory, and by the integers that it comes from
        self._may_scale = may_scale(programs[0])
        immediate = {weight.tensor.storage for weight in programs[0].weights if weight.tensor.is_immediate}
        self._beside: Origins = {
            each: frozenset({each}) for each in self._may_scale - immediate
        }  # what comes from these
        self._sizes = {weight.tensor.storage: weight.tensor.elements for weight in programs[0].weights}
        self._scales: dict[Storage, Storages] = {}  # what the weights of a memory meet
        self._as_they_are: set[Storage] = set()  # integers that an operator multiplies with other integers
        self._products: Origins = {}  # with the weights of some memory
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

    def kinds(self) -> dict[Storage, StorageKind]:
        """New kinds of memory: packed weights are parameters; integers in a row beside them are sizes or indices."""
        counted = self.counts.keys() - self.readers.keys()
        scaled = {*counted, *self._as_they_are}
        scales = NOTHING.union(*(self._scales.get(memory, NOTHING) for memory in scaled))
        kinds = dict.fromkeys(scales, QUANTISER)
        kinds.update(dict.fromkeys(counted, PARAMETER))
        rows = [
            each for each, weight in self._integers.items() if len(weight.tensor.shape) < 2 and not weight.trainable
        ]
        rows = [each for each in rows if each.kind is PARAMETER and self._integers[each].tensor.dtype.bits > 8]
        kinds.update({each: QUANTISER for each in rows if counted and each not in {*counted, *self.readers, *kinds}})
        return {memory: kind for memory, kind in kinds.items() if memory not in self.readers}

    def _follow(self, op: Op, rule: OpRule | None) -> None:
        if rule is None:
            self._note_unknown(op)
            self._moving.update(out.storage for out in op.fresh_outputs)
        elif op.outputs:
            factors = [*contracted(op, rule)]
            for weight in factors:
                self._multiply(op, rule, factors[0], weight)
            self._hand_on(op, rule, is_product=bool(factors))

    def _hand_on(self, op: Op, rule: OpRule, *, is_product: bool) -> None:
        """Note the origins of a result: rows come from their table, and not from the indices that pick them."""
        read = ((role, tensor) for role, tensor in read_in_roles(op, rule) if tensor.elements)
        operands = [(role, tensor) for role, tensor in read if not (role.shape or role.unread)]
        tables = [tensor for role, tensor in operands if role.picked or (rule.kind == "embedding" and role.weight)]
        indices = [tensor for _, tensor in operands if tensor not in tables] if tables else []
        values = tables or [tensor for _, tensor in operands]
        # Rows of floats are an activation where an input picks them; of integers they may be packed weights, or scales.
        is_stored = any(tensor.storage in self._held or tensor.storage in self._may_scale for tensor in values)
        movers = values if is_stored else [*values, *indices]
        if any(tensor.storage in self._moving for tensor in movers):
            self._rescale(op, rule, values)
            self._moving.update(out.storage for out in op.outputs)
            return
        is_unpacking = rule.kind in UNPACKING and op.outputs[0].dtype.is_integer
        values = _taken_apart(op, rule, values) if is_unpacking else values
        parts = values if is_unpacking else [each for each in values if _is_split(each, op.outputs[0])]
        made = op.outputs[0].elements
        parts += [each for role, each in operands if role.dequantised and each.elements < made and each not in parts]
        looked_up = self._looked_up(op, tables, indices)
        taken = {memory: part for part in parts for memory in self._held.get(part.storage, NOTHING)} | looked_up
        for memory in taken:
            self._unpacks.setdefault(memory, op.name)
        self._take(op, rule, [*values, *(indices if looked_up else ())], taken)
        is_picked = bool(tables) and any(each.storage in self._moving for each in indices)
        self._copy_words(op, rule, values, is_picked=is_picked)
        for tensor in values:
            _add(self._held, op.outputs, self._held.get(tensor.storage, NOTHING))
            if size := self._learnt.get(tensor.storage):
                self._learnt.update({o.storage: max(size, self._learnt.get(o.storage, 0)) for o in op.outputs})
        _add(self._held, op.outputs, frozenset(looked_up))
        origins = [self._beside.get(tensor.storage, NOTHING) for tensor in values if not tensor.is_immediate]
        if origins and all(origins) and not is_product and not any(out.storage in self._taken for out in op.outputs):
            offsets = self._may_scale.intersection(each.storage for each in values if each.is_immediate)
            _add(self._beside, op.outputs, offsets.union(*origins))

    def _copy_words(self, op: Op, rule: OpRule, values: Sequence[Tensor], *, is_picked: bool) -> None:
        """Note how many different integers a copy has; rows that inputs pick are all different."""
        out, held = op.outputs[0], [tensor for tensor in values if tensor.storage in self._held]
        if not held or any(tensor.storage is out.storage for tensor in values):
            return
        words = [min(self._words.get(each.storage, each.elements), each.region.elements) for each in held]
        count = out.elements if is_picked else min(sum(words) if rule.kind == JOINED else max(words), out.elements)
        self._words[out.storage] = self._words.get(out.storage, 0) + count

    def _take(self, op: Op, rule: OpRule, values: Sequence[Tensor], taken: Mapping[Storage, Tensor]) -> None:
        """Note how many numbers a result has of each memory, and what these meet."""
        out, found = op.outputs[0], self._handed_on(op, rule, values, taken)
        if not found:
            return
        if rule.kind in PACKING and out.dtype.is_integer:  # several numbers of a memory become one again
            for memory in found:
                if sum([memory in self._held.get(tensor.storage, NOTHING) for tensor in values]) > 1:
                    found[memory] = replace(found[memory], count=0)
        others = (tensor for tensor in values if tensor.storage not in self._taken and tensor not in taken.values())
        beside = NOTHING.union(*(self._beside.get(tensor.storage, NOTHING) for tensor in others))
        for memory, each in found.items():
            smaller = frozenset(other for other in beside - {memory} if self._sizes[other] < each.count)
            self._scales[memory] = self._scales.get(memory, NOTHING) | smaller
        is_same = any(tensor.storage is out.storage for tensor in values)  # a view, or in place
        known = self._taken.setdefault(out.storage, {})
        for memory, each in found.items():
            parts = known.get(memory, NO_NUMBERS)
            known[memory] = parts.or_more(each) if is_same else parts.joined(each)

    def _handed_on(
        self, op: Op, rule: OpRule, values: Sequence[Tensor], taken: Mapping[Storage, Tensor]
    ) -> dict[Storage, Taken]:
        """The numbers of each memory in a result: those of its operands, and what it takes out itself."""
        out, found = op.outputs[0], dict[Storage, Taken]()
        for tensor in values:
            for memory, before in self._taken.get(tensor.storage, {}).items():
                now = replace(before, count=min(before.count, tensor.region.elements))
                if memory in taken and out.elements > tensor.elements:  # several of each
                    now = replace(now, count=now.count * out.elements // tensor.elements)
                known = found.get(memory, NO_NUMBERS)
                found[memory] = known.joined(now) if rule.kind == JOINED else known.or_more(now)
        for memory, part in taken.items():
            found.setdefault(memory, Taken(out.elements, frozenset({part})))
        return found

    def _looked_up(self, op: Op, tables: Sequence[Tensor], indices: Sequence[Tensor]) -> dict[Storage, Tensor]:
        """The stored integers by which an operation picks more numbers than its table has, and where they lie then."""
        found = {memory: each for each in indices for memory in self._held.get(each.storage, NOTHING)}
        if not found or op.outputs[0].elements <= max(table.elements for table in tables):
            return {}
        gives_numbers = op.outputs[0].elements == max(each.elements for each in indices)
        if gives_numbers and all(table.storage not in self._learnt for table in tables):
            return found
        is_narrow = {each for each in found if each.kind is PARAMETER or self._integers[each].tensor.dtype.bits <= 8}
        return {memory: each for memory, each in found.items() if memory in is_narrow}

    def _multiply(self, op: Op, rule: OpRule, x: Tensor, weight: Tensor) -> None:
        memory, out = weight.storage, op.outputs[0]
        if memory in self._moving:
            return
        found = self._taken.get(memory, {})
        if rule.kind in PRODUCTS and (weight.dtype.is_integer or memory in self._opaque):
            self._dequantise(op, rule, x, weight)
            if is_floating(out) and is_floating(x):
                return
        if found and self._learnt.get(memory, 0) < weight.region.elements:  # else it is a mask of a weight
            self._count(memory.nbytes * 8 // weight.dtype.bits, found)
            _add(self._products, op.outputs, frozenset(found))

    def _dequantise(self, op: Op, rule: OpRule, x: Tensor, weight: Tensor) -> None:
        """Of an operator that dequantises what it multiplies with floats, the sizes say how many weights these are."""
        out = op.outputs[0]
        memories = self._held.get(weight.storage, NOTHING)
        scales = [each for role, each in read_in_roles(op, rule) if role.quantises]
        met = NOTHING.union(*(self._beside.get(s.storage, {s.storage} & self._may_scale) for s in scales))
        for memory in memories:
            self._scales[memory] = self._scales.get(memory, NOTHING) | met
        if not (is_floating(out) and is_floating(x) and x.shape and out.shape):
            self._as_they_are.update(memories)
            return
        elements = x.shape[-1] * out.shape[-1]
        taken = self._taken.get(weight.storage, {})
        parts = {memory: taken[memory].parts if memory in taken else frozenset({weight}) for memory in memories}
        found = {memory: Taken(elements, parts[memory]) for memory in memories}
        self._count(elements, found)

    def _count(self, elements: int, found: Mapping[Storage, Taken]) -> None:
        """Give memory that a product reads its number of weights: all of one, or each its own part of their sum."""
        whole = {memory for memory, taken in found.items() if taken.count == elements}
        if not whole and sum(taken.count for taken in found.values()) == elements:
            whole = set(found)
        counts = {memory: self._weights_in(memory, found[memory]) for memory in whole}
        fits = len(whole) == 1 or len(whole) == len(found) > 0
        fits = fits and sum(found[memory].count for memory in whole) == elements and all(counts.values())
        if not fits or any(self.counts.get(memory, count) != count for memory, count in counts.items()):
            readers = {each: Reader(self._unpacks.get(each, "a product"), "", unpacks=True) for each in found}
            self.readers.update({memory: self.readers.get(memory, reader) for memory, reader in readers.items()})
            return
        self.counts.update(counts)
        zeros = found.keys() - whole
        for memory in whole:
            self._scales[memory] = self._scales.get(memory, NOTHING) | (zeros & self._may_scale)

    def _weights_in(self, memory: Storage, taken: Taken) -> int:
        """How many weights all of a memory holds; 0 where it is not known."""
        whole = self._integers[memory].tensor
        by_memory: dict[Storage, list[Tensor]] = {}
        for part in taken.parts:
            by_memory.setdefault(part.storage, []).append(part)
        read = {min(distinct_values(parts), self._words.get(at, whole.elements)) for at, parts in by_memory.items()}
        if len(read) != 1 or (len(by_memory) > 1 and read != {whole.elements}):
            return 0
        count, rest = divmod(taken.count * whole.elements, max(*read, 1))
        return count if not rest and whole.elements <= count <= whole.elements * whole.dtype.bits else 0

    def _rescale(self, op: Op, rule: OpRule, values: Sequence[Tensor]) -> None:
        """A stored scale behind the product with packed weights: (x @ w) * s."""
        memories = NOTHING.union(*(self._products.get(each.storage, NOTHING) for each in values))
        met = NOTHING.union(*(self._beside.get(each.storage, NOTHING) for each in values))
        for memory in memories if rule.kind in RESCALING else ():
            self._scales[memory] = self._scales.get(memory, NOTHING) | met
        smaller = {each for each in values if rule.kind in RESCALING and each.elements < op.outputs[0].elements}
        if all(each.storage in self._products or each in smaller for each in values):
            _add(self._products, op.outputs, memories)

    def _note_unknown(self, op: Op) -> None:
        """Note the stored integers that an operator without a rule reads: parameters, and matrices of no indices."""
        for tensor in op.tensors():
            for memory in self._held.get(tensor.storage, NOTHING):
                stored = self._integers[memory]
                if stored.kind is PARAMETER or stored.may_be_packed:
                    self.readers.setdefault(memory, Reader(op.name, ""))


def _taken_apart(op: Op, rule: OpRule, values: Sequence[Tensor]) -> list[Tensor]:
    """The operand that a shift or a division takes apart, and not by what; the largest operands of a mask."""
    if rule.kind == "logical":
        return [each for each in values if each.elements == max(other.elements for other in values)]
    return [each for each in values if each is op.operands[0]]


def _is_split(tensor: Tensor, view: Tensor) -> bool:
    """Return whether a view of memory has elements of another size, or of several values."""
    return view.storage is tensor.storage and (view.dtype.bits, view.dtype.values) != (tensor.dtype.bits, 1)


def _add(origins: Origins, outputs: Collection[Tensor], found: frozenset[Storage]) -> None:
    if found:
        origins.update({out.storage: origins.get(out.storage, NOTHING) | found for out in outputs})
