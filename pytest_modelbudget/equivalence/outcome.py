"""What is known about a limit or a claim."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """Within, over, or unknown; unknown is never green."""

    WITHIN = "within"
    OVER = "over"
    UNKNOWN = "unknown"
