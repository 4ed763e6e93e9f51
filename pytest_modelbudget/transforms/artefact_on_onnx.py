"""A changed ONNX model as the file that was judged."""

from pathlib import Path

from pytest_modelbudget.onnx_models.model import OnnxModel
from pytest_modelbudget.onnx_models.reading import write_model


def write(model: OnnxModel, file: Path) -> None:
    """Write the graph with its weights."""
    write_model(model.proto, file)
