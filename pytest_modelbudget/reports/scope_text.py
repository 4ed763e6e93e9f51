"""How readers see which part of a model a figure belongs to, the same in every report."""

from __future__ import annotations

MODEL = "(model)"  # the scope of what no module owns


def scope_text(scope: str | None) -> str:
    """A module's path; of the model itself, "" or None, which is no path, "(model)"."""
    return scope or MODEL
