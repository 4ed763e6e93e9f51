"""The scales that quantised weights bring: one for each output channel, and which of them an operation reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Op, Operand, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, contiguous_strides, dense
from pytest_modelbudget.lowering.program import Program
from pytest_modelbudget.ops.rule import Contraction, OpRule

SCALE = DType("float32", 32)
FanIn = Callable[[Sequence[int]], int]  # of a weight's shape: how many of its elements one output sums, 1 and more
Stored = Callable[[Tensor, int], Tensor]  # of a weight and its number of channels: the scales that it brings


@dataclass(frozen=True, slots=True)
class Read:
    """A stored weight, or a part of it, that an operation reads.

    share is how much of the whole that is. channels is how many outputs the whole has, 0 where nothing is contracted.
    own are the axes of the part along which outputs lie, and sizes those of the whole along them, outermost first;
    both are empty where nobody knows them.
    """

    part: Tensor
    whole: Tensor
    share: Fraction
    channels: int = 0
    own: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def added_to_products(program: Program) -> set[Storage]:
    """The memories of stored biases of contractions: they have the scale of what they are added to."""
    biases: set[Storage] = set()
    for _, op in program.running():
        rule, bias = program.rule(op), program.operands(op).get("bias")
        if rule and rule.contraction and isinstance(bias, Tensor) and not bias.storage.is_activation:
            biases.add(bias.storage)
    return biases


def scale_per_channel(whole: Tensor, channels: int) -> Tensor:
    """A float32 scale for each channel of a weight; one of rank 0 where nothing is contracted."""
    name, shape = f"{whole.name}.scale", (channels,) if channels else ()
    return dense(name, shape, SCALE, Storage(name, prod(shape) * SCALE.bits // 8, StorageKind.QUANTISER))


def bring_scales(program: Program, quantised: Collection[Storage], stored: Stored = scale_per_channel) -> None:
    """Store a scale for each output channel of these weights, and have operations read those of their parts.

    A weight that nothing contracts has one, of rank 0, which is a part of the instruction; one that several operations
    contract has as many as the one with the most outputs, in whatever order they run.
    """
    wholes: dict[Storage, Tensor] = {}
    for weight in program.weights:
        if weight.kind is StorageKind.PARAMETER and weight.tensor.storage in quantised:
            wholes.setdefault(weight.tensor.storage, weight.tensor)
    by_op = {at: tuple(reads(program, op, wholes)) for at, op in program.running() if not op.is_view}
    channels: dict[Storage, int] = {}
    for read in (read for each in by_op.values() for read in each):
        channels[read.whole.storage] = max(read.channels, channels.get(read.whole.storage, 0))
    scales = {storage: stored(whole, channels.get(storage, 0)) for storage, whole in wholes.items()}
    program.weights.extend(map(Weight, scales.values()))
    for at, each in by_op.items():
        op = program.ops[at]
        if op is not None and each:
            beside = (_scales_of(read, scales[read.whole.storage]) for read in each)
            program.ops[at] = replace(op, scales=(*op.scales, *beside))


def reads(program: Program, op: Op, wholes: Mapping[Storage, Tensor]) -> Iterator[Read]:
    """The parts of these weights that an operation reads."""
    rule, bound = program.rule(op), program.operands(op)
    fan_ins, in_part = _fan_ins(rule, op, bound), _read_in_part(rule, op, bound)
    for part in dict.fromkeys(op.tensors()):
        whole = wholes.get(part.storage)
        if whole is not None:
            share = Fraction(in_part.get(id(part), part.nbytes), max(whole.nbytes, 1))
            read, fan_in = Read(part, whole, share), fan_ins.get(id(part))
            yield _contracted(fan_in, read) if fan_in and part.shape else read


def _fan_ins(rule: OpRule | None, op: Op, bound: Mapping[str, Operand]) -> Mapping[int, FanIn]:
    """Of every operand that is contracted, by identity, how many of its elements one output sums."""
    contraction = rule.contraction if rule else None
    if contraction is None or not contraction.where(op.attributes):
        return {}
    operands = (bound.get(word) for word in contraction.of)
    flat = (part for each in operands for part in (each if isinstance(each, tuple) else (each,)))
    return {id(part): _fan_in_at(contraction, at, op) for at, part in enumerate(flat) if part is not None}


def _fan_in_at(contraction: Contraction, at: int, op: Op) -> FanIn:
    return lambda shape: max(contraction.summed(at, shape, op.attributes), 1)


def _read_in_part(rule: OpRule | None, op: Op, bound: Mapping[str, Operand]) -> Mapping[int, int]:
    """Bytes read of the operands that a rule does not have read entirely, by identity: rows of a table."""
    try:
        nbytes = rule.evaluate(rule.reads, op, bound) if rule and rule.reads else {}
    except UnmeasurableError:  # it is unmeasured, whatever its scales are
        return {}
    return {id(bound.get(word)): amount for word, amount in nbytes.items()}


def _contracted(fan_in: FanIn, read: Read) -> Read:
    """A weight with the outputs that it has of its own, or the part of one.

    A tile is a part of rows that go on in others, so that the rows of the whole count; a part whose axes are not those
    of the whole has its share of channels.
    """
    part, whole = read.part, read.whole
    shape = _shape_in_axes_of(part, whole)
    if not shape:
        count = part.elements // fan_in(part.shape)
        return replace(read, channels=ceil(Fraction(count * whole.elements, max(part.elements, 1))))
    own = _own_axes(fan_in, shape, part.strides)
    return replace(read, channels=whole.elements // fan_in(shape), own=own, sizes=tuple(shape[axis] for axis in own))


def _own_axes(fan_in: FanIn, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a weight over which nothing is summed, outermost first."""
    without = [(*shape[:axis], 1, *shape[axis + 1 :]) for axis in range(len(shape))]
    own = (axis for axis, size in enumerate(shape) if size > 1 and fan_in(without[axis]) == fan_in(shape))
    return tuple(sorted(own, key=lambda axis: -strides[axis]))


def _shape_in_axes_of(part: Tensor, whole: Tensor) -> tuple[int, ...]:
    """The sizes of the whole along the axes of a slice of it, also a transposed one; () where it has other axes."""
    if part.strides == whole.strides:
        return whole.shape
    size_of = dict(zip(whole.strides, whole.shape, strict=True))
    is_slice = len(size_of) == len(part.strides) and size_of.keys() == set(part.strides)
    return tuple(size_of[stride] for stride in part.strides) if is_slice else ()


def _scales_of(read: Read, scale: Tensor) -> Tensor:
    """The scales of a part: those along its own axes, or its share of all where they lie along other ones."""
    part, sweeps = read.part, read.part.sweeps and scale
    if not read.own or prod(read.sizes) != scale.elements:
        count = min(ceil(scale.elements * read.share), scale.elements)
        return replace(dense(scale.name, (count,) if scale.shape else (), scale.dtype, scale.storage), sweeps=sweeps)
    steps, first = contiguous_strides(read.sizes), part.offset - read.whole.offset
    places = [first // part.strides[axis] % size for axis, size in zip(read.own, read.sizes, strict=True)]
    offset = sum(place * step for place, step in zip(places, steps, strict=True))
    shape = tuple(part.shape[axis] for axis in read.own)
    return Tensor(scale.name, shape, scale.dtype, scale.storage, offset, steps, sweeps=sweeps)
