"""``quantize_weights`` for ONNX: stored integers behind a DequantizeLinear (QDQ)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.equivalence.onnx_stored import (
    CARRIERS,
    FLOATING,
    StoredTensors,
    attribute,
    opset_of,
    stored_tensors,
    with_graph,
)
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.onnx_scopes import scope_of
from pytest_modelbudget.frontends.onnx_steps import op_name
from pytest_modelbudget.transforms.layer_choice import LEFT_OUT, with_known_layers
from pytest_modelbudget.transforms.onnx_linear_operations import StoredWeight, weight_behind
from pytest_modelbudget.transforms.onnx_rewritten_file import Rewritten, transformed_file
from pytest_modelbudget.transforms.quantiser_floor import held_to_floor
from pytest_modelbudget.transforms.transform import Change, Job, Transformed
from pytest_modelbudget.transforms.weight_grid import Grid, grid_of

CODES = {8: TensorProto.INT8, 4: TensorProto.INT4}
OLDEST_OPSET = {8: 13, 4: 21}  # from which DequantizeLinear takes the type, a scale per channel
# From which operator set a dequantiser gives each type.
SCALED: dict[int, int] = {
    TensorProto.FLOAT: 13, TensorProto.FLOAT16: 19, TensorProto.BFLOAT16: 19,
}  # fmt: skip
LAYERS = frozenset({"onnx::Conv", "onnx::ConvTranspose", "onnx::Gemm", "onnx::MatMul"})


@dataclass(frozen=True, slots=True)
class Quantised:
    """Integers q, scales s and zero points z: the weight is s·(q - z), along one axis or whole."""

    integers: Any
    scale: Any
    zero_point: Any
    axis: int | None


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with a weight: the stored tensor, and the axis that output channels lie along."""

    node: NodeProto
    weight: str
    axis: int


def quantised_weights(model: onnx.ModelProto, grid: Grid) -> Rewritten:
    """The model with the weights of its selected layers stored as integers."""
    stored = stored_tensors(model)
    opset = opset_of(model)
    made: dict[str, tuple[NodeProto, list[TensorProto]]] = {}
    changes = []
    for node in model.graph.node:
        layer = layer_of(node, stored)
        if layer is None:
            continue
        scope = scope_of(node)
        why = layer if isinstance(layer, str) else _why_not(layer, grid, stored, opset)
        if why or isinstance(layer, str):
            changes.append(Change(scope, op_name(node), why=why))
            continue
        if layer.weight not in made:
            made[layer.weight] = _behind_dequantizer(layer, grid, stored)
        changes.append(Change(scope, op_name(node), grid.text))
    return Rewritten(_with_dequantizers(model, made), tuple(changes))


def layer_of(node: NodeProto, stored: StoredTensors) -> Layer | str | None:
    """The node as a layer with a stored weight, why it is none, or None where it has no weight."""
    name = op_name(node)
    if name not in LAYERS:
        return None
    if name in {"onnx::Gemm", "onnx::MatMul"}:
        found = weight_behind(node.input[1], stored)
        if not isinstance(found, StoredWeight):
            return found
        is_turned = found.turned != bool(attribute(node, "transB", 0))
        return Layer(node, found.name, 0 if is_turned else 1)
    if node.input[1] not in stored:
        return "its weight is computed in the graph, or quantised already"
    return Layer(node, node.input[1], 1 if name == "onnx::ConvTranspose" else 0)


def _with_dequantizers(
    model: onnx.ModelProto, made: Mapping[str, tuple[NodeProto, list[TensorProto]]]
) -> onnx.ModelProto:
    """The model with other weights behind the names that its nodes read."""
    nodes = [node for node, _ in made.values()]
    nodes += [node for node in model.graph.node if made.keys().isdisjoint(node.output)]
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in made]
    return with_graph(model, nodes, (*kept, *(each for _, more in made.values() for each in more)))


def _why_not(layer: Layer, grid: Grid, stored: StoredTensors, opset: int) -> str:
    """Why a layer's weight stays as it is; "" where it is quantised."""
    if not grid.selects(scope_of(layer.node)):
        return LEFT_OUT
    if layer.weight in stored.replaceable:
        return f"its weight '{layer.weight}' is an input too, which a caller may replace"
    kind = stored.tensors[layer.weight].data_type
    if kind not in FLOATING:
        return f"its weight '{layer.weight}' is not floating"
    name = TensorProto.DataType.Name(kind).lower()
    if kind not in SCALED:
        return f"its weight '{layer.weight}' is {name}, which no DequantizeLinear gives"
    if opset < SCALED[kind]:
        return f"operator set {opset} has no DequantizeLinear to {name}: {SCALED[kind]} has"
    if opset < OLDEST_OPSET[grid.bits]:
        return f"operator set {opset} has no int{grid.bits} weights: {OLDEST_OPSET[grid.bits]} has"
    return ""


def _behind_dequantizer(
    layer: Layer, grid: Grid, stored: StoredTensors
) -> tuple[NodeProto, list[TensorProto]]:
    """A DequantizeLinear that gives the weight under its own name, and what it reads."""
    node, name = layer.node, layer.weight
    weight = stored.array(name)
    found = quantised(weight, grid, layer.axis if grid.per_channel else None)
    code, few = CODES[grid.bits], list(found.scale.shape)
    tensors = [
        _integers(f"{name}.quantized", code, list(weight.shape), found.integers),
        numpy_helper.from_array(found.scale, f"{name}.scale"),
        _integers(f"{name}.zero_point", code, few, found.zero_point),
    ]
    tensors[0].metadata_props.extend(stored.tensors[name].metadata_props)
    reads = [tensor.name for tensor in tensors]
    path = node.name if "/" in node.name else f"{node.name or node.output[0]}/"
    made = helper.make_node("DequantizeLinear", reads, [name], name=f"{path}.weight")
    made.metadata_props.extend(node.metadata_props)
    if found.axis is not None:
        made.attribute.append(helper.make_attribute("axis", found.axis))
    return made, tensors


def _integers(name: str, code: int, shape: list[int], values: Any) -> TensorProto:
    """A stored tensor of small integers; two of four bits share a byte."""
    array = values.reshape(shape).astype(tensor_dtype_to_np_dtype(code))
    return numpy_helper.from_array(array, name)


def quantised(weight: Any, grid: Grid, axis: int | None) -> Quantised:
    """The integers nearest to a weight, on a grid of its own or one for each channel."""
    import numpy as np

    wide = weight.astype(np.float64)
    others = tuple(each for each in range(wide.ndim) if each != axis)
    least = np.minimum(wide.min(others, keepdims=True), 0.0)
    most = np.maximum(wide.max(others, keepdims=True), 0.0)
    low, high = grid.ends
    scale = np.maximum(-least, most) / high if grid.symmetric else (most - least) / (high - low)
    scale = np.where(scale > 0, scale, 1.0).astype(weight.dtype)  # as it is stored
    step = scale.astype(np.float64)
    zero = (
        np.zeros_like(step) if grid.symmetric else np.clip(np.rint(low - least / step), low, high)
    )
    integers = np.clip(np.rint(wide / step) + zero, low, high)
    few = () if axis is None else (-1,)
    return Quantised(integers, scale.reshape(few), zero.reshape(few), axis)


def off_grid(model: onnx.ModelProto, changes: Sequence[Change]) -> tuple[str, ...]:
    """Scopes that were changed and still read a weight that is no stored integer."""
    stored = stored_tensors(model)
    changed = {(change.scope, change.operation) for change in changes if change.became}
    found = []
    for node in model.graph.node:
        if (scope_of(node), op_name(node)) in changed:
            reads = _dequantised(node.input[1], stored)
            if reads not in stored or stored.tensors[reads].data_type not in CODES.values():
                found.append(scope_of(node))
    return tuple(found)


def _dequantised(name: str, stored: StoredTensors) -> str:
    """What the DequantizeLinear behind a weight reads; "" where there is none."""
    maker = stored.makers.get(name)
    while maker is not None and maker.op_type in CARRIERS and maker.input:
        maker = stored.makers.get(maker.input[0])
    return maker.input[0] if maker is not None and maker.op_type == "DequantizeLinear" else ""


def transformed(job: Job) -> Transformed:
    """The file's model with integer weights; TransformError where no layer was changed."""
    grid = grid_of(job.settings)

    def rewrite(model: onnx.ModelProto) -> Rewritten:
        found = quantised_weights(model, grid)
        wrong = off_grid(found.model, found.changes)
        if wrong:
            raise TransformError(f"quantize_weights: '{wrong[0]}' reads a weight off the grid")
        if not any(change.became for change in found.changes):
            whys = [each.why for each in found.changes if each.why != LEFT_OUT]
            why = whys[0] if whys else "the model has no layer that layers: selects"
            raise TransformError(f"quantize_weights changed nothing: {why}")
        return found

    done = with_known_layers(transformed_file(job, rewrite), job)
    count = sum(1 for change in done.changes if change.became)

    def verify(claim: Claim) -> Equivalence:
        return done.verify(held_to_floor(claim, grid.bits, count))

    return replace(done, verify=verify)
