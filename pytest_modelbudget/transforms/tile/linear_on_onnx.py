"""``tile_linear`` for ONNX: a Gemm or MatMul with a stored weight becomes tiles; with ``tile`` any product."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import ModelSource, existing_file
from pytest_modelbudget.graph.tensor import broadcast
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.node_rewriting import Replacement, WholeOperation
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.onnx_models.protos import bound
from pytest_modelbudget.onnx_models.reading import with_all_weights, write_model
from pytest_modelbudget.onnx_models.shape_inference import inferred_types
from pytest_modelbudget.onnx_models.value_types import Types
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.on_onnx import Rewritten, change_layers
from pytest_modelbudget.transforms.tile.forms_on_onnx import (
    FORMS,
    LinearOperation,
    TiledGraph,
    TiledLinear,
    linear_operations,
)
from pytest_modelbudget.transforms.tile.grid import Tile, must_be_complete, tile_of, with_shares
from pytest_modelbudget.transforms.tile.nodes_on_onnx import WRITERS, Writer, products_in
from pytest_modelbudget.transforms.transform import Changed, Settings, must_match


@dataclass(frozen=True, slots=True)
class Tiling:
    """What to tile, and how: form is a key of FORMS, layers are globs on module paths."""

    tile: Tile
    form: str = "unrolled"
    layers: tuple[str, ...] = ("*",)
    all_products: bool = False  # those of two activations, too, and the rows of each matrix apart


def tiled_linears(model: onnx.ModelProto, tiling: Tiling, rules: OpTable | None = None) -> Rewritten:
    """The model with its selected linear operations written as products of tiles.

    The given model is left alone. Inputs, outputs and the names of all values that were there before stay; what could
    not be rewritten is listed with the reason. rules are the project's own where none are given.
    """
    program = Program(model, rules)
    types = inferred_types(model)
    graph = TiledGraph(program, tiling.tile, tiling.layers)
    for operation in products_in(program, types) if tiling.all_products else linear_operations(program):
        if isinstance(operation, Node):
            if not graph.keeps(operation, ""):
                writer = Writer(graph, operation, tiling.tile, program, types)
                graph.attempt(operation, partial(WRITERS[operation.operator], writer))
            continue
        why = operation.why if isinstance(operation, WholeOperation) else _why_whole(operation, tiling, types)
        if graph.keeps(operation.node, why) or isinstance(operation, WholeOperation):
            continue
        layer = _layer(operation, program.graph, types, graph.names.stem(operation.weight, "_"))
        leading, groups = tuple(size or 0 for size in layer.leading or ()), 1
        if tiling.all_products:
            layer = replace(layer, stacked=True)
            stack = (types[operation.weight].sizes or ())[: operation.stack]
            leading, groups = leading[-1:], prod(broadcast([leading[:-1], stack]))
        into = graph.replacement(operation.node, operation.k, operation.n, rows=prod(leading), groups=groups)
        _rewrite(into, layer, tiling)
    return graph.result()


def _why_whole(operation: LinearOperation, tiling: Tiling, types: Types) -> str:
    """Why a form cannot take an operation; "" where it can."""
    leading = _leading(operation, types)
    needs_rank = tiling.form == "batched" or tiling.tile.pads or tiling.tile.m is not None
    if leading is None and needs_rank:
        return "the rank of its input is not known"
    if tiling.tile.m is not None and None in (leading or ()):
        return "its number of rows is not known: export the file with fixed sizes"
    if tiling.tile.m is not None and tiling.form == "batched":
        return "rows are tiled in the unrolled form only"
    return ""


def _leading(operation: LinearOperation, types: Types) -> tuple[int | None, ...] | None:
    """Sizes of x before the contracted axis, None where they are not known."""
    known = types[operation.node.inputs[0]].shape
    if operation.node.operator == "onnx::Gemm":
        rows = (known or (None, None))[1 if operation.x_turned else 0]
        return (rows if isinstance(rows, int) else None,)
    if known is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in known[:-1])


def _layer(operation: LinearOperation, graph: Body, types: Types, stem: str) -> TiledLinear:
    whole = graph.stored.get(operation.weight)
    if whole is None:
        return TiledLinear(operation, None, None, stem, _leading(operation, types), shared=True)
    weight = whole.array()
    return TiledLinear(
        operation,
        weight.T if operation.weight_turned else weight,
        whole.proto,
        stem,
        _leading(operation, types),
        graph.most_reads(operation.node.inputs[1]) > 1,
    )


def _rewrite(into: Replacement, layer: TiledLinear, tiling: Tiling) -> None:
    """alpha · x·W + beta · bias, the product in tiles and the rest as it was."""
    operation = layer.operation
    x = operation.node.inputs[0]
    if operation.x_turned:
        x = into.node("Transpose", (x,), "turned", perm=[1, 0])
    result = FORMS[tiling.form](into, layer, tiling.tile, x)
    if operation.alpha != 1.0:
        result = into.node("Mul", (result, _scalar(into, layer, operation.alpha, "alpha")), "scaled")
    bias = operation.bias
    if bias and operation.beta not in {0.0, 1.0}:
        bias = into.node("Mul", (bias, _scalar(into, layer, operation.beta, "beta")), "bias")
    if bias and operation.beta:
        result = into.node("Add", (result, bias), "biased")
    into.finish(result)


def _scalar(into: Replacement, layer: TiledLinear, value: float, part: str) -> str:
    return into.store(layer.weight.dtype.type(value), part)


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model with its linear operations tiled; TransformError where one stayed whole."""
    rewrite = partial(tiled_as_asked, settings=settings, dims=model.source.dims, rules=model.rules)
    layers = cast("tuple[str, ...]", settings["layers"])
    if "products" not in settings:
        return change_layers(model, rewrite, layers, _check)
    changed = with_shares(change_layers(model, rewrite, layers, lambda changes: None), model.rules)
    if not model.is_copy:
        must_be_complete(changed.changes, "tile", "product")
    return changed


def write_tiled(source: ModelSource, settings: Settings, path: Path) -> tuple[Change, ...]:
    """Write the tiled twin of a file, which holds its weights; what became of each operation."""
    original = existing_file(source, "an ONNX model")
    if path.resolve() == original.resolve():
        raise TransformError(f"{path} is the file to be tiled: write the twin to another one")
    tiled = tiled_as_asked(with_all_weights(original), settings=settings, dims=source.dims)
    scopes = [each.scope for each in tiled.changes]
    must_match(cast("tuple[str, ...]", settings["layers"]), scopes, "linear operation")
    _check(tiled.changes)
    write_model(tiled.model, path)
    return tiled.changes


def tiled_as_asked(
    proto: onnx.ModelProto, *, settings: Settings, dims: Mapping[str, int], rules: OpTable | None = None
) -> Rewritten:
    """The model tiled as settings ask for."""
    tile = tile_of(settings)
    if tile.m is not None:  # rows are cut where the graph is written, so their number is fixed
        proto = bound(proto, dims)
    form, layers = str(settings.get("form", "unrolled")), cast("tuple[str, ...]", settings["layers"])
    return tiled_linears(proto, Tiling(tile, form, layers, "products" in settings), rules)


def _check(changes: Sequence[Change]) -> None:
    must_be_complete(changes, "tile_linear", "linear operation")


OPSET, IR_VERSION = 18, 8


def linear_model(
    m: int, k: int, n: int, *, bias: bool = True, dtype: str = "float32", seed: int = 0
) -> onnx.ModelProto:
    """x (m, k) → Gemm → y (m, n) with drawn weights: W (n, k) from N(0, 1/√k), b from N(0, 0.1)."""
    generator = np.random.Generator(np.random.Philox(seed))
    arrays = {"linear.weight": (generator.standard_normal((n, k)) / k**0.5).astype(dtype)}
    if bias:
        arrays["linear.bias"] = (generator.standard_normal(n) * 0.1).astype(dtype)
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    code = helper.np_dtype_to_tensor_dtype(arrays["linear.weight"].dtype)
    gemm = helper.make_node("Gemm", ["x", *arrays], ["y"], "/linear/Gemm", transB=1)
    x, y = helper.make_tensor_value_info("x", code, [m, k]), helper.make_tensor_value_info("y", code, [m, n])
    graph = helper.make_graph([gemm], "linear", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = IR_VERSION
    return made
