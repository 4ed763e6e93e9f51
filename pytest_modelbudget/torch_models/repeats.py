"""Results of operators that a trace has called before on operands like these, without running their kernels again."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Union

import torch

from pytest_modelbudget.torch_models.values import PLAIN_TENSORS, is_on_meta, tensors_in

META = torch.device("meta")
# What a result hangs on by value; 1, 1.0 and True are equal, and give results of different types.
PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device})


class NoKey(Exception):  # noqa: N818  # a word to the caller, and no error
    """Operands of which shapes, strides and types do not tell the result."""


class Result(NamedTuple):
    """A dense or permuted tensor that has its memory for itself: shape and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> torch.Tensor:
        """Such a tensor, without memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=META)


Results = Union[Result, tuple[Result, ...], None]  # one tensor, a tuple of them, or what must be run each time


class Repeats:
    """Results on meta tensors in one trace, by operator and by what its operands look like.

    A kernel without memory sees nothing of a tensor but shape, strides and type, and takes 0.1 to 2 ms.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, Results] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator that writes none of its operands, run where it was not before."""
        try:
            key = (func, torch.get_default_dtype(), *map(key_of, args), *sorted(map(_named, kwargs.items())))
        except NoKey:
            return func(*args, **kwargs)
        known = self._results.get(key)
        if known is not None:
            return known.empty() if isinstance(known, Result) else tuple([each.empty() for each in known])
        result = func(*args, **kwargs)
        if key not in self._results:
            self._results[key] = _results(result, tensors_in((args, tuple(kwargs.values()))))
        return result


def key_of(value: Any) -> Hashable:
    """What an operator without memory sees of an argument; raises NoKey for one that may hide more."""
    kind = type(value)
    if kind in PLAIN_TENSORS:
        if value.layout is not torch.strided or not is_on_meta(value) or value.is_complex() or value.is_neg():
            raise NoKey
        return value.shape, value.stride(), value.dtype
    if kind in PLAIN:
        return kind, value
    if kind is list or kind is tuple:
        return tuple(map(key_of, value))
    raise NoKey


def _named(argument: tuple[str, Any]) -> tuple[str, Hashable]:
    return argument[0], key_of(argument[1])


def _results(result: Any, given: list[torch.Tensor]) -> Results:
    """What an operator returned, where it has memory that no operand has."""
    tensors = result if type(result) is tuple else (result,)
    if not tensors or not all(type(each) is torch.Tensor and _is_whole(each) for each in tensors):
        return None
    memories = {tensor.untyped_storage()._cdata for tensor in (*tensors, *given)}
    if len(memories) < len(tensors) + len({tensor.untyped_storage()._cdata for tensor in given}):
        return None
    results = tuple([Result(tuple(each.shape), each.stride(), each.dtype) for each in tensors])
    return results if type(result) is tuple else results[0]


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor on meta is as long as its memory."""
    if not is_on_meta(tensor) or tensor.layout is not torch.strided or tensor.is_complex() or tensor.storage_offset():
        return False
    span = 1 + sum(step * (size - 1) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() == (span if tensor.numel() else 0) * tensor.itemsize
