"""One linear operation as products of tiles, written out or as one product over a batch of tiles.

With K = 2 tiles and N = 2 tiles, x·W + b is

    [x₀·W₀₀ + x₁·W₁₀ | x₀·W₀₁ + x₁·W₁₁] + b

unrolled: Split → a MatMul for each tile, summed by Add → Concat → Add.
batched:  Reshape → one MatMul over all tiles → ReduceSum → Reshape → Add. Where sizes are no
multiple of the tile, the remainders of K and N are batches of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models import node_rewriting
from pytest_modelbudget.onnx_models.node_rewriting import Names, Replacement, with_nodes
from pytest_modelbudget.onnx_models.program import Node, Program
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.transforms.on_onnx import Rewritten
from pytest_modelbudget.transforms.tile.grid import Cut, Tile, became, cut, tiles_along
from pytest_modelbudget.transforms.transform import LEFT_OUT, is_chosen

REWRITTEN = frozenset({"onnx::Gemm", "onnx::MatMul"})  # those that a form of tiles is known for


@dataclass(frozen=True, slots=True)
class LinearOperation:
    """One node that computes alpha · x·W + beta · bias with a stored W.

    x (…, k), or (k, m) where x is turned · W (k, n), stored as (n, k) where it is turned.
    bias is "" where there is none.
    """

    node: Node
    weight: str
    k: int
    n: int
    weight_turned: bool = False
    x_turned: bool = False
    bias: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    stack: int = 0  # axes of W in front of (k, n), where it is an activation


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """The stored matrix behind an operand, and whether a Transpose turns it on the way."""

    name: str
    turned: bool


def linear_operations(program: Program) -> Iterator[LinearOperation | node_rewriting.WholeOperation]:
    """Every linear operation in the order of the file, those in bodies and functions included.

    What contracts over features with a weight is one, by whatever name it goes; a MatMul of two activations is none.
    """
    return node_rewriting.operations_of(program, node_rewriting.multiplies_weight(Over.FEATURES), linear_operation)


def linear_operation(node: Node, program: Program) -> LinearOperation | node_rewriting.WholeOperation:
    """A node that multiplies with a weight as a linear operation, or why it is none."""
    operator, attributes = node.operator, node.attributes
    if operator not in REWRITTEN:
        return node_rewriting.WholeOperation(node, f"{operator} is rewritten by no form of tiles")
    weight = weight_behind(node.inputs[1], program)
    if weight is None and operator == "onnx::MatMul":
        return node_rewriting.WholeOperation(node, "its weight is the left operand")
    if weight is None:
        return node_rewriting.WholeOperation(node, "its weight is computed in the graph")
    if isinstance(weight, str):
        return node_rewriting.WholeOperation(node, weight)
    shape = program.graph.stored[weight.name].shape
    turned = weight.turned != bool(attributes.get("transB", 0))
    k, n = reversed(shape) if turned else shape
    if operator == "onnx::MatMul":
        return LinearOperation(node, weight.name, k, n, weight_turned=turned)
    return LinearOperation(
        node,
        weight.name,
        k,
        n,
        weight_turned=turned,
        x_turned=bool(attributes.get("transA", 0)),
        bias=node.inputs[2] if len(node.inputs) > 2 else "",
        alpha=float(attributes.get("alpha", 1.0)),
        beta=float(attributes.get("beta", 1.0)),
    )


def weight_behind(name: str, program: Program) -> StoredWeight | str | None:
    """The stored matrix behind an operand, why it cannot be used, or None for an activation."""
    graph, turned = program.graph, False
    while name not in graph.stored:
        maker = graph.makers.get(name)
        if maker is None:
            return None
        if maker.operator == "onnx::DequantizeLinear" and maker.inputs[0] in graph.stored:
            return "its weight is quantised: tile the float model, then quantise"
        if maker.operator not in {"onnx::Identity", "onnx::Transpose"}:
            return f"its weight comes out of {maker.operator}" if name in graph.constants else None
        if maker.operator == "onnx::Transpose":
            turned ^= maker.attributes.get("perm", (1, 0)) == (1, 0)
        name = maker.inputs[0]
    tensor = graph.stored[name]
    if len(tensor.shape) != 2 and not tensor.is_sparse:
        return f"its weight has rank {len(tensor.shape)}, not 2"
    return node_rewriting.why_unusable(name, program) or StoredWeight(name, turned)


@dataclass(frozen=True, slots=True)
class TiledLinear:
    """One linear operation to be written as tiles.

    weight (K, N) holds the values of the stored tensor whole, whose parts' names start with stem. leading are the sizes
    of x before K, None where they are not known, and itself None where not even their number is. A shared weight has
    other readers too, and is cut where the graph runs, so that it is stored once; so is an activation in its place. Of
    stacked matrices the rows of each are tiled, and of others all rows as those of one.
    """

    operation: LinearOperation
    weight: Any
    whole: TensorProto | None  # None of what is not stored
    stem: str
    leading: tuple[int | None, ...] | None
    shared: bool = False
    stacked: bool = False


Tiles = Sequence[Sequence[str]]  # names, by column and then by row


def tiles_of(into: Replacement, layer: TiledLinear, tile: Tile) -> Tiles:
    """The tiles of a layer's W."""
    return (_cut_tiles if layer.shared else _stored_tiles)(into, layer, *_cuts(layer, tile))


def unrolled(into: Replacement, layer: TiledLinear, tile: Tile, x: str, tiles: Tiles | None = None) -> str:
    """x·W as one MatMul for each tile of W (and of x, where rows are tiled too); tiles are those of W."""
    rows, columns = _cuts(layer, tile)
    tiles = tiles or tiles_of(into, layer, tile)
    x = _padded_x(into, layer, x, rows.zeros)
    if tile.m is None:
        result = _row_of_tiles(into, x, rows, tiles, "")
    else:
        result = _rows_tiled(into, layer, x, (rows, tile), tiles)
    return _without_zeros(into, result, columns)


def _cuts(layer: TiledLinear, tile: Tile) -> tuple[Cut, Cut]:
    k, n = layer.operation.k, layer.operation.n
    return cut(k, tile.k, pads=tile.pads), cut(n, tile.n, pads=tile.pads)


def _padded(weight: Any, below: int, beside: int) -> Any:
    return np.pad(weight, ((0, below), (0, beside))) if below or beside else weight


def _stored_tiles(into: Replacement, layer: TiledLinear, rows: Cut, columns: Cut) -> tuple[tuple[str, ...], ...]:
    """Names of the stored tiles, by column and then by row."""
    weight = _padded(layer.weight, rows.zeros, columns.zeros)
    return tuple(
        tuple(_stored_part(into, layer, weight[row, column], k, n) for k, row in enumerate(rows.slices))
        for n, column in enumerate(columns.slices)
    )


def _stored_part(into: Replacement, layer: TiledLinear, values: Any, k: int, n: int) -> str:
    """A part of the weight, named after its place: fc.weight_k0_n0."""
    return into.store_part(values, f"k{k}_n{n}", layer.stem, layer.whole)


def _cut_tiles(into: Replacement, layer: TiledLinear, rows: Cut, columns: Cut) -> tuple[tuple[str, ...], ...]:
    """Names of tiles that Split cuts out of the one stored weight, by column and then by row."""
    weight = _shared_weight(into, layer, rows, columns)
    return tuple(
        split(into, column, rows.sizes, f"weight.n{n}", axis=-2)
        for n, column in enumerate(split(into, weight, columns.sizes, "weight", axis=-1))
    )


def _shared_weight(into: Replacement, layer: TiledLinear, rows: Cut, columns: Cut) -> str:
    """The one stored weight as (K, N), turned and padded where the graph runs."""
    weight = layer.operation.weight
    if layer.operation.weight_turned:
        weight = into.node("Transpose", (weight,), "weight.turned", perm=[1, 0])
    if rows.zeros or columns.zeros:
        pads = into.integers([0] * (2 * layer.operation.stack + 2) + [rows.zeros, columns.zeros], "weight.pads")
        weight = into.node("Pad", (weight, pads), "weight.padded")
    return weight


def _padded_x(into: Replacement, layer: TiledLinear, x: str, zeros: int) -> str:
    """x with zeros behind its last axis."""
    if not zeros:
        return x
    assert layer.leading is not None, "padding needs the rank"
    rank = len(layer.leading) + 1
    pads = into.integers([0] * (2 * rank - 1) + [zeros], "pads")
    return into.node("Pad", (x, pads), "padded")


def _without_zeros(into: Replacement, result: str, columns: Cut) -> str:
    """A result without the columns that only zeros made."""
    if not columns.zeros:
        return result
    return first_along(into, result, sum(columns.sizes) - columns.zeros, "sliced", axis=-1)


def _row_of_tiles(into: Replacement, x: str, rows: Cut, tiles: Sequence[Sequence[str]], prefix: str) -> str:
    """All columns for some rows of x."""

    def product(part: str, weight: str, k: int, n: int) -> str:
        return into.node("MatMul", (part, weight), f"{prefix}product.k{k}.n{n}")

    parts = split(into, x, rows.sizes, f"{prefix}x", axis=-1)
    sums = column_sums(into, parts, tiles, product, prefix)
    return joined(into, sums, f"{prefix}joined", axis=-1)


def _rows_tiled(
    into: Replacement, layer: TiledLinear, x: str, cuts: tuple[Cut, Tile], tiles: Sequence[Sequence[str]]
) -> str:
    """The same for each tile of rows; leading axes are one axis meanwhile."""
    rows, tile = cuts
    leading = [size or 0 for size in layer.leading or ()]
    count = leading[-1] if layer.stacked else prod(leading)
    assert tile.m is not None, "rows are tiled"
    edges = cut(count, tile.m, pads=tile.pads)
    flat = len(leading) != 1 and not layer.stacked
    if flat:
        x = into.node("Reshape", (x, into.integers([count, sum(rows.sizes)], "flat")), "rows")
    if edges.zeros:
        inner = [0] * (2 * len(leading) if layer.stacked else 2)
        x = into.node("Pad", (x, into.integers([*inner, edges.zeros, 0], "row_pads")), "row_padded")
    parts = split(into, x, edges.sizes, "rows", axis=-2)
    stacked = [
        _row_of_tiles(into, part, rows, tiles, f"m{m}." if len(parts) > 1 else "") for m, part in enumerate(parts)
    ]
    result = joined(into, stacked, "stacked", axis=-2)
    if edges.zeros:
        result = first_along(into, result, count, "rows_sliced", axis=-2)
    if flat:
        shape = into.integers([*leading, -1], "unflat")
        result = into.node("Reshape", (result, shape), "unflattened")
    return result


def batched(into: Replacement, layer: TiledLinear, tile: Tile, x: str) -> str:
    """x·W as one MatMul over all whole tiles, and one for each kind of edge."""
    rows, columns = _cuts(layer, tile)
    batches = (_cut_batches if layer.shared else _stored_batches)(into, layer, rows, columns)
    x = _padded_x(into, layer, x, rows.zeros)
    parts = split(into, x, [count * size for _, count, size in rows.regions], "x", axis=-1)
    axes = len(layer.leading or ())
    results = []
    for n, (_, wide, width) in enumerate(columns.regions):
        total = ""
        for k, (part, (_, high, height)) in enumerate(zip(parts, rows.regions, strict=True)):
            edge = f"k{k}.n{n}"
            tiles = _tiles_of_x(into, part, (axes, high, height), edge)
            products = into.node("MatMul", (tiles, batches[n][k]), f"{edge}.products")
            over = into.integers([-4], f"{edge}.axes")
            summed = into.node("ReduceSum", (products, over), f"{edge}.sum", keepdims=0)
            total = into.node("Add", (total, summed), f"{edge}.total") if k else summed
        if axes > 1:
            total = into.node("Transpose", (total,), f"n{n}.rows", perm=_rows_swapped(axes))
        shape = into.integers([*[0] * axes, wide * width], f"n{n}.shape")
        results.append(into.node("Reshape", (total, shape), f"n{n}"))
    return _without_zeros(into, joined(into, results, "joined", axis=-1), columns)


def _tiles_of_x(into: Replacement, x: str, sizes: tuple[int, int, int], edge: str) -> str:
    """x (..., tiles·k) as (..., tiles, 1, rows, k): rows of the last leading axis, or one.

    With one leading axis each row is a product of its own, (rows, tiles, 1, 1, k), and nothing has to be moved.
    """
    axes, count, height = sizes
    as_it_is = [0] * axes  # what Reshape takes for the sizes that x has
    if axes < 2:
        shape = into.integers([*as_it_is, count, 1, 1, height], f"{edge}.shape")
        return into.node("Reshape", (x, shape), f"{edge}.x")
    shape = into.integers([*as_it_is, count, height], f"{edge}.shape")
    cut_up = into.node("Reshape", (x, shape), f"{edge}.cut")
    turned = into.node("Transpose", (cut_up,), f"{edge}.turned", perm=_rows_swapped(axes))
    return into.node("Unsqueeze", (turned, into.integers([-3], f"{edge}.columns")), f"{edge}.x")


def _rows_swapped(axes: int) -> list[int]:
    """The order of axes in which the last leading one changes places with the tiles' one."""
    return [*range(axes - 1), axes, axes - 1, axes + 1]


def _stored_batches(into: Replacement, layer: TiledLinear, rows: Cut, columns: Cut) -> tuple[tuple[str, ...], ...]:
    """Names of stored batches (k tiles, n tiles, k, n), by region of columns, then of rows."""
    weight = _padded(layer.weight, rows.zeros, columns.zeros)
    names = []
    for n, (left, wide, width) in enumerate(columns.regions):
        column = weight[:, left : left + wide * width]
        batches = (
            column[top : top + high * height].reshape(high, height, wide, width).swapaxes(1, 2)
            for top, high, height in rows.regions
        )
        parts = (_stored_part(into, layer, each, k, n) for k, each in enumerate(batches))
        names.append(tuple(parts))
    return tuple(names)


def _cut_batches(into: Replacement, layer: TiledLinear, rows: Cut, columns: Cut) -> tuple[tuple[str, ...], ...]:
    """The same, cut out of the one stored weight where the graph runs."""
    weight = _shared_weight(into, layer, rows, columns)
    widths = [wide * width for _, wide, width in columns.regions]
    heights = [high * height for _, high, height in rows.regions]
    names = []
    for n, column in enumerate(split(into, weight, widths, "weight", axis=1)):
        _, wide, width = columns.regions[n]
        batches = []
        for k, region in enumerate(split(into, column, heights, f"weight.n{n}", axis=0)):
            _, high, height = rows.regions[k]
            part = f"weight.k{k}.n{n}"
            shape = into.integers([high, height, wide, width], f"{part}.shape")
            tiles = into.node("Reshape", (region, shape), f"{part}.tiles")
            batches.append(into.node("Transpose", (tiles,), part, perm=[0, 2, 1, 3]))
        names.append(tuple(batches))
    return tuple(names)


Form = Callable[[Replacement, TiledLinear, Tile, str], str]
FORMS: Mapping[str, Form] = {"unrolled": unrolled, "batched": batched}


# A graph whose operations are replaced by products of tiles, and what became of each.

OLDEST_OPSET = 13  # from which Split and ReduceSum take sizes and axes as operands


class NotTiledError(Exception):
    """Why a node stays whole."""


class TiledGraph:
    """Collects what takes the place of a model's operations; the model itself is left alone."""

    def __init__(self, program: Program, tile: Tile, layers: Sequence[str]) -> None:
        self.names = Names(program.model)
        self._program = program
        self._opset = program.opsets.get("", 0)
        self._tile = tile
        self._layers = layers
        self._replacements: dict[str, Replacement] = {}
        self._changes: list[Change] = []
        self._partial_sums = 1

    def keeps(self, node: Node, why: str) -> bool:
        """Whether a node stays as it is, which is noted then; why is "" where it need not."""
        scope = node.scope
        if not is_chosen(scope, self._layers):
            why = LEFT_OUT
        elif not why and self._opset < OLDEST_OPSET:
            why = f"operator set {self._opset} is older than {OLDEST_OPSET}: convert the file first"
        if why:
            self._changes.append(Change(scope, node.operator, why=why))
        return bool(why)

    def replacement(self, node: Node, k: int, n: int, *, rows: int = 1, groups: int = 1) -> Replacement:
        """What is to take a node's place: products of k inputs to n outputs in each group."""
        self.note(node, k, n, rows=rows, groups=groups)
        into = self._replacements[node.result] = Replacement(node, self.names.stem(node.result, "/tiles"))
        return into

    def attempt(self, node: Node, write: Callable[[Replacement], None]) -> None:
        """Replace a node by what is written, which notes its products; it stays where writing raises NotTiledError."""
        seen, into = len(self._changes), Replacement(node, self.names.stem(node.result, "/tiles"))
        try:
            write(into)
        except NotTiledError as why:
            self._changes[seen:] = [Change(node.scope, node.operator, why=str(why))]
        else:
            self._replacements[node.result] = into

    def note(self, node: Node, k: int, n: int, *, rows: int = 1, groups: int = 1) -> None:
        """Note what takes the place of one product of a node."""
        what = became(self._tile, k, n, rows=rows, groups=groups)
        self._changes.append(Change(node.scope, node.operator, what))
        self._partial_sums = max(self._partial_sums, tiles_along(k, self._tile.k))

    def result(self) -> Rewritten:
        """The model with new nodes in the place of others, and without what is no longer read."""
        nodes: list[NodeProto] = []
        tensors: list[TensorProto] = []
        for node in self._program.model.graph.node:
            into = self._replacements.get(next(filter(None, node.output), ""))
            nodes.extend(into.nodes if into else (node,))
            tensors.extend(into.stored if into else ())
        return Rewritten(with_nodes(self._program, nodes, tensors), tuple(self._changes), self._partial_sums)


# Part of x, tile of the weight, and their place (k, n) → their product
Product = Callable[[str, str, int, int], str]


def column_sums(
    into: Replacement, parts: Sequence[str], tiles: Sequence[Sequence[str]], product: Product, prefix: str = ""
) -> list[str]:
    """One tile's width of outputs after the other: its products, summed in the order of K.

    parts are those of x by tiles, tiles the weight's by column and then by row.
    """
    sums = []
    for n, column in enumerate(tiles):
        total = ""
        for k, (part, weight) in enumerate(zip(parts, column, strict=True)):
            made = product(part, weight, k, n)
            total = into.node("Add", (total, made), f"{prefix}sum.k{k}.n{n}") if k else made
        sums.append(total)
    return sums


def split(into: Replacement, x: str, sizes: Sequence[int], part: str, *, axis: int) -> tuple[str, ...]:
    """Parts of a value along one axis; one part is the value itself."""
    if len(sizes) == 1:
        return (x,)
    names = [f"{part}.{each}" for each in range(len(sizes))]
    return into.split_node("Split", (x, into.integers(sizes, f"{part}.sizes")), names, axis=axis)


def joined(into: Replacement, parts: Sequence[str], part: str, *, axis: int) -> str:
    """Parts next to each other along one axis; one part is the value itself."""
    return parts[0] if len(parts) == 1 else into.node("Concat", parts, part, axis=axis)


def first_along(into: Replacement, x: str, size: int, part: str, *, axis: int) -> str:
    """The first elements of a value along one axis."""
    bounds = {"starts": [0], "ends": [size], "axes": [axis]}
    names = [into.integers(values, f"{part}.{bound}") for bound, values in bounds.items()]
    return into.node("Slice", (x, *names), part)
