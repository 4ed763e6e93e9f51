"""Wrong tilings of torch models, each wrong in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.comparison import compare
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.module import load
from pytest_modelbudget.torch_models.rewriting import Call
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.transforms.on_torch import change_operations
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_torch import TileLinear
from pytest_modelbudget.transforms.tile.products_on_torch import Linear, TileRewrite
from tests.builders.torch_and_onnx_mutants import BATCH, FOREIGN, LAST_TILE, NAN, PADDING, REMAINDER

Tensors = Sequence[torch.Tensor]
TILE = 64


class Mutant(TileLinear):
    """Tiles rightly but for one column of one layer, where ``wrong`` answers.

    With cut, only so many columns of that layer are in tiles; what is right anyway is one product.
    """

    def __init__(self, wrong: Callable[..., Any], scope: str, *, tile: int = TILE, cut: int | None = None) -> None:
        super().__init__(Tile(None, tile, tile), layers=("*",))
        self.wrong = wrong
        self.scope = scope
        self.cut = cut
        self.position = 0
        self.before: torch.Tensor | None = None
        self.weights: dict[str, torch.Tensor] = {}

    def result(self, call: Call) -> Any:
        self.position = 0
        if call.name == "aten::linear":
            self.weights[call.owner(call.args[1])] = call.args[1]
        return super().result(call)

    def columns(self, linear: Linear) -> torch.Tensor:
        """On one thread: what is wrong goes by how many columns came before."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.in_turn(linear)
        finally:
            torch.set_num_threads(threads)

    def in_turn(self, linear: Linear) -> torch.Tensor:
        """All outputs, one column of tiles after the other."""
        x, weight, bias = linear.x, linear.weight, linear.bias
        if self.cut is None:
            return super().columns(linear)
        if self.changes[-1].scope != self.scope or bias is None:
            return F.linear(x, weight, bias)
        edge = self.cut * self.tile.n
        tiled = super().columns(Linear(x, weight[:edge], bias[:edge]))
        return torch.cat([tiled, F.linear(x, weight[edge:], bias[edge:])], -1)

    def column(self, rows: Tensors, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        right = super().column(rows, weight, bias)
        self.position += 1
        found = right
        if self.changes[-1].scope == self.scope and self.position == 2:
            tiles = list(weight.split(self.tile.k, 1))
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
    """On top of what the column before was summed up to."""
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
    return total([x[..., 1 : self.tile.k + 1], *rows[1:]], tiles, bias)


def dirty_padding(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    """What fills up the last tile is a hundredth in x and in W."""
    more = self.tile.k - tiles[-1].shape[-1]
    assert more, "a tile that divides K needs no padding"
    row, tile = (F.pad(each[-1], (0, more), value=0.01) for each in (rows, tiles))
    return total([*rows[:-1], row], [*tiles[:-1], tile], bias)


def foreign_tile(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    """The first tile is of the same shape, and of another layer's weight."""
    n, k = tiles[0].shape
    other = next(weight for scope, weight in self.weights.items() if scope != self.scope)
    return total(rows, [other[:n, :k], *tiles[1:]], bias)


def one_nan(self: Any, rows: Any, tiles: Any, bias: Any, right: Any) -> Any:
    found = right.clone()
    found[0, 0] = float("nan")
    return found


# What step 1 must see in every storage type.
STRUCTURAL: dict[str, Callable[..., Any]] = {
    LAST_TILE: dropped(-1),
    REMAINDER: dropped(-1),
    "one tile dropped": dropped(1),
    "bias twice": bias_twice,
    "no bias": no_bias,
    "tiles swapped": swapped,
    "tile transposed": transposed,
    BATCH: other_batch_element,
    "stale accumulator": stale_accumulator,
    "channel scale": channel_scale,
    "one weight": one_weight,
    "sign": sign,
    "off by one": off_by_one,
    PADDING: dirty_padding,
    FOREIGN: foreign_tile,
    NAN: one_nan,
}


@dataclass(frozen=True)
class Place:
    """A layer of a model that is run on inputs of some shape, and how many columns of it are tiled.

    A tile of the size whole divides its inputs, and one of the size ragged leaves a remainder.
    """

    model: nn.Module
    shape: tuple[int, ...]
    scope: str
    whole: int
    ragged: int
    cut: int | None = None

    def mutant(self, name: str) -> Mutant:
        """A tiling that is wrong in the second column of that layer."""
        sizes = {LAST_TILE: self.whole, REMAINDER: self.ragged, PADDING: self.ragged}
        return Mutant(STRUCTURAL[name], self.scope, tile=sizes.get(name, TILE), cut=self.cut)


# Significands at least five bits shorter. Bfloat16's is three bits shorter than float16's, and sums
# rounded to it are within what step 2 allows: eight roundings for each that a tiling makes.
NARROWER = {torch.float32: torch.float16, torch.float16: torch.float8_e5m2, torch.bfloat16: torch.float8_e5m2}


class NarrowSums(TileLinear):
    """Rounds every sum of every layer to a narrower type; a float64 run has none."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile, layers=("*",))

    def column(self, rows: Tensors, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        def narrowed(values: torch.Tensor) -> torch.Tensor:
            narrow = NARROWER.get(weight.dtype, weight.dtype)
            return values.to(narrow).to(weight.dtype)

        tiles = weight.split(self.tile.k, 1)
        out = narrowed(F.linear(rows[0], tiles[0], bias))
        for x, tile in zip(rows[1:], tiles[1:], strict=True):
            out = narrowed(out + narrowed(F.linear(x, tile)))
        return out


def verified(
    model: nn.Module, shape: tuple[int, ...], rewrite: TileRewrite, dtype: str = "float32", **claim: Any
) -> Equivalence:
    """What the gate says about a rewritten module, on its own weights."""
    specs = InputSpecs((TensorSpec(dtype, shape),))
    source = ModelSource("torch", model, specs, dtype=None if dtype == "float32" else dtype)

    def remake(original: Model) -> Changed:
        assert isinstance(original, TorchModel)
        return change_operations(original, rewrite, lambda changed: None)

    original = load(source, builtin_ops())
    return compare(original, remake, Claim(**claim))


def right(*, pad: bool = False, m: int | None = None) -> TileLinear:
    """The tiling as it should be."""
    return TileLinear(Tile(m, TILE, TILE, pads=pad), layers=("*",))
