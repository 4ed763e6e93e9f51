"""The whole command line for a model that is named as its library or its hub does.

Libraries are asked here alone, where a source was refused, and only those that are installed.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.source import names_attribute, resolved
from pytest_modelbudget.gate.project import importing_as_pytest

IMAGE, TEXT = "1x3x224x224", "int64 1x128"
FILLED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Meant(NamedTuple):
    """The words of a source that can be measured, what it is run on, and settings before the command."""

    source: tuple[str, ...]
    run_on: str
    environment: tuple[str, ...] = ()


def line_meant(options: Namespace, words: Sequence[str]) -> str:
    """The words of a command with its sources as they can be measured; "" where nobody knows one."""
    sources = [word for key in ("source", "other") if (word := getattr(options, key, None))]
    try:
        with importing_as_pytest(Path.cwd()), user_code("looking for the model", SourceError):
            meant = {word: found for word in sources if (found := _source_meant(word, options))}
    except SourceError:  # a library that cannot be imported knows no model
        return ""
    if not meant:
        return ""
    first = next(iter(meant.values()))
    given = [part for word in words for part in (meant[word].source if word in meant else (word,))]
    run_on = [] if options.input else ["--input", first.run_on]
    return join([*first.environment, "modelbudget", *given, *run_on])


def _source_meant(word: str, options: Namespace) -> Meant | None:
    """The source with its arguments, and what it is run on."""
    if names_attribute(word):
        return None if options.args or options.kwargs else _with_arguments(word)
    if word.isidentifier():
        if hasattr(_library("torchvision.models"), word):
            return Meant((f"torchvision.models:{word}",), IMAGE)
        timm = _library("timm")
        if timm is not None and timm.is_model(word):
            return Meant(("timm:create_model", "--args", word), IMAGE)
    return _of_the_hub(word) if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", word) else None


def _library(name: str) -> Any:
    """A library, imported; None where it is not installed."""
    return import_module(name) if find_spec(name.partition(".")[0]) else None


def _of_the_hub(word: str) -> Meant | None:
    """The configuration of a model of the hub, if its name begins with a type that transformers knows."""
    if re.search(r"\.[A-Za-z]\w*$", word) or _library("transformers") is None:  # a file's name
        return None
    known: Any = import_module("transformers.models.auto.modeling_auto")
    name = word.rpartition("/")[2].lower()
    types = [kind for kind in known.MODEL_MAPPING_NAMES if re.match(rf"{re.escape(kind)}(?![a-z])", name)]
    if not types:
        return None
    kind = known.MODEL_MAPPING_NAMES[max(types, key=len)]
    config = f"{{call: transformers:AutoConfig.from_pretrained, args: [{word}]}}"
    one = kind if isinstance(kind, str) else kind[0]
    source = ("transformers:AutoModel.from_config", "--args", config)
    return Meant(source, _run_on(getattr(_library("transformers"), one)), ("HF_HUB_OFFLINE=0",))


def _with_arguments(target: str) -> Meant | None:
    """A class with an object for each argument that it needs, where those are made of nothing."""
    named = resolved(target)
    calls = dict(_calls(named))
    if not calls or not all(calls.values()):
        return None
    settings = ", ".join(f"{name}: {{call: {call}}}" for name, call in calls.items())
    return Meant((target, "--kwargs", f"{{{settings}}}"), _run_on(named))


def _calls(named: Any) -> Iterator[tuple[str, str]]:
    """Each argument that must be given, and the module:class that makes one; "" where nobody knows that."""
    for name, needed in signature(named).parameters.items():
        if needed.default is needed.empty and needed.kind in FILLED:
            kind = getattr(named, "config_class", None) if name == "config" else needed.annotation
            yield name, _place(kind) if isinstance(kind, type) and _needs_nothing(kind) else ""


def _needs_nothing(kind: type) -> bool:
    return (
        kind is not Parameter.empty
        and kind.__module__ != "builtins"
        and all(
            each.default is not each.empty or each.kind not in FILLED for each in signature(kind).parameters.values()
        )
    )


def _place(kind: type) -> str:
    """Where a class is imported from: its package, where that has it."""
    package = kind.__module__.partition(".")[0]
    is_there = getattr(sys.modules[package], kind.__name__, None) is kind
    return f"{package if is_there else kind.__module__}:{kind.__qualname__}"


def _run_on(kind: Any) -> str:
    return IMAGE if getattr(kind, "main_input_name", "") == "pixel_values" else TEXT
