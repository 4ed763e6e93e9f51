"""Small networks of several kinds, as torch modules and as ONNX files with weights from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn


class Squeezed(nn.Module):
    """An inverted residual with squeeze and excitation, as MobileNetV3 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.Hardswish())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1))
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        wide = self.depth(self.expand(x))
        x = x + self.project(wide * self.gate(wide).sigmoid())
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    """A transformer's layer by hand: attention, norms and a feed-forward with GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (layer(y).view(1, 6, 2, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(1, 6, 16))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Up and down again with a skip, as segmentation networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1))
        self.low = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Sigmoid())
        self.up = nn.ConvTranspose2d(16, 6, 2, stride=2)
        self.last = nn.Conv2d(9, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(x)
        y = self.up(torch.cat([y, self.low(y)], 1)).tanh()
        return self.last(torch.cat([y, x], 1))


def plain() -> nn.Module:
    """Convolutions, batch norms and pooling, then two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 4 * 4, 10),
        nn.Tanh(),
        nn.Linear(10, 5),
    )


def perceptron() -> nn.Module:
    """Four linear layers."""
    layers = (nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 32), nn.Sigmoid(), nn.Linear(32, 16), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(16, 5))


IMAGE = (1, 3, 16, 16)
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (plain, IMAGE),
    "squeezed": (Squeezed, IMAGE),
    "encoder": (Encoder, (1, 6, 16)),
    "decoder": (Decoder, IMAGE),
    "perceptron": (perceptron, (1, 24)),
}


def module(name: str) -> nn.Module:
    """A network in eval mode whose values keep their size, with batch norms that matter and shut no channel off."""
    torch.manual_seed(7)
    build, _ = NETWORKS[name]
    network = build().eval()
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.normal_(layer.weight, 0, (2 / layer.weight[0].numel()) ** 0.5)
            if layer.bias is not None:
                nn.init.uniform_(layer.bias, 0.2, 0.8)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, 0.1, 0.4)
    return network


def spec(name: str) -> str:
    """Its input, as a budget writes it."""
    return "float32 " + "x".join(map(str, NETWORKS[name][1]))


def exported(name: str, path: Path, *, dynamo: bool = False) -> Path:
    """The network as torch's exporter writes it, batch norms and all."""
    if not path.exists():
        training = torch.onnx.TrainingMode.PRESERVE
        options = {} if dynamo else {"training": training, "opset_version": 17}
        sample = torch.zeros(NETWORKS[name][1])
        torch.onnx.export(
            module(name), (sample,), path, dynamo=dynamo, input_names=["x"], output_names=["y"], **options
        )
    return path
