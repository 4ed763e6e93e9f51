"""Wrong tilings, each wrong in one place: what a transform must not get away with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.frontends.model_source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.ops.op_table import builtin_ops
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.tile_linear_torch import Linear, Tile, TileLinear, padded
from pytest_modelbudget.transforms.torch_operations import transformed_operations
from pytest_modelbudget.transforms.torch_rewriting import Call
from pytest_modelbudget.transforms.transform import Job

Tensors = Sequence[torch.Tensor]
TILE = 64


class Mutant(TileLinear):
    """Tiles rightly but for one column of one layer, where ``wrong`` answers."""

    def __init__(self, wrong: Callable[..., Any], scope: str, *, pad: bool = False) -> None:
        super().__init__(Tile(None, TILE, TILE), pad=pad, layers=("*",))
        self.wrong = wrong
        self.scope = scope
        self.position = 0
        self.before: torch.Tensor | None = None
        self.weights: dict[str, torch.Tensor] = {}

    def result(self, call: Call) -> Any:
        self.position = 0
        if call.name == "aten::linear":
            self.weights[call.owner(call.args[1])] = call.args[1]
        return super().result(call)

    def column(
        self, rows: Tensors, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        right = super().column(rows, weight, bias)
        self.position += 1
        found = right
        if self.changes[-1].scope == self.scope and self.position == 2:
            tiles = list(weight.split(TILE, 1))
            found = self.wrong(self, list(rows), tiles, bias, right)
        self.before = right
        return found


def total(rows: Tensors, tiles: Tensors, bias: torch.Tensor | None) -> torch.Tensor:
    """The sum of products as it should be, of what is given."""
    out = F.linear(rows[0], tiles[0], bias)
    for x, tile in zip(rows[1:], tiles[1:], strict=True):
        out = out + F.linear(x, tile)
    return out


def dropped(at: int) -> Callable[..., Any]:
    def wrong(self: Any, rows: list[Any], tiles: list[Any], bias: Any, right: Any) -> Any:
        del rows[at], tiles[at]
        return total(rows, tiles, bias)

    return wrong


def bias_twice(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return right + bias


def no_bias(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return total(rows, tiles, None)


def swapped(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return total(rows, [tiles[1], tiles[0], *tiles[2:]], bias)


def transposed(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return total(rows, [tiles[0].t(), *tiles[1:]], bias)


def other_batch_element(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return total([rows[0].roll(1, 0), *rows[1:]], tiles, bias)


def stale_accumulator(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return right + self.before


def channel_scale(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    scale = torch.ones_like(right[..., :])
    scale[..., 3] = 1.01
    return right * scale


def one_weight(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    tile = tiles[1].clone()
    tile[5, 7] *= 1.5
    return total(rows, [tiles[0], tile, *tiles[2:]], bias)


def sign(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    return total(rows, [tiles[0], -tiles[1], *tiles[2:]], bias)


def off_by_one(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    x = torch.cat(list(rows), -1)
    return total([x[..., 1 : TILE + 1], *rows[1:]], tiles, bias)


def one_nan(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    found = right.clone()
    found[0, 0] = float("nan")
    return found


def half_accumulation(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    narrow = torch.float16 if right.dtype != torch.float16 else torch.bfloat16
    out = F.linear(rows[0], tiles[0], bias).to(narrow)
    for x, tile in zip(rows[1:], tiles[1:], strict=True):
        out = out + F.linear(x, tile).to(narrow)
    return out.to(right.dtype)


# What step 1 must see in every storage type.
STRUCTURAL: dict[str, Callable[..., Any]] = {
    "last tile dropped": dropped(-1),
    "one tile dropped": dropped(1),
    "bias twice": bias_twice,
    "no bias": no_bias,
    "tiles swapped": swapped,
    "tile transposed": transposed,
    "other batch element": other_batch_element,
    "stale accumulator": stale_accumulator,
    "channel scale": channel_scale,
    "one weight": one_weight,
    "sign": sign,
    "off by one": off_by_one,
    "one NaN": one_nan,
}


class OtherWeights(TileLinear):
    """Multiplies one layer by the weights of another one of its shape."""

    def __init__(self, scope: str, other: torch.Tensor) -> None:
        super().__init__(Tile(None, TILE, TILE), pad=False, layers=("*",))
        self.scope = scope
        self.other = other

    def columns(self, linear: Linear) -> torch.Tensor:
        if self.changes[-1].scope == self.scope:
            linear = replace(linear, weight=self.other.to(linear.weight.dtype))
        return super().columns(linear)


class DirtyPadding(TileLinear):
    """Fills up tiles of one layer with what is no zero."""

    def __init__(self, scope: str) -> None:
        super().__init__(Tile(None, TILE, TILE), pad=False, layers=("*",))
        self.scope = scope

    def columns(self, linear: Linear) -> torch.Tensor:
        if self.changes[-1].scope != self.scope:
            return super().columns(linear)
        n, width = linear.weight.shape[0], linear.x.shape[-1]
        filled = padded(linear, self.tile)
        x, weight = filled.x.clone(), filled.weight.clone()
        x[..., width:], weight[:, width:] = 0.01, 0.01
        return super().columns(Linear(x, weight, filled.bias)).narrow(-1, 0, n)


def verified(
    model: nn.Module,
    shape: tuple[int, ...],
    rewrite: TileLinear,
    dtype: str = "float32",
    **claim: Any,
) -> Equivalence:
    """What the gate says about a rewritten module, on its own weights."""
    specs = InputSpecs((TensorSpec(dtype, shape),))
    source = ModelSource("torch", model, specs, dtype=None if dtype == "float32" else dtype)
    job = Job(source, {}, builtin_ops())
    done = transformed_operations(job, rewrite, must_be_complete=lambda each: None)
    return done.verify(Claim(**claim))


def right(*, pad: bool = False, m: int | None = None) -> TileLinear:
    """The tiling as it should be."""
    return TileLinear(Tile(m, TILE, TILE), pad=pad, layers=("*",))
