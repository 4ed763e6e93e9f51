"""A compiler team's own transform: every nn.Linear becomes a module of 64x64 tiles.

A budget names it under ``apply:``. It takes a module, here a copy that it may change, and returns
the module that the accelerator would run.
"""

from __future__ import annotations

import torch
from torch import nn

TILE = 64


class TiledLinear(nn.Module):
    """out = b + Σ x[tile]·W[tile]ᵀ, one parameter for each tile of the weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        columns = linear.weight.detach().split(TILE)
        self.columns = nn.ModuleList(
            nn.ParameterList(tile.clone() for tile in column.split(TILE, 1)) for column in columns
        )
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.split(TILE, -1)
        sums = [sum(part @ tile.t() for part, tile in zip(parts, column, strict=True)) for column in self.columns]
        out = torch.cat(sums, -1)
        return out if self.bias is None else out + self.bias


def tiled(model: nn.Module) -> nn.Module:
    """The same network with every nn.Linear in tiles."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, TiledLinear(child))
    return model
