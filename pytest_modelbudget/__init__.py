"""Budgets for neural networks: measure, judge, and fail the change that breaks a limit.

PYTEST_DONT_REWRITE: ``modelbudget check`` imports this module before pytest, which would warn of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_modelbudget.equivalence.judgement import Equivalence
    from pytest_modelbudget.errors import (
        BudgetError,
        InputError,
        ModelBudgetError,
        SourceError,
        TraceError,
        TransformError,
    )
    from pytest_modelbudget.formats.source import TensorSpec
    from pytest_modelbudget.gate.from_python import Measurements, check_equivalence, measure
    from pytest_modelbudget.metrics.measurement import Measurement


__version__ = "0.1.0"
__all__ = [
    "BudgetError",
    "Equivalence",
    "InputError",
    "Measurement",
    "Measurements",
    "ModelBudgetError",
    "SourceError",
    "TensorSpec",
    "TraceError",
    "TransformError",
    "__version__",
    "check_equivalence",
    "measure",
]
_HOMES = {
    "Equivalence": "pytest_modelbudget.equivalence.judgement",
    "Measurement": "pytest_modelbudget.metrics.measurement",
    "Measurements": "pytest_modelbudget.gate.from_python",
    "TensorSpec": "pytest_modelbudget.formats.source",
    "check_equivalence": "pytest_modelbudget.gate.from_python",
    "measure": "pytest_modelbudget.gate.from_python",
    **{name: "pytest_modelbudget.errors" for name in __all__ if name.endswith("Error")},
}


def __getattr__(name: str) -> object:
    """Public names, imported when they are first asked for (PEP 562)."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
