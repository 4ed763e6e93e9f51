"""Which layers the setting ``layers:`` of a transform selects, alike for every format."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import cast

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.ir.scopes import is_in_scope, paths
from pytest_modelbudget.transforms.transform import Job, Transformed

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
