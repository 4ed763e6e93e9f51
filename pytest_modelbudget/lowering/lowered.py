"""A program as a device runs it: batch norms folded, activations fused, values in another type, results in place.

A pure function from Graph to Graph. It goes by the kind of an operation, whatever format it came from, and never
changes ``macs``. Everything done, and everything left, is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_modelbudget.errors import DeviceError
from pytest_modelbudget.graph.graph import Graph, Op
from pytest_modelbudget.graph.rewrite import with_ways
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.lowering.dequantised_weights import with_dequantised_weights
from pytest_modelbudget.lowering.folding import CLAMPS, fold_batchnorms, fuse_activations
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.lowering.qdq import Read, read_qdq
from pytest_modelbudget.lowering.retyping import TYPES, retype
from pytest_modelbudget.ops.convolution import groups
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.units import several

IN_PLACE = ("none", "elementwise", "depthwise")


@dataclass(frozen=True, slots=True)
class Lowering:
    """The passes of a device's compiler; see docs/devices.md. dtype "" leaves types as they are written."""

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
            raise DeviceError(f"in_place is '{self.in_place}': {', '.join(IN_PLACE)}")


@dataclass(frozen=True, slots=True)
class Lowered:
    """The program that runs on the device, what stands for each tensor that is gone, and what was done and left."""

    graph: Graph
    became: Mapping[Tensor, Tensor]
    done: tuple[Step, ...] = ()
    left: tuple[Step, ...] = ()

    @property
    def reservation(self) -> str:
        """One line where something stays in a floating type; "" where nothing does, or no other one was asked for."""
        staying = [step for step in self.left if step.stays]
        if not staying:
            return ""
        types, first = ", ".join(sorted({step.stays for step in staying})), staying[0]
        where = f"{first.op} in {first.scope}" if first.scope else first.op
        return f"{several(len(staying), 'operation')} left in {types}, first {where}"


def as_read(graph: Graph, rules: OpTable, *, on_integers: bool) -> Read:
    """The graph as a runtime reads a file: integers that stand for weights are such, QDQ is operations on integers."""
    graph = with_dequantised_weights(graph, rules)
    return read_qdq(graph, rules) if on_integers else Read(graph, {})


def lowered(graph: Graph, rules: OpTable, lowering: Lowering) -> Lowered:
    """The graph after every pass that is asked for, in the order of a compiler.

    What has a plan of its memory is compiled already: nothing is folded or fused, which the plan would not fit.
    """
    inside = replace(lowering, dtype="", io_dtype="", in_place="none")  # neither changes which operations run
    program = Program(with_ways(graph, lambda way: lowered(way, rules, inside).graph), rules)
    if lowering.fold_batchnorm and not graph.offsets:
        fold_batchnorms(program)
    if lowering.fuse_activations and not graph.offsets:
        fuse_activations(program, frozenset(lowering.fuse_activations))
    if lowering.in_place != "none":
        work_in_place(program, depthwise=lowering.in_place == "depthwise")
    if lowering.dtype or lowering.io_dtype:
        retype(program, lowering.dtype, lowering.io_dtype)
    return Lowered(program.graph(), program.became(), tuple(program.done), tuple(program.left))


ELEMENTWISE = (
    CLAMPS
    | {"abs", "add", "addcmul", "batch_norm", "div", "erf", "exp", "lerp", "log", "maximum", "mul", "neg", "pow"}
    | {"reciprocal", "rounding", "rsqrt", "sign", "sqrt", "square", "sub"}
    | {"celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu", "log_sigmoid", "logit", "mish"}
    | {"prelu", "relu", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh", "threshold"}
)


def work_in_place(program: Program, *, depthwise: bool) -> None:
    """Have a result take the memory of an operand that dies there: elementwise, and depthwise on request.

    An operand is the whole of its memory, and as large as the result, element by element; of a depthwise convolution
    no smaller, and its rows that are still needed lie in a buffer that is not counted.
    """
    readers = program.readers()
    kept = {tensor.storage for tensor in (*program.inputs, *program.outputs, *program.states)}
    merged: dict[Storage, Storage] = {}
    runs: dict[Storage, int] = {}  # in which each memory was made: what a body reads in every run does not die in one
    for position, op in program.running():
        runs.update(dict.fromkeys((output.storage for output in op.fresh_outputs), op.run))
        in_depth = depthwise and _is_depthwise(program, op)
        if len(op.fresh_outputs) != 1 or not (in_depth or program.kind(op) in ELEMENTWISE):
            continue
        (result,) = op.fresh_outputs
        for tensor in op.tensors():
            memory = merged.get(tensor.storage, tensor.storage)
            dies = readers[tensor.storage][-1:] == [position] and tensor.storage not in kept
            dies = dies and runs.get(tensor.storage) == op.run
            fits = tensor.shape == result.shape or (in_depth and result.nbytes <= tensor.nbytes)
            fits = fits and tensor.dtype == result.dtype and _is_whole(tensor, op)
            if memory.is_activation and dies and fits and not memory.unsized:
                merged[result.storage] = memory
                program.done.append(Step(op.name, op.scope, f"works in the memory of {tensor.name}"))
                break
    program.relocate(merged)


def _is_whole(tensor: Tensor, op: Op) -> bool:
    """Return whether a tensor fills its memory, which the operation reads through no other view."""
    same = (other for other in op.tensors() if other.storage is tensor.storage)
    return tensor.nbytes == tensor.storage.nbytes and all(other is tensor for other in same)


def _is_depthwise(program: Program, op: Op) -> bool:
    """Return whether each filter of a convolution reads one channel, which no other one reads."""
    operands = program.operands(op)
    x, weight = operands.get("x"), operands.get("weight")
    if program.kind(op) != "convolution" or not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        return False
    if op.unsized or len(weight.shape) < 3 or weight.shape[1] != 1:
        return False
    return groups(x=x, weight=weight, out=op.outputs[0], attributes=op.attributes) == weight.shape[0] > 1
