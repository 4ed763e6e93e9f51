"""In which order the elements of a result lie in memory, where torch's kernels do not agree.

Whether a later ``contiguous`` or ``reshape`` copies hangs on it, and whether a ``view`` is refused. A number is the
same on every device and way of tracing, so that each of these operators has one layout, whatever kernel has run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

Layout = Callable[[Any, Sequence[Any]], Any]  # a result and the operator's arguments -> the result in that layout


def dense(result: Any, args: Sequence[Any]) -> Any:
    """Row-major, as the simplest kernel leaves it: a result, or each of several."""
    if isinstance(result, tuple):
        return tuple([each.contiguous() for each in result])
    return result.contiguous()


def as_operands(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where x or weight (n, c, h, w) is: as convolutions on CPU and CUDA, and unlike those on meta."""
    x, weight = args[:2]
    formats = (suggest_memory_format(x), suggest_memory_format(weight))
    last = torch.channels_last
    return result.contiguous(memory_format=last if result.dim() == 4 and last in formats else torch.contiguous_format)


def dense_in_one_dimension(result: Any, args: Sequence[Any]) -> Any:
    """Row-major of x (n, c, length); of images all kernels keep the layout."""
    return dense(result, args) if args[0].dim() == 3 else result


def normalised(result: Any, args: Sequence[Any]) -> Any:
    """Row-major as above; fixed statistics are not saved again, but on meta."""
    result = dense_in_one_dimension(result, args)
    if not isinstance(result, tuple) or args[5] is True:  # whether it trains
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
LAYOUTS: dict[str, Layout] = {
    **{f"aten::{name}": dense for name in DISAGREE.split()},
    **{f"aten::{name}": as_operands for name in ("conv2d", "conv_transpose2d", "convolution", "_convolution")},
    **{f"aten::{name}": normalised for name in NORMS.split()},
    **{f"aten::{name}": dense_in_one_dimension for name in TRAINED.split()},
    **{f"aten::{name}": alone for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss")},
    **{f"aten::{name}_scatter": on_as_much for name in ("slice", "select", "diagonal", "as_strided")},
    "aten::pad": dense_of_values,
}
