"""The form of a transform: a change to a model, by its key in a budget file.

A transform is one entry of ``transform_table.py``, or of an extension's tuple ``TRANSFORMS``. It
says which settings a budget may give it, and for each model format which module applies it. That
module has one function::

    def transformed(job: Job) -> Transformed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module

from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import MissingExtraError, TransformError
from pytest_modelbudget.frontends.loaded_model import LoadedModel
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.ops.op_table import OpTable

# The extra that brings each package which an engine imports.
EXTRAS = {"torch": "torch", "onnx": "onnx", "onnxruntime": "onnx", "onnx_ir": "onnx"}


class SettingForm(str, Enum):
    """What the value of a setting looks like, and the Python value it is read as."""

    TILE = "tile"  # 64, or a list of the setting's axes: (m, k, n), m None where none is given
    WORD = "word"  # one of the setting's words
    GLOBS = "globs"  # one glob on module paths, or a list: a tuple of str
    INTEGER = "integer"  # an int
    FLAG = "flag"  # a bool
    TARGET = "target"  # package.module:callable: a str
    VALUES = "values"  # a mapping of names to plain values
    SOURCE = "source"  # {torch: package.module:callable}: a ModelSource


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a transform, and the value it has where a budget gives none.

    words are what a WORD may be; axes those whose sizes the list of a TILE gives.
    """

    key: str
    form: SettingForm
    about: str
    default: object = None
    required: bool = False
    words: tuple[str, ...] = ()
    axes: tuple[str, ...] = ("m", "k", "n")


@dataclass(frozen=True, slots=True)
class Job:
    """One model to transform, with the settings that a budget gives, all of them present."""

    source: ModelSource
    settings: Mapping[str, object]
    rules: OpTable


@dataclass(frozen=True, slots=True)
class Change:
    """One operation or layer that a transform met.

    became says what it was changed into ("9,216 products of 64x64"), and is "" where it stayed as
    it was; why then says for what reason.
    """

    scope: str
    operation: str
    became: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Transformed:
    """A transformed model: its graph, what changed, and a way to hold its outputs to a claim.

    verify runs both models, and is called only where a budget makes a claim.
    """

    loaded: LoadedModel
    changes: tuple[Change, ...]
    verify: Callable[[Claim], Equivalence]


@dataclass(frozen=True, slots=True)
class Transform:
    """One kind of change to a model.

    engines maps each format's key to the module that applies the transform to it; the module is
    named and not imported, because it brings a framework in. whole is the setting that the value
    itself is, for transforms that are written in one word. claims is the kind of claim that it
    makes of itself: a lossy one knows a bound where a budget declares none.
    """

    key: str
    about: str
    engines: Mapping[str, str]
    settings: tuple[Setting, ...] = ()
    whole: Setting | None = None
    claims: Kind = field(default=Kind.EXACT_ALGEBRA)

    def applied(self, job: Job) -> Transformed:
        """The transformed model; raises TransformError for a format it does not know.

        Raises MissingExtraError where a package that it needs is not installed.
        """
        module = self.engines.get(job.source.format)
        if module is None:
            raise TransformError(
                f"{self.key} does not know {job.source.format} models: it knows "
                f"{', '.join(self.engines)}"
            )
        try:
            engine: Callable[[Job], Transformed] = import_module(module).transformed
            return engine(job)
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            extra = EXTRAS[error.name]
            raise MissingExtraError(self.key, package=error.name, extra=extra) from error
