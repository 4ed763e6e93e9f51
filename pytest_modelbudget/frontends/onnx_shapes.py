"""Shapes of a whole model, from onnx's own inference on a copy without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx.inliner

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.onnx_reading import ReadModel
from pytest_modelbudget.frontends.onnx_types import (
    NOTHING_KNOWN,
    ValueType,
    value_type,
)
from pytest_modelbudget.frontends.user_code import user_code


def with_shapes(model: ReadModel, file: str) -> onnx.ModelProto:
    """The model with local functions written out and a type beside every value that has one.

    Raises SourceError where onnx finds the types of two operations at odds.
    """
    proto = model.proto
    with user_code(f"{file} is no valid model: working out its shapes", SourceError):
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    if len(inferred.graph.node) != len(proto.graph.node):
        raise SourceError(f"{file}: onnx could not work out the shapes of this model")
    return inferred


@dataclass(frozen=True, slots=True)
class DeclaredTypes:
    """Types that a graph declares or inference found, by value; decoded when asked for."""

    protos: Mapping[str, onnx.TypeProto]

    def __getitem__(self, name: str) -> ValueType:
        proto = self.protos.get(name)
        return NOTHING_KNOWN if proto is None else value_type(proto)


def declared_types(graph: onnx.GraphProto) -> DeclaredTypes:
    """The types that stand in one graph, without those of bodies inside it."""
    values = (*graph.value_info, *graph.output, *graph.input)
    return DeclaredTypes({value.name: value.type for value in values})
