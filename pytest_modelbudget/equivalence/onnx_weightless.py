"""Shapes of a model that is in memory: inferred on a copy without the bytes of its weights."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from pytest_modelbudget.equivalence.onnx_stored import with_graph
from pytest_modelbudget.frontends.onnx_reading import MOST_ELEMENTS_KEPT
from pytest_modelbudget.frontends.onnx_shapes import DeclaredTypes, declared_types
from pytest_modelbudget.frontends.onnx_types import elements_of


def inferred_types(model: onnx.ModelProto) -> DeclaredTypes:
    """The types of a model's values, as far as onnx can work them out."""
    inferred = onnx.shape_inference.infer_shapes(weightless(model), data_prop=True)
    return declared_types(inferred.graph)


def weightless(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the values of its initialisers, but for small ones."""
    stored = (_lightened(tensor) for tensor in model.graph.initializer)
    return with_graph(model, model.graph.node, stored)


def _lightened(tensor: TensorProto) -> TensorProto:
    """A tensor without its values, unless it is so small that it may decide a shape."""
    if elements_of(tensor) <= MOST_ELEMENTS_KEPT:
        return tensor
    light = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    light.metadata_props.extend(tensor.metadata_props)
    return light
