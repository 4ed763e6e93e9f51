"""Operands that torch refuses in a run, and that its operators on tensors without memory let pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_modelbudget.torch_models.values import is_on_meta, tensors_in
from pytest_modelbudget.torch_models.versions import address_of, memory_of

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
        order = "; inputs have their channels first, as 1x3x224x224" if x.shape[-1] == taken else ""
        return f"{channels} channels, where the weight {list(weight.shape)} takes {taken}{order}"
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


MOST_VALUES = 65_536  # of a tensor whose values are worked out beside its shape
UNFILLED = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"})
LIKE = frozenset({"aten::ones_like", "aten::zeros_like", "aten::full_like", "aten::new_ones", "aten::new_zeros",
                  "aten::new_full"})  # fmt: skip  # which read no value of their operand
UNLIKE = "aten::ne"
STARTS = LIKE | {UNLIKE}
FOLLOWED = frozenset({torch.int64, torch.int32, torch.bool, torch.float32})


class KnownValues:
    """Values of small tensors without memory that neither data nor weights decide: ranges, and counts of ones.

    An input that is compared with a number, as with a padding word, is taken to be another one everywhere. Of each
    memory all values are kept, as they lie, so that views of it need nothing.
    """

    def __init__(self, is_emptied: Callable[[torch.Tensor], bool]) -> None:
        self._is_emptied = is_emptied
        self._memory: dict[int, torch.Tensor] = {}  # by address, which no other memory is given while a pass runs

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor; None where they are not known."""
        if not is_on_meta(tensor):
            return None if self._is_emptied(tensor) else tensor
        values = self._memory.get(memory_of(tensor))
        if values is None or values.dtype is not tensor.dtype:
            return None
        return values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def follow(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any,
        written: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        """Work out what an operator gives and writes; of what it writes otherwise nothing is known any more."""
        is_view = not written and isinstance(result, torch.Tensor) and memory_of(result) in self._memory
        starts = name in STARTS or not any(map(is_on_meta, tensors_in(args)))
        if is_view or name in UNFILLED or not (self._memory or starts):
            return
        lacks_memory = all(map(is_on_meta, written or tensors_in(result)))  # what has memory was computed, once
        is_followed = type(result) is torch.Tensor and result.dtype in FOLLOWED and 0 < result.numel() <= MOST_VALUES
        values = self._worked_out(name, func, args, kwargs) if lacks_memory and is_followed else None
        for tensor in written:
            if values is None and is_on_meta(tensor):
                self._memory.pop(memory_of(tensor), None)
        if values is not None and not written and values.shape == result.shape:
            memory = result.untyped_storage()
            flat = torch.zeros(memory.nbytes() // result.dtype.itemsize, dtype=result.dtype, device="cpu")
            flat.as_strided(result.shape, result.stride(), result.storage_offset()).copy_(values)
            self._memory[address_of(memory)] = flat

    def _worked_out(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = self.of if name not in LIKE else lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype)
        if name == UNLIKE and not isinstance(args[1], torch.Tensor) and self.of(args[0]) is None:
            return torch.ones(args[0].shape, dtype=torch.bool)
        try:
            return func(*_each(args, known), **_each(kwargs, known))
        except (LookupError, RuntimeError, TypeError, ValueError):  # an unknown operand, or one that torch refuses
            return None

    def beyond(self, name: str, args: tuple[Any, ...]) -> tuple[int, int] | None:
        """The size of a table and the place behind it that an operator is asked for; None without one."""
        for table, axis, index in _asked(name, args):
            places = self.of(index)
            if places is None or not places.numel() or places.dtype is torch.bool:
                continue
            size, largest = table.shape[axis], int(places.max())
            if largest >= size:
                return size, largest
        return None


def _each(value: Any, known: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """Arguments on the CPU, with values in place of tensors; raises LookupError where some are not known."""
    if isinstance(value, torch.Tensor):
        values = known(value)
        if values is None:
            raise LookupError
        return values
    if isinstance(value, Mapping):
        return {name: _each(part, known) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each(part, known) for part in value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _asked(name: str, args: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, int, torch.Tensor]]:
    """(table, axis, places) of what an operator picks."""
    if name == "aten::embedding":
        yield args[0], 0, args[1]
    elif name in {"aten::index_select", "aten::gather"}:
        yield args[0], args[1], args[2]
    elif name == "aten::index":
        yield from ((args[0], axis, index) for axis, index in enumerate(args[1]) if index is not None)


PICKING = frozenset({"aten::embedding", "aten::index_select", "aten::gather", "aten::index"})
