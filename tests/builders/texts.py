"""Budgets as texts: a whole one, one of a single model with words of its own, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_modelbudget.budget.budget import Budget

Read = Callable[["str | bytes"], Budget]  # the fixture ``read``
Problems = Callable[["str | bytes"], list[str]]  # the fixture ``problems``

VISION = Path(__file__).with_name("vision.yaml").read_text(encoding="utf-8")


def model(text: str, *, limits: str = "{params: 1 k}") -> str:
    """A budget of one torch model with more keys of its own."""
    body = f"    torch: a:b\n    limits: {limits}\n" if limits else "    torch: a:b\n"
    return f"model_budget: 1\nmodels:\n  net:\n{body}{text}\n"


def inputs(spec: str) -> str:
    return model(f"    inputs: {spec}")


def limits(text: str) -> str:
    return model("    inputs: float32 1x3", limits=text)
