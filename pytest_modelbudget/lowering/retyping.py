"""Values in another type: activations and weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import DType, Storage, StorageKind, Tensor
from pytest_modelbudget.lowering.groups import FLOATING, FORM_OF
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.lowering.weight_scales import added_to_products, bring_scales
from pytest_modelbudget.ops.rule import nothing

TYPES: Mapping[str, DType] = MappingProxyType(
    {name: DType(name, bits) for name, bits in (("int8", 8), ("int16", 16), ("float16", 16), ("bfloat16", 16))}
    | {"float32": DType("float32", 32)}
)
QUANTISED = frozenset({"int8", "int16"})
BIAS = DType("int32", 32)
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
    before = floating_memory(program)
    types = dict(types_of(program, before, dtype, io_dtype))
    if dtype in QUANTISED:
        biases = added_to_products(program)
        types.update(dict.fromkeys(biases & types.keys(), BIAS))
        bring_scales(program, {storage for storage, after in types.items() if after.name in QUANTISED})
    memories = {storage: as_type(storage, before[storage], after) for storage, after in types.items()}
    program.relocate(memories, types)


def floating_memory(program: Program) -> Mapping[Storage, DType]:
    """The floating type of each memory that is read and written as one floating type alone."""
    seen: dict[Storage, set[DType]] = defaultdict(set)
    for tensor in program.tensors():
        seen[tensor.storage].add(tensor.dtype)
    single = {storage: next(iter(dtypes)) for storage, dtypes in seen.items() if len(dtypes) == 1}
    return {storage: dtype for storage, dtype in single.items() if dtype.name in FLOATING}


def types_of(
    program: Program, before: Mapping[Storage, DType], dtype: str, io_dtype: str
) -> Iterator[tuple[Storage, DType]]:
    """The type that each floating activation and weight gets. Buffers, scales and shapes keep theirs."""
    edges = {tensor.storage for tensor in (*program.inputs, *program.outputs)}
    scales = {tensor.storage for _, op in program.running() for tensor in op.scales}
    stays = _stays(program, before, dtype) if dtype else set[Storage]()
    for storage in before:
        wanted = "" if storage in stays else dtype
        if storage in edges:
            wanted = io_dtype or wanted
        if wanted and storage.kind in STORED and storage not in scales:
            yield storage, TYPES[wanted]


def _stays(program: Program, before: Mapping[Storage, DType], dtype: str) -> set[Storage]:
    """The memory that keeps its floating type; lists the operations that keep it so."""
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
    """Return whether a runtime may compute it on integers; what computes nothing moves them."""
    rule = program.rule(op)
    if rule is None:
        return False
    return op.is_view or rule.kind in ON_INTEGERS or (rule.macs is nothing and rule.flops is nothing)


def as_type(storage: Storage, before: DType, after: DType) -> Storage:
    """The memory for as many elements of another type."""
    elements = Fraction(storage.nbytes * 8) / before.bits
    return replace(storage, nbytes=ceil(elements * after.bits / 8))
