"""What torch's kernels demand of their operands and its meta kernels let pass.

A model that cannot run must not be measured: without a run these are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

ONE_TYPE = (
    "linear addmm mm bmm matmul mv dot baddbmm addbmm einsum bilinear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d convolution scaled_dot_product_attention "
    "lstm gru rnn_tanh rnn_relu"
)
ONE_TYPE_NAMES = frozenset(f"aten::{name}" for name in ONE_TYPE.split())
CONVOLUTIONS = {f"aten::conv{d}d": d for d in (1, 2, 3)}
TRANSPOSED = {f"aten::conv_transpose{d}d": d for d in (1, 2, 3)}


def one_floating_type(tensors: Sequence[torch.Tensor]) -> str | None:
    """Contractions take operands of one type; a boolean mask beside them is none of theirs."""
    types = {tensor.dtype for tensor in tensors if tensor.dtype != torch.bool}
    if len(types) <= 1:
        return None
    names = sorted(str(dtype).removeprefix("torch.") for dtype in types)
    return f"operands of different types, {' and '.join(names)}"


def matching_channels(name: str, args: tuple[Any, ...]) -> str | None:
    """x (batch, c, ...) or (c, ...) with weight (out, c / groups, ...).

    Transposed, weight is (c, out / groups, ...). The bias is (out,).
    """
    x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
    groups = args[6] if len(args) > 6 else 1
    transposed = name in TRANSPOSED
    channels = x.shape[-(TRANSPOSED[name] if transposed else CONVOLUTIONS[name]) - 1]
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


def existing_dimension(args: tuple[Any, ...]) -> str | None:
    """softmax and log_softmax: x and one of its dimensions."""
    x, dim = args[0], args[1]
    rank = max(x.dim(), 1)
    return None if -rank <= dim < rank else f"dimension {dim} of a tensor that has {x.dim()}"


def refusal(name: str, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> str | None:
    """Why torch would refuse these operands, or None."""
    if name in CONVOLUTIONS or name in TRANSPOSED:
        wrong = matching_channels(name, args)
        if wrong:
            return wrong
    if name in {"aten::softmax", "aten::log_softmax"}:
        return existing_dimension(args)
    return one_floating_type(tensors) if name in ONE_TYPE_NAMES else None
