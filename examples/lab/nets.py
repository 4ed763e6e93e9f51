"""Two nets that labs measure by hand: an MNIST convolution net, and a jet-tagging MLP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

WEIGHTS = Path(__file__).with_name("mnist_net.npz")  # which train_digits.py has trained


def mnist_net() -> nn.Module:
    """1x28x28 → 10 classes, without biases.

    Weights 5·5·4 + 5·5·4·8 + 392·256 + 256·10 = 103,812.
    MACs 28·28·100 + 14·14·8·100 + 392·256 + 256·10 = 338,112.
    """
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(392, 256, bias=False), nn.ReLU(), nn.Linear(256, 10, bias=False),
    )  # fmt: skip


def trained_mnist_net() -> nn.Module:
    """The same with weights that answer 964 of the 1,000 digits of digits.py right."""
    net = mnist_net()
    with np.load(WEIGHTS) as stored:
        net.load_state_dict(
            {name: torch.from_numpy(stored[name] * stored[f"{name}.scale"]) for name in net.state_dict()}
        )
    return net.eval()


class MnistLoops(nn.Module):
    """The same net again, written as loops: over the places of each kernel, and over the channels that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.net = trained_mnist_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.net[0], self.net[3]):
            x = pooled(convolved(x, conv.weight).clamp(min=0))
        x = x.reshape(x.shape[0], -1)
        return (x @ self.net[7].weight.T).clamp(min=0) @ self.net[9].weight.T


def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (n, c, h, w) · weight (k, c, 5, 5), padded by 2 → (n, k, h, w), one product of a place at a time."""
    height, width = x.shape[2:]
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    total = x.new_zeros(x.shape[0], weight.shape[0], height, width)
    for channel in range(weight.shape[1]):
        for i in range(5):
            for j in range(5):
                seen = padded[:, channel, None, i : i + height, j : j + width]
                total = total + weight[None, :, channel, i, j, None, None] * seen
    return total


def pooled(x: torch.Tensor) -> torch.Tensor:
    """The largest of each two by two."""
    rows = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def jsc_tiny() -> nn.Module:
    """16 features of a jet → 5 classes: three batch norms, three linears, three ReLUs.

    Linears (16·40 + 40) + (40·25 + 25) + (25·5 + 5) = 1,835; norms 2·(16 + 40 + 25) = 162.
    """
    return nn.Sequential(
        nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 40), nn.BatchNorm1d(40), nn.ReLU(),
        nn.Linear(40, 25), nn.BatchNorm1d(25), nn.ReLU(), nn.Linear(25, 5),
    )  # fmt: skip


class Product(nn.Module):
    """A · B of two inputs: 128 · 128 · 128 = 2,097,152 MACs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b
