"""Which layers the setting ``layers:`` of a transform selects, alike for every format."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_modelbudget.ir.scopes import is_in_scope

LEFT_OUT = "layers: leaves it out"  # why a layer that could be changed was not


def is_chosen(scope: str, layers: Sequence[str]) -> bool:
    """Whether any of the globs names this module path or one around it, as under ``scopes:``."""
    return any(is_in_scope(scope, glob) for glob in layers)
