"""What ``package.module:attribute`` names, for models and for transforms of a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pytest_modelbudget.errors import SourceError, TransformError
from pytest_modelbudget.frontends.user_code import user_code


def resolved(target: str) -> object:
    """What ``module:attribute`` names; attributes may be dotted.

    Raises SourceError where it names nothing, or importing it raises.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise SourceError(f"'{target}' is not module:callable, as in torchvision.models:resnet18")
    with user_code(f"importing {module_name}", SourceError):
        found: object = _imported(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise SourceError(f"{module_name} has no '{name}'{_suggestion(name, found)}")
        found = getattr(found, name)
    return found


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise SourceError(
            f"there is no module '{error.name}': is it installed, or on the pythonpath?"
        ) from error


def _suggestion(name: str, owner: object) -> str:
    import difflib

    close = difflib.get_close_matches(name, [n for n in dir(owner) if not n.startswith("_")], 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def transform_named(target: str) -> Callable[..., Any]:
    """The user's transform that a target names.

    Raises SourceError as ``resolved`` does, TransformError for what cannot be called.
    """
    named = resolved(target)
    if not callable(named):
        raise TransformError(f"{target} is a {type(named).__name__}, and cannot be called")
    return named
