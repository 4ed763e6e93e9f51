"""Loop, Scan and If: what is inside them runs so many times, or one of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CONTROL_FLOW: Mapping[str, Callable[..., Any]] = {}
