"""Two nets that labs measure by hand: an MNIST convolution net, and a jet-tagging MLP."""

from __future__ import annotations

from torch import Tensor, nn


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
