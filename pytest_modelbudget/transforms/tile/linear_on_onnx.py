"""``tile_linear`` for ONNX: a Gemm or MatMul with a stored weight becomes products of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import cast

import onnx

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.onnx_models.files import with_all_weights, write_model
from pytest_modelbudget.onnx_models.inference import inferred_types
from pytest_modelbudget.onnx_models.program import Body, DeclaredTypes, Program, bound
from pytest_modelbudget.onnx_models.rewriting import Replacement, WholeOperation
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.on_onnx import Rewrite, Rewritten, transformed_file
from pytest_modelbudget.transforms.tile.forms_on_onnx import (
    FORMS,
    Layer,
    LinearOperation,
    linear_operations,
)
from pytest_modelbudget.transforms.tile.graph_on_onnx import TiledGraph
from pytest_modelbudget.transforms.tile.grid import Tile, must_be_complete, tile_of
from pytest_modelbudget.transforms.transform import Job, Transformed, with_known_layers


@dataclass(frozen=True, slots=True)
class Tiling:
    """What to tile, and how: form is a key of FORMS, layers are globs on module paths."""

    tile: Tile
    form: str = "unrolled"
    layers: tuple[str, ...] = ("*",)


def tiled_linears(
    model: onnx.ModelProto, tiling: Tiling, rules: OpTable | None = None
) -> Rewritten:
    """The model with its selected linear operations written as products of tiles.

    The given model is left alone. Inputs, outputs and the names of all values that were there
    before stay; what could not be rewritten is listed with the reason. rules are the project's own
    where none are given.
    """
    program = Program(model, rules)
    types = inferred_types(model)
    graph = TiledGraph(program, tiling.tile, tiling.layers)
    for found in linear_operations(program):
        why = found.why if isinstance(found, WholeOperation) else _why_whole(found, tiling, types)
        if graph.keeps(found.node, why) or isinstance(found, WholeOperation):
            continue
        layer = _layer(found, program.graph, types, graph.names.stem(found.weight, "_"))
        rows = prod(size or 0 for size in layer.leading or ())
        into = graph.replacement(found.node, found.k, found.n, rows=rows)
        _rewrite(into, layer, tiling)
    return graph.result()


def _why_whole(found: LinearOperation, tiling: Tiling, types: DeclaredTypes) -> str:
    """Why a form cannot take an operation; "" where it can."""
    leading = _leading(found, types)
    needs_rank = tiling.form == "batched" or tiling.tile.pads or tiling.tile.m is not None
    if leading is None and needs_rank:
        return "the rank of its input is not known"
    if tiling.tile.m is not None and None in (leading or ()):
        return "its number of rows is not known: export the file with fixed sizes"
    if tiling.tile.m is not None and tiling.form == "batched":
        return "rows are tiled in the unrolled form only"
    return ""


def _leading(found: LinearOperation, types: DeclaredTypes) -> tuple[int | None, ...] | None:
    """Sizes of x before the contracted axis, None where they are not known."""
    known = types[found.node.inputs[0]].shape
    if found.node.operator == "onnx::Gemm":
        rows = (known or (None, None))[1 if found.x_turned else 0]
        return (rows if isinstance(rows, int) else None,)
    if known is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in known[:-1])


def _layer(found: LinearOperation, graph: Body, types: DeclaredTypes, stem: str) -> Layer:
    whole = graph.stored[found.weight]
    weight = whole.array()
    return Layer(
        found,
        weight.T if found.weight_turned else weight,
        whole.proto,
        stem,
        _leading(found, types),
        graph.most_reads(found.node.inputs[1]) > 1,
    )


def _rewrite(into: Replacement, layer: Layer, tiling: Tiling) -> None:
    """alpha · x·W + beta · bias, the product in tiles and the rest as it was."""
    found = layer.operation
    x = found.node.inputs[0]
    if found.x_turned:
        x = into.node("Transpose", (x,), "turned", perm=[1, 0])
    result = FORMS[tiling.form](into, layer, tiling.tile, x)
    if found.alpha != 1.0:
        result = into.node("Mul", (result, _scalar(into, layer, found.alpha, "alpha")), "scaled")
    bias = found.bias
    if bias and found.beta not in {0.0, 1.0}:
        bias = into.node("Mul", (bias, _scalar(into, layer, found.beta, "beta")), "bias")
    if bias and found.beta:
        result = into.node("Add", (result, bias), "biased")
    into.finish(result)


def _scalar(into: Replacement, layer: Layer, value: float, part: str) -> str:
    return into.store(layer.weight.dtype.type(value), part)


def transformed(job: Job) -> Transformed:
    """The file's model with its linear operations tiled; TransformError where one stayed whole."""
    rewrite = _rewrite_of(job.settings, job.source.dims, job.rules)
    return with_known_layers(transformed_file(job, rewrite), job)


def write_tiled(
    source: ModelSource, settings: Mapping[str, object], path: Path
) -> tuple[Change, ...]:
    """Write the tiled twin of a file, which holds its weights; what became of each operation."""
    original = existing_file(source, "an ONNX model")
    if path.resolve() == original.resolve():
        raise TransformError(f"{path} is the file to be tiled: write the twin to another one")
    found = _rewrite_of(settings, source.dims)(with_all_weights(original))
    write_model(found.model, path)
    return found.changes


def _rewrite_of(
    settings: Mapping[str, object], dims: Mapping[str, int], rules: OpTable | None = None
) -> Rewrite:
    tile = tile_of(settings)
    tiling = Tiling(tile, str(settings["form"]), cast("tuple[str, ...]", settings["layers"]))

    def rewrite(model: onnx.ModelProto) -> Rewritten:
        if tile.m is not None:  # rows are cut where the graph is written, so their number is fixed
            model = bound(model, dims)
        found = tiled_linears(model, tiling, rules)
        must_be_complete(found.changes, "tile_linear", "linear operations")
        return found

    return rewrite
