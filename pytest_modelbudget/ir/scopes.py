"""Module paths, and the globs by which limits and transforms name parts of a model."""

from __future__ import annotations

from fnmatch import fnmatchcase


def paths(scope: str) -> list[str]:
    """A module path and its ancestors: a.b.c, a.b, a."""
    names = scope.split(".")
    return [".".join(names[:length]) for length in range(len(names), 0, -1)]


def is_in_scope(scope: str, glob: str | None) -> bool:
    """Whether a glob names this scope or one around it; no glob names the whole model."""
    return glob is None or any(fnmatchcase(path, glob) for path in paths(scope))
