"""Budgets for neural networks: measure, judge, and fail the change that breaks a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_modelbudget.check.measurements import Measurements, measure

__version__ = "0.1.0"
__all__ = ["Measurements", "__version__", "measure"]


def __getattr__(name: str) -> object:
    """Public names, imported when they are first asked for (PEP 562)."""
    if name in ("Measurements", "measure"):
        from pytest_modelbudget.check import measurements

        return getattr(measurements, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
