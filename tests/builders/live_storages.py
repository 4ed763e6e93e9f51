"""Storages of a real run on a CPU, while they live, and a network whose storages live long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Seen:
    """One storage: its bytes, the operators that read it by number, and a reference that does not keep it."""

    nbytes: int
    reference: StorageWeakRef
    made: int
    read: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Notes the storages of all tensors that operators take and give, and which are alive after each."""

    def __init__(self, stored: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types
        self.operators = 0
        self.storages: list[Seen] = []
        self._stored = stored
        self._now: dict[int, Seen] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, then look."""
        for seen in self.seen((args, kwargs)):
            seen.read.append(self.operators)
        result = func(*args, **(kwargs or {}))
        list(self.seen(result))
        for address, seen in tuple(self._now.items()):
            if seen.reference.expired():  # type: ignore[no-untyped-call]
                del self._now[address]
            else:
                seen.alive.append(self.operators)
        self.operators += 1
        return result

    def seen(self, values: Any) -> Iterator[Seen]:
        """The storages of tensors anywhere in a value, but for weights."""
        for tensor in pytree.tree_leaves(values):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            address = storage._cdata
            known = self._now.get(address)
            if address in self._stored:
                continue
            if known is None or known.reference.expired():  # type: ignore[no-untyped-call]
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                known = self._now[address] = Seen(storage.nbytes(), reference, self.operators)
                self.storages.append(known)
            yield known


class Skipping(nn.Module):
    """A small U: two levels down, two up, what was on the way down concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.bottom, self.up = nn.Conv2d(16, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.third, self.last = nn.Conv2d(32, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head, self.pool = nn.Conv2d(16, 2, 1), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x).relu()
        two = self.second(self.pool(one)).relu()
        up = self.up(self.bottom(self.pool(two)).relu_())
        up = self.last(self.third(torch.cat((up, two), 1)).relu())
        return self.head(torch.cat((up, one), 1)).softmax(1)  # type: ignore[no-any-return]
