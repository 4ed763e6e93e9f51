"""A program as a device runs it: batch norms folded, activations fused, values in another type, results in place.

A pure function from Graph to Graph. It goes by the kind of an operation, whatever format it came from, and never
changes ``macs``. Everything done, and everything left, is listed with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from pytest_modelbudget.errors import DeviceError, UnmeasurableError
from pytest_modelbudget.graph.graph import Graph, Op, Operand, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable

FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
TYPES: Mapping[str, DType] = MappingProxyType(
    {name: DType(name, bits) for name, bits in (("int8", 8), ("int16", 16), ("float16", 16), ("bfloat16", 16))}
    | {"float32": DType("float32", 32)}
)
QUANTISED = frozenset({"int8", "int16"})
SCALE, BIAS = TYPES["float32"], DType("int32", 32)
FEEDERS = frozenset({"convolution", "linear"})  # a batch norm is part of their weights and bias
FUSING = frozenset({"convolution", "linear", "add", "mul", "pooling", "adaptive_pooling"})
CLAMPS = frozenset({"clamp", "hardtanh", "relu6"})
IN_PLACE = frozenset({"none", "elementwise", "depthwise"})
ELEMENTWISE = (
    CLAMPS
    | {"abs", "add", "addcmul", "batch_norm", "div", "erf", "exp", "lerp", "log", "maximum", "mul", "neg", "pow"}
    | {"reciprocal", "rounding", "rsqrt", "sign", "sqrt", "square", "sub"}
    | {"celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu", "log_sigmoid", "logit", "mish"}
    | {"prelu", "relu", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh", "threshold"}
)


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a device's compiler does to a program; see docs/devices.md. dtype "" leaves types as they are written.

    Raises DeviceError for a type or a way of working in place that is none.
    """

    fold_batchnorm: bool = True
    fuse_activations: tuple[str, ...] = ("relu", "clamp")
    dtype: str = ""
    io_dtype: str = ""
    in_place: str = "none"

    def __post_init__(self) -> None:
        for name in (self.dtype, self.io_dtype):
            if name and name not in TYPES:
                raise DeviceError(f"a model cannot be lowered to '{name}': {', '.join(TYPES)}")
        if self.in_place not in IN_PLACE:
            raise DeviceError(f"in_place is '{self.in_place}': {', '.join(sorted(IN_PLACE))}")


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that was lowered, or was left as it is; why says the reason."""

    op: str
    scope: str
    why: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """The program that runs on the device, what was done to it, and what could not be.

    floating are operations that still compute in a floating type where another one was asked for.
    """

    graph: Graph
    done: tuple[Step, ...] = ()
    left: tuple[Step, ...] = ()
    floating: tuple[Step, ...] = ()


def lowered(graph: Graph, rules: OpTable, lowering: Lowering) -> Lowered:
    """The graph after every pass that is asked for, in the order of a compiler."""
    program = _Program(graph, rules)
    if lowering.fold_batchnorm:
        _fold_batchnorms(program)
    if lowering.fuse_activations:
        _fuse_activations(program, frozenset(lowering.fuse_activations))
    if lowering.in_place != "none":
        _work_in_place(program, depthwise=lowering.in_place == "depthwise")
    if lowering.dtype or lowering.io_dtype:
        _retype(program, lowering)
    return Lowered(program.graph(), tuple(program.done), tuple(program.left), tuple(_floating(program, lowering)))


class _Program:
    """A graph that is being rewritten. Operations that vanished are None, so that positions stay."""

    def __init__(self, graph: Graph, rules: OpTable) -> None:
        self._graph, self.rules = graph, rules
        self.ops: list[Op | None] = list(graph.ops)
        self.weights = list(graph.weights)
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.done: list[Step] = []
        self.left: list[Step] = []
        self._replaced: dict[Tensor, Tensor] = {}

    def rule(self, op: Op) -> OpRule | None:
        return self.rules.get(op.name)

    def kind(self, op: Op) -> str:
        rule = self.rule(op)
        return rule.kind if rule else ""

    def operands(self, op: Op) -> Mapping[str, Operand]:
        """Operands by role; none where the operation does not fit its rule."""
        rule = self.rule(op)
        try:
            return rule.bind(op) if rule else {}
        except UnmeasurableError:
            return {}

    def running(self) -> Iterator[tuple[int, Op]]:
        """Operations that run on the device, by position: not those that work out shapes before."""
        for position, op in enumerate(self.ops):
            if op is not None and not op.is_shape_computation:
                yield position, op

    def readers(self) -> Mapping[Storage, list[int]]:
        """Positions of what reads each memory."""
        readers: dict[Storage, list[int]] = defaultdict(list)
        for position, op in self.running():
            for storage in dict.fromkeys(tensor.storage for tensor in op.tensors()):
                readers[storage].append(position)
        return readers

    def replace_tensor(self, old: Tensor, new: Tensor) -> None:
        """Have whatever still names a tensor (only what asks for its shape may) name another one."""
        if old is not new:  # what works in place may name its result as its operand
            self._replaced[old] = new

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, as often as it is named."""
        for op in self.ops:
            if op is not None:
                yield from (*op.tensors(), *op.outputs)
        yield from (*self.inputs, *self.outputs, *(weight.tensor for weight in self.weights))

    def drop_unread(self, tensors: Iterable[Tensor]) -> None:
        """Take those of some stored tensors out that nothing reads any more."""
        read = {tensor.storage for _, op in self.running() for tensor in op.tensors()}
        gone = {tensor.storage for tensor in tensors} - read
        self.weights = [weight for weight in self.weights if weight.tensor.storage not in gone]

    def stored_by_scope(self) -> Mapping[str, list[Tensor]]:
        """Stored tensors of each module; not those of none."""
        scopes: dict[str, list[Tensor]] = defaultdict(list)
        for weight in self.weights:
            if scope := weight.scope:
                scopes[scope].append(weight.tensor)
        return scopes

    def graph(self) -> Graph:
        """The graph as it stands."""
        ops = tuple(_with_tensors(op, self._current) for op in self.ops if op is not None)
        return replace(self._graph, ops=ops, inputs=self.inputs, outputs=self.outputs, weights=tuple(self.weights))

    def _current(self, tensor: Tensor) -> Tensor:
        while tensor in self._replaced:
            tensor = self._replaced[tensor]
        return tensor


def _with_tensors(op: Op, new: Callable[[Tensor], Tensor]) -> Op:
    """The operation on other tensors; itself where all are the same."""
    operands = tuple(_operand(operand, new) for operand in op.operands)
    outputs = tuple(new(output) for output in op.outputs)
    if outputs == op.outputs and operands == op.operands:
        return op
    return replace(op, operands=operands, outputs=outputs)


def _operand(operand: Operand, new: Callable[[Tensor], Tensor]) -> Operand:
    if operand is None:
        return None
    return new(operand) if isinstance(operand, Tensor) else tuple(part and new(part) for part in operand)


# One operation that vanishes into the one that feeds it.


@dataclass(frozen=True, slots=True)
class _Pair:
    """An operation and the one that made its input, by position."""

    at: int
    op: Op
    feeder_at: int
    feeder: Op


class _Feeders:
    """Which operation made what another one reads, and who else reads it."""

    def __init__(self, program: _Program) -> None:
        self._program, self._readers = program, program.readers()
        self._kept = {tensor.storage for tensor in program.outputs}
        self._writer: dict[Storage, int] = {}

    def wrote(self, position: int, op: Op) -> None:
        """Note that an operation has run."""
        for output in op.outputs:
            if op.mutates or not op.is_view:
                self._writer[output.storage] = position

    def pair(self, position: int, op: Op, kinds: frozenset[str]) -> _Pair | str:
        """The operation with its feeder of one of these kinds, into which it may vanish; or why it may not."""
        read = next(iter(op.tensors()), None)
        at = self._writer.get(read.storage) if read else None
        feeder = None if at is None else self._program.ops[at]
        if read is None or at is None or feeder is None or self._program.kind(feeder) not in kinds:
            return f"no {', '.join(sorted(kinds))} makes what it reads"
        if feeder.outputs[0] is not read or len(op.fresh_outputs) > 1 or feeder.times != op.times:
            return f"it reads a part of what '{feeder.scope}' makes, or has results of its own"
        later = [reader for reader in self._readers[read.storage] if reader > at]
        in_place = op.outputs[0].storage is read.storage
        if later[:1] != [position] or not (in_place or (len(later) == 1 and read.storage not in self._kept)):
            return f"others read what '{feeder.scope}' makes"
        return _Pair(position, op, at, feeder)

    def merge(self, pair: _Pair, **changes: object) -> None:
        """Have the feeder make the result, and the operation vanish."""
        result, before = pair.op.outputs[0], pair.feeder.outputs[0]
        mutates = pair.feeder.mutates and result.storage is before.storage
        outputs = (result, *pair.feeder.outputs[1:])
        merged = replace(pair.feeder, outputs=outputs, mutates=mutates, **changes)  # type: ignore[arg-type]
        self._program.ops[pair.feeder_at], self._program.ops[pair.at] = merged, None
        self._program.replace_tensor(before, result)
        self._writer[result.storage] = pair.feeder_at


def _fold_batchnorms(program: _Program) -> None:
    feeders, stored = _Feeders(program), program.stored_by_scope()
    folded: list[Tensor] = []
    for position, op in program.running():
        if program.kind(op) == "batch_norm":
            pair = feeders.pair(position, op, FEEDERS)
            why = pair if isinstance(pair, str) else _why_not_folded(program, pair)
            if isinstance(pair, str) or why:
                program.left.append(Step(op.name, op.scope, f"not folded: {why}"))
            else:
                _fold(program, feeders, pair)
                folded += (*op.tensors()[1:], *stored.get(op.scope, ()))
                continue
        feeders.wrote(position, op)
    program.drop_unread(folded)


def _why_not_folded(program: _Program, pair: _Pair) -> str:
    norm, feeder = program.operands(pair.op), program.operands(pair.feeder)
    if norm.get("mean") is None or any(pair.op.attributes.get(word) for word in ("training", "train", "training_mode")):
        return "its statistics are the batch's own"
    weight = feeder.get("weight")
    if not isinstance(weight, Tensor) or weight.storage.is_activation:
        return f"the weight of '{pair.feeder.scope}' is computed, and not stored"
    if "bias" not in feeder:
        return f"{pair.feeder.name} takes no bias"
    return ""


def _fold(program: _Program, feeders: _Feeders, pair: _Pair) -> None:
    """The norm's scale becomes part of the weight, its shift of the bias."""
    changes: dict[str, object] = {}
    if program.operands(pair.feeder).get("bias") is None:
        changes["operands"] = _with_bias(program, pair)
    feeders.merge(pair, **changes)
    program.done.append(Step(pair.op.name, pair.op.scope, f"folded into '{pair.feeder.scope}'"))


def _with_bias(program: _Program, pair: _Pair) -> tuple[Operand, ...]:
    """The feeder's operands with a bias of its own, of the norm's type: one element a channel."""
    rule = program.rule(pair.feeder)
    assert rule is not None  # its kind is known
    mean = program.operands(pair.op)["mean"]
    assert isinstance(mean, Tensor)  # its statistics are stored
    name = f"{pair.feeder.scope}.bias"
    bias = dense(name, mean.shape, mean.dtype, Storage(name, mean.nbytes, StorageKind.PARAMETER))
    program.weights.append(Weight(bias, trainable=True))
    at = [role.word for role in rule.roles[pair.feeder.name]].index("bias")
    operands: list[Operand] = [*pair.feeder.operands, *[None] * (at + 1 - len(pair.feeder.operands))]
    operands[at] = bias
    return tuple(operands)


def _fuse_activations(program: _Program, asked: frozenset[str]) -> None:
    kinds = asked | CLAMPS if "clamp" in asked else asked
    feeders = _Feeders(program)
    fused: list[Tensor] = []
    for position, op in program.running():
        if program.kind(op) in kinds:
            pair = feeders.pair(position, op, FUSING)
            if isinstance(pair, _Pair):
                feeders.merge(pair)
                fused += op.tensors()[1:]
                program.done.append(Step(op.name, op.scope, f"computed inside '{pair.feeder.scope}'"))
                continue
            program.left.append(Step(op.name, op.scope, f"not fused: {pair}"))
        feeders.wrote(position, op)
    program.drop_unread(fused)


# Results that take the memory of what they are made from.


def _work_in_place(program: _Program, *, depthwise: bool) -> None:
    readers = program.readers()
    kept = {tensor.storage for tensor in (*program.inputs, *program.outputs)}
    merged: dict[Storage, Storage] = {}
    for position, op in program.running():
        if not (program.kind(op) in ELEMENTWISE or (depthwise and _is_depthwise(program, op))):
            continue
        for result in op.fresh_outputs[:1]:
            for tensor in op.tensors():
                memory = merged.get(tensor.storage, tensor.storage)
                dies = readers[tensor.storage][-1:] == [position] and tensor.storage not in kept
                if memory.is_activation and dies and result.storage.nbytes <= memory.nbytes and not memory.unsized:
                    merged[result.storage] = memory
                    program.done.append(Step(op.name, op.scope, f"works in the memory of {tensor.name}"))
                    break
    _move(program, merged)


def _is_depthwise(program: _Program, op: Op) -> bool:
    weight = program.operands(op).get("weight")
    if program.kind(op) != "convolution" or not isinstance(weight, Tensor) or len(weight.shape) < 3:
        return False
    groups = op.attributes.get("groups", op.attributes.get("group", 1))
    return groups == weight.shape[0] > 1 and weight.shape[1] == 1


def _move(program: _Program, storages: Mapping[Storage, Storage]) -> None:
    """Put tensors into other memory."""
    moved: dict[Tensor, Tensor] = {}

    def new(tensor: Tensor) -> Tensor:
        if tensor.storage not in storages:
            return tensor
        if tensor not in moved:
            moved[tensor] = replace(tensor, storage=storages[tensor.storage])
        return moved[tensor]

    for position, op in enumerate(program.ops):
        if op is not None:
            there = _with_tensors(op, new)
            program.ops[position] = there if there is op else _in_place(op, there)
    program.outputs = tuple(new(tensor) for tensor in program.outputs)


def _in_place(op: Op, moved: Op) -> Op:
    """An operation that wrote memory of its own, and now writes that of an operand, mutates it."""
    return replace(moved, mutates=op.mutates or bool(op.fresh_outputs and not moved.fresh_outputs))


# Values in another type.


def _retype(program: _Program, lowering: Lowering) -> None:
    """Store floating values in another type; quantised weights bring a scale for each output channel."""
    before = _dtype_of(program)
    types = dict(_types(program, lowering, before))
    if lowering.dtype in QUANTISED:
        channels, biases = _channels(program)
        types.update(dict.fromkeys(biases & types.keys(), BIAS))
        program.weights.extend(_scales(program, types, channels))
    memories = {storage: _as_type(storage, before[storage], dtype) for storage, dtype in types.items()}
    tensors: dict[Tensor, Tensor] = {}

    def new(tensor: Tensor) -> Tensor:
        if tensor.storage not in types:
            return tensor
        if tensor not in tensors:
            tensors[tensor] = replace(tensor, dtype=types[tensor.storage], storage=memories[tensor.storage])
        return tensors[tensor]

    program.ops = [op and _with_tensors(op, new) for op in program.ops]
    program.inputs, program.outputs = tuple(map(new, program.inputs)), tuple(map(new, program.outputs))
    program.weights = [replace(weight, tensor=new(weight.tensor)) for weight in program.weights]


def _dtype_of(program: _Program) -> Mapping[Storage, DType]:
    """The floating type of each memory that is read and written as one floating type alone."""
    seen: dict[Storage, set[DType]] = defaultdict(set)
    for tensor in program.tensors():
        seen[tensor.storage].add(tensor.dtype)
    single = {storage: next(iter(dtypes)) for storage, dtypes in seen.items() if len(dtypes) == 1}
    return {storage: dtype for storage, dtype in single.items() if dtype.name in FLOATS}


def _types(program: _Program, lowering: Lowering, floating: Mapping[Storage, DType]) -> Iterator[tuple[Storage, DType]]:
    """The type that each floating activation and weight gets. Buffers, scales and shapes keep theirs."""
    edges = {tensor.storage for tensor in (*program.inputs, *program.outputs)}
    for storage in floating:
        wanted = (lowering.io_dtype or lowering.dtype) if storage in edges else lowering.dtype
        if wanted and storage.kind in {StorageKind.ACTIVATION, StorageKind.PARAMETER, StorageKind.CONSTANT}:
            yield storage, TYPES[wanted]


def _as_type(storage: Storage, before: DType, after: DType) -> Storage:
    elements = Fraction(storage.nbytes * 8) / before.bits
    return replace(storage, nbytes=ceil(elements * after.bits / 8))


def _floating(program: _Program, lowering: Lowering) -> Iterator[Step]:
    """Operations that read or write floating values of another type than those asked for; scales are floating."""
    asked = {lowering.dtype, lowering.io_dtype or lowering.dtype}
    for _, op in program.running():
        for tensor in (*op.tensors(), *op.outputs) if lowering.dtype else ():
            odd = tensor.dtype.name in FLOATS - asked and tensor.storage.kind is not StorageKind.QUANTISER
            if odd and not tensor.is_immediate:
                yield Step(op.name, op.scope, f"left in {tensor.dtype.name}, as {tensor.name} is")
                break


def _channels(program: _Program) -> tuple[Mapping[Storage, int], set[Storage]]:
    """Output channels of each weight that a contraction reads, and the memories that are added to its result."""
    channels: dict[Storage, int] = {}
    biases: set[Storage] = set()
    for _, op in program.running():
        rule, bound = program.rule(op), program.operands(op)
        contraction = rule.contraction if rule else None
        for word, operand in bound.items() if contraction else ():
            if not isinstance(operand, Tensor) or operand.storage.is_activation:
                continue
            if word == "bias":
                biases.add(operand.storage)
            elif operand.shape:
                channels.setdefault(operand.storage, _output_channels(program.kind(op), op, operand))
    return channels, biases


def _output_channels(kind: str, op: Op, weight: Tensor) -> int:
    """The size of the axis that is an output's alone: axis 1 of a convolution, the last one of a product."""
    if kind == "convolution":
        return op.outputs[0].shape[1]
    return op.outputs[0].shape[-1] if kind in {"linear", "matmul"} else weight.shape[0]


def _scales(program: _Program, types: Mapping[Storage, DType], channels: Mapping[Storage, int]) -> Iterator[Weight]:
    """A float32 scale for each output channel of a quantised weight; one for a weight that nothing contracts."""
    seen = set[Storage]()
    for weight in program.weights:
        storage = weight.tensor.storage
        if weight.kind is StorageKind.PARAMETER and types.get(storage, BIAS) != BIAS and storage not in seen:
            seen.add(storage)
            name, count = f"{weight.tensor.name}.scale", channels.get(storage, 1)
            memory = Storage(name, count * SCALE.bits // 8, StorageKind.QUANTISER)
            yield Weight(dense(name, (count,), SCALE, memory))
