"""One convolution of an ONNX graph as partial ones over tiles of its channels.

With two tiles of a group's input channels and two of its output channels::

    Concat(Conv(x₀, W₀₀, b₀) + Conv(x₁, W₁₀), Conv(x₀, W₀₁, b₁) + Conv(x₁, W₁₁))

Split cuts x and b; the parts of all groups come from one Split, and end in one Concat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from pytest_modelbudget.transforms.onnx_convolutions import Convolution
from pytest_modelbudget.transforms.onnx_rewriting import Replacement
from pytest_modelbudget.transforms.onnx_tile_products import (
    column_sums,
    first_along,
    joined,
    split,
)
from pytest_modelbudget.transforms.tile_grid import Cut, Tile, cut

Names = Sequence[str]


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution to be written as tiles.

    weight holds the values of the stored tensor whole, whose parts' names start with stem. A shared
    weight has other readers too, and is cut where the graph runs, so that it is stored once.
    """

    convolution: Convolution
    weight: Any
    whole: TensorProto
    stem: str
    shared: bool = False


def write_tiles(into: Replacement, layer: Layer, tile: Tile) -> None:
    """Write a convolution as partial ones, each with the attributes that it has itself."""
    found = layer.convolution
    inputs, outputs = cut(found.k, tile.k, pads=tile.pads), cut(found.n, tile.n, pads=tile.pads)
    parts = _cut(into, found.node.input[0], inputs, "x", (found.groups, layer.weight.ndim, 1))
    biases: Sequence[Names] = [()] * found.groups
    if found.bias:
        biases = _cut(into, found.bias, outputs, "bias", (found.groups, 1, 0))
    tiles = (_cut_tiles if layer.shared else _stored_tiles)(into, layer, inputs, outputs)
    columns: list[str] = []
    for group, operands in enumerate(zip(parts, biases, tiles, strict=True)):
        prefix = f"g{group}." if found.groups > 1 else ""
        columns += _columns(into, operands, prefix)
        if outputs.zeros:
            place = f"{prefix}sliced"
            columns[-1] = first_along(into, columns[-1], outputs.filled[-1], place, axis=1)
    into.finish(joined(into, columns, "joined", axis=1))


def _columns(
    into: Replacement, operands: tuple[Names, Names, Sequence[Names]], prefix: str
) -> list[str]:
    """The outputs of one group; the first product of each column adds the bias."""
    parts, bias, tiles = operands
    node = into.replaced
    attributes = {
        each.name: onnx.helper.get_attribute_value(each)
        for each in node.attribute
        if each.name != "group"
    }

    def product(part: str, weight: str, k: int, n: int) -> str:
        reads = (part, weight, bias[n]) if bias and k == 0 else (part, weight)
        return into.node(node.op_type, reads, f"{prefix}product.k{k}.n{n}", **attributes)

    return column_sums(into, parts, tiles, product, prefix)


def _cut(
    into: Replacement, name: str, tiles: Cut, part: str, place: tuple[int, int, int]
) -> list[list[str]]:
    """Tiles of a value by group; place is (groups, axes of the value, axis of its channels)."""
    groups, rank, axis = place
    found = list(split(into, name, tiles.filled * groups, part, axis=axis))
    count = len(tiles.sizes)
    if tiles.zeros:
        ends = [tiles.zeros if each == axis else 0 for each in range(rank)]
        for last in range(count - 1, len(found), count):
            filled = f"{part}.{last}.padded"
            pads = into.integers([0] * rank + ends, f"{filled}.by")
            found[last] = into.node("Pad", (found[last], pads), filled)
    return [found[first : first + count] for first in range(0, len(found), count)]


def _cut_tiles(into: Replacement, layer: Layer, inputs: Cut, outputs: Cut) -> list[Sequence[Names]]:
    """Names of tiles that Split cuts out of the one stored weight, by group, column and row."""
    found, rank = layer.convolution, layer.weight.ndim
    outer, inner = (inputs, outputs) if found.turned else (outputs, inputs)
    grids: list[Sequence[Names]] = []
    for g, group in enumerate(_cut(into, found.weight, outer, "weight", (found.groups, rank, 0))):
        rows = [
            _cut(into, name, inner, f"weight.g{g}.{i}", (1, rank, 1))[0]
            for i, name in enumerate(group)
        ]
        grids.append(list(zip(*rows, strict=True)) if found.turned else rows)
    return grids


def _stored_tiles(
    into: Replacement, layer: Layer, inputs: Cut, outputs: Cut
) -> list[Sequence[Names]]:
    """Names of the stored tiles, by group, column and row, such as conv.weight_g0_k0_n0."""
    import numpy as np

    found = layer.convolution
    ends = (outputs.zeros, inputs.zeros, *(0 for _ in layer.weight.shape[2:]))
    grids: list[Sequence[Names]] = []
    for g, group in enumerate(np.split(layer.weight, found.groups)):
        whole = np.pad(_turned(group, found), [(0, end) for end in ends])
        place = f"g{g}_" if found.groups > 1 else ""
        columns = [
            [_stored(into, layer, whole[column, row], f"{place}k{k}_n{n}")
             for k, row in enumerate(inputs.slices)]
            for n, column in enumerate(outputs.slices)
        ]  # fmt: skip
        grids.append(columns)
    return grids


def _stored(into: Replacement, layer: Layer, tile: Any, part: str) -> str:
    values = _turned(tile, layer.convolution)
    return into.store_part(values, part, layer.stem, layer.whole)


def _turned(values: Any, found: Convolution) -> Any:
    """(n, k, kernel ...) of a weight as it is stored, and the other way round."""
    return values.swapaxes(0, 1) if found.turned else values
