"""Results of the commonest operators on meta tensors, without the detour through their kernels.

Torch's own meta kernels decompose batch norm in Python (2 ms a call). Each function here gives
what the kernel gives, or NotImplemented where it would have to think; the tests hold every one of
them against the real kernel's shapes, strides and types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Shape = Callable[..., Any]


def like_input(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """An elementwise function of one dense floating tensor."""
    if not x.is_contiguous() or not x.is_floating_point():
        return NotImplemented
    return torch.empty_like(x)


def itself(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """An in-place elementwise function."""
    return x


def batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: Any
) -> Any:
    """Batch norm with fixed statistics keeps shape, type and memory format."""
    if training or not x.is_contiguous():
        return NotImplemented
    return torch.empty_like(x)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """x (..., k) · weight (n, k) → (..., n)."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    if x.dtype != weight.dtype or (bias is not None and bias.shape != weight.shape[:1]):
        return NotImplemented
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> Any:
    """A dense 2-D convolution: floor((size + 2·padding − dilation·(kernel − 1) − 1) / stride) + 1."""
    if isinstance(padding, str) or x.dim() != 4 or weight.dim() != 4 or x.dtype != weight.dtype:
        return NotImplemented
    if not x.is_contiguous() or not weight.is_contiguous():
        return NotImplemented
    channels = x.shape[1]
    if channels != weight.shape[1] * groups or weight.shape[0] % groups:
        return NotImplemented
    if bias is not None and bias.shape != weight.shape[:1]:
        return NotImplemented
    sizes = []
    for axis in (0, 1):
        at = -1 if len(stride) == 1 else axis
        pad = padding[-1 if len(padding) == 1 else axis]
        spread = dilation[-1 if len(dilation) == 1 else axis]
        span = x.shape[2 + axis] + 2 * pad - spread * (weight.shape[2 + axis] - 1) - 1
        if span < 0 or stride[at] < 1:
            return NotImplemented
        sizes.append(span // stride[at] + 1)
    return x.new_empty((x.shape[0], weight.shape[0], *sizes))


SHAPES: dict[str, Shape] = {
    "aten::batch_norm": batch_norm,
    "aten::conv2d": conv2d,
    "aten::linear": linear,
    **dict.fromkeys(
        (
            "aten::relu_", "aten::hardtanh_", "aten::hardswish_", "aten::silu_", "aten::sigmoid_",
            "aten::leaky_relu_", "aten::relu6_",
        ),
        itself,
    ),
    **dict.fromkeys(
        (
            "aten::relu", "aten::gelu", "aten::silu", "aten::sigmoid", "aten::hardswish",
            "aten::hardsigmoid", "aten::tanh", "aten::layer_norm",
        ),
        like_input,
    ),
}  # fmt: skip
