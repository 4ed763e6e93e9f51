"""Values in another type: activations and weights, with the scales that quantised weights bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from pytest_modelbudget.graph.graph import Op, Weight
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor, dense
from pytest_modelbudget.lowering.groups import FLOATING, FORM_OF
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.ops.rule import Contraction, nothing

TYPES: Mapping[str, DType] = MappingProxyType(
    {name: DType(name, bits) for name, bits in (("int8", 8), ("int16", 16), ("float16", 16), ("bfloat16", 16))}
    | {"float32": DType("float32", 32)}
)
QUANTISED = frozenset({"int8", "int16"})
SCALE, BIAS = TYPES["float32"], DType("int32", 32)
STORED = frozenset({StorageKind.ACTIVATION, StorageKind.PARAMETER, StorageKind.CONSTANT})
# Kinds that compute on integers beside those that QDQ files have: ``groups.FORMS``.
ON_INTEGERS = FORM_OF.keys() | {
    "attention", "einsum", "norm", "lp_norm",  # products, softmax, squares, roots: each has its form
    "comparison", "masked_fill", "any_all", "isnan", "logical_not",  # compare, and choose
    "pow", "rounding", "sign", "log_sigmoid", "hardshrink", "softshrink", "threshold",  # a value for each integer
    "quantize", "dequantize",
}  # fmt: skip


def retype(program: Program, dtype: str, io_dtype: str) -> None:
    """Store floating values in another type, those of inputs and outputs in theirs; "" leaves them as they are.

    Quantised weights bring a float32 scale for each output channel, and their biases are int32. What no runtime
    computes on integers keeps its operands and results, and is listed.
    """
    before = _dtype_of(program)
    types = dict(_types(program, before, dtype, io_dtype))
    if dtype in QUANTISED:
        channels, biases = _channels(program)
        types.update(dict.fromkeys(biases & types.keys(), BIAS))
        program.weights.extend(_scales(program, types, channels))
    memories = {storage: _as_type(storage, before[storage], after) for storage, after in types.items()}
    program.relocate(memories, types)


def _dtype_of(program: Program) -> Mapping[Storage, DType]:
    """The floating type of each memory that is read and written as one floating type alone."""
    seen: dict[Storage, set[DType]] = defaultdict(set)
    for tensor in program.tensors():
        seen[tensor.storage].add(tensor.dtype)
    single = {storage: next(iter(dtypes)) for storage, dtypes in seen.items() if len(dtypes) == 1}
    return {storage: dtype for storage, dtype in single.items() if dtype.name in FLOATING}


def _types(
    program: Program, before: Mapping[Storage, DType], dtype: str, io_dtype: str
) -> Iterator[tuple[Storage, DType]]:
    """The type that each floating activation and weight gets. Buffers, scales and shapes keep theirs."""
    edges = {tensor.storage for tensor in (*program.inputs, *program.outputs)}
    stays = _stays(program, before, dtype) if dtype else set[Storage]()
    for storage in before:
        wanted = "" if storage in stays else dtype
        if storage in edges:
            wanted = io_dtype or wanted
        if wanted and storage.kind in STORED:
            yield storage, TYPES[wanted]


def _stays(program: Program, before: Mapping[Storage, DType], dtype: str) -> set[Storage]:
    """What keeps its floating type, listed by the operations for which it does."""
    stays: set[Storage] = set()
    for _, op in program.running():
        floating = [tensor for tensor in (*op.tensors(), *op.outputs) if tensor.dtype.name in FLOATING]
        others = [tensor for tensor in floating if tensor.dtype.name != dtype]
        program.left += _left(program, op, others, before, quantised=dtype in QUANTISED)
        if dtype in QUANTISED and not _is_on_integers(program, op):
            stays.update(tensor.storage for tensor in floating)
    return stays


def _left(
    program: Program, op: Op, floating: list[Tensor], before: Mapping[Storage, DType], *, quantised: bool
) -> list[Step]:
    """Why an operation, or the first of its tensors that does, keeps its type; nothing where all are lowered."""
    if floating and quantised and not _is_on_integers(program, op):
        names = ", ".join(dict.fromkeys(tensor.dtype.name for tensor in floating))
        why = f"no runtime is known that has {program.kind(op) or 'it'} on integers"
        return [Step(op.name, op.scope, f"stays {names}: {why}", names)]
    for tensor in floating:
        is_buffer = tensor.storage.kind is StorageKind.BUFFER and not tensor.is_immediate
        if is_buffer or tensor.storage not in before:
            why = "it is a buffer, and no weight" if is_buffer else "it lies in memory of several types"
            name = tensor.dtype.name
            return [Step(op.name, op.scope, f"{tensor.name} stays {name}: {why}", name)]
    return []


def _is_on_integers(program: Program, op: Op) -> bool:
    """Whether a runtime may compute it on integers; what computes nothing moves them."""
    rule = program.rule(op)
    if rule is None:
        return False
    return op.is_view or rule.kind in ON_INTEGERS or (rule.macs is nothing and rule.flops is nothing)


def _as_type(storage: Storage, before: DType, after: DType) -> Storage:
    elements = Fraction(storage.nbytes * 8) / before.bits
    return replace(storage, nbytes=ceil(elements * after.bits / 8))


# What quantised weights bring.


def _channels(program: Program) -> tuple[Mapping[Storage, int], set[Storage]]:
    """Output channels of each weight that a contraction reads, and the memories that are added to its result."""
    channels: dict[Storage, int] = {}
    biases: set[Storage] = set()
    stored = {weight.tensor.storage: weight.tensor for weight in reversed(program.weights)}
    for _, op in program.running():
        rule, bound = program.rule(op), program.operands(op)
        contraction = rule.contraction if rule else None
        for word, operand in bound.items():
            if contraction is None or not isinstance(operand, Tensor) or operand.storage.is_activation:
                continue
            if word == "bias":
                biases.add(operand.storage)
            elif word in contraction.of and operand.shape and operand.storage not in channels:
                whole = stored.get(operand.storage, operand)
                channels[operand.storage] = _output_channels(program.kind(op), op, contraction, operand, whole)
    return channels, biases


def _output_channels(kind: str, op: Op, contraction: Contraction, part: Tensor, whole: Tensor) -> int:
    """How many outputs of their own a stored weight has, of which an operation reads a part, or all.

    A convolution's are the channels of its result, in front of its positions. A tile is a part of rows that go on in
    others, so that the rows of the whole count; a part whose axes are not those of the whole has its share of channels.
    """
    if part.elements != whole.elements and (shape := _shape_in_axes_of(part, whole)):
        return whole.elements // max(contraction.fan_in(shape, op.attributes), 1)
    if kind == "convolution":
        count = op.outputs[0].shape[1 - len(part.shape)]
    else:
        count = part.elements // max(contraction.fan_in(part.shape, op.attributes), 1)
    return ceil(Fraction(count * whole.elements, max(part.elements, 1)))


def _shape_in_axes_of(part: Tensor, whole: Tensor) -> tuple[int, ...]:
    """The sizes of the whole along the axes of a slice of it, also a transposed one; () where it has other axes."""
    size_of = dict(zip(whole.strides, whole.shape, strict=True))
    is_slice = len(size_of) == len(part.strides) and size_of.keys() == set(part.strides)
    return tuple(size_of[stride] for stride in part.strides) if is_slice else ()


def _scales(program: Program, types: Mapping[Storage, DType], channels: Mapping[Storage, int]) -> Iterator[Weight]:
    """A float32 scale for each output channel of a quantised weight; one for a weight that nothing contracts."""
    seen = set[Storage]()
    for weight in program.weights:
        storage = weight.tensor.storage
        if weight.kind is StorageKind.PARAMETER and types.get(storage, BIAS) != BIAS and storage not in seen:
            seen.add(storage)
            name, count = f"{weight.tensor.name}.scale", channels.get(storage, 1)
            memory = Storage(name, count * SCALE.bits // 8, StorageKind.QUANTISER)
            yield Weight(dense(name, (count,), SCALE, memory))
