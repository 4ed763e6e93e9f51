"""Small torch models for export to ONNX: every parameter and statistic drawn at random.

Exporters merge and drop equal tensors (zero biases, fresh statistics), and models of that size
export in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

IMAGE = (1, 3, 64, 64)


class LanguageModel(nn.Module):
    """Embedding, one linear layer with a residual, layer norm, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.hidden = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + F.gelu(self.hidden(x))))


class Attention(nn.Module):
    """Scaled dot-product attention between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(32, 96)
        self.outside = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.inside(x).reshape(2, 10, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return self.outside(mixed.transpose(1, 2).reshape(2, 10, 32))


class Encoder(nn.Module):
    """Self-attention that gives its weights, then a feed-forward part, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x, x, x)[0])
        return x + self.narrow(F.relu(self.wide(x)))


class Recurrent(nn.Module):
    """A recurrent layer's outputs without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


class Queries(nn.Module):
    """Learnt queries behind a norm, a learnt token in the place of what is masked, learnt bounds and exponents."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.ones(6, 8))
        self.token, self.least, self.power = (nn.Parameter(torch.ones(8)) for _ in range(3))
        self.norm, self.keys = nn.LayerNorm(8), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.maximum(torch.where(x > 0, x, self.token), self.least).pow(self.power)
        return (self.norm(self.queries) @ self.keys(x).transpose(1, 2)).softmax(-1) @ x


def small_vit() -> nn.Module:
    return VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=10)


def small_swin() -> nn.Module:
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)


def convolutions() -> nn.Module:
    """Grouped, dilated and transposed convolutions, with a batch norm after the first."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4, dilation=2),
        nn.PReLU(8),
        nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2),
        nn.GroupNorm(2, 6),
    )


# Model by name: its factory and the input it is exported on.
EXPORTED: Mapping[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.ones(2, 8)),
    "convolutions": (convolutions, torch.ones(1, 3, 16, 16)),
    "language": (LanguageModel, torch.ones(2, 7, dtype=torch.int64)),
    "attention": (Attention, torch.ones(2, 10, 32)),
    "encoder": (Encoder, torch.ones(2, 5, 16)),
    "lstm": (lambda: Recurrent(nn.LSTM(4, 8, num_layers=2, bidirectional=True)), torch.ones(5, 2, 4)),
    "gru": (lambda: Recurrent(nn.GRU(4, 8)), torch.ones(5, 2, 4)),
    "queries": (Queries, torch.ones(2, 5, 8)),
    "vit": (small_vit, torch.ones(IMAGE)),
    "swin": (small_swin, torch.ones(IMAGE)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(width_mult=0.25), torch.ones(IMAGE)),
    "mobilenet_v3": (models.mobilenet_v3_small, torch.ones(IMAGE)),
    "shufflenet": (models.shufflenet_v2_x0_5, torch.ones(IMAGE)),
    "squeezenet": (models.squeezenet1_1, torch.ones(IMAGE)),
    "mnasnet": (models.mnasnet0_5, torch.ones(IMAGE)),
    "resnet18": (models.resnet18, torch.ones(IMAGE)),
}


def built(name: str) -> nn.Module:
    """A model in eval mode with no two equal tensors."""
    torch.manual_seed(0)
    model = EXPORTED[name][0]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.1, 0.9)
        for buffer_name, buffer in model.named_buffers():
            if "running" in buffer_name:
                buffer.uniform_(0.1, 0.9)
    return model


def folded_away(model: nn.Module) -> int:
    """Parameters that folding removes: a batch norm's scale and shift go into the convolution.

    A convolution without a bias gains one; in these models every batch norm stands behind one.
    """
    layers = [each for each in model.modules() if isinstance(each, (nn.Conv2d, nn.BatchNorm2d))]
    lost = 0
    for before, layer in pairwise(layers):
        if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
            lost += (1 if before.bias is None else 2) * layer.num_features
    return lost
