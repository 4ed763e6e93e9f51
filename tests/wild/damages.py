"""Mistakes that a tool might make in a file: a wrong weight, swapped operands, a lost node, a wrong attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

# Makes one mistake in a file and names the first result that is wrong; None where there is nothing to spoil.
Damage = Callable[[onnx.ModelProto], str | None]

PRODUCTS = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul")
ACTIVATIONS = ("Relu", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "QLinearSigmoid", "Tanh", "Erf", "Gelu")


def middle(nodes: Iterable[onnx.NodeProto]) -> onnx.NodeProto | None:
    """The one in the middle; None of none."""
    found = list(nodes)
    return found[len(found) // 2] if found else None


def stored(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Stored tensors by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def change(tensor: onnx.TensorProto, work: Callable[[np.ndarray], None]) -> None:
    """Change a stored tensor in place."""
    values = numpy_helper.to_array(tensor).copy()
    work(values)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def one_weight(model: onnx.ModelProto) -> str | None:
    """The largest weight of the product in the middle, negated and four times as large."""
    tensors = stored(model)
    node = middle(n for n in model.graph.node if n.op_type in PRODUCTS and n.input[1] in tensors)
    if node is None or numpy_helper.to_array(tensors[node.input[1]]).dtype.kind != "f":
        return None

    def spoil(values: np.ndarray) -> None:
        values[np.unravel_index(np.abs(values).argmax(), values.shape)] *= -4

    change(tensors[node.input[1]], spoil)
    return str(node.output[0])


def two_rows(model: onnx.ModelProto) -> str | None:
    """Two channels of the first product's weight change places."""
    tensors = stored(model)
    node = next((n for n in model.graph.node if n.op_type in PRODUCTS and n.input[1] in tensors), None)
    if node is None:
        return None
    axis = 0 if node.op_type in ("Conv", "FusedConv", "Gemm", "FusedGemm") else -1

    def spoil(values: np.ndarray) -> None:
        rows = np.moveaxis(values, axis, 0)
        rows[[0, 1]] = rows[[1, 0]]

    change(tensors[node.input[1]], spoil)
    return str(node.output[0])


def one_scale(model: onnx.ModelProto) -> str | None:
    """The scale of the last quantised weight is doubled; of a result it would be a coarser grid."""
    tensors = stored(model)
    places = {"DequantizeLinear": (0, 1), "QLinearConv": (3, 4), "QGemm": (3, 4), "QLinearMatMul": (3, 4)}
    found = [
        n
        for n in model.graph.node
        if n.op_type in places and n.input[(at := places[n.op_type])[0]] in tensors
        if len(tensors[n.input[at[0]]].dims) > 1
    ]
    if not found:
        return None
    node = found[-1]

    def spoil(values: np.ndarray) -> None:
        np.multiply(values, 2, out=values)

    change(tensors[node.input[places[node.op_type][1]]], spoil)
    return str(node.output[0])


def a_lost_node(model: onnx.ModelProto) -> str | None:
    """The activation in the middle is gone, and who read it reads what it read.

    Not where results are on calibrated grids, which cut off what most activations do.
    """
    node = middle(n for n in model.graph.node if n.op_type in ACTIVATIONS)
    if node is None or any(n.op_type == "QuantizeLinear" for n in model.graph.node):
        return None
    for other in model.graph.node:
        other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
    lost = str(node.output[0])
    model.graph.node.remove(node)
    return lost


def swapped(model: onnx.ModelProto) -> str | None:
    """The operands of a concatenation, difference or quotient, in the wrong order."""
    nodes = list(model.graph.node)
    node = middle(n for n in nodes if n.op_type in ("Concat", "Sub", "Div") and len(n.input) == 2)
    if node is None:
        return None
    node.input[:] = list(reversed(node.input))
    return str(node.output[0])


def wrong_attribute(model: onnx.ModelProto) -> str | None:
    """Softmax over another axis, another slope, or another fused activation."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Softmax" and attribute.name == "axis":
                attribute.i = -2
                return str(node.output[0])
            if node.op_type == "LeakyRelu" and attribute.name == "alpha":
                attribute.f *= -4
                return str(node.output[0])
            if attribute.name == "activation" and attribute.s == b"Relu":
                attribute.s = b"Sigmoid"
                return str(node.output[0])
    return None


DAMAGES: Mapping[str, Damage] = {
    "one_weight": one_weight,
    "two_rows": two_rows,
    "one_scale": one_scale,
    "a_lost_node": a_lost_node,
    "swapped": swapped,
    "wrong_attribute": wrong_attribute,
}
