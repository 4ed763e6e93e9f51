"""The form of a transform: a change to a model, by its key in a budget file.

A transform is one entry of ``transform_table.py``, or of an extension's tuple ``TRANSFORMS``. It
says which settings a budget may give it, and for each model format which module applies it. That
module has one function::

    def transformed(job: Job) -> Transformed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from typing import cast

from pytest_modelbudget.equivalence.claim import Claim, Kind
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.errors import MissingExtraError, TransformError
from pytest_modelbudget.formats.model import Change, LoadedModel
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.scopes import is_in_scope, paths
from pytest_modelbudget.ops.table import OpTable

# The extra that brings each package which an engine imports.
EXTRAS = {"torch": "torch", "onnx": "onnx", "onnxruntime": "onnx"}


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


LEFT_OUT = "layers: leaves it out"  # why a layer that could be changed was not


def is_chosen(scope: str, layers: Sequence[str]) -> bool:
    """Whether any of the globs names this module path or one around it, as under ``scopes:``."""
    return any(is_in_scope(scope, glob) for glob in layers)


def with_known_layers(done: Transformed, job: Job) -> Transformed:
    """The same, where every glob of ``layers:`` names a module, as one under ``scopes:`` must.

    Raises TransformError for a glob that names none, whatever the others select.
    """
    loaded = done.loaded
    met = (each.scope for some in (done.changes, loaded.layers, loaded.graph.ops) for each in some)
    known = sorted({path for scope in met for path in paths(scope)})
    for glob in cast("tuple[str, ...]", job.settings["layers"]):
        if not any(is_in_scope(path, glob) for path in known):
            close = get_close_matches(glob.removesuffix(".*"), filter(None, known), 1)
            guess = f": did you mean '{close[0]}'?" if close else ""
            raise TransformError(f"layers: no module of the model matches '{glob}'{guess}")
    return done
