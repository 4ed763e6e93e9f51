"""Small models whose multiply-accumulates have a closed form, written out beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Micro:
    """A model, the shapes it is run on, and its true MACs in eval mode."""

    name: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    macs: int


class FunctionalLinear(nn.Module):
    """A matrix that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.matrix)


class Unlearnt(nn.Module):
    """A module without learnt weights; one tool crashes where there is no parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))


class Gram(Unlearnt):
    """x · xᵀ by an operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T


class Einsum(Unlearnt):
    """A batched product by its indices."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bij,bkj->bik", x, y)


class FusedAttention(Unlearnt):
    """Attention as one operator."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention on one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended


class Parent(nn.Module):
    """Calls a layer that it may share."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def shared_linear() -> nn.Module:
    """One layer under two parents, hence called twice."""
    layer = nn.Linear(8, 8, bias=False)
    return nn.Sequential(Parent(layer), Parent(layer))


def encoder_layer() -> nn.Module:
    """A transformer encoder layer with 2 heads and 16 hidden units."""
    return nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)


ATTENTION_8 = 4 * 16 * 8 * 8 + 2 * 16 * 16 * 8  # four projections, Q·Kᵀ and scores·V

MICRO_MODELS: tuple[Micro, ...] = (
    Micro("Linear 3→8 on (2, 5, 3)", lambda: nn.Linear(3, 8, bias=False), ((2, 5, 3),), 2 * 5 * 3 * 8),
    Micro("`F.linear` on a Parameter", FunctionalLinear, ((2, 5, 3),), 2 * 5 * 3 * 8),
    Micro("`x @ x.T`, 16×16", Gram, ((16, 16),), 16 * 16 * 16),
    Micro("einsum bij,bkj", Einsum, ((1, 16, 16), (1, 16, 16)), 16 * 16 * 16),
    Micro("`scaled_dot_product_attention`", FusedAttention, ((1, 1, 16, 16),) * 3, 2 * 16**3),
    Micro("nn.MultiheadAttention", SelfAttention, ((1, 16, 8),), ATTENTION_8),
    Micro("nn.TransformerEncoderLayer", encoder_layer, ((1, 16, 8),), ATTENTION_8 + 2 * 16 * 8 * 16),
    Micro("one Linear under two parents", shared_linear, ((2, 8),), 2 * (2 * 8 * 8)),
    Micro(
        "ConvTranspose2d 4→6 k3 s2 g2",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False),
        ((1, 4, 4, 4),),
        (4 * 4 * 4) * (6 // 2) * 3 * 3,
    ),
    Micro("nn.LSTM 4→8, T 5, B 2", lambda: nn.LSTM(4, 8), ((5, 2, 4),), 5 * 2 * 4 * (8 * 4 + 8 * 8)),
    Micro("LayerNorm only", lambda: nn.LayerNorm(16), ((1, 5, 16),), 0),
)
