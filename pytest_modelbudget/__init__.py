"""Budgets for neural networks: measure, judge, and fail the change that breaks a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.judgement import Equivalence
    from pytest_modelbudget.gate.from_python import Measurements, check_equivalence, measure


__version__ = "0.1.0"
__all__ = ["Equivalence", "Measurements", "__version__", "check_equivalence", "measure"]
_HOMES = {
    "Equivalence": "pytest_modelbudget.equivalence.judgement",
    "Measurements": "pytest_modelbudget.gate.from_python",
    "check_equivalence": "pytest_modelbudget.gate.from_python",
    "measure": "pytest_modelbudget.gate.from_python",
}


def __getattr__(name: str) -> object:
    """Public names, imported when they are first asked for (PEP 562)."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
