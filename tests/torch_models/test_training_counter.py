"""MACs of a training step, held against PyTorch's own counter of both passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

import pytest
import torch
import torchvision.models as vision
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from pytest_modelbudget import measure
from pytest_modelbudget.torch_models.training import kernels_of_torch
from tests.builders.marks import one_of_many

pytestmark = pytest.mark.needs_torch


class Recurrent(nn.Module):
    """A layer over steps, of which the last hidden state is read by a linear one."""

    def __init__(self, layer: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.layer = layer(8, 12, num_layers=2, bidirectional=True, **settings)
        self.head = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][-1])  # type: ignore[no-any-return]


class Attending(nn.Module):
    """An encoder of two layers, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        return self.encoder(x, mask=mask)  # type: ignore[no-any-return]


class Upsampling(nn.Module):
    """A transposed convolution in two groups, with an output padding, behind a dilated one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3, dilation=2)
        self.second = nn.ConvTranspose1d(8, 6, 3, stride=2, output_padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


SMALL_ENOUGH = 10_000  # parameters of a model that is counted in a real run
IMAGES = "float32 2x3x64x64"
FILM = "float32 1x3x4x32x32"
SMALL: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "lstm": (lambda: Recurrent(nn.LSTM), "float32 5x2x8"),
    "gru": (lambda: Recurrent(nn.GRU), "float32 5x2x8"),
    "rnn": (lambda: Recurrent(nn.RNN), "float32 5x2x8"),
    "projected lstm": (lambda: nn.LSTM(8, 12, proj_size=5), "float32 5x2x8"),
    "encoder": (Attending, "float32 2x6x16"),
    "upsampling": (Upsampling, "float32 2x4x20"),
    "embedding": (lambda: nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50)), "int64 2x7"),
}
NAMES = (
    "alexnet vgg11 resnet18 resnet34 resnet50 resnext50_32x4d squeezenet1_0 squeezenet1_1 "
    "mnasnet0_5 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x0_5 efficientnet_b0 "
    "regnet_x_400mf regnet_y_400mf convnext_tiny densenet121"
)
CASES = {
    **SMALL,
    **{name: (getattr(vision, name), IMAGES) for name in NAMES.split()},
    "googlenet": (lambda: vision.googlenet(init_weights=False), IMAGES),
    "inception_v3": (lambda: vision.inception_v3(init_weights=False), "float32 2x3x299x299"),
    "vit_b_16": (lambda: vision.VisionTransformer(32, 8, 2, 4, 64, 128), "float32 2x3x32x32"),
    "fcn_resnet50": (lambda: vision.segmentation.fcn_resnet50(weights_backbone=None), IMAGES),
    "r3d_18": (vision.video.r3d_18, FILM),
    "mc3_18": (vision.video.mc3_18, FILM),
}


@contextmanager
def overcounted(model: nn.Module) -> Iterator[list[int]]:
    """MACs that PyTorch's formula adds for grouped convolutions: it multiplies all channels by all, not within groups.

    Its gradient of a weight (n, c / g, k) over outputs (b, n, ...) has g times the MACs of the convolution.
    """
    found: list[int] = []

    def note(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            found.append(out.numel() * prod(module.weight.shape[1:]) * (module.groups - 1))
        elif isinstance(module, nn.ConvTranspose1d):
            found.append(args[0].numel() * prod(module.weight.shape[1:]) * (module.groups - 1))

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    yield found
    for hook in hooks:
        hook.remove()


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """What a model returns, flattened."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, dict)):
        for part in result.values() if isinstance(result, dict) else result:
            yield from tensors(part)


def counted(build: Callable[[], nn.Module], spec: str) -> tuple[int, int]:
    """PyTorch's FLOPs of both passes in train mode, halved, and what of them is too much."""
    dtype, _, sizes = spec.partition(" ")
    shape = [int(size) for size in sizes.split("x")]
    model = build().train()
    is_small = sum(weight.numel() for weight in model.parameters()) < SMALL_ENOUGH
    with kernels_of_torch(), nullcontext() if is_small else FakeTensorMode(allow_non_fake_inputs=True):
        if not is_small:
            model.to_empty(device="cpu")  # the same weights without memory
        with overcounted(model) as more, FlopCounterMode(display=False) as counter:
            outputs = tensors(model(torch.zeros(shape, dtype=getattr(torch, dtype))))
            sum(out.sum() for out in outputs if out.requires_grad).backward()  # type: ignore[union-attr]
        return counter.get_total_flops() // 2, sum(more)


USUAL = (*SMALL, "alexnet", "resnet18", "squeezenet1_1", "mobilenet_v2", "vit_b_16", "mc3_18")  # one of each kind


@pytest.mark.parametrize(
    ("build", "inputs"), [pytest.param(*case, id=name, marks=one_of_many(name, USUAL)) for name, case in CASES.items()]
)
def test_a_step_is_counted_as_pytorch_counts_it(build: Callable[[], nn.Module], inputs: str) -> None:
    """Equal, but for the gradients of grouped convolutions' weights, of which PyTorch counts g times as many."""
    number = measure(build, inputs, training="sgd")["training_macs"]
    theirs, too_many = counted(build, inputs)
    assert number.complete
    assert number.value == theirs - too_many
    assert number.value > 0
