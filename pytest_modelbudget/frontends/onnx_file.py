"""``onnx:`` a model file in the Open Neural Network Exchange format."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_modelbudget.errors import SourceError
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.model_files import existing_file
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.frontends.onnx_graph import GraphReader
from pytest_modelbudget.frontends.onnx_reading import ReadModel, bind_dims, read_model
from pytest_modelbudget.frontends.onnx_shapes import with_shapes
from pytest_modelbudget.ops.op_table import OpTable


def load(source: ModelSource, rules: OpTable) -> LoadedModel:
    """The graph of an ONNX file, on the shapes it declares and the sizes that dims binds.

    Weights are not read, so external data may be missing. Raises SourceError for what is no
    valid model, and InputError for dims that name nothing.
    """
    path = existing_file(source, "an ONNX model")
    if source.dtype is not None:
        raise SourceError("dtype converts modules, not ONNX files: export it in that type")
    if source.inputs:
        raise SourceError("an ONNX file brings its own inputs: bind its symbols with dims")
    return loaded_model(read_model(path), path.name, source.dims, rules)


def loaded_model(
    model: ReadModel, file: str, dims: Mapping[str, int], rules: OpTable
) -> LoadedModel:
    """The graph of a model without weights, which is written to: its dims are bound."""
    bind_dims(model.proto, dims, file)
    proto = with_shapes(model, file)
    reader = GraphReader(proto, model.masks, model.opsets, rules)
    graph = reader.graph()
    return LoadedModel(graph, "onnx", notes=tuple(reader.notes))
