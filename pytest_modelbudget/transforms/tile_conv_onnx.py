"""``tile_conv`` for ONNX: a Conv or ConvTranspose with a stored weight becomes partial ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import onnx

from pytest_modelbudget.equivalence.onnx_stored import stored_tensors
from pytest_modelbudget.transforms.layer_choice import LEFT_OUT, with_known_layers
from pytest_modelbudget.transforms.onnx_channel_tiles import Layer, write_tiles
from pytest_modelbudget.transforms.onnx_convolutions import convolutions
from pytest_modelbudget.transforms.onnx_found_operations import WholeOperation
from pytest_modelbudget.transforms.onnx_rewritten_file import Rewritten, transformed_file
from pytest_modelbudget.transforms.onnx_tiled_graph import TiledGraph
from pytest_modelbudget.transforms.tile_grid import ONE_CHANNEL, Tile, must_be_complete, tile_of
from pytest_modelbudget.transforms.transform import Job, Transformed


def tiled_convolutions(
    model: onnx.ModelProto, tile: Tile, layers: Sequence[str] = ("*",)
) -> Rewritten:
    """The model with the convolutions that globs select written as partial ones.

    The given model is left alone. Inputs, outputs and the names of all values that were there
    before stay; what could not be rewritten is listed with the reason.
    """
    stored = stored_tensors(model)
    graph = TiledGraph(model, tile, layers)
    for found in convolutions(model, stored):
        why = found.why if isinstance(found, WholeOperation) else ""
        if graph.keeps(found.node, why) or isinstance(found, WholeOperation):
            continue
        layer = Layer(
            found,
            stored.array(found.weight),
            stored.tensors[found.weight],
            graph.names.stem(found.weight, "_"),
            stored.readers(found.node.input[1]) > 1,
        )
        into = graph.replacement(found.node, found.k, found.n, groups=found.groups)
        write_tiles(into, layer, tile)
    return graph.result()


def transformed(job: Job) -> Transformed:
    """The file's model with its convolutions tiled; TransformError where one stayed whole."""
    tile, layers = tile_of(job.settings), cast("tuple[str, ...]", job.settings["layers"])

    def rewrite(model: onnx.ModelProto) -> Rewritten:
        found = tiled_convolutions(model, tile, layers)
        may_stay = (LEFT_OUT, ONE_CHANNEL)
        must_be_complete(found.changes, "tile_conv", "convolutions", may_stay=may_stay)
        return found

    return with_known_layers(transformed_file(job, rewrite), job)
