"""What operators gave before on operands like these, in one trace, without running their kernels again."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from pytest_modelbudget.torch_models.values import PLAIN_TENSORS, Outline, TorchValues, is_on_meta

# What a result hangs on by value; 1, 1.0 and True are equal, and give results of different types.
PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device})
Outlines = tuple[Outline, ...]


class NoKey(Exception):  # noqa: N818  # a word to the caller, and no error
    """Operands of which outlines do not tell the result."""


class Repeat(NamedTuple):
    """What a call gives each time: tensors that have their memory for themselves, one or a tuple of them."""

    attributes: Mapping[str, object]
    outlines: Outlines
    is_tuple: bool

    def run(self) -> Any:
        """The results, without memory."""
        if self.is_tuple:
            return tuple([outline.empty() for outline in self.outlines])
        return self.outlines[0].empty()


class Repeats:
    """Calls on meta tensors in one trace, by operator and by what its operands look like.

    A kernel without memory sees nothing of a tensor but its outline, and takes 0.1 to 2 ms.
    """

    def __init__(self, values: TorchValues) -> None:
        self._values = values
        self.known: dict[Hashable, Repeat] = {}  # by key

    def key(self, operator: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
        """All that the results of an operator which writes no operand hang on; None where they may hang on more."""
        try:
            seen = self._looked_at([*args, *chain.from_iterable(sorted(kwargs.items()))] if kwargs else args)
        except NoKey:
            return None
        return operator, torch.get_default_dtype(), seen

    def _looked_at(self, values: Iterable[Any]) -> Hashable:
        """What an operator without memory sees of arguments; raises NoKey for one that may hide more."""
        kept = self._values.kept
        seen: list[Any] = []
        for value in values:
            kind = type(value)
            if kind in PLAIN:
                seen.append(kind)
                seen.append(value)
            elif kind in PLAIN_TENSORS:
                known = kept.get(id(value))
                outline = self._values.outline(value) if known is None else known[2]
                if outline is None:
                    raise NoKey
                seen.append(outline if known is not None or is_on_meta(value) else ("with values", outline))
            elif kind is list or kind is tuple:
                kinds = tuple(map(type, value))
                seen.append((kinds, tuple(value)) if PLAIN.issuperset(kinds) else self._looked_at(value))
            else:
                raise NoKey
        return tuple(seen)

    def note(
        self, key: Hashable, result: Any, given: Iterable[torch.Tensor], attributes: Mapping[str, object]
    ) -> Repeat | None:
        """What a call gives from now on; None where it must be run each time. given are the tensors that it had."""
        outlines = self._outlines(result if type(result) is tuple else (result,), given)
        if not outlines:
            return None
        repeat = self.known[key] = Repeat(attributes, outlines, type(result) is tuple)
        return repeat

    def _outlines(self, results: Sequence[Any], given: Iterable[torch.Tensor]) -> Outlines:
        """Those of tensors that each have memory of their own, and all of it; () of any other results."""
        memories = {tensor.untyped_storage()._cdata for tensor in given}
        outlines = []
        for tensor in results:
            if type(tensor) is not torch.Tensor or not is_on_meta(tensor):
                return ()
            outline = self._values.outline(tensor)
            if outline is None or not outline.is_whole or (memory := tensor.untyped_storage()._cdata) in memories:
                return ()
            memories.add(memory)
            outlines.append(outline)
        return tuple(outlines)
