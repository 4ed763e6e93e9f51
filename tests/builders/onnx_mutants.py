"""Twins of ONNX models that are wrong in one place, with tiles one by one and in batches.

A mistake is in the second column of tiles, wherever it can be in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling
from tests.builders.onnx_graphs import node
from tests.builders.onnx_linears import change, find
from tests.builders.torch_and_onnx_mutants import BATCH, FOREIGN, LAST_TILE, NAN, PADDING, REMAINDER


@dataclass(frozen=True)
class Place:
    """A linear layer, by names: its result, weight and bias, another layer's weight, and its scope.

    A tile of the size whole divides its inputs, and one of the size ragged leaves a remainder.
    """

    result: str
    weight: str
    bias: str
    other: str
    scope: str
    whole: int = 64
    ragged: int = 64

    def tiling(self, name: str, form: str) -> Tiling:
        """What a mistake is made in: this layer in tiles, and the others whole."""
        sizes = {LAST_TILE: self.whole, REMAINDER: self.ragged, PADDING: self.ragged}
        size = sizes.get(name, 64)
        return Tiling(Tile(None, size, size, pads=name == PADDING), form, (self.scope,))

    def tile(self, k: int, n: int) -> str:
        """The name of a stored tile, or of a batch of them."""
        return f"{self.weight}_k{k}_n{n}"


Mutant = Callable[[onnx.ModelProto, Place], None]


def values_of(proto: onnx.ModelProto, name: str) -> Any:
    return numpy_helper.to_array(next(each for each in proto.graph.initializer if each.name == name))


def insert(proto: onnx.ModelProto, before: onnx.NodeProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes in front of one; a list of messages has no insertion of its own."""
    position = list(proto.graph.node).index(before)
    for each in reversed(nodes):
        proto.graph.node.insert(position, each)


def store(proto: onnx.ModelProto, **arrays: Any) -> None:
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())


def one_weight(values: Any) -> Any:
    values[5, 7] *= 1.01
    return values


def one_channel(values: Any) -> Any:
    values[:, 3] *= 1.01
    return values


def one_nan(values: Any) -> Any:
    values[3] = np.nan
    return values


def rows_of_another_element(proto: onnx.ModelProto, name: str) -> str:
    """The same value with its rows in another order: the second first, and the first last."""
    store(proto, row_0=[0], row_1=[1], row_end=[2**31])
    nodes = [
        node("Slice", f"{name} row_1 row_end row_0", "rows.rest"),
        node("Slice", f"{name} row_0 row_1 row_0", "rows.first"),
        node("Concat", "rows.rest rows.first", "rows.moved", axis=0),
    ]
    insert(proto, next(each for each in proto.graph.node if name in each.input), *nodes)
    return "rows.moved"


# Tiles one by one, in a layer of three of them and a remainder.


def stored_tile(k: int, n: int, how: Callable[[Any], Any]) -> Mutant:
    return lambda proto, place: change(proto, place.tile(k, n), how)


def bias(how: Callable[[Any], Any]) -> Mutant:
    """The bias of the second column."""

    def wrong(proto: onnx.ModelProto, place: Place) -> None:
        change(proto, place.bias, lambda values: np.r_[values[:64], how(values[64:128]), values[128:]])

    return wrong


def swap_tiles(proto: onnx.ModelProto, place: Place) -> None:
    for k, other in ((0, 1), (1, 0)):
        product = find(proto, f"{place.result}/tiles.product.k{k}.n1")
        product.input[1] = place.tile(other, 1)


def stale_accumulator(proto: onnx.ModelProto, place: Place) -> None:
    """A sum goes on from a part of itself that was left over."""
    stem = f"{place.result}/tiles.sum"
    find(proto, f"{stem}.k2.n1").input[0] = f"{stem}.k1.n0"


def other_batch_element(proto: onnx.ModelProto, place: Place) -> None:
    """One product is made of the rows of another batch element."""
    product = find(proto, f"{place.result}/tiles.product.k1.n1")
    product.input[0] = rows_of_another_element(proto, product.input[0])


def off_by_one(proto: onnx.ModelProto, place: Place) -> None:
    change(proto, f"{place.result}/tiles.x.sizes", lambda found: np.array([63, 65, 64, 8]))
    for k, rows in ((0, 63), (1, 65)):
        for n in range(3):
            resize(proto, place.tile(k, n), rows)


def resize(proto: onnx.ModelProto, name: str, rows: int) -> None:
    tensor = next(each for each in proto.graph.initializer if each.name == name)
    values = numpy_helper.to_array(tensor)
    resized = np.resize(values, (rows, values.shape[1]))
    tensor.CopyFrom(numpy_helper.from_array(resized, name))


def not_zero(proto: onnx.ModelProto, place: Place) -> None:
    """What stands behind the edge of x is its edge, and meets a hundredth behind that of W."""
    pad = find(proto, f"{place.result}/tiles.padded")
    pad.attribute.append(onnx.helper.make_attribute("mode", "edge"))
    change(proto, place.tile(3, 1), hundredths)


def hundredths(tile: Any) -> Any:
    tile[~tile.any(1)] = 0.01
    return tile


def foreign_tile(proto: onnx.ModelProto, place: Place) -> None:
    other = values_of(proto, place.other)[:64, :64]
    change(proto, place.tile(0, 1), lambda tile: other)


UNROLLED: Mapping[str, Mutant] = {
    LAST_TILE: stored_tile(3, 1, np.zeros_like),
    REMAINDER: stored_tile(3, 1, np.zeros_like),
    "one tile dropped": stored_tile(1, 1, np.zeros_like),
    "bias twice": bias(lambda values: 2 * values),
    "no bias": bias(np.zeros_like),
    "tiles swapped": swap_tiles,
    "tile transposed": stored_tile(1, 1, np.transpose),
    BATCH: other_batch_element,
    "stale accumulator": stale_accumulator,
    "channel scale": stored_tile(0, 1, one_channel),
    "one weight": stored_tile(0, 1, one_weight),
    "sign": stored_tile(2, 1, np.negative),
    "off by one": off_by_one,
    PADDING: not_zero,
    FOREIGN: foreign_tile,
    NAN: lambda proto, place: change(proto, place.bias, one_nan),
}


# Batches of tiles, [k, n] of (k rows, n columns): [:, 1] is the second column.


def batch(how: Callable[[Any], None], region: int = 0) -> Mutant:
    """A change in the whole tiles, or in region 1, the remainder of K."""

    def changed(tiles: Any) -> Any:
        how(tiles)
        return tiles

    return lambda proto, place: change(proto, place.tile(region, 0), changed)


def put(at: tuple[Any, ...], values: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Something else in one place of a batch."""
    return lambda tiles: tiles.__setitem__(at, values(tiles))


def other_batch_elements(proto: onnx.ModelProto, place: Place) -> None:
    """One tile of x is that of another batch element."""
    reader = find(proto, f"{place.result}/tiles.k0.n0.x")
    x = reader.input[0]
    count, _, size, _ = values_of(proto, place.tile(0, 0)).shape
    store(proto, of_second_tile=np.arange(count * size) // size == 1)
    other = rows_of_another_element(proto, x)
    insert(proto, reader, node("Where", f"of_second_tile {other} {x}", "rows.mixed"))
    reader.input[0] = "rows.mixed"


def not_zeros(proto: onnx.ModelProto, place: Place) -> None:
    pad = find(proto, f"{place.result}/tiles.padded")
    pad.attribute.append(onnx.helper.make_attribute("mode", "edge"))
    change(proto, place.tile(0, 0), lambda tiles: (hundredths(tiles[-1, 1]), tiles)[1])


def foreign_tiles(proto: onnx.ModelProto, place: Place) -> None:
    other = values_of(proto, place.other)[:64, :64]
    batch(put((0, 1), lambda tiles: other))(proto, place)


BATCHED: Mapping[str, Mutant] = {
    LAST_TILE: batch(put((-1, 1), lambda tiles: 0)),
    REMAINDER: batch(put((-1, 1), lambda tiles: 0), region=1),
    "one tile dropped": batch(put((1, 1), lambda tiles: 0)),
    "bias twice": bias(lambda values: 2 * values),
    "no bias": bias(np.zeros_like),
    "tiles swapped": batch(put(([0, 1], 1), lambda tiles: tiles[[1, 0], 1])),
    "tile transposed": batch(put((1, 1), lambda tiles: tiles[1, 1].T.copy())),
    BATCH: other_batch_elements,
    # On top of what the column before was summed up to: the sum with the weights of both.
    "stale accumulator": batch(put((slice(None), 1), lambda tiles: tiles[:, 0] + tiles[:, 1])),
    "channel scale": batch(put((..., 1, slice(None), 3), lambda tiles: tiles[:, 1, :, 3] * 1.01)),
    "one weight": batch(put((1, 1, 5, 7), lambda tiles: tiles[1, 1, 5, 7] * 1.01)),
    "sign": batch(put((1, 1), lambda tiles: -tiles[1, 1])),
    # Rows 1 to 64 of the weight in place of 0 to 63.
    "off by one": batch(put((0, 1), lambda tiles: np.r_[tiles[0, 1][1:], tiles[1, 1][:1]])),
    PADDING: not_zeros,
    FOREIGN: foreign_tiles,
    NAN: UNROLLED[NAN],
}
