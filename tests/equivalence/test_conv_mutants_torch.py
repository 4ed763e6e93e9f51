"""Wrong tilings of convolutions, each wrong in one place: every one is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.tile.conv_on_torch import TileConv
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.products_on_torch import Linear, padded
from tests.builders.marks import each_in_turn
from tests.builders.mutants import verified

pytestmark = pytest.mark.needs_torch

TYPES = ("float32", "float16", "bfloat16")
TILE = Tile(None, 8, 8)


@dataclass(frozen=True)
class Column:
    """One tile's width of outputs: what it is made of, what it should be, the column before it."""

    product: Callable[..., torch.Tensor]
    parts: list[torch.Tensor]
    tiles: list[torch.Tensor]
    bias: torch.Tensor
    right: torch.Tensor
    before: torch.Tensor | None

    def total(self) -> torch.Tensor:
        """The sum of its products."""
        out = self.product(self.parts[0], self.tiles[0], self.bias)
        for x, tile in zip(self.parts[1:], self.tiles[1:], strict=True):
            out = out + self.product(x, tile, None)
        return out

    def with_tile(self, at: int, tile: torch.Tensor) -> torch.Tensor:
        """The same with another tile in one place."""
        return replace(self, tiles=[*self.tiles[:at], tile, *self.tiles[at + 1 :]]).total()

    def with_part(self, at: int, x: torch.Tensor) -> torch.Tensor:
        """The same with another part of x in one place."""
        return replace(self, parts=[*self.parts[:at], x, *self.parts[at + 1 :]]).total()


def without(column: Column, at: int) -> torch.Tensor:
    kept = [i for i in range(len(column.tiles)) if i != at % len(column.tiles)]
    parts, tiles = ([of[i] for i in kept] for of in (column.parts, column.tiles))
    return replace(column, parts=parts, tiles=tiles).total()


def channel_scale(column: Column) -> torch.Tensor:
    scale = torch.ones(column.right.shape[1], 1, 1, dtype=column.right.dtype)
    scale[3] = 1.01
    return column.right * scale


def one_weight(column: Column) -> torch.Tensor:
    tile = column.tiles[1].clone()
    tile[5, 7, 1, 2] *= 1.5
    return column.with_tile(1, tile)


def off_by_one(column: Column) -> torch.Tensor:
    channels = torch.cat(column.parts, 1)
    return column.with_part(0, channels[:, 1 : TILE.k + 1])


def one_nan(column: Column) -> torch.Tensor:
    found = column.right.clone()
    found[0, 0, 0, 0] = float("nan")
    return found


WRONG: dict[str, Callable[[Column], torch.Tensor]] = {
    "last tile dropped": lambda column: without(column, -1),
    "one tile dropped": lambda column: without(column, 1),
    "bias twice": lambda column: column.right + column.bias.view(-1, 1, 1),
    "no bias": lambda column: column.right - column.bias.view(-1, 1, 1),
    "tiles swapped": lambda column: replace(
        column, tiles=[column.tiles[1], column.tiles[0], *column.tiles[2:]]
    ).total(),
    "kernel turned": lambda column: column.with_tile(1, column.tiles[1].transpose(2, 3)),
    "channels turned": lambda column: column.with_tile(1, column.tiles[1].transpose(0, 1)),
    "sign": lambda column: column.with_tile(1, -column.tiles[1]),
    "other batch element": lambda column: column.with_part(0, column.parts[0].roll(1, 0)),
    "other position": lambda column: column.with_part(0, column.parts[0].roll(1, -1)),
    "stale accumulator": lambda column: column.right + column.before,
    "channel scale": channel_scale,
    "one weight": one_weight,
    "off by one": off_by_one,
    "one NaN": one_nan,
}


class Mutant(TileConv):
    """Tiles rightly but for the second column of one layer."""

    def __init__(self, wrong: Callable[[Column], torch.Tensor], scope: str) -> None:
        super().__init__(TILE, ("*",))
        self.wrong = wrong
        self.scope = scope
        self.position = 0
        self.before: torch.Tensor | None = None

    def result(self, call: Any) -> Any:
        self.position = 0
        return super().result(call)

    def column(self, product: Any, parts: Any, weight: Any, bias: Any) -> torch.Tensor:
        right = super().column(product, parts, weight, bias)
        self.position += 1
        found = right
        if self.changes[-1].scope == self.scope and self.position == 2:
            tiles = list(weight.split(TILE.k, 1))
            column = Column(product, list(parts), tiles, bias, right, self.before)
            found = self.wrong(column)
        self.before = right
        return found


def drawn(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers)
    redraw(model)
    return model


# The second column of 8 outputs sums up tiles of 8, 8 and 4 input channels.
MODELS = {
    "one layer": (drawn(nn.Conv2d(20, 18, 3)), (2, 20, 6, 5), "0"),
    "groups": (drawn(nn.Conv2d(40, 36, 3, groups=2)), (2, 40, 6, 5), "0"),
    "several layers": (
        drawn(
            nn.Sequential(nn.Conv2d(2, 20, 3), nn.ReLU()),
            nn.Conv2d(20, 18, 3, padding=1, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(18, 18, 1),
            nn.Flatten(),
            nn.Linear(18 * 3 * 3, 10),
        ),
        (2, 2, 7, 7),
        "1",
    ),
}


@pytest.mark.parametrize(("name", "wrong", "dtype"), each_in_turn([*product(MODELS, WRONG)], TYPES))
def test_wrong_tiles_are_found(name: str, wrong: str, dtype: str) -> None:
    """One wrong column of one layer is over, and that layer is the first that differs."""
    model, shape, scope = MODELS[name]
    found = verified(model, shape, Mutant(WRONG[wrong], scope), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == scope
    assert found.first_divergence.worst is not None


class DirtyPadding(TileConv):
    """Fills up the channels of one layer with what is no zero."""

    def columns(self, group: Linear, product: Any) -> list[torch.Tensor]:
        if self.changes[-1].scope != "1":
            return super().columns(group, product)
        channels, outputs = group.x.shape[1], len(group.weight)
        filled = padded(group, TILE)
        x, weight = filled.x.clone(), filled.weight.clone()
        x[:, channels:], weight[:, channels:] = 0.01, 0.01
        found = super().columns(Linear(x, weight, filled.bias), product)
        return [torch.cat(found, 1)[:, :outputs]]


class OtherGroup(TileConv):
    """Multiplies every group of channels by the weights of the first."""

    first: torch.Tensor | None = None

    def result(self, call: Any) -> Any:
        self.first = None
        return super().result(call)

    def columns(self, group: Linear, product: Any) -> list[torch.Tensor]:
        self.first = group.weight if self.first is None else self.first
        return super().columns(replace(group, weight=self.first), product)


@pytest.mark.parametrize("dtype", TYPES)
def test_padding_that_is_not_zero_is_found(dtype: str) -> None:
    """A hundredth in the 4 channels that fill up the last tile is over."""
    model, shape, scope = MODELS["several layers"]
    found = verified(model, shape, DirtyPadding(TILE, ("*",)), dtype, seeds=(0,))
    assert (found.outcome, getattr(found.first_divergence, "scope", "")) == (Outcome.OVER, scope)


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_another_group_are_found(dtype: str) -> None:
    """The second group's outputs by the first one's weights are over."""
    model, shape, scope = MODELS["groups"]
    found = verified(model, shape, OtherGroup(TILE, ("*",)), dtype, seeds=(0,))
    assert (found.outcome, getattr(found.first_divergence, "scope", "")) == (Outcome.OVER, scope)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", TYPES)
def test_right_tiles_are_within(name: str, dtype: str) -> None:
    """What the mutants are made from is within."""
    model, shape, _ = MODELS[name]
    for tile in (TILE, replace(TILE, pads=True)):
        assert verified(model, shape, TileConv(tile, ("*",)), dtype).outcome is Outcome.WITHIN
