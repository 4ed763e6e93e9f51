"""One operation that a transform met (stands in for transforms/transform.py until it is merged)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one operation, or why it stayed."""

    scope: str
    operation: str
    became: str = ""
    why: str = ""
