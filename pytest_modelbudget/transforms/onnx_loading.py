"""An ONNX file with its weights, and the measured graph of a model that is in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath

import onnx
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_tensor

from pytest_modelbudget.equivalence.onnx_weightless import weightless
from pytest_modelbudget.errors import SourceError, TransformError
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.onnx_file import loaded_model
from pytest_modelbudget.frontends.onnx_masks import masks
from pytest_modelbudget.frontends.onnx_reading import ReadModel
from pytest_modelbudget.frontends.onnx_types import all_graphs
from pytest_modelbudget.frontends.user_code import user_code
from pytest_modelbudget.ops.op_table import OpTable


def model_with_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory; those in missing files stay outside.

    Raises SourceError for a file that is no ONNX model.
    """
    with user_code(f"reading {path.name}", SourceError):
        model = onnx.load(str(path), load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL and _is_there(tensor, path.parent):
                load_external_data_for_tensor(tensor, str(path.parent))
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]
    return model


def with_all_weights(path: Path) -> onnx.ModelProto:
    """The model in a file with its values in memory. Raises TransformError where some are not."""
    return must_be_whole(model_with_weights(path), path.name)


def must_be_whole(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """The model, unless a file with its weights is missing."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            words = f"{file}: the data of '{tensor.name}' lie in a file that is not there"
            raise TransformError(words)
    return model


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files with a model's weights, those that are there."""
    with user_code(f"reading {path.name}", SourceError):
        stored = onnx.load(str(path), load_external_data=False).graph.initializer
    beside = dict.fromkeys(_location(tensor) for tensor in stored)
    return tuple(path.parent / each for each in beside if each and (path.parent / each).is_file())


def _location(tensor: TensorProto) -> str:
    """Where a tensor's values lie, beside the model or below; "" for inside it or elsewhere."""
    named = next((each.value for each in tensor.external_data if each.key == "location"), "")
    path = PurePath(named)
    return "" if path.is_absolute() or ".." in path.parts else named


def _is_there(tensor: TensorProto, folder: Path) -> bool:
    location = _location(tensor)
    return bool(location) and (folder / location).is_file()


def measured_graph(
    model: onnx.ModelProto, name: str, dims: Mapping[str, int], rules: OpTable
) -> LoadedModel:
    """The graph of a model in memory, read as a file of that name would be."""
    found = masks(tuple(all_graphs(model.graph)))
    return loaded_model(ReadModel(weightless(model), found), name, dims, rules)
