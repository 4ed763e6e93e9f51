"""Results of the commonest operators on meta tensors, without the detour through their kernels.

Torch's own meta kernels run in Python and take 0.1 to 2 ms a call. Each function here gives what
the kernel gives, or NotImplemented where it would have to think; the tests hold every one of
them against the real kernel's shapes, strides and types.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = Callable[..., Any]
META = torch.device("meta")


def _dense(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def unary(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function of each element of one dense floating tensor."""
    if not x.is_floating_point() or not x.is_contiguous():
        return NotImplemented
    if any(isinstance(arg, (torch.Tensor, torch.dtype)) for arg in (*args, *kwargs.values())):
        return NotImplemented  # broadcasts, or converts
    return _dense(x.shape, x.dtype)


def bounded(x: torch.Tensor, low: Any = None, high: Any = None) -> Any:
    """clamp, with at least one bound."""
    return NotImplemented if low is None and high is None else unary(x, low, high)


def softmax(x: torch.Tensor, dim: int, dtype: Any = None) -> Any:
    """Softmax along a dimension that exists."""
    return unary(x, dtype) if -x.dim() <= dim < x.dim() else NotImplemented


def in_place(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function of each element that overwrites its operand."""
    return x


def binary(x: Any, y: Any, **kwargs: Any) -> Any:
    """Dense floating operands of one type, one of which has the shape of the result."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.is_contiguous():
        return NotImplemented
    if isinstance(y, (int, float)):
        return _dense(x.shape, x.dtype)
    if not isinstance(y, torch.Tensor) or y.dtype != x.dtype or not y.is_contiguous():
        return NotImplemented
    large, small = (x, y) if x.dim() >= y.dim() and x.numel() >= y.numel() else (y, x)
    if not _stretches(small.shape, large.shape):
        return NotImplemented
    return _dense(large.shape, x.dtype)


def in_place_binary(x: torch.Tensor, y: Any, **kwargs: Any) -> Any:
    """x += y and its like, where y fits into x and into its type."""
    if isinstance(y, torch.Tensor):
        if y.dtype != x.dtype or not _stretches(y.shape, x.shape):
            return NotImplemented
    elif not (x.is_floating_point() and isinstance(y, (int, float))):
        return NotImplemented
    return x


def _stretches(small: Sequence[int], large: Sequence[int]) -> bool:
    """Whether broadcasting small against large gives large."""
    if len(small) > len(large):
        return False
    tail = large[len(large) - len(small) :]
    return all(s in (1, t) for s, t in zip(small, tail, strict=True))


def batch_norm(x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: Any) -> Any:
    """Batch norm with fixed statistics keeps shape and type; (n, c, ...) with c statistics."""
    if training or not x.is_contiguous() or x.dim() < 2:
        return NotImplemented
    if any(part is not None and part.shape != x.shape[1:2] for part in (weight, bias, mean)):
        return NotImplemented
    return _dense(x.shape, x.dtype)


def layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: Any = None, *rest: Any) -> Any:
    """Layer norm over the last dimensions; the result is dense whatever x was."""
    if tuple(x.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        return NotImplemented
    if weight is not None and (weight.dtype != x.dtype or tuple(weight.shape) != tuple(normalized_shape)):
        return NotImplemented
    return _dense(x.shape, x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """x (..., k) · weight (n, k) → (..., n)."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    if x.dtype != weight.dtype or (bias is not None and bias.shape != weight.shape[:1]):
        return NotImplemented
    return _dense((*x.shape[:-1], weight.shape[0]), x.dtype)


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> Any:
    """A dense 2-D convolution: ⌊(size + 2·padding - dilation·(kernel - 1) - 1) / stride⌋ + 1."""
    if isinstance(padding, str) or x.dim() != 4 or weight.dim() != 4 or x.dtype != weight.dtype:
        return NotImplemented
    if not x.is_contiguous() or not weight.is_contiguous() or not _are_pairs(stride, padding, dilation):
        return NotImplemented
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return NotImplemented
    if bias is not None and bias.shape != weight.shape[:1]:
        return NotImplemented
    sizes = []
    for axis in (0, 1):
        spread = _at(dilation, axis) * (weight.shape[2 + axis] - 1) + 1
        span = x.shape[2 + axis] + 2 * _at(padding, axis) - spread
        if span < 0 or _at(stride, axis) < 1:
            return NotImplemented
        sizes.append(span // _at(stride, axis) + 1)
    return _dense((x.shape[0], weight.shape[0], *sizes), x.dtype)


def _are_pairs(*arguments: Sequence[int]) -> bool:
    """Whether each has one size for both axes, or one for each."""
    return all(len(sizes) in {1, 2} for sizes in arguments)


def _at(sizes: Sequence[int], axis: int) -> int:
    """One size per axis, or one for all."""
    return sizes[axis if len(sizes) > 1 else 0]


def adaptive_avg_pool2d(x: torch.Tensor, output_size: Sequence[int]) -> Any:
    """The last two dimensions become the size asked for."""
    if x.dim() != 4 or not x.is_contiguous() or len(output_size) != 2:
        return NotImplemented
    return _dense((*x.shape[:2], *output_size), x.dtype)


def max_pool2d(
    x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Any:
    """x (n, c, h, w) → (n, c, h', w'): the largest of each window, without holes."""
    has_holes = not _are_pairs(dilation) or set(dilation) != {1}
    return NotImplemented if has_holes else _pooled(x, kernel, stride, padding, ceil_mode)


def avg_pool2d(
    x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False, *rest: Any
) -> Any:
    """x (n, c, h, w) → (n, c, h', w'): the mean of each window; what the divisor counts changes no shape."""
    return _pooled(x, kernel, stride, padding, ceil_mode) if 0 not in rest else NotImplemented


def _pooled(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> Any:
    """(size + 2·padding - kernel) / stride + 1 windows, rounded down, or up where the last one begins inside.

    Without a stride, it is the kernel's.
    """
    if x.dim() != 4 or not x.is_floating_point() or not x.is_contiguous() or not x.numel():
        return NotImplemented
    if not _are_pairs(kernel, stride or kernel, padding):
        return NotImplemented
    sizes = []
    for axis in (0, 1):
        size, window, pad, step = x.shape[2 + axis], _at(kernel, axis), _at(padding, axis), _at(stride or kernel, axis)
        if step < 1 or not 0 <= 2 * pad <= window <= size + 2 * pad:
            return NotImplemented
        last = size + 2 * pad - window
        count = (-(-last // step) if ceil_mode else last // step) + 1
        sizes.append(count - (ceil_mode and (count - 1) * step >= size + pad))
    return _dense((*x.shape[:2], *sizes), x.dtype)


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """x of any shape → the same: elements move along dimensions that exist, and come in again at the other end."""
    fits = len(shifts) == len(dims) and all(-x.dim() <= dim < x.dim() for dim in dims)
    return _dense(x.shape, x.dtype) if fits and x.is_contiguous() and dims else NotImplemented


def masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    """A floating x, and a boolean mask that broadcasts to its shape → that shape, a number where the mask says so."""
    fits = mask.dtype == torch.bool and mask.is_contiguous() and _stretches(mask.shape, x.shape)
    if not fits or not x.is_floating_point() or not x.is_contiguous() or not isinstance(value, (int, float)):
        return NotImplemented
    return _dense(x.shape, x.dtype)


def reduced(x: torch.Tensor, cuda: bool, cpu: bool, cuda_type: torch.dtype, cpu_type: torch.dtype) -> Any:
    """x under the autocast of a script: in the CPU's type where that is on, as everything here is of a CPU."""
    return x.to(cpu_type) if cpu and x.dtype is torch.float32 else x


def restored(x: torch.Tensor, cuda: bool, cpu: bool) -> Any:
    """x of a shorter type in float32 again, under the autocast of a script."""
    return x.float() if cpu and x.dtype in {torch.bfloat16, torch.float16} else x


def cat(parts: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Dense parts of one type and rank, equal but for the joined dimension."""
    first = parts[0]
    rank = first.dim()
    if not -rank <= dim < rank:
        return NotImplemented
    axis = dim % rank
    shape = list(first.shape)
    for part in parts:
        if part.dim() != rank or part.dtype != first.dtype or not part.is_contiguous():
            return NotImplemented
        if any(a != b for i, (a, b) in enumerate(zip(part.shape, shape)) if i != axis):  # noqa: B905
            return NotImplemented
    shape[axis] = sum(part.shape[axis] for part in parts)
    return _dense(shape, first.dtype)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """query (..., l, e), key (..., s, e), value (..., s, v) → (..., l, v), heads of the query."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query.shape[0] != key.shape[0]:
        return NotImplemented
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        return NotImplemented
    grouped = options.get("enable_gqa") and key.shape[1] and query.shape[1] % key.shape[1] == 0
    if query.shape[1] != key.shape[1] and not grouped:
        return NotImplemented
    if rest or options.get("attn_mask") is not None:
        return NotImplemented  # whether a mask fits is the kernel's to say
    return _dense((*query.shape[:-1], value.shape[-1]), query.dtype)


UNARY = "relu gelu silu sigmoid hardswish hardsigmoid hardtanh tanh exp rsqrt neg cos sin"
IN_PLACE = "relu_ hardtanh_ hardswish_ silu_ sigmoid_ leaky_relu_ relu6_ hardsigmoid_"

SHAPES: dict[str, Shape] = {
    **{f"aten::{name}": unary for name in UNARY.split()},
    **{f"aten::{name}": in_place for name in IN_PLACE.split()},
    **{f"aten::{name}": binary for name in ("add", "sub", "mul", "div")},
    **{f"aten::{name}_": in_place_binary for name in ("add", "sub", "mul", "div")},
    "aten::_autocast_to_full_precision": restored,
    "aten::_autocast_to_reduced_precision": reduced,
    "aten::adaptive_avg_pool2d": adaptive_avg_pool2d,
    "aten::avg_pool2d": avg_pool2d,
    "aten::clamp": bounded,
    "aten::clamp_min": bounded,
    "aten::softmax": softmax,
    "aten::batch_norm": batch_norm,
    "aten::cat": cat,
    "aten::conv2d": conv2d,
    "aten::layer_norm": layer_norm,
    "aten::linear": linear,
    "aten::masked_fill": masked_fill,
    "aten::max_pool2d": max_pool2d,
    "aten::roll": roll,
    "aten::scaled_dot_product_attention": attention,
}
