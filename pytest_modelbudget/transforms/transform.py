"""The form of a transform: a change to a model, by its key in a budget file.

A transform is one entry of ``transforms/table.py``, or of an extension's tuple ``TRANSFORMS``. It
says which settings a budget may give it, and for each engine which module applies it. That module
has one function::

    def apply(model: Model, settings: Mapping[str, object]) -> Changed
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from math import inf

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.equivalence.claim import Kind
from pytest_modelbudget.errors import MissingExtraError, TransformError
from pytest_modelbudget.formats.model import Change, Model
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.graph.graph import MODEL, is_in_scope, paths
from pytest_modelbudget.units import some_of

__all__ = ["Change", "Changed", "Setting", "SettingForm", "Transform"]  # for transforms of others

# The extra that brings each package which an engine imports.
EXTRAS = {"torch": "torch", "onnx": "onnx", "onnxruntime": "onnx"}


class SettingForm(str, Enum):
    """What the value of a setting looks like, and the Python value it is read as."""

    TILE = "tile"  # 64, or a list of the setting's axes: (m, k, n), m None where none is given
    WORD = "word"  # one of the setting's words
    GLOBS = "globs"  # one glob on module paths, or a list: a tuple of str
    INTEGER = "integer"  # an int
    NUMBER = "number"  # 0.5, 1e-3 or 50%: a Fraction, exactly what is written
    FLAG = "flag"  # a bool
    TARGET = "target"  # package.module:callable: a str
    VALUES = "values"  # a mapping of names to plain values
    TEXT = "text"  # any words: a str
    FILE = "file"  # data/x.npz: as it is written, a str, and the Path where it is
    SOURCE = "source"  # {torch: package.module:callable}: a ModelSource, and a Model when applied
    INPUTS = "inputs"  # data/x.npz or package.module:callable: GivenInputs; or one of the setting's words
    PARTS = "parts"  # a mapping of the setting's parts: a dict; or one of its words
    BY_LAYER = "by layer"  # a mapping of globs on module paths to PARTS


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a transform, and the value it has where a budget gives none.

    words are what a WORD may be, least and most the ends of an INTEGER; axes those whose sizes the list of a TILE
    gives, parts the settings of which a value consists; also are words that people write for the key.
    """

    key: str
    form: SettingForm
    about: str
    default: object = None
    required: bool = False
    words: tuple[str, ...] = ()
    axes: tuple[str, ...] = ("m", "k", "n")
    least: float = -inf
    most: float = inf
    parts: tuple["Setting", ...] = ()
    also: tuple[str, ...] = ()


Settings = Mapping[str, object]
CREATES = "creates"  # with the settings where a file that is not there may be written
IS_WRITTEN = " is written"  # ends the note of a claim that has written one
Apply = Callable[[Model, Settings], Changed]
ANY = "*"  # engine of a transform that takes every model


@dataclass(frozen=True, slots=True)
class Transform:
    """One kind of change to a model.

    engines maps the engine of a model to the module that applies the transform to it; the module is named and not
    imported, because it brings a framework in. formats are those of these engines that it takes, all where none is
    named. whole is the setting that the value itself is, for transforms that are written in one word. claims is the
    kind of claim that it makes of itself: a lossy one knows a bound where a budget declares none. gives is the format
    of what it makes, where that is another one.
    """

    key: str
    about: str
    engines: Mapping[str, str]
    settings: tuple[Setting, ...] = ()
    whole: Setting | None = None
    claims: Kind = field(default=Kind.EXACT_ALGEBRA)
    formats: tuple[str, ...] = ()
    gives: str = ""

    def takes(self, format: Format) -> bool:
        knows = format.engine in self.engines or ANY in self.engines
        return knows and (not self.formats or format.key in self.formats)

    def module_for(self, format: Format) -> str:
        """The module that applies it to models of a format that it takes."""
        return self.engines.get(format.engine) or self.engines[ANY]

    def applied_to(self, format: Format) -> Apply:
        """What applies it to models of a format; raises TransformError for one it does not know."""
        if not self.takes(format):
            known = ", ".join(self.formats or self.engines)
            raise TransformError(f"{self.key} does not know {format.key} models: it knows {known}")
        try:
            apply: Apply = import_module(self.module_for(format)).apply
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            extra = EXTRAS[error.name]
            raise MissingExtraError(self.key, package=error.name, extra=extra) from error
        return apply


NOT = "!"  # in front of a glob that leaves layers out
LEFT_OUT = "layers: leaves it out"  # why a layer that could be changed was not


def is_chosen(scope: str, layers: Sequence[str]) -> bool:
    """Whether any of the globs names this module path or one around it, as under ``scopes:``.

    A glob behind "!" leaves out what it names; where there are such alone, all else is chosen.
    "(model)" names what stands in no module.
    """
    taken = [glob for glob in layers if not glob.startswith(NOT)]
    left = (glob.removeprefix(NOT) for glob in layers if glob.startswith(NOT))
    return (not taken or any(_names(glob, scope) for glob in taken)) and not any(_names(glob, scope) for glob in left)


def _names(glob: str, scope: str) -> bool:
    return not scope if glob == MODEL else is_in_scope(scope, glob)


def must_name_layers(layers: Iterable[str], changed: Changed) -> None:
    """Raise TransformError for a glob of ``layers:`` that names no module of the model.

    Each must name one, as those under ``scopes:`` must, whatever the others select.
    """
    model = changed.model
    met = (each.scope for some in (changed.changes, model.layers, model.graph.ops) for each in some)
    must_match(layers, met, "module of the model")


def must_match(layers: Iterable[str], scopes: Iterable[str], thing: str) -> None:
    """Raise TransformError for a glob of ``layers:`` that names none of these module paths, nor one around them."""
    known = sorted({path for scope in scopes for path in paths(scope)})
    for glob in (glob.removeprefix(NOT) for glob in layers):
        if not any(_names(glob, path) for path in known):
            close = get_close_matches(glob.removesuffix(".*"), filter(None, known), 1)
            names = some_of(filter(None, known), 8)
            guess = f": did you mean '{close[0]}'?" if close else f": known are {names}" if names else ""
            raise TransformError(f"layers: no {thing} matches '{glob}'{guess}")
