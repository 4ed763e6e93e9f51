"""A second count, by torch's own means: parameters as modules list them, products as its flop formulas give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten


def _grouped_rows(x: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    """x (rows, k) · weights (experts, k, n): each row meets the matrix of its own expert."""
    return 2 * x.shape[0] * x.shape[1] * weights.shape[-1]


def _recurrent(x: Any, states: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    """Every matrix of a recurrent layer is applied once a step; x is (steps, batch, k) or (batch, steps, k)."""
    return 2 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _one_by_one(a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
    """(m, k) · (k,) or (k,) · (k,): a product for each element of the first."""
    return 2 * math.prod(a.shape)


# What torch's own counter knows no formula of, and passes over in silence.
COUNTED_BESIDES: Mapping[Any, Callable[..., int]] = {
    ATEN._grouped_mm: _grouped_rows,
    ATEN.lstm: _recurrent,
    ATEN.gru: _recurrent,
    ATEN.mv: _one_by_one,
    ATEN.dot: _one_by_one,
}


class Products(TorchDispatchMode):
    """Adds up torch's formulas over every operator that runs; composed ones are taken apart first.

    FlopCounterMode does the same, with a tracker of modules that some models of timm break.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func._overloadpacket
        if packet in COUNTED_BESIDES:
            self.flops += COUNTED_BESIDES[packet](*args, **kwargs)
            return func(*args, **kwargs)
        if packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=out)
        return out


def parameters(module: nn.Module) -> int:
    """Elements of all parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def products(module: nn.Module, inputs: Mapping[str, Any], positional: tuple[Any, ...] = ()) -> int:
    """MACs of one forward pass in eval mode, attention by its two products."""
    counter = Products()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        module.eval()(*positional, **inputs)
    assert counter.flops % 2 == 0
    return counter.flops // 2
