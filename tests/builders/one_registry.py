"""The new exporter's table of operators, made once: torch makes it anew for each export, which is half of its time."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def share_registry() -> None:
    """From here on every export of this process has a copy of one table, as torch made it."""
    from torch.onnx._internal.exporter import _registration  # which takes a second to load

    kind: Any = _registration.ONNXRegistry
    kind.from_torchlib = staticmethod(_copying(cache(kind.from_torchlib)))


def _copying(made: Any) -> Any:
    """Who registers an operator of its own does so in a copy."""

    def from_torchlib(**settings: Any) -> Any:
        known = made(**settings)
        copied = type(known)()
        vars(copied).update(vars(known), functions={name: [*each] for name, each in known.functions.items()})
        return copied

    return from_torchlib
