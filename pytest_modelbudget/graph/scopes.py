"""Module paths, and the globs by which limits and transforms name parts of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase


def paths(scope: str) -> list[str]:
    """A module path and its ancestors: a.b.c, a.b, a."""
    names = scope.split(".")
    return [".".join(names[:length]) for length in range(len(names), 0, -1)]


def is_in_scope(scope: str, glob: str | None) -> bool:
    """Whether a glob names this scope or one around it; no glob names the whole model."""
    return glob is None or any(fnmatchcase(path, glob) for path in paths(scope))


MODEL = "(model)"  # the scope of what no module owns


def scope_text(scope: str | None) -> str:
    """A module's path; of the model itself, "" or None, which is no path, "(model)"."""
    return scope or MODEL


def share_lines(shares: Iterable[tuple[str, int]]) -> Iterator[str]:
    """A line for each (scope, part of a number), in columns: "  1,281,000  classifier.1"."""
    rows = [(f"{value:,}", scope_text(scope)) for scope, value in shares]
    width = max((len(value) for value, _ in rows), default=0)
    yield from (f"  {value:>{width}}  {scope}" for value, scope in rows)
