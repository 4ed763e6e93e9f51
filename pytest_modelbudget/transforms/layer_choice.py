"""Which layers the setting ``layers:`` of a transform selects, alike for every format."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

LEFT_OUT = "layers: leaves it out"  # why a layer that could be changed was not


def is_chosen(scope: str, layers: Sequence[str]) -> bool:
    """Whether any of the globs matches a module path."""
    return any(fnmatchcase(scope, glob) for glob in layers)
