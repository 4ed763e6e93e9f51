"""Results of the commonest operators on meta tensors, without the detour through their kernels.

Torch's own meta kernels run in Python and take 0.1 to 2 ms a call, and those of recurrent layers as much for each step
of a sequence. Each function here gives what the kernel gives, or NotImplemented
where it would have to think; the tests hold every one of them against the real kernel's shapes, strides and types.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_modelbudget.torch_models.layouts import is_row_major

Shape = Callable[..., Any]
META = torch.device("meta")
FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def _dense(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def unary(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function of each element of one dense floating tensor."""
    if x.dtype not in FLOATS or not x.is_contiguous():
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
    """A function of each element that overwrites its floating operand."""
    return x if x.dtype in FLOATS else NotImplemented


def binary(x: Any, y: Any, *rest: Any, **kwargs: Any) -> Any:
    """Floating operands of one type, x dense and y dense but for what it repeats; one has the shape of the result."""
    return _of_two(x, y) if isinstance(x, torch.Tensor) and x.dtype in FLOATS else NotImplemented


def arithmetic(x: Any, y: Any, alpha: Any = 1) -> Any:
    """The same, and integers of one type, of which the result is one; alpha is what y is multiplied by."""
    if not isinstance(alpha, (int, float)):
        return NotImplemented
    is_whole = isinstance(x, torch.Tensor) and x.dtype in INTEGERS
    return _of_two(x, y) if is_whole and not isinstance(y, float) and not isinstance(alpha, float) else binary(x, y)


def _of_two(x: torch.Tensor, y: Any) -> Any:
    if isinstance(y, (int, float)):
        return _dense(x.shape, x.dtype) if is_row_major(x) else NotImplemented
    if not isinstance(y, torch.Tensor) or y.dtype != x.dtype or not x.is_contiguous():
        return NotImplemented
    if x.shape == y.shape and y.is_contiguous():
        return _dense(x.shape, x.dtype)
    large, small = (x, y) if x.dim() >= y.dim() and x.numel() >= y.numel() else (y, x)
    if not is_row_major(large) or not (is_row_major(small) or _repeats(small)):
        return NotImplemented
    return _dense(large.shape, x.dtype) if _stretches(small.shape, large.shape) else NotImplemented


def _repeats(x: torch.Tensor) -> bool:
    """Whether it is dense but for dimensions along which its elements are the same ones, as ``expand`` makes them."""
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride:
            if stride != step:
                return False
            step *= size
    return True


def compared(x: Any, y: Any) -> Any:
    """Whether each element of x is as one of y, or as a number, demands; operands as of ``arithmetic``."""
    result = arithmetic(x, y)
    return result if result is NotImplemented else _dense(result.shape, torch.bool)


def where(condition: torch.Tensor, x: Any = None, y: Any = None) -> Any:
    """Elements of x or of y, dense and of one type, as a boolean condition says; one has the shape of the result."""
    operands = (condition, x, y)
    if condition.dtype != torch.bool or not all(isinstance(each, torch.Tensor) for each in operands):
        return NotImplemented
    largest = max(operands, key=lambda each: (each.dim(), each.numel()))
    if x.dtype != y.dtype or not _are_dense_together(operands):
        return NotImplemented
    if not all(_stretches(each.shape, largest.shape) for each in operands):
        return NotImplemented
    return _dense(largest.shape, x.dtype)


def _are_dense_together(operands: Sequence[torch.Tensor]) -> bool:
    """Whether what a kernel makes of each element of them is row-major: one row each, or nothing else to keep."""
    if all(each.shape == operands[0].shape for each in operands):
        return all(each.is_contiguous() for each in operands)
    return all(map(is_row_major, operands))


def in_place_binary(x: torch.Tensor, y: Any, alpha: Any = 1) -> Any:
    """x += y and its like, where y fits into x and into its type; alpha is what y is multiplied by."""
    if not isinstance(alpha, (int, float)) or (isinstance(alpha, float) and x.dtype not in FLOATS):
        return NotImplemented
    if isinstance(y, torch.Tensor):
        if y.dtype != x.dtype or not _stretches(y.shape, x.shape):
            return NotImplemented
    elif not (x.dtype in FLOATS and isinstance(y, (int, float))):
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
    if training or not x.is_contiguous() or x.dim() < 2 or not x.numel() or x.dtype not in FLOATS:
        return NotImplemented
    if mean is None or variance is None:
        return NotImplemented
    channels, dtypes = x.shape[1:2], (x.dtype, torch.float32)
    for part in (weight, bias, mean, variance):
        if part is not None and (part.shape != channels or part.dtype not in dtypes):
            return NotImplemented
    return _dense(x.shape, x.dtype)


def layer_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: Any = None, *rest: Any) -> Any:
    """Layer norm over the last dimensions of a floating x; the result is dense whatever x was."""
    if not normalized_shape or tuple(x.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        return NotImplemented
    if x.dtype not in FLOATS:
        return NotImplemented
    if weight is not None and (weight.dtype != x.dtype or tuple(weight.shape) != tuple(normalized_shape)):
        return NotImplemented
    return _dense(x.shape, x.dtype)


def rms_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: Any = None, *rest: Any) -> Any:
    """The same by root mean squares, of a dense x: the result of another one may keep its strides."""
    return layer_norm(x, normalized_shape, weight) if is_row_major(x) else NotImplemented


def group_norm(x: torch.Tensor, groups: int, weight: Any = None, bias: Any = None, *rest: Any) -> Any:
    """x (n, c, ...), whose channels are normalised in groups of equal size → the same."""
    if x.dim() < 2 or groups < 1 or x.shape[1] % groups or not x.numel() or not is_row_major(x):
        return NotImplemented
    if any(part is not None and (part.dtype != x.dtype or part.shape != x.shape[1:2]) for part in (weight, bias)):
        return NotImplemented
    return _dense(x.shape, x.dtype) if x.dtype in FLOATS else NotImplemented


def over_dims(x: torch.Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """One number for all elements of a dense floating x along some dimensions, or along all of them."""
    if isinstance(dims, (bool, int)) or dtype is not None or x.dtype not in FLOATS:
        return NotImplemented
    dims = dims or range(x.dim())
    axes = {dim % x.dim() for dim in dims if -x.dim() <= dim < x.dim()}
    if len(axes) != len(dims) or not x.numel() or not x.is_contiguous():
        return NotImplemented
    return _dense([1 if at in axes else size for at, size in enumerate(x.shape) if keepdim or at not in axes], x.dtype)


def norm(x: torch.Tensor, order: Any = 2, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """A vector norm of any order over some dimensions."""
    return over_dims(x, dims, keepdim, **options)


def spread(
    x: torch.Tensor, dims: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Variances or deviations over some dimensions, whatever is taken off the number of elements."""
    return over_dims(x, dims, keepdim)


def cumulative(x: torch.Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Sums up to each element of a dense floating x, or one of long integers, along a dimension that exists."""
    fits = x.dtype in FLOATS or x.dtype == torch.int64
    if not fits or dtype is not None or not x.is_contiguous() or not -x.dim() <= dim < x.dim():
        return NotImplemented
    return _dense(x.shape, x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """x (..., k) · weight (n, k) → (..., n)."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    if x.dtype != weight.dtype or not _is_bias(bias, weight):
        return NotImplemented
    return _dense((*x.shape[:-1], weight.shape[0]), x.dtype)


def grouped_mm(x: torch.Tensor, weight: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """x (rows, in) · weight (groups, in, out) → (rows, out). Before torch 2.15, its meta kernel refuses float32."""
    is_plain = x.dtype in FLOATS - {torch.float64} and x.dtype == weight.dtype and out_dtype in (None, x.dtype)
    fits = x.dim() == 2 and weight.dim() == 3 and x.shape[1] == weight.shape[1] and offs is not None and bias is None
    if not (is_plain and fits) or weight.shape[2] * x.element_size() % 16:
        return NotImplemented
    return _dense((x.shape[0], weight.shape[2]), x.dtype)


def _is_bias(bias: torch.Tensor | None, weight: torch.Tensor) -> bool:
    """Whether there is none, or a number for each row of the weight, in its type."""
    return bias is None or (bias.shape == weight.shape[:1] and bias.dtype == weight.dtype)


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
    if not is_row_major(x) or not is_row_major(weight) or not _are_pairs(stride, padding, dilation):
        return NotImplemented
    if x.dtype not in FLOATS or not weight.numel() or not _is_bias(bias, weight):
        return NotImplemented
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return NotImplemented
    if min(padding) < 0 or min(dilation) < 1:
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
    if x.dim() != 4 or not is_row_major(x) or len(output_size) != 2:
        return NotImplemented
    if x.dtype not in FLOATS or not x.numel() or min(output_size) < 1:
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
    if x.dim() != 4 or x.dtype not in FLOATS or not is_row_major(x) or not x.numel():
        return NotImplemented
    if not _are_pairs(kernel, stride or kernel, padding):
        return NotImplemented
    sizes = []
    for axis in (0, 1):
        size, window, pad, step = x.shape[2 + axis], _at(kernel, axis), _at(padding, axis), _at(stride or kernel, axis)
        if step < 1 or window < 1 or not 0 <= 2 * pad <= window <= size + 2 * pad:
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
    fits = mask.dtype == torch.bool and _stretches(mask.shape, x.shape) and _are_dense_together((x, mask))
    if not fits or x.dtype not in FLOATS or not isinstance(value, (int, float)):
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
        if part.dim() != rank or part.dtype != first.dtype or not is_row_major(part):
            return NotImplemented
        if any(a != b for i, (a, b) in enumerate(zip(part.shape, shape)) if i != axis):  # noqa: B905
            return NotImplemented
    shape[axis] = sum(part.shape[axis] for part in parts)
    return _dense(shape, first.dtype)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """query (n, h, l, e), key (n, h, s, e), value (n, h, s, v) → (n, h, l, v); a mask broadcasts to (n, h, l, s)."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query.shape[0] != key.shape[0]:
        return NotImplemented
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        return NotImplemented
    grouped = enable_gqa and key.shape[1] and query.shape[1] % key.shape[1] == 0
    if query.shape[1] != key.shape[1] and not grouped:
        return NotImplemented
    if dropout_p or query.dtype not in FLOATS or not query.dtype == key.dtype == value.dtype:
        return NotImplemented
    if attn_mask is not None and (is_causal or not _masks(attn_mask, query, key.shape[-2])):
        return NotImplemented
    return _dense((*query.shape[:-1], value.shape[-1]), query.dtype)


def _masks(mask: torch.Tensor, query: torch.Tensor, length: int) -> bool:
    """Whether a mask of scores, boolean or of the query's type, broadcasts to those of its queries and as many keys."""
    scores = (*query.shape[:-1], length)
    return mask.dtype in {torch.bool, query.dtype} and mask.dim() >= 2 and _stretches(mask.shape, scores)


def lstm(x: torch.Tensor, second: Any, third: Any, *rest: Any) -> Any:
    """An LSTM of x with the states (h, c), or of packed x with its batch sizes: outputs, last h and last c.

    h is (layers · directions, n, p) and c (layers · directions, n, k), where p is k unless h is projected.
    """
    if isinstance(second, torch.Tensor):  # x, batch sizes, (h, c)
        return _recurrent(4, x, third, *rest, packed=True)
    return _recurrent(4, x, second, third, *rest)


def gru(x: torch.Tensor, second: torch.Tensor, third: Any, *rest: Any) -> Any:
    """A GRU of x with the state h, or of packed x with its batch sizes: outputs and last h."""
    return _of_one_state(3, x, second, third, *rest)


def rnn(x: torch.Tensor, second: torch.Tensor, third: Any, *rest: Any) -> Any:
    """A simple recurrent network, as a GRU with one gate."""
    return _of_one_state(1, x, second, third, *rest)


def _of_one_state(gates: int, x: torch.Tensor, second: torch.Tensor, third: Any, *rest: Any) -> Any:
    if isinstance(third, torch.Tensor):  # x, batch sizes, h
        return _recurrent(gates, x, [third], *rest, packed=True)
    return _recurrent(gates, x, [second], third, *rest)


def _recurrent(
    gates: int,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
    *,
    packed: bool = False,
) -> Any:
    """x (steps, n, i), (n, steps, i) or packed (rows, i) → as many outputs, of all directions, and the last states."""
    directions = 1 + bidirectional
    if x.dim() != 3 - packed or not x.numel():
        return NotImplemented
    if len(states) != (2 if gates == 4 else 1) or any(state.dim() != 3 for state in states):
        return NotImplemented
    batch = states[0].shape[1] if packed else x.shape[0 if batch_first else 1]
    if any(tuple(state.shape[:2]) != (layers * directions, batch) for state in states):
        return NotImplemented
    projected, hidden = states[0].shape[2], states[-1].shape[2]
    of_a_direction = 2 + 2 * has_biases + (projected != hidden)
    if len(weights) != layers * directions * of_a_direction or weights[0].shape != (gates * hidden, x.shape[-1]):
        return NotImplemented
    if x.dtype not in FLOATS or any(tensor.dtype != x.dtype for tensor in (*states, *weights)):
        return NotImplemented
    outputs = (*x.shape[:-1], directions * projected)
    if batch_first:  # computed step by step, and turned
        results = _dense((outputs[1], outputs[0], outputs[2]), x.dtype).transpose(0, 1)
    else:
        results = _dense(outputs, x.dtype)
    return (results, *[_dense(state.shape, x.dtype) for state in states])


UNARY = (
    "relu gelu silu sigmoid hardswish hardsigmoid tanh exp rsqrt neg cos sin "
    "abs elu erf leaky_relu log mish reciprocal selu softplus sqrt square"
)
BINARY, ARITHMETIC = "div pow", "add sub mul rsub"
COMPARED = "eq ne lt le gt ge"
IN_PLACE = "relu_ hardtanh_ hardswish_ silu_ sigmoid_ leaky_relu_ relu6_ hardsigmoid_"

SHAPES: dict[str, Shape] = {
    **{f"aten::{name}": unary for name in UNARY.split()},
    **{f"aten::{name}": in_place for name in IN_PLACE.split()},
    **{f"aten::{name}": binary for name in BINARY.split()},
    **{f"aten::{name}": arithmetic for name in ARITHMETIC.split()},
    **{f"aten::{name}": compared for name in COMPARED.split()},
    **{f"aten::{name}_": in_place_binary for name in ("add", "sub", "mul")},
    "aten::_autocast_to_full_precision": restored,
    "aten::_autocast_to_reduced_precision": reduced,
    "aten::adaptive_avg_pool2d": adaptive_avg_pool2d,
    "aten::avg_pool2d": avg_pool2d,
    "aten::clamp": bounded,
    "aten::clamp_min": bounded,
    "aten::softmax": softmax,
    "aten::_grouped_mm": grouped_mm,
    "aten::batch_norm": batch_norm,
    "aten::cat": cat,
    "aten::conv2d": conv2d,
    "aten::cumsum": cumulative,
    "aten::group_norm": group_norm,
    "aten::gru": gru,
    "aten::layer_norm": layer_norm,
    "aten::linalg_vector_norm": norm,
    "aten::linear": linear,
    "aten::log_softmax": softmax,
    "aten::lstm": lstm,
    "aten::masked_fill": masked_fill,
    "aten::max_pool2d": max_pool2d,
    "aten::maximum": binary,
    "aten::mean": over_dims,
    "aten::minimum": binary,
    "aten::rms_norm": rms_norm,
    "aten::rnn_relu": rnn,
    "aten::rnn_tanh": rnn,
    "aten::roll": roll,
    "aten::scaled_dot_product_attention": attention,
    "aten::std": spread,
    "aten::sum": over_dims,
    "aten::var": spread,
    "aten::where": where,
}
