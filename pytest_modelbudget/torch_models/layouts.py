"""In which order the elements of a result lie in memory, where torch's kernels do not agree.

Whether a later ``contiguous`` or ``reshape`` copies hangs on it, and whether a ``view`` is refused. A number is the
same on every device and way of tracing, so that each of these operators has one layout, whatever kernel has run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

Layout = Callable[[Any, Sequence[Any]], Any]  # a result and the operator's arguments -> the result in that layout


def is_row_major(x: torch.Tensor) -> bool:
    """Whether it is dense, and in no other layout as well: strides of dimensions of size 1 can say both.

    Of (2, 4, 1, 1) with strides (4, 1, 4, 4), torch says that it is row-major, and that its channels are last; kernels
    that keep the layout of x take it for the latter.
    """
    return x.is_contiguous() and (x.is_nested or 1 not in x.shape or x.stride() == _strides(x, *range(x.dim())))


def _strides(x: torch.Tensor, *order: int) -> tuple[int, ...]:
    """Of a dense tensor of this shape whose dimensions lie in this order, the outermost first."""
    strides, step = {}, 1
    for at in reversed(order):
        strides[at] = step
        step *= max(x.shape[at], 1)
    return tuple(strides[at] for at in range(x.dim()))


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """Row-major, and in no other layout as well."""
    x = x.contiguous()
    return x if is_row_major(x) else x.as_strided(x.shape, _strides(x, *range(x.dim())))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """x (n, c, h, w) with channels last, also where that is row-major as well."""
    x, strides = x.contiguous(memory_format=torch.channels_last), _strides(x, 0, 2, 3, 1)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def dense(result: Any, args: Sequence[Any]) -> Any:
    """Row-major, as the simplest kernel leaves it: a result, or each of several."""
    return tuple(map(_as_rows, result)) if isinstance(result, tuple) else _as_rows(result)


def as_operands(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where x or weight (n, c, h, w) is: as convolutions on CPU and CUDA, and unlike those on meta."""
    is_last = torch.channels_last in (suggest_memory_format(args[0]), suggest_memory_format(args[1]))
    return _channels_last(result) if is_last and result.dim() == 4 else _as_rows(result)


def dense_in_one_dimension(result: Any, args: Sequence[Any]) -> Any:
    """Row-major of x (n, c, length); of images all kernels keep the layout."""
    return dense(result, args) if args[0].dim() == 3 else result


def as_iterated(result: Any, args: Sequence[Any]) -> Any:
    """Row-major where operands of one shape are: kernels take their elements in one row, and those on meta none."""
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or is_row_major(result):
        return result
    operands = [result, *(arg for arg in args if isinstance(arg, torch.Tensor))]
    if any(operand.layout is not torch.strided or operand.is_nested for operand in operands):
        return result
    is_one_row = all(operand.shape == result.shape and operand.is_contiguous() for operand in operands)
    return _as_rows(result) if is_one_row else result


def with_number(result: Any, args: Sequence[Any]) -> Any:
    """The same of two operands, of which a number is one without a shape."""
    return as_iterated(result, args) if isinstance(args[1], torch.Tensor) else result


def as_first(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where those of x (n, c, h, w) are, also of one channel."""
    return _channels_last(result) if suggest_memory_format(args[0]) is torch.channels_last else result


def as_left(result: Any, args: Sequence[Any]) -> Any:
    """As every kernel leaves it."""
    return result


def normalised(result: Any, args: Sequence[Any]) -> Any:
    """Row-major as above, and where x is; fixed statistics are not saved again, but on meta."""
    if not isinstance(result, tuple):
        return _as_rows(result) if args[0].dim() == 3 or args[0].is_contiguous() else result
    result = (normalised(result[0], args), *result[1:])
    if args[5] is True:  # it trains
        return result
    return (result[0], *(each.new_empty(0) for each in result[1:3]), *result[3:])


def dense_of_values(result: Any, args: Sequence[Any]) -> Any:
    """Row-major where a pad repeats values of x; zeros around it keep the layout."""
    return dense(result, args) if len(args) > 2 and args[2] != "constant" else result


def alone(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """In memory of its own size: on a CPU these leave the sum in memory that was made for its terms."""
    return result if result.untyped_storage().nbytes() == result.nbytes else result.clone()


def on_as_much(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """In memory as large as that of x, all of which kernels copy, and those on meta up to its last element alone."""
    x, nbytes = args[0], args[0].untyped_storage().nbytes()
    if result.stride() != x.stride() or result.untyped_storage().nbytes() == nbytes:
        return result  # of elements that lie in one place each has its own now
    return result.new_empty(nbytes // x.itemsize).as_strided(x.shape, x.stride(), x.storage_offset())


DISAGREE = (
    "scaled_dot_product_attention conv1d conv3d conv_transpose1d conv_transpose3d max_pool1d max_unpool2d max_unpool3d "
    "layer_norm native_layer_norm log_softmax _log_softmax "
    "roll pixel_shuffle channel_shuffle native_channel_shuffle linalg_eig linalg_svd _linalg_svd svd "
    "reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d "
    "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 "
    "fft_fftn fft_ifftn fft_rfftn fft_irfftn _fft_c2c _fft_c2r _fft_r2c"
)
NORMS = (
    "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_native_batch_norm_legit_functional _batch_norm_impl_index _batch_norm_no_update"
)
# These always save the batch's own statistics.
TRAINED = "_batch_norm_with_update _batch_norm_with_update_functional _native_batch_norm_legit.no_stats"
# Of two operands, of which a number is one like another. (The exponent of a power is none: it has no own kernel.)
WITH_NUMBERS = "add sub mul div rsub eq ne lt le gt ge remainder fmod floor_divide"
AS_FIRST = "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d group_norm"
LAYOUTS: dict[str, Layout] = {
    **{f"aten::{name}": dense for name in DISAGREE.split()},
    **{f"aten::{name}": as_operands for name in ("conv2d", "conv_transpose2d", "convolution", "_convolution")},
    **{f"aten::{name}": normalised for name in NORMS.split()},
    **{f"aten::{name}": dense_in_one_dimension for name in TRAINED.split()},
    **{f"aten::{name}": with_number for name in WITH_NUMBERS.split()},
    **{f"aten::{name}": as_first for name in AS_FIRST.split()},
    **{f"aten::{name}": alone for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss")},
    **{f"aten::{name}_scatter": on_as_much for name in ("slice", "select", "diagonal", "as_strided")},
    **{f"aten::{name}": as_left for name in ("clone", "hardtanh", "relu6")},
    **{f"aten::{name}": as_iterated for name in ("hardswish", "log_sigmoid", "tril", "triu")},
    "aten::pad": dense_of_values,
}


def layout_of(func: torch._ops.OpOverload, name: str) -> Layout | None:
    """The layout of an operator's results, by the name that rules know it by; None where each kernel's own is kept."""
    layout = LAYOUTS.get(name)
    return as_iterated if layout is None and torch.Tag.pointwise in func.tags else layout
