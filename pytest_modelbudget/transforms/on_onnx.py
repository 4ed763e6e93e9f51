"""ONNX models changed by a rewrite of their graph."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import existing_file, transform_named
from pytest_modelbudget.onnx_models.model import InMemory, OnnxFile, OnnxModel
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reading import model_with_weights, weight_files, write_model
from pytest_modelbudget.transforms.transform import Settings, must_name_layers


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten model, what became of each operation, and how much it rounds.

    partial_sums is the largest number of sums per output that are rounded to the storage type.
    """

    model: onnx.ModelProto
    changes: tuple[Change, ...]
    partial_sums: int = 1


Rewrite = Callable[[onnx.ModelProto], Rewritten]


def change_graph(model: OnnxModel, rewrite: Rewrite, *, changes_weights: bool = False) -> Changed:
    """A model under a rewrite of its graph.

    A rewrite that changes_weights is made to the float64 copy once more: what it makes of the stored ones is rounded.
    """
    if model.is_exact:
        model.upcast_values()
    rewritten = rewrite(model.proto)
    changed = model.changed(rewritten.model)
    return Changed(changed, rewritten.changes, rewritten.partial_sums, upcasts=not changes_weights)


def change_layers(
    model: OnnxModel, rewrite: Rewrite, layers: Iterable[str], check: Callable[[Sequence[Change]], None]
) -> Changed:
    """A model under a rewrite of the layers that globs name; check raises for what became of them.

    That every glob names a module comes first: of a name that no module has, nothing is changed. Copies of a model are
    not examined again.
    """
    changed = change_graph(model, rewrite)
    if not model.is_copy:
        must_name_layers(layers, changed)
        check(changed.changes)
    return changed


# ``apply: package.module:callable`` on ONNX files: the user's own transform, path → path.


def apply(model: OnnxModel, settings: Settings) -> Changed:
    """The model in the file that the user's callable makes of a copy of this one's.

    It keeps the weights that it has, which may have been rounded on another way.
    """
    target = str(settings["apply"])
    call = transform_named(target)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "model.onnx")
        if isinstance(model.source, OnnxFile):
            copy = copied(existing_file(model.source.source, "an ONNX model"), copy.parent)
        else:  # what a step before made
            write_model(model.proto, copy)
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
