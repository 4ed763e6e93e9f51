"""Shapes of a model that is in memory: inferred on a copy without the bytes of its weights."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from pytest_modelbudget.frontends.onnx_reading import MOST_ELEMENTS_KEPT
from pytest_modelbudget.frontends.onnx_shapes import DeclaredTypes, declared_types
from pytest_modelbudget.frontends.onnx_types import elements_of
from pytest_modelbudget.transforms.onnx_stored import with_graph


def inferred_types(model: onnx.ModelProto) -> DeclaredTypes:
    """The types of a model's values, as far as onnx can work them out."""
    nodes = model.graph.node
    stored = (_lightened(tensor) for tensor in model.graph.initializer)
    light = with_graph(model, nodes, stored)
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    return declared_types(inferred.graph)


def _lightened(tensor: TensorProto) -> TensorProto:
    """A tensor without its values, unless it is so small that it may decide a shape."""
    if elements_of(tensor) <= MOST_ELEMENTS_KEPT:
        return tensor
    return TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
