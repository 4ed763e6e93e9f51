"""Every model format, by its key in a budget file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_modelbudget.errors import ExtensionError, MissingExtraError, SourceError, TransformError
from pytest_modelbudget.formats.model import Model
from pytest_modelbudget.formats.source import READ_UNDER, InputSpecs, ModelSource, other_format
from pytest_modelbudget.units import with_article

if TYPE_CHECKING:
    from pytest_modelbudget.ops.table import OpTable


Load = Callable[[ModelSource, "OpTable"], Model]


@dataclass(frozen=True, slots=True)
class Format:
    """One model format: its key, what its target is, and where its reader lives.

    The reader's module is named and not imported, because it brings a framework in; it has one
    function, load(source, rules) → Model. A format that brings_inputs needs none from the budget,
    whose dims then bind the symbols of the file's own. extra is the framework that reads it, which
    is also the name of the extra that installs it. engine is what its models run on: transforms
    know models by it. A format without one has transforms of its own. compared_with names modules
    that its reader imports only where models are run and compared. of_files says that a target is a
    file, which is there or not; stores_alone that it has weights and no operations, so that no run is asked for.
    contents are globs: a folder that has such a file is a target. serves
    names the module whose function serve gives the decode step of a language model.
    """

    key: str
    target: str
    module: str
    suffixes: tuple[str, ...] = ()
    brings_inputs: bool = False
    extra: str = ""
    engine: str = ""
    compared_with: tuple[str, ...] = ()
    of_files: bool = False
    stores_alone: bool = False
    contents: tuple[str, ...] = ()
    serves: str = ""

    def __post_init__(self) -> None:
        if not self.engine:
            object.__setattr__(self, "engine", self.key)

    def load(self, source: ModelSource, rules: OpTable) -> Model:
        """The model, not read further than it must be; raises MissingExtraError without the framework that it needs."""
        name, way_out = other_format(source.base / str(source.target)) if self.of_files else ("", "")
        is_named = name != "GGUF" or str(source.target).endswith(".gguf")
        if name and not (is_named and (self.key, name) in READ_UNDER):
            found = with_article(f"{name} file")
            raise SourceError(f"{source.target} is {found}, not {self.target.removeprefix('path of ')}: {way_out}")
        try:
            reader = self.reader()
        except ModuleNotFoundError as error:
            if error.name is None or error.name != self.extra:
                raise
            needed_for = f"the {self.key} model {source.target}"
            raise MissingExtraError(needed_for, package=self.extra, extra=self.extra) from error
        return reader(source, rules)

    def reader(self) -> Load:
        """The function that reads it; imports the framework."""
        load: Load = import_module(self.module).load
        return load


SERVED_BY_TORCH = "pytest_modelbudget.serving.passes"
# Of all models that torch runs; its compiler takes seconds to load.
OF_TORCH: dict[str, Any] = {"extra": "torch", "engine": "torch", "compared_with": ("torch._dynamo",)}
FORMATS: tuple[Format, ...] = (
    Format("torch", "module:attribute", "pytest_modelbudget.torch_models.module", **OF_TORCH, serves=SERVED_BY_TORCH),
    Format(
        "torchscript",
        "path of a TorchScript file",
        "pytest_modelbudget.torch_models.torchscript",
        suffixes=(".pt", ".pth", ".ts", ".torchscript", ".jit", ".ptl"),
        **OF_TORCH,
        of_files=True,
    ),
    Format(
        "exported",
        "path of an exported program",
        "pytest_modelbudget.torch_models.exported",
        suffixes=(".pt2",),
        brings_inputs=True,
        **OF_TORCH,
        of_files=True,
    ),
    Format(
        "onnx",
        "path of an ONNX model",
        "pytest_modelbudget.onnx_models.model",
        suffixes=(".onnx",),
        brings_inputs=True,
        extra="onnx",
        of_files=True,
    ),
    Format(
        "checkpoint",
        "path of a checkpoint",
        "pytest_modelbudget.checkpoints.model",
        suffixes=(".safetensors", ".gguf", ".bin", ".ckpt", ".npz", ".pt", ".pth", ".index.json"),
        brings_inputs=True,
        of_files=True,
        stores_alone=True,
        contents=("*.safetensors", "*.index.json", "*.gguf", "*.bin", "*.npz"),
        serves="pytest_modelbudget.serving.formula",
    ),
    Format(
        "tflite",
        "path of a TFLite file",
        "pytest_modelbudget.tflite_models.model",
        suffixes=(".tflite",),
        brings_inputs=True,
        extra="tflite",
        of_files=True,
    ),
    Format(
        "pte",
        "path of an ExecuTorch program",
        "pytest_modelbudget.executorch_models.model",
        suffixes=(".pte",),
        brings_inputs=True,
        of_files=True,
    ),
    Format(
        "huggingface",
        "path of a config.json, or its folder",
        "pytest_modelbudget.serving.huggingface",
        suffixes=(".json",),
        extra="transformers",
        of_files=True,
        contents=("config.json",),
        serves=SERVED_BY_TORCH,
    ),
)


def format_table(extensions: Iterable[Format] = ()) -> Mapping[str, Format]:
    """Formats by key, the project's own first; raises ExtensionError for a key that is taken."""
    table: dict[str, Format] = {}
    for known in (*FORMATS, *extensions):
        if table.setdefault(known.key, known) is not known:
            raise ExtensionError(f"the format '{known.key}' is declared twice")
    return table


def beside(second: ModelSource, first: ModelSource, formats: Mapping[str, Format]) -> ModelSource:
    """A model that is compared with another one: on the inputs of that one, unless it brings its own."""
    format, original = (formats[each.format] for each in (second, first))
    if format.brings_inputs:
        # What is given for the first, another engine's files know by other names, or not at all.
        inputs = second.inputs if format.engine == original.engine else InputSpecs()
        return replace(second, inputs=inputs, dims=second.dims or first.dims)
    if first.inputs or not original.brings_inputs:
        return replace(second, inputs=first.inputs)
    raise TransformError(
        f"compare: {with_article(first.format)} model that brings its own inputs is compared with one that does, "
        "such as another ONNX file"
    )
