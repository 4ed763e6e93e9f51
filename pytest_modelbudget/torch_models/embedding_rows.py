"""Rows of tables, and stored tensors, that a run of a torch model reads; and how far its indices may go.

``embedding(table, indices)`` leaves all other rows unread, and what is wrong with those shows in no output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pytest_modelbudget.formats.model import Coverage
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.bodies import ExecutedBranches, RunningMode
from pytest_modelbudget.torch_models.values import tensors_in
from pytest_modelbudget.torch_models.versions import is_traceable_wrapper_subclass, memory_of
from pytest_modelbudget.torch_models.weights import NamedWeight, leaves

if TYPE_CHECKING:
    from pytest_modelbudget.formats.model import Values

CARRIERS = frozenset({"aten::_to_copy", "aten::clone", "aten::to", "aten::contiguous", "aten::reshape", "aten::repeat"})
COMPARISONS = frozenset({"aten::eq", "aten::ne"})
INDEXED: Mapping[str, int] = {  # where an operator takes indices of rows
    "aten::embedding": 1, "aten::embedding_bag": 1, "aten::_embedding_bag": 1,
    "aten::_embedding_bag_forward_only": 1, "aten::embedding_renorm_": 1, "aten::index_select": 2,
}  # fmt: skip


def _picked(name: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What an operator picks of its first operand, as numpy spells it; None where it reads all of that."""
    if name == "aten::index":
        return tuple(slice(None) if index is None else index.numpy() for index in args[1])
    if name not in INDEXED:
        return None
    rows = args[INDEXED[name]].reshape(-1).long().numpy()
    return (*[slice(None)] * (args[1] % args[0].dim() if name == "aten::index_select" else 0), rows)


@dataclass(eq=False)
class _Memory:
    """What a run has read of the storage of one stored tensor.

    A table that is picked from has been read as far as that: an output layer that multiplies by all of it shows
    another side of a row. around is the wrapper tensor that it is a part of.
    """

    tensor: torch.Tensor
    around: _Memory | None = None
    is_whole: bool = False
    is_picked: bool = False
    read: Values | None = None  # a flag for each element of the storage

    def flags(self, tensor: torch.Tensor) -> Values:
        """The flags of a view of it."""
        if self.read is None:
            views = [self.tensor, tensor]
            ends = [1 + v.storage_offset() + sum((s - 1) * t for s, t in zip(v.shape, v.stride(), strict=True))
                    for v in views]  # fmt: skip
            held = self.tensor.untyped_storage().nbytes() // self.tensor.dtype.itemsize
            self.read = np.zeros(max(held, *ends), bool)
        return np.lib.stride_tricks.as_strided(self.read[tensor.storage_offset() :], tensor.shape, tensor.stride())

    def mark(self, tensor: torch.Tensor, picked: tuple[Any, ...] | None) -> None:
        """A view of it was read, whole or in these places."""
        if tensor.dtype != self.tensor.dtype or (picked is None and tensor.numel() == self.tensor.numel()):
            self.is_whole = True
        else:
            self.is_picked |= picked is not None
            self.flags(tensor)[... if picked is None else picked] = True
        if self.around is not None:
            rows = tensor.dim() and tensor.shape[:1] == self.around.tensor.shape[:1]
            self.around.mark(self.around.tensor, picked if rows else None)

    def mask(self, tensor: torch.Tensor) -> Values:
        """Which elements of a stored tensor on it were read; of shape () where all were."""
        is_all = (self.is_whole and not self.is_picked) or tensor.dtype != self.tensor.dtype
        return np.ones((), bool) if is_all else self.flags(tensor)


class StoredReads(ExecutedBranches):
    """Notes what one run reads of each stored tensor: the rows that it picks of a table, else what operators take."""

    def __init__(self, weights: Iterable[NamedWeight], packed: Iterable[tuple[int, NamedWeight]] = ()) -> None:
        super().__init__()
        in_packs = tuple(packed)
        self._packs: dict[int, list[torch.Tensor]] = {}  # by the address of the object that holds them
        for address, weight in in_packs:
            self._packs.setdefault(address, []).append(weight.tensor)
        every = (*weights, *(weight for _, weight in in_packs))
        self._weights = tuple(weight for weight in every if _is_strided(weight.tensor))
        self._memory: dict[int, _Memory] = {}
        for weight in self._weights:
            memory = self._memory.setdefault(memory_of(weight.tensor), _Memory(weight.tensor))
            if is_traceable_wrapper_subclass(weight.tensor):  # of which a run may see the inside alone
                for _, part in leaves(weight.tensor):
                    self._memory.setdefault(memory_of(part), _Memory(part, memory))

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and note what it read: one that gives no element, an expert on no rows, reads none."""
        result = func(*args, **kwargs)
        name, results = versions.schema_of(func).name, tensors_in(result)
        with versions.disable_current_modes():
            for packed in args:  # tables are read by row, layers whole
                held = self._packs.get(hash(packed), ()) if isinstance(packed, torch.ScriptObject) else ()
                for tensor in held:
                    is_table = name.startswith("quantized::embedding")
                    self._mark(tensor, (args[1].reshape(-1).long().numpy(),) if is_table else None)
            if not results or any(tensor.numel() for tensor in results):
                made = {memory_of(tensor) for tensor in results if _is_strided(tensor)}
                for tensor in (*tensors_in(args), *tensors_in(list(kwargs.values()))):
                    if _is_strided(tensor) and memory_of(tensor) not in made:  # a view is read where something reads it
                        self._mark(tensor, _picked(name, args) if args[0] is tensor else None)
        return result

    def _mark(self, tensor: torch.Tensor, picked: tuple[Any, ...] | None) -> None:
        if memory := self._memory.get(memory_of(tensor)):
            memory.mark(tensor, picked)

    def add_to(self, coverage: Coverage, outputs: Iterable[torch.Tensor]) -> None:
        """Hand over what was read and executed; outputs are read, too."""
        for tensor in filter(_is_strided, outputs):
            self._mark(tensor, None)
        for weight in self._weights:
            coverage.read(weight.name, self._memory[memory_of(weight.tensor)].mask(weight.tensor))
        for call, branch in self.executed:
            coverage.execute(call, branch)


class IndexRanges(RunningMode):
    """Below what integer inputs must stay: the rows of the smallest table that each of them asks for.

    An input that anything else reads than a table, or a comparison for equality, has no range.
    """

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {memory_of(tensor): name for name, tensor in inputs.items()}
        self._kept = list(inputs.values())
        self._sizes: dict[str, int] = {}
        self._barred: set[str] = set()

    @property
    def ranges(self) -> Mapping[str, int]:
        return {name: size for name, size in self._sizes.items() if name not in self._barred}

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and note what it does with an input."""
        result = func(*args, **kwargs)
        name, made = versions.schema_of(func).name, tensors_in(result)
        for tensor in [*tensors_in(args), *tensors_in(list(kwargs.values()))]:
            asked = self._names.get(memory_of(tensor)) if _is_strided(tensor) else None
            if asked is not None:
                self._note(asked, tensor, name, args, made)
        return result

    def _note(
        self, asked: str, tensor: torch.Tensor, name: str, args: tuple[Any, ...], made: list[torch.Tensor]
    ) -> None:
        at = INDEXED.get(name)
        if any(_is_strided(each) and memory_of(each) == memory_of(tensor) for each in made):
            return  # a view
        if at is not None and len(args) > at and args[at] is tensor:
            axis = args[1] if at > 1 else 0
            rows = args[0].shape[axis]
        elif name == "aten::index" and len(args[1]) == 1 and args[1][0] is tensor:
            rows = args[0].shape[0]
        elif name in CARRIERS and made and not made[0].is_floating_point():
            self._names[memory_of(made[0])] = asked
            self._kept.append(made[0])
            return
        elif name.partition(".")[0] in COMPARISONS:
            return
        else:
            self._barred.add(asked)
            return
        self._sizes[asked] = min(rows, self._sizes.get(asked, rows))


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and prod(tensor.shape) > 0
