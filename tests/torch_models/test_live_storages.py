"""The peak of activations, held against memory that PyTorch really holds: storages on a CPU, while they live.

A model runs on real tensors, node by node, each value given up after its last use: by ``torch.fx.Interpreter``, which
is PyTorch's. A dispatch mode notes each storage that an operator makes, through a weak reference, and after each
operator which of all these are still there. Nothing of the project's recorder or liveness is used.

Three rules of ``peak_activation`` are no physics, and the tracker is told them: an input lives until its last use,
whatever the caller holds; a result that nobody reads and the caller does not get costs nothing (indices of a max
pool); weights are not in it. A kernel's scratch memory has no storage that an operator returns: it is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torchvision.models as vision
from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget import measure
from tests.builders.marks import one_of_many

pytestmark = pytest.mark.needs_torch


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


def live_peak(model: nn.Module, x: torch.Tensor) -> int:
    """Most bytes of storages alive after an operator of a real run, by the rules above."""
    weights = (*model.parameters(), *model.buffers())
    with torch.inference_mode():
        program = fx.Interpreter(fx.symbolic_trace(model.eval()), garbage_collect_values=True)
        with Tracker({weight.untyped_storage()._cdata for weight in weights}) as tracker:
            (given,) = tracker.seen(x)
            returned = list(tracker.seen(program.run(x)))
    given.alive = list(range((given.read or [0])[-1] + 1))
    held = [seen for seen in tracker.storages if seen.read or seen in returned]
    live = [0] * tracker.operators
    for seen in held:
        for at in seen.alive:
            live[at] += seen.nbytes
    return max(live)


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


class Gated(nn.Module):
    """Halves of one tensor, views of it, of which one is written in place; and a mean that nothing else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.fc(x).chunk(2, -1)
        return left.sigmoid_() * right.transpose(0, 1).contiguous().transpose(0, 1) + left.mean()


NAMES = (
    "alexnet resnet18 resnet50 resnext50_32x4d squeezenet1_0 squeezenet1_1 mobilenet_v2 "
    "mobilenet_v3_small mobilenet_v3_large mnasnet0_5 shufflenet_v2_x0_5 densenet121 efficientnet_b0 regnet_x_400mf "
    "regnet_y_400mf convnext_tiny"
)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "skips": (Skipping, (2, 3, 32, 32)),
    "views": (Gated, (4, 16)),
    **{name: (getattr(vision, name), (1, 3, 64, 64)) for name in NAMES.split()},
    "googlenet": (lambda: vision.googlenet(aux_logits=False, init_weights=False), (1, 3, 64, 64)),
    "inception_v3": (lambda: vision.inception_v3(aux_logits=False, init_weights=False), (1, 3, 80, 80)),
}


USUAL = ("skips", "views", "alexnet", "resnet18", "squeezenet1_1", "mobilenet_v2", "shufflenet_v2_x0_5", "googlenet")


@pytest.mark.parametrize(
    ("build", "shape"), [pytest.param(*case, id=name, marks=one_of_many(name, USUAL)) for name, case in CASES.items()]
)
def test_the_peak_is_what_lives(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """To the byte, on 20 models."""
    sizes = "x".join(map(str, shape))
    assert live_peak(build(), torch.zeros(shape)) == measure(build, f"float32 {sizes}")["peak_activation"].value
