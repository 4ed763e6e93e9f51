"""Results that take the memory of what they are made from."""

from __future__ import annotations

from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.lowering.folding import CLAMPS
from pytest_modelbudget.lowering.program import Program, Step
from pytest_modelbudget.ops.convolution import groups

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
