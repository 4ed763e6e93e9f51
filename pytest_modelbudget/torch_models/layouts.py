"""Memory formats and types of results on which torch's kernels for CPU, CUDA and meta tensors disagree.

A later ``contiguous`` or ``reshape`` copies or not by the strides of its operand, and a ``view`` may be refused. Each
operator here has one layout in every tracing mode. Strides of dimensions of size 1 are those of the kernel that ran.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from pytest_modelbudget.torch_models.versions import memory_of, suggest_memory_format

Layout = Callable[[Any, Sequence[Any]], Any]  # a result and the operator's arguments -> the result in that layout
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


def is_row_major(x: torch.Tensor) -> bool:
    """Whether it is dense, and in no other layout as well: strides of dimensions of size 1 can say both.

    Of (2, 4, 1, 1) with strides (4, 1, 4, 4), torch says that it is row-major, and that its channels are last; kernels
    that keep the layout of x take it for the latter.
    """
    return x.is_contiguous() and (x.is_nested or 1 not in x.shape or x.stride() == _row_strides(x.shape))


@cache
def _row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor, the outermost first."""
    return tuple(accumulate((max(size, 1) for size in shape[:0:-1]), mul, initial=1))[::-1] if shape else ()


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """Row-major, and in no other layout as well."""
    x = x.contiguous()
    return x if is_row_major(x) else x.as_strided(x.shape, _row_strides(x.shape))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """x (n, c, h, w) or (n, c, d, h, w) with channels last, also where that is row-major as well."""
    outer, *inner, channels = _row_strides((x.shape[0], *x.shape[2:], x.shape[1]))
    x, strides = x.contiguous(memory_format=LAST[x.dim()]), (outer, channels, *inner)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def _is_channels_last(x: torch.Tensor) -> bool:
    """Whether x (n, c, h, w) has its channels last by its strides, also where it is row-major as well."""
    return suggest_memory_format(x) is torch.channels_last


def dense(result: Any, args: Sequence[Any]) -> Any:
    """Row-major in memory of its own, as the simplest kernel leaves it: a result, or each of several.

    A shuffle that moves nothing is a view of x on meta, and a transposed 3-D convolution on a CPU leaves its result in
    memory as large as its products.
    """
    if isinstance(result, tuple):
        return tuple([dense(each, args) for each in result])
    result, x = alone(_as_rows(result), args), args[0]
    is_view = isinstance(x, torch.Tensor) and memory_of(result) == memory_of(x)
    return result.clone() if is_view else result


def as_operands(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where x or weight (n, c, h, w) is: as convolutions on CPU and CUDA, and unlike those on meta.

    So is an image (c, h, w) without a batch, as one of a batch of 1.
    """
    x, weight = args[:2]
    if weight.dim() != 4:
        return alone(_as_rows(result), args)
    is_batch = x.dim() == 4
    is_last = _is_channels_last(x if is_batch else x.unsqueeze(0)) or _is_channels_last(weight)
    if not is_last:
        return _as_rows(result)
    return _channels_last(result) if is_batch else _channels_last(result.unsqueeze(0)).squeeze(0)


def as_first(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where those of x (n, c, h, w) are, also of one channel."""
    return _channels_last(result) if _is_channels_last(args[0]) else result


def as_images(result: Any, args: Sequence[Any]) -> Any:
    """Channels last where those of x (n, c, h, w) or (n, c, d, h, w) are, else row-major; of several, the first."""
    if isinstance(result, tuple):
        return (as_images(result[0], args), *result[1:])
    x, last = args[0], LAST.get(args[0].dim())
    if last is None or x.is_contiguous():
        return _as_rows(result)
    is_last = x.is_contiguous(memory_format=last) or suggest_memory_format(x) is last
    return _channels_last(result) if is_last else _as_rows(result)


def normalised(result: Any, args: Sequence[Any]) -> Any:
    """The same; fixed statistics are not saved again, but on meta."""
    result = as_images(result, args)
    if not isinstance(result, tuple):
        return result
    if args[5] is True:  # it trains
        return result
    return (result[0], *(each.new_empty(0) for each in result[1:3]), *result[3:])


def in_type_of(weight_at: int, layout: Layout) -> Layout:
    """Means and deviations in the type of the weight, as on a CPU; those of x on meta (pytorch#139923)."""

    def typed(result: Any, args: Sequence[Any]) -> Any:
        result, weight = layout(result, args), args[weight_at]
        if weight is None or not isinstance(result, tuple):
            return result
        return (result[0], *(each.to(weight.dtype) for each in result[1:3]), *result[3:])

    return typed


def dense_of_values(result: Any, args: Sequence[Any]) -> Any:
    """Row-major where a pad repeats values of x; zeros around it keep the layout."""
    return dense(result, args) if len(args) > 2 and args[2] != "constant" else result


def alone(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """In memory of its own size: on a CPU these leave the sum in memory that was made for its terms."""
    return result if result.untyped_storage().nbytes() == result.nbytes else result.clone()


DISAGREE = (
    "scaled_dot_product_attention conv1d conv3d conv_transpose1d conv_transpose3d max_pool1d max_unpool2d max_unpool3d "
    "layer_norm instance_norm log_softmax _log_softmax log_sigmoid log_sigmoid_forward "
    "masked_fill tril triu renorm one_hot "
    "roll pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle linalg_eig linalg_svd _linalg_svd svd "
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
AS_FIRST = "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d group_norm"
LAYOUTS: dict[str, Layout] = {
    **{f"aten::{name}": dense for name in DISAGREE.split()},
    **{f"aten::{name}": as_operands for name in ("conv2d", "conv_transpose2d", "convolution", "_convolution")},
    **{f"aten::{name}": in_type_of(1, normalised) for name in NORMS.split()},
    **{f"aten::{name}": in_type_of(1, as_images) for name in TRAINED.split()},
    **{f"aten::{name}": as_first for name in AS_FIRST.split()},
    **{f"aten::{name}": alone for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss")},
    "aten::native_layer_norm": in_type_of(2, dense),
    "aten::native_group_norm": in_type_of(1, lambda result, args: result),
    "aten::pad": dense_of_values,
}
