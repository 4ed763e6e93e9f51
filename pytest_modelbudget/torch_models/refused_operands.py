"""Operands that torch refuses in a run, and that its operators on tensors without memory let pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

ONE_TYPE = (
    "linear addmm mm bmm matmul mv dot baddbmm addbmm einsum bilinear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d convolution scaled_dot_product_attention "
    "lstm gru rnn_tanh rnn_relu"
)
# In place, each element on its own; fill_, index_put_ and some others may write one several times.
ELEMENT_BY_ELEMENT = (
    "abs acos acosh add addbmm addcdiv addcmul addmm addr asin asinh atan atan2 atanh bernoulli cauchy ceil celu "
    "clamp clamp_max clamp_min copy copysign cos cosh cumprod cumsum deg2rad digamma div elu eq erf erfc erfinv exp "
    "exp2 expm1 exponential floor floor_divide fmod frac ge geometric gt hardsigmoid hardswish hardtanh heaviside "
    "hypot i0 igamma igammac index_add index_copy le leaky_relu lerp lgamma log log10 log1p log2 log_normal "
    "logical_and logical_not logical_or logical_xor logit lt masked_scatter mish mul nan_to_num ne neg nextafter "
    "normal polygamma pow put rad2deg random reciprocal relu remainder renorm round rrelu_with_noise rsqrt scatter "
    "scatter_add scatter_reduce sgn sigmoid sign silu sin sinc sinh sqrt sub tan tanh trunc uniform xlogy"
)
CONVOLUTIONS = {f"aten::conv{d}d": d for d in (1, 2, 3)}
TRANSPOSED = {f"aten::conv_transpose{d}d": d for d in (1, 2, 3)}


def one_floating_type(name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> str | None:
    """Contractions take operands of one type; a boolean mask beside them is none of theirs."""
    types = {tensor.dtype for tensor in tensors if tensor.dtype != torch.bool}
    if len(types) <= 1:
        return None
    names = sorted(str(dtype).removeprefix("torch.") for dtype in types)
    way_out = "give inputs the type of the weights, or convert one of them in the model"
    return f"operands of different types, {' and '.join(names)}: {way_out}"


def matching_channels(name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> str | None:
    """x (batch, c, ...) or (c, ...) with weight (out, c / groups, ...).

    Transposed, weight is (c, out / groups, ...). The bias is (out,).
    """
    x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
    groups = args[6] if len(args) > 6 else 1
    transposed = name in TRANSPOSED
    spatial = TRANSPOSED[name] if transposed else CONVOLUTIONS[name]
    if not spatial < x.dim() <= spatial + 2:
        return f"a tensor of {x.dim()} dimensions, where it takes batch, channels and {spatial} more"
    channels = x.shape[-spatial - 1]
    taken, made = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        taken, made = made, taken
    if channels != taken:
        return f"{channels} channels, where the weight {list(weight.shape)} takes {taken}"
    if bias is not None and tuple(bias.shape) != (made,):
        return f"a bias {list(bias.shape)} for {made} channels"
    if weight.shape[0] % groups:
        return f"{weight.shape[0]} channels in {groups} groups"
    return None


def existing_dimension(name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> str | None:
    """softmax and log_softmax: x and one of its dimensions."""
    x, dim = args[0], args[1]
    rank = max(x.dim(), 1)
    return None if -rank <= dim < rank else f"dimension {dim} of a tensor that has {x.dim()}"


def places_of_their_own(name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> str | None:
    """x, which is written, has a place for each element."""
    x = args[0]
    if x.layout is not torch.strided or x.is_nested or 0 not in x.stride() or not x.numel():
        return None
    is_repeated = any(size > 1 and not stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return "a tensor of which several elements lie in one place, as of expand: clone it first" if is_repeated else None


# By operator, what says why torch would refuse operands that tensors without memory let pass; None where it would not.
Check = Callable[[str, tuple[Any, ...], Sequence[torch.Tensor]], "str | None"]
CHECKS: Mapping[str, tuple[Check, ...]] = {
    **{f"aten::{name}": (one_floating_type,) for name in ONE_TYPE.split()},
    **dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED), (matching_channels, one_floating_type)),
    **dict.fromkeys(("aten::softmax", "aten::log_softmax"), (existing_dimension,)),
    **{f"aten::{name}_": (places_of_their_own,) for name in ELEMENT_BY_ELEMENT.split()},
}
