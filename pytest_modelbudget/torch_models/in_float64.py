"""Torch models in float64: weights, inputs and every operator, and why one fails there that may run in float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.bodies import Reason, RunningMode
from pytest_modelbudget.torch_models.values import CallInputs
from pytest_modelbudget.torch_models.versions import OpOverload, disable_current_modes, schema_of
from pytest_modelbudget.torch_models.weights import module_tree, weights_of

WIDER = {  # what each narrow type is computed in
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
PLAIN = {torch.float64: torch.float32, torch.complex128: torch.complex64}
CPU_ALLOCATOR = "DefaultCPUAllocator"  # whose name tells its errors, of no class of their own, from other ones


def in_float64(model: nn.Module) -> nn.Module:
    """The same module, changed in place: weights and tensor attributes upcast exactly."""
    model.double()  # which leaves complex weights as they are
    for weight in weights_of(module_tree(model)):
        if weight.is_complex():
            weight.data = _widened(weight.data)
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, _widened(value))
    return model


def upcast(inputs: CallInputs) -> CallInputs:
    """The same values in float64."""
    return inputs.each(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


class InFloat64(RunningMode):
    """Turns every narrow type that an operator is given into float64, complex ones into complex128.

    A program that casts to float32 on its way, or holds float32 constants, would round there, and
    the difference between two right programs would be that rounding.
    """

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator in float64."""
        if _writes(func):
            return func(*args, **kwargs)
        return func(*map(_widened, args), **{k: _widened(v) for k, v in kwargs.items()})

    def why(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> Reason:
        """That the memory ran out, or that an operator has no kernel for float64, where it has one for float32."""
        if not isinstance(func, OpOverload):
            return None
        is_on_cpu = type(error) is RuntimeError and CPU_ALLOCATOR in str(error)
        if is_on_cpu or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            return TraceError(
                f"the memory ran out in {schema_of(func).name} in float64, in which a claim runs its first model "
                f"({_first_line(error)}): compare them on smaller inputs"
            )
        # How torch says that a kernel is missing; errors of other classes say other things.
        is_torchs = type(error) in {RuntimeError, NotImplementedError}
        return None if not is_torchs or _writes(func) else _missing_kernel(func, args, kwargs, error)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


@cache
def _writes(func: Any) -> bool:
    return bool(schema_of(func).is_mutable)


def _missing_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> Reason:
    """That an operator has no kernel for float64, where it has one for float32; None where it takes neither."""
    try:
        with disable_current_modes():
            func(*(_as(PLAIN, value) for value in args), **{k: _as(PLAIN, v) for k, v in kwargs.items()})
    except RuntimeError:
        return None
    return TraceError(
        f"{schema_of(func).name} has no kernel for float64, in which a claim runs its first model "
        f"({_first_line(error)}): let that be the model of floats, and hold this one to bounds (kind: lossy)"
    )


def _widened(value: Any) -> Any:
    return _as(WIDER, value)


def _as(types: dict[torch.dtype, torch.dtype], value: Any) -> Any:
    """An argument of an operator, tensors and types in it as a table says."""
    if isinstance(value, torch.Tensor):
        return value.to(types[value.dtype]) if value.dtype in types else value
    if isinstance(value, torch.dtype):
        return types.get(value, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_as(types, each) for each in value)
    return value
