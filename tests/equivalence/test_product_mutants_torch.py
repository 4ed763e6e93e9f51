"""Wrong tilings of attention, einsums, recurrent layers and patches, each wrong in one block: found, and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.products_on_torch import Tensors, TileProducts
from tests.builders.marks import each_in_turn
from tests.builders.mutants import verified

pytestmark = pytest.mark.needs_torch

TILE = Tile(6, 6, 6)  # divides every axis, so that tiles can be exchanged
TYPES = ("float32", "float16", "bfloat16")
Block = Callable[[list[torch.Tensor], list[torch.Tensor], torch.Tensor, torch.Tensor], torch.Tensor]


def total(row: Tensors, column: Tensors) -> torch.Tensor:
    """The sum of products as it should be, of what is given."""
    return torch.stack([x @ y for x, y in zip(row, column, strict=True)]).sum(0)


def one_element(values: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The same but for the largest element."""
    found = values.clone(memory_format=torch.contiguous_format)
    place = found.abs().flatten().argmax()
    found.view(-1)[place] = change(found.view(-1)[place])
    return found


# What stands in the place of a block: of its tiles of x and y, itself, and the block before it.
WRONG: dict[str, Block] = {
    "last tile dropped": lambda row, column, right, before: total(row[:-1], column[:-1]),
    "first tile dropped": lambda row, column, right, before: total(row[1:], column[1:]),
    "a tile twice": lambda row, column, right, before: right + row[0] @ column[0],
    "tiles swapped": lambda row, column, right, before: total(row, [column[1], column[0], *column[2:]]),
    "tile transposed": lambda row, column, right, before: total(row, [column[0].transpose(-1, -2), *column[1:]]),
    "rows of x turned": lambda row, column, right, before: total([row[0].roll(1, -2), *row[1:]], column),
    "elements of x turned": lambda row, column, right, before: total([row[0].roll(1, -1), *row[1:]], column),
    "sign": lambda row, column, right, before: total([-row[0], *row[1:]], column),
    "stale accumulator": lambda row, column, right, before: right + before,
    "another block": lambda row, column, right, before: before,
    "one element of a tile": lambda row, column, right, before: total(
        row, [one_element(column[0], lambda value: value * 1.5), *column[1:]]
    ),
    "one output": lambda row, column, right, before: one_element(right, lambda value: value * 1.01),
    "one NaN": lambda row, column, right, before: one_element(right, lambda value: value * float("nan")),
}


class Mutant(TileProducts):
    """Tiles rightly but for the second block of one product of one layer."""

    def __init__(self, wrong: Block, scope: str, at: int) -> None:
        super().__init__(TILE, ("*",))
        self.wrong, self.scope, self.at = wrong, scope, at
        self.blocks: list[torch.Tensor] = []

    def tiled(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.blocks = []
        return super().tiled(x, y)

    def block(self, row: Tensors, column: Tensors) -> torch.Tensor:
        right = super().block(row, column)
        mine = [each for each in self.changes if each.scope == self.scope]
        is_chosen = len(mine) == self.at + 1 and self.changes[-1] is mine[-1] and len(self.blocks) == 1
        found = self.wrong(list(row), list(column), right, self.blocks[-1]) if is_chosen else right
        self.blocks.append(right)
        return found


class Attention(nn.Module):
    """Three heads of 12; x (batch, 12, 36)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (3, 12)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


class Einsum(nn.Module):
    """Scores of every position with every other, of all features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bld,bsd->bls", x, x) / 36


class Product(nn.Module):
    """x · xᵀ · x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(x, x.transpose(1, 2)), x) / 36


class Recurrent(nn.Module):
    """The outputs of a recurrent layer alone, of four steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, :4])[0]  # type: ignore[no-any-return]


# The layer, its path, and which of its products is wrong.
LAYERS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "query-key scores": (Attention, "1", 0),
    "scores times values": (Attention, "1", 1),
    "einsum": (Einsum, "1", 0),
    "second bmm": (Product, "1", 1),
    "gates of inputs": (lambda: Recurrent(nn.LSTM(36, 12, batch_first=True)), "1.layer", 0),
    "gates of the state": (lambda: Recurrent(nn.GRU(36, 12, batch_first=True)), "1.layer", 3),
    "patches": (lambda: nn.Conv1d(12, 12, 3, padding=1), "1", 0),
}


def network(layer: Callable[[], nn.Module]) -> nn.Module:
    """The layer in question stands second of three."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(36, 36), layer(), nn.Tanh())
    redraw(model)
    return model.eval()


NETWORKS = {name: network(layer) for name, (layer, _, _) in LAYERS.items()}


@pytest.mark.parametrize(("wrong", "name"), each_in_turn([(wrong,) for wrong in WRONG], [*LAYERS]))
def test_wrong_blocks_are_found(wrong: str, name: str) -> None:
    """On request 91 mutants, usually each in one layer: each is over, and its layer is the first that differs."""
    _, scope, at = LAYERS[name]
    mutant = Mutant(WRONG[wrong], scope, at)
    found = verified(NETWORKS[name], (2, 12, 36), mutant, seeds=(0,), families=("normal",))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == scope


@pytest.mark.parametrize(
    ("name", "dtype"), each_in_turn([(name,) for name in LAYERS], ("float32", "float16", "bfloat16"))
)
def test_right_blocks_are_within(name: str, dtype: str) -> None:
    """What the mutants are made from is within, in every storage type."""
    rewrite = TileProducts(TILE, ("*",))
    found = verified(NETWORKS[name], (2, 12, 36), rewrite, dtype, seeds=(0,), families=("normal", "uniform"))
    assert found.outcome is Outcome.WITHIN
