"""``apply: package.module:callable`` on ONNX files: the user's own transform, path → path."""

import shutil
import tempfile
from pathlib import Path

from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats.source import existing_file, transform_named
from pytest_modelbudget.onnx_models.model import InMemory, OnnxFile, OnnxModel
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reading import model_with_weights, weight_files
from pytest_modelbudget.transforms.transform import Changed, Settings


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model in the file that the user's callable makes of a copy of this one's.

    It keeps the weights that it has, which may have been rounded on another way.
    """
    target = str(settings["apply"])
    call = transform_named(target)
    assert isinstance(model.source, OnnxFile), "a model of a budget is a file"
    path = existing_file(model.source.source, "an ONNX model")
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(path, Path(folder))
        with user_code(f"calling {target}", TransformError):
            made = call(copy)
        if not isinstance(made, (str, Path)):
            raise TransformError(f"{target} returned {type(made).__name__}, not the path of a file")
        if not Path(made).is_file():
            raise TransformError(f"{target} returned {made}, which is no file")
        program = Program(model_with_weights(Path(made)), model.rules)
    second = OnnxModel(InMemory(program, Path(made).name, model.source.dims), model.rules)
    return Changed(second, upcasts=True, follows=False, made_apart=True)


def copied(path: Path, folder: Path) -> Path:
    """A copy of a model's file and of those with its weights, which a transform may write to."""
    for file in (path, *weight_files(path)):
        there = folder / file.relative_to(path.parent)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)
    return folder / path.name
