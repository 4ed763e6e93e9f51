"""A model's float64 copy: the same graph, with every floating value upcast exactly."""

from __future__ import annotations

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from pytest_modelbudget.equivalence.onnx_stored import FLOATING, opset_of, with_graph
from pytest_modelbudget.frontends.onnx_steps import STANDARD
from pytest_modelbudget.frontends.onnx_types import all_graphs

# Attributes that name the element type of a result, or of what is computed on the way to it.
TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type"})

# Norms that compute in float32 unless told otherwise, and the operator set that lets them be told.
STASHES = {"GroupNormalization": 21, "LayerNormalization": 17, "RMSNormalization": 23}


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs, outputs, casts and constants are float64, without its initialisers.

    Those are upcast where they are needed, so that a large model is not copied once more. Every
    value of a smaller floating type is exact in float64. Integers stay what they are.
    """
    made = with_graph(model, model.graph.node, ())
    opset = opset_of(model)
    del made.graph.value_info[:]
    for graph in all_graphs(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _upcast_type(value.type)
        for node in graph.node:
            _upcast_attributes(node)
            if STASHES.get(node.op_type, opset + 1) <= opset and node.domain in STANDARD:
                _compute_in_float64(node)
        stored = [upcast(tensor) for tensor in graph.initializer]
        del graph.initializer[:]
        graph.initializer.extend(stored)
    return made


def wholly_in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with its initialisers, for a transform that works on the weights themselves."""
    made = in_float64(model)
    made.graph.initializer.extend(upcast(tensor) for tensor in model.graph.initializer)
    return made


def upcast(tensor: TensorProto) -> TensorProto:
    """A floating tensor in float64; any other as it is."""
    if tensor.data_type not in FLOATING or tensor.data_type == TensorProto.DOUBLE:
        return tensor
    array = numpy_helper.to_array(tensor).astype("float64")
    made = numpy_helper.from_array(array, tensor.name)
    made.metadata_props.extend(tensor.metadata_props)
    return made


def _upcast_type(kind: onnx.TypeProto) -> None:
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in FLOATING:
        kind.tensor_type.elem_type = TensorProto.DOUBLE
    for container in ("sequence_type", "optional_type"):
        if kind.HasField(container):
            _upcast_type(getattr(kind, container).elem_type)


def _upcast_attributes(node: NodeProto) -> None:
    for each in node.attribute:
        if each.type == AttributeProto.TENSOR:
            each.t.CopyFrom(upcast(each.t))
        elif each.name in TYPE_ATTRIBUTES and each.type == AttributeProto.INT:
            each.i = TensorProto.DOUBLE if each.i in FLOATING else each.i
    if node.op_type == "Constant" and node.domain in STANDARD:
        _upcast_constant(node)
    if node.op_type == "ConstantOfShape" and not node.attribute:  # float32 zeros, unsaid
        zero = onnx.helper.make_tensor("", TensorProto.DOUBLE, [1], [0.0])
        node.attribute.append(onnx.helper.make_attribute("value", zero))


def _compute_in_float64(node: NodeProto) -> None:
    if not any(each.name == "stash_type" for each in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("stash_type", TensorProto.DOUBLE))


def _upcast_constant(node: NodeProto) -> None:
    """Make a Constant that is written as numbers one that holds a tensor."""
    for each in node.attribute:
        if each.name in {"value_float", "value_floats"}:
            entries = [each.f] if each.name == "value_float" else list(each.floats)
            shape = [] if each.name == "value_float" else [len(entries)]
            tensor = onnx.helper.make_tensor("", TensorProto.DOUBLE, shape, entries)
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", tensor))
            return
