"""How readers see which part of a model a figure belongs to, the same in every report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MODEL = "(model)"  # the scope of what no module owns


def scope_text(scope: str | None) -> str:
    """A module's path; of the model itself, "" or None, which is no path, "(model)"."""
    return scope or MODEL


def share_lines(shares: Iterable[tuple[str, int]]) -> Iterator[str]:
    """A line for each (scope, part of a number), in columns: "  1,281,000  classifier.1"."""
    rows = [(f"{value:,}", scope_text(scope)) for scope, value in shares]
    width = max((len(value) for value, _ in rows), default=0)
    yield from (f"  {value:>{width}}  {scope}" for value, scope in rows)
