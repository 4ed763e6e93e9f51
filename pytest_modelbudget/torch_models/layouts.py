"""In which order the elements of a result lie in memory, where torch's kernels do not agree.

Whether a later ``contiguous`` or ``reshape`` copies hangs on it, and whether a ``view`` is refused. A number is the
same on every device and way of tracing, so that each of these operators has one layout, whatever kernel has run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

Layout = Callable[[Any, Sequence[Any]], Any]  # a result and the operator's arguments -> the result in that layout
SCALAR = torch.empty((), device="meta")
# On meta torch's own iterator lays these out, of so many operands.
ITERATED: tuple[Callable[..., torch.Tensor], ...] = (torch.neg, torch.add, torch.addcmul)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


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
    """x (n, c, h, w) or (n, c, d, h, w) with channels last, also where that is row-major as well."""
    x, strides = x.contiguous(memory_format=LAST[x.dim()]), _strides(x, 0, *range(2, x.dim()), 1)
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
    is_view = isinstance(x, torch.Tensor) and result.untyped_storage()._cdata == x.untyped_storage()._cdata
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


def as_iterated(result: Any, args: Sequence[Any]) -> Any:
    """As kernels leave it that take their operands element by element, in the order in which these lie.

    They take those of one shape in one row, and on meta none; what stands for them in Python gives other strides to
    dimensions of size 1. A number is no operand here.
    """
    return _iterated(result, [arg for arg in args if isinstance(arg, torch.Tensor)])


def with_number(result: Any, args: Sequence[Any]) -> Any:
    """The same of two operands, of which a number is one without a shape."""
    return _iterated(result, [arg if isinstance(arg, torch.Tensor) else SCALAR for arg in args[:2]])


def chosen(result: Any, args: Sequence[Any]) -> Any:
    """The same of a condition and two more, numbers among them."""
    return _iterated(result, [arg if isinstance(arg, torch.Tensor) else SCALAR for arg in args])


def as_halves(result: Any, args: Sequence[Any]) -> Any:
    """The same of the two halves of x along a dimension."""
    return _iterated(result, args[0].chunk(2, args[1] if len(args) > 1 else -1))


def as_copied(result: Any, args: Sequence[Any]) -> Any:
    """As a copy of x, or each of several results: dense in its order, with strides of size 1 as they were."""
    if isinstance(result, tuple):
        return tuple([as_copied(each, args) for each in result])
    if not _may_be_laid_out(result, args[:1]) or result.shape != args[0].shape:
        return result
    with _disable_current_modes():
        strides = torch.clone(_outline(args[0])).stride()
    return _with_strides(result, strides)


def _may_be_laid_out(result: Any, operands: Sequence[torch.Tensor]) -> bool:
    """Whether dimensions of size 1 leave open how a result lies: where all operands are rows, it is rows."""
    tensors = (result, *operands)
    if any(
        not isinstance(each, torch.Tensor) or each.layout is not torch.strided or each.is_nested for each in tensors
    ):
        return False
    return 1 in result.shape and not all(map(is_row_major, tensors))


def _iterated(result: Any, operands: Sequence[torch.Tensor]) -> Any:
    if not _may_be_laid_out(result, operands):
        return result
    if all(operand.shape == result.shape for operand in operands):
        if all(operand.is_contiguous() for operand in operands):
            return _as_rows(result)
        if result.dim() == 4 and all(operand.is_contiguous(memory_format=torch.channels_last) for operand in operands):
            return _channels_last(result)
        first = operands[0].stride()
        if torch.ops.aten.is_non_overlapping_and_dense(operands[0]) and all(
            operand.stride() == first for operand in operands
        ):
            return _with_strides(result, first)
    if not 1 <= len(operands) <= len(ITERATED):
        return result
    with _disable_current_modes():
        strides = ITERATED[len(operands) - 1](*map(_outline, operands)).stride()
    return _with_strides(result, strides)


def _outline(x: torch.Tensor) -> torch.Tensor:
    """Floats without memory, in the same places."""
    return torch.empty_strided(x.shape, x.stride(), device="meta")


def _with_strides(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same memory with these strides, which dimensions of size 1 alone tell from those of x; else x itself."""
    if x.stride() == strides:
        return x
    sizes = zip(x.shape, x.stride(), strides, strict=True)
    is_same = all(size == 1 or before == after for size, before, after in sizes)
    return x.as_strided(x.shape, strides, x.storage_offset()) if is_same else x


VIEWED = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})


def as_viewed(result: Any, args: Sequence[Any]) -> Any:
    """A view of x in another shape, as torch itself makes it; on fake tensors Python stands for it."""
    if 1 not in result.shape or not isinstance(args[0], torch.Tensor):
        return result
    with _disable_current_modes():
        strides = _outline(args[0]).view(result.shape).stride()
    return _with_strides(result, strides)


def as_first(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    """Channels last where those of x (n, c, h, w) are, also of one channel."""
    return _channels_last(result) if _is_channels_last(args[0]) else result


def as_left(result: Any, args: Sequence[Any]) -> Any:
    """As every kernel leaves it."""
    return result


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
    "layer_norm native_layer_norm instance_norm log_softmax _log_softmax log_sigmoid log_sigmoid_forward "
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
# Of two operands, of which a number is one like another. (The exponent of a power is none: it has no own kernel.)
WITH_NUMBERS = (
    "add sub mul div rsub eq ne lt le gt ge remainder fmod floor_divide copysign xlogy "
    "bitwise_and bitwise_or bitwise_xor"
)
COPIED = (
    "hardtanh relu6 prelu _prelu_kernel nan_to_num sort flip "
    "empty_like zeros_like ones_like full_like rand_like randn_like"
)
AS_FIRST = "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d group_norm"
LAYOUTS: dict[str, Layout] = {
    **{f"aten::{name}": dense for name in DISAGREE.split()},
    **{f"aten::{name}": as_operands for name in ("conv2d", "conv_transpose2d", "convolution", "_convolution")},
    **{f"aten::{name}": normalised for name in NORMS.split()},
    **{f"aten::{name}": as_images for name in TRAINED.split()},
    **{f"aten::{name}": with_number for name in WITH_NUMBERS.split()},
    **{f"aten::{name}": as_first for name in AS_FIRST.split()},
    **{f"aten::{name}": alone for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss")},
    **{f"aten::{name}_scatter": on_as_much for name in ("slice", "select", "diagonal", "as_strided")},
    **{f"aten::{name}": as_copied for name in COPIED.split()},
    "aten::clone": as_left,
    "aten::where": chosen,
    "aten::glu": as_halves,
    "aten::hardswish": as_iterated,
    "aten::pad": dense_of_values,
}


def layout_of(func: torch._ops.OpOverload, name: str) -> Layout | None:
    """The layout of an operator's results, by the name that rules know it by; None where each kernel's own is kept."""
    layout = LAYOUTS.get(name)
    if layout is not None or torch.Tag.pointwise not in func.tags:
        return layout
    is_of_an_operand = any(result.alias_info for result in func._schema.returns)  # in place, or x itself
    return None if is_of_an_operand else as_iterated
