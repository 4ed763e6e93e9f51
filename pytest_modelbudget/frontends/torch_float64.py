"""Float64 throughout: weights, inputs, and the types that a program spells out itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

EXACT = {  # what each narrow type is computed in
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}


def in_float64(model: nn.Module) -> nn.Module:
    """The same module, changed in place: weights and tensor attributes upcast exactly."""
    model.double()  # which leaves complex weights as they are
    model._apply(_widened)  # type: ignore[no-untyped-call]  # torch gives no types
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, _widened(value))
    return model


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Turns every narrow type that an operator is given into float64, complex ones into complex128.

    A program that casts to float32 on its way, or holds float32 constants, would round there, and
    the difference between two right programs would be that rounding.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator in float64."""
        if _writes(func):
            return func(*args, **(kwargs or {}))
        return func(*map(_widened, args), **{k: _widened(v) for k, v in (kwargs or {}).items()})


@cache
def _writes(func: Any) -> bool:
    return bool(func._schema.is_mutable)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(EXACT[value.dtype]) if value.dtype in EXACT else value
    if isinstance(value, torch.dtype):
        return EXACT.get(value, value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widened, value))
    return value
