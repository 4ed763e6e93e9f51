"""The peak of activations, held against memory that PyTorch really holds: storages on a CPU, while they live.

A model runs on real tensors, node by node, each value given up after its last use: by ``torch.fx.Interpreter``, which
is PyTorch's. A dispatch mode notes each storage that an operator makes, through a weak reference, and after each
operator which of all these are still there. Nothing of the project's recorder or liveness is used.

Three rules of ``peak_activation`` are no physics, and the tracker is told them: an input lives until its last use,
whatever the caller holds; a result that nobody reads and the caller does not get costs nothing (indices of a max
pool); weights are not in it. A kernel's scratch memory has no storage that an operator returns: it is in neither.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.models as vision
from torch import fx, nn

from pytest_modelbudget import measure
from tests.builders.live_storages import Skipping, Tracker
from tests.builders.marks import one_of_many

pytestmark = pytest.mark.needs_torch


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
