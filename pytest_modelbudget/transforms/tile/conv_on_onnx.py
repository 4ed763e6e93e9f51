"""``tile_conv`` for ONNX: a Conv or ConvTranspose with a stored weight becomes partial ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto

from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models import node_rewriting
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.program import Node, Program
from pytest_modelbudget.ops.rule import Over
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.on_onnx import Rewritten, change_layers
from pytest_modelbudget.transforms.tile.forms_on_onnx import TiledGraph, column_sums, first_along, joined, split
from pytest_modelbudget.transforms.tile.grid import ONE_CHANNEL, Cut, Tile, cut, must_be_complete, tile_of
from pytest_modelbudget.transforms.transform import LEFT_OUT, Changed, Settings

REWRITTEN = frozenset({"onnx::Conv", "onnx::ConvTranspose"})  # those that can be cut


@dataclass(frozen=True, slots=True)
class Convolution:
    """One node that convolves with a stored W, k input to n output channels in each group.

    W (groups · n, k, kernel ...), or (groups · k, n, kernel ...) where it is turned. bias is "" where there is none.
    """

    node: Node
    weight: str
    groups: int
    k: int
    n: int
    turned: bool
    bias: str


def _operation(node: Node, program: Program) -> Convolution | node_rewriting.WholeOperation:
    if node.operator not in REWRITTEN:
        return node_rewriting.WholeOperation(node, f"{node.operator} is rewritten by no form of tiles")
    weight = program.graph.origin(node.inputs[1])
    why = _why_whole(weight, program)
    if why:
        return node_rewriting.WholeOperation(node, why)
    groups = node.attributes.get("group", 1)
    first, second, *_ = program.graph.stored[weight].shape
    turned = node.operator == "onnx::ConvTranspose"
    k, n = (first // groups, second) if turned else (second, first // groups)
    if groups > 1 and k == 1:
        return node_rewriting.WholeOperation(node, ONE_CHANNEL)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return Convolution(node, weight, groups, k, n, turned, bias)


def _why_whole(weight: str, program: Program) -> str:
    """Why a convolution cannot be cut; "" where its weight is there to be cut."""
    if weight in program.graph.stored:
        return node_rewriting.why_unusable(weight, program)
    maker = program.graph.makers.get(weight)
    if maker is not None and maker.operator == "onnx::DequantizeLinear":
        return "its weight is quantised: tile the float model, then quantise"
    return "its weight is computed in the graph"


Names = Sequence[str]


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """One convolution to be written as tiles.

    weight holds the values of the stored tensor whole, whose parts' names start with stem. A shared
    weight has other readers too, and is cut where the graph runs, so that it is stored once.
    """

    convolution: Convolution
    weight: Any
    whole: TensorProto
    stem: str
    shared: bool = False


def write_tiles(into: node_rewriting.Replacement, layer: TiledConvolution, tile: Tile) -> None:
    """Write a convolution as partial ones, each with the attributes that it has itself."""
    convolution = layer.convolution
    inputs, outputs = cut(convolution.k, tile.k, pads=tile.pads), cut(convolution.n, tile.n, pads=tile.pads)
    parts = _cut(into, convolution.node.inputs[0], inputs, "x", (convolution.groups, layer.weight.ndim, 1))
    biases: Sequence[Names] = [()] * convolution.groups
    if convolution.bias:
        biases = _cut(into, convolution.bias, outputs, "bias", (convolution.groups, 1, 0))
    tiles = (_cut_tiles if layer.shared else _stored_tiles)(into, layer, inputs, outputs)
    columns: list[str] = []
    for group, operands in enumerate(zip(parts, biases, tiles, strict=True)):
        prefix = f"g{group}." if convolution.groups > 1 else ""
        columns += _columns(into, operands, prefix)
        if outputs.zeros:
            place = f"{prefix}sliced"
            columns[-1] = first_along(into, columns[-1], outputs.filled[-1], place, axis=1)
    into.finish(joined(into, columns, "joined", axis=1))


def _columns(
    into: node_rewriting.Replacement, operands: tuple[Names, Names, Sequence[Names]], prefix: str
) -> list[str]:
    """The outputs of one group; the first product of each column adds the bias."""
    parts, bias, tiles = operands
    node = into.replaced
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute if each.name != "group"}

    def product(part: str, weight: str, k: int, n: int) -> str:
        reads = (part, weight, bias[n]) if bias and k == 0 else (part, weight)
        return into.node(node.op_type, reads, f"{prefix}product.k{k}.n{n}", **attributes)

    return column_sums(into, parts, tiles, product, prefix)


def _cut(
    into: node_rewriting.Replacement, name: str, tiles: Cut, part: str, place: tuple[int, int, int]
) -> list[list[str]]:
    """Tiles of a value by group; place is (groups, axes of the value, axis of its channels)."""
    groups, rank, axis = place
    names = list(split(into, name, tiles.filled * groups, part, axis=axis))
    count = len(tiles.sizes)
    if tiles.zeros:
        ends = [tiles.zeros if each == axis else 0 for each in range(rank)]
        for last in range(count - 1, len(names), count):
            filled = f"{part}.{last}.padded"
            pads = into.integers([0] * rank + ends, f"{filled}.by")
            names[last] = into.node("Pad", (names[last], pads), filled)
    return [names[first : first + count] for first in range(0, len(names), count)]


def _cut_tiles(
    into: node_rewriting.Replacement, layer: TiledConvolution, inputs: Cut, outputs: Cut
) -> list[Sequence[Names]]:
    """Names of tiles that Split cuts out of the one stored weight, by group, column and row."""
    convolution, rank = layer.convolution, layer.weight.ndim
    outer, inner = (inputs, outputs) if convolution.turned else (outputs, inputs)
    grids: list[Sequence[Names]] = []
    for g, group in enumerate(_cut(into, convolution.weight, outer, "weight", (convolution.groups, rank, 0))):
        rows = [_cut(into, name, inner, f"weight.g{g}.{i}", (1, rank, 1))[0] for i, name in enumerate(group)]
        grids.append(list(zip(*rows, strict=True)) if convolution.turned else rows)
    return grids


def _stored_tiles(
    into: node_rewriting.Replacement, layer: TiledConvolution, inputs: Cut, outputs: Cut
) -> list[Sequence[Names]]:
    """Names of the stored tiles, by group, column and row, such as conv.weight_g0_k0_n0."""
    convolution = layer.convolution
    ends = (outputs.zeros, inputs.zeros, *(0 for _ in layer.weight.shape[2:]))
    grids: list[Sequence[Names]] = []
    for g, group in enumerate(np.split(layer.weight, convolution.groups)):
        whole = np.pad(_turned(group, convolution), [(0, end) for end in ends])
        place = f"g{g}_" if convolution.groups > 1 else ""
        columns = [
            [_stored(into, layer, whole[column, row], f"{place}k{k}_n{n}")
             for k, row in enumerate(inputs.slices)]
            for n, column in enumerate(outputs.slices)
        ]  # fmt: skip
        grids.append(columns)
    return grids


def _stored(into: node_rewriting.Replacement, layer: TiledConvolution, tile: Any, part: str) -> str:
    values = _turned(tile, layer.convolution)
    return into.store_part(values, part, layer.stem, layer.whole)


def _turned(values: Any, convolution: Convolution) -> Any:
    """(n, k, kernel ...) of a weight as it is stored, and the other way round."""
    return values.swapaxes(0, 1) if convolution.turned else values


def tiled_convolutions(
    model: onnx.ModelProto, tile: Tile, layers: Sequence[str] = ("*",), rules: OpTable | None = None
) -> Rewritten:
    """The model with the convolutions that globs select written as partial ones.

    The given model is left alone. Inputs, outputs and the names of all values that were there before stay; what could
    not be rewritten is listed with the reason. rules are the project's own where none are given.
    """
    program = Program(model, rules)
    graph = TiledGraph(program, tile, layers)
    is_one = node_rewriting.multiplies_weight(Over.CHANNELS)
    for operation in node_rewriting.operations_of(program, is_one, _operation):
        why = operation.why if isinstance(operation, node_rewriting.WholeOperation) else ""
        if graph.keeps(operation.node, why) or isinstance(operation, node_rewriting.WholeOperation):
            continue
        layer = TiledConvolution(
            operation,
            program.graph.stored[operation.weight].array(),
            program.graph.stored[operation.weight].proto,
            graph.names.stem(operation.weight, "_"),
            program.graph.most_reads(operation.node.inputs[1]) > 1,
        )
        into = graph.replacement(operation.node, operation.k, operation.n, groups=operation.groups)
        write_tiles(into, layer, tile)
    return graph.result()


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model with its convolutions tiled; TransformError where one stayed whole."""
    tile, layers = tile_of(settings), cast("tuple[str, ...]", settings["layers"])

    def rewrite(proto: onnx.ModelProto) -> Rewritten:
        return tiled_convolutions(proto, tile, layers, model.rules)

    def check(changes: Sequence[Change]) -> None:
        must_be_complete(changes, "tile_conv", "convolution", may_stay=(LEFT_OUT, ONE_CHANNEL))

    return change_layers(model, rewrite, layers, check)
