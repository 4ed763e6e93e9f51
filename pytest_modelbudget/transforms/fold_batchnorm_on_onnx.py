"""``fold_batchnorm`` for ONNX: a BatchNormalization becomes part of the layer before it.

y = γ·(W·x + b - μ)/√(σ² + ε) + β = (s·W)·x + s·(b - μ) + β with s = γ/√(σ² + ε), one for each output channel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.node_rewriting import WholeOperation, operations_of, why_unusable, with_nodes
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.transforms.on_onnx import Rewritten, change_graph
from pytest_modelbudget.transforms.transform import Changed, Settings

BATCH_NORM = "onnx::BatchNormalization"
FOLDS_INTO = ("onnx::Conv", "onnx::ConvTranspose", "onnx::Gemm")
EPSILON = 1e-5  # ONNX's default


@dataclass(frozen=True, slots=True)
class Folding:
    """A batch norm and the layer that takes it in."""

    norm: Node
    layer: Node


def folded_batchnorms(model: onnx.ModelProto) -> Rewritten:
    """The model with every batch norm folded into the layer whose only reader it is."""
    program = Program(model)
    foldings: dict[str, Folding] = {}
    changes = []
    for operation in operations_of(program, lambda node, _: node.operator == BATCH_NORM, _folding):
        if isinstance(operation, WholeOperation):
            node = operation.node
            changes.append(Change(node.scope, node.operator, why=operation.why))
            continue
        layer = operation.layer
        foldings[layer.outputs[0]] = operation
        became = f"part of {layer.operator} '{layer.scope}'"
        changes.append(Change(operation.norm.scope, BATCH_NORM, became=became))
    return Rewritten(_folded(program, foldings), tuple(changes))


def _folding(norm: Node, program: Program) -> Folding | WholeOperation:
    """A batch norm with the layer that takes it in, or why it stays."""
    why = _why_not(norm, program)
    layer = program.graph.makers.get(norm.inputs[0])
    return WholeOperation(norm, why) if why or layer is None else Folding(norm, layer)


def _why_not(norm: Node, program: Program) -> str:
    """Why a batch norm stays; "" where it can be folded."""
    if norm.attributes.get("training_mode", 0) or len(list(filter(None, norm.outputs))) > 1:
        return "it computes statistics"
    if not all(_is_fixed(name, program) for name in norm.inputs[1:]):
        return "its statistics or scales are not stored"
    layer = program.graph.makers.get(norm.inputs[0])
    if layer is None or layer.operator not in FOLDS_INTO:
        return f"its input is no result of {', '.join(FOLDS_INTO)}"
    if program.graph.reads.get(norm.inputs[0], 0) > 1:
        return "the result of the layer before it is read elsewhere too"
    if not all(_is_fixed(name, program) for name in layer.inputs[1:]):
        return "the weights of the layer before it are not stored"
    if layer.operator == "onnx::Gemm" and layer.attributes.get("beta", 1.0) != 1.0:
        return "the layer before it scales its bias"
    return ""


def _is_fixed(name: str, program: Program) -> bool:
    """Whether a value is a stored floating tensor that cannot be replaced."""
    name = program.graph.origin(name)
    return name in program.graph.stored and not why_unusable(name, program)


def _folded(program: Program, foldings: Mapping[str, Folding]) -> onnx.ModelProto:
    nodes: list[NodeProto] = []
    tensors: list[TensorProto] = []
    graph = program.graph
    norms = {folding.norm.outputs[0] for folding in foldings.values()}
    for node in graph.nodes:
        if node.outputs and node.outputs[0] in norms and node.operator == BATCH_NORM:
            continue
        folding = foldings.get(node.outputs[0]) if node.outputs else None
        if folding is None:
            nodes.append(node.proto)
            continue
        made, weights = _folded_layer(folding, graph)
        nodes.append(made)
        tensors.extend(weights)
    return with_nodes(program, nodes, tensors)


def _folded_layer(folding: Folding, graph: Body) -> tuple[NodeProto, list[TensorProto]]:
    """The layer with scaled weights and a bias; its result goes by the batch norm's name."""
    layer, norm = folding.layer, folding.norm
    gamma, beta, mean, variance = (_wide(graph, name) for name in norm.inputs[1:5])
    scale = gamma / (variance + norm.attributes.get("epsilon", EPSILON)) ** 0.5
    whole = graph.stored[graph.origin(layer.inputs[1])]
    weight = whole.array()
    has_bias = len(layer.inputs) > 2 and layer.inputs[2]
    bias = _wide(graph, layer.inputs[2]) if has_bias else 0.0
    values = {"weight": _scaled(layer, weight.astype("float64"), scale), "bias": (bias - mean) * scale + beta}
    made = NodeProto()
    made.CopyFrom(layer.proto)
    tensors = [
        numpy_helper.from_array(array.astype(weight.dtype), f"{norm.outputs[0]}.folded.{part}")
        for part, array in values.items()
    ]
    tensors[0].metadata_props.extend(whole.proto.metadata_props)
    del made.input[1:]
    made.input.extend(tensor.name for tensor in tensors)
    made.output[0] = norm.outputs[0]
    return made, tensors


def _wide(graph: Body, name: str) -> Any:
    return graph.stored[graph.origin(name)].array().astype("float64")


def _scaled(layer: Node, weight: Any, scale: Any) -> Any:
    """A weight with each output channel scaled: its first axis, or the one that the layer turns."""
    if layer.operator == "onnx::ConvTranspose":
        groups = layer.attributes.get("group", 1)
        per_group = scale.reshape(groups, -1)
        inputs = weight.shape[0] // groups
        by_row = per_group.repeat(inputs, axis=0)
        return weight * by_row.reshape(*by_row.shape, *(1 for _ in weight.shape[2:]))
    if layer.operator == "onnx::Gemm" and not layer.attributes.get("transB", 0):
        return weight * scale
    return weight * scale.reshape(-1, *(1 for _ in weight.shape[1:]))


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model with its batch norms folded; TransformError where none could be."""

    def rewrite(proto: onnx.ModelProto) -> Rewritten:
        folded = folded_batchnorms(proto)
        if not any(change.became for change in folded.changes):
            why = folded.changes[0].why if folded.changes else "the model has none"
            raise TransformError(f"fold_batchnorm changed nothing: {why}")
        return folded

    return change_graph(model, rewrite, changes_weights=True)
