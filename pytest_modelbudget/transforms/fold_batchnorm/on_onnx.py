"""``fold_batchnorm`` for ONNX: a BatchNormalization becomes part of the layer before it.

y = γ·(W·x + b - μ)/√(σ² + ε) + β = (s·W)·x + s·(b - μ) + β with s = γ/√(σ² + ε), one for each
output channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models.program import (
    FLOATING,
    StoredTensors,
    attribute,
    names_read,
    op_name,
    scope_of,
    stored_tensors,
    with_graph,
)
from pytest_modelbudget.onnx_models.rewriting import WholeOperation, found_operations, without_spent
from pytest_modelbudget.transforms.on_onnx import Rewritten, transformed_file
from pytest_modelbudget.transforms.transform import Job, Transformed

BATCH_NORM = "onnx::BatchNormalization"
FOLDS_INTO = ("onnx::Conv", "onnx::ConvTranspose", "onnx::Gemm")
EPSILON = 1e-5  # ONNX's default


@dataclass(frozen=True, slots=True)
class Folding:
    """A batch norm and the layer that takes it in."""

    norm: NodeProto
    layer: NodeProto


def folded_batchnorms(model: onnx.ModelProto) -> Rewritten:
    """The model with every batch norm folded into the layer whose only reader it is."""
    stored = stored_tensors(model)
    foldings: dict[str, Folding] = {}
    changes = []
    for found in found_operations(model, stored, _is_batch_norm, _folding):
        if isinstance(found, WholeOperation):
            changes.append(Change(scope_of(found.node), op_name(found.node), why=found.why))
            continue
        norm, layer = found.norm, found.layer
        foldings[layer.output[0]] = found
        became = f"part of {op_name(layer)} '{scope_of(layer)}'"
        changes.append(Change(scope_of(norm), BATCH_NORM, became=became))
    return Rewritten(_folded(model, foldings, stored), tuple(changes))


def _is_batch_norm(node: NodeProto, constants: AbstractSet[str]) -> bool:
    return op_name(node) == BATCH_NORM


def _folding(norm: NodeProto, stored: StoredTensors) -> Folding | WholeOperation:
    """A batch norm with the layer that takes it in, or why it stays."""
    why = _why_not(norm, stored)
    layer = stored.makers.get(norm.input[0])
    return WholeOperation(norm, why) if why or layer is None else Folding(norm, layer)


def _why_not(norm: NodeProto, stored: StoredTensors) -> str:
    """Why a batch norm stays; "" where it can be folded."""
    if attribute(norm, "training_mode", 0) or len(list(filter(None, norm.output))) > 1:
        return "it computes statistics"
    if not all(_is_fixed(name, stored) for name in norm.input[1:]):
        return "its statistics or scales are not stored"
    layer = stored.makers.get(norm.input[0])
    if layer is None or op_name(layer) not in FOLDS_INTO:
        return f"its input is no result of {', '.join(FOLDS_INTO)}"
    if stored.reads.get(norm.input[0], 0) > 1:
        return "the result of the layer before it is read elsewhere too"
    if not all(_is_fixed(name, stored) for name in layer.input[1:]):
        return "the weights of the layer before it are not stored"
    if op_name(layer) == "onnx::Gemm" and attribute(layer, "beta", 1.0) != 1.0:
        return "the layer before it scales its bias"
    return ""


def _is_fixed(name: str, stored: StoredTensors) -> bool:
    """Whether a value is a stored floating tensor that nobody can replace."""
    name = stored.origin(name)
    return (
        name in stored
        and name not in stored.replaceable
        and stored.tensors[name].data_type in FLOATING
    )


def _folded(
    model: onnx.ModelProto, foldings: Mapping[str, Folding], stored: StoredTensors
) -> onnx.ModelProto:
    nodes: list[NodeProto] = []
    tensors: list[TensorProto] = []
    norms = {folding.norm.output[0] for folding in foldings.values()}
    for node in model.graph.node:
        if node.output and node.output[0] in norms and op_name(node) == BATCH_NORM:
            continue
        folding = foldings.get(node.output[0]) if node.output else None
        if folding is None:
            nodes.append(node)
            continue
        made, weights = _folded_layer(folding, stored)
        nodes.append(made)
        tensors.extend(weights)
    outputs = frozenset(value.name for value in model.graph.output)
    nodes, spent = without_spent(nodes, names_read(model.graph.node), outputs)
    kept = (tensor for tensor in model.graph.initializer if tensor.name not in spent)
    return with_graph(model, nodes, (*kept, *tensors))


def _folded_layer(folding: Folding, stored: StoredTensors) -> tuple[NodeProto, list[TensorProto]]:
    """The layer with scaled weights and a bias; its result goes by the batch norm's name."""
    layer, norm = folding.layer, folding.norm
    gamma, beta, mean, variance = (_wide(stored, name) for name in norm.input[1:5])
    scale = gamma / (variance + attribute(norm, "epsilon", EPSILON)) ** 0.5
    weight = stored.array(stored.origin(layer.input[1]))
    has_bias = len(layer.input) > 2 and layer.input[2]
    bias = _wide(stored, layer.input[2]) if has_bias else 0.0
    values = {
        "weight": _scaled(layer, weight.astype("float64"), scale),
        "bias": (bias - mean) * scale + beta,
    }
    made = NodeProto()
    made.CopyFrom(layer)
    tensors = [
        numpy_helper.from_array(array.astype(weight.dtype), f"{norm.output[0]}.folded.{part}")
        for part, array in values.items()
    ]
    tensors[0].metadata_props.extend(stored.tensors[stored.origin(layer.input[1])].metadata_props)
    del made.input[1:]
    made.input.extend(tensor.name for tensor in tensors)
    made.output[0] = norm.output[0]
    return made, tensors


def _wide(stored: StoredTensors, name: str) -> Any:
    return stored.array(stored.origin(name)).astype("float64")


def _scaled(layer: NodeProto, weight: Any, scale: Any) -> Any:
    """A weight with each output channel scaled: its first axis, or the one that the layer turns."""
    name = op_name(layer)
    if name == "onnx::ConvTranspose":
        groups = attribute(layer, "group", 1)
        per_group = scale.reshape(groups, -1)
        inputs = weight.shape[0] // groups
        each = per_group.repeat(inputs, axis=0)
        return weight * each.reshape(*each.shape, *(1 for _ in weight.shape[2:]))
    if name == "onnx::Gemm" and not attribute(layer, "transB", 0):
        return weight * scale
    return weight * scale.reshape(-1, *(1 for _ in weight.shape[1:]))


def transformed(job: Job) -> Transformed:
    """The file's model with its batch norms folded; TransformError where none could be."""

    def rewrite(model: onnx.ModelProto) -> Rewritten:
        found = folded_batchnorms(model)
        if not any(change.became for change in found.changes):
            why = found.changes[0].why if found.changes else "the model has none"
            raise TransformError(f"fold_batchnorm changed nothing: {why}")
        return found

    return transformed_file(job, rewrite, changes_weights=True)
