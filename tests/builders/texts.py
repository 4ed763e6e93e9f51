"""Budgets as texts: a whole one, one of a single model with words of its own, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_modelbudget.budget.budget import Budget

Read = Callable[["str | bytes"], Budget]  # the fixture ``read``
Problems = Callable[["str | bytes"], list[str]]  # the fixture ``problems``

# Devices: a board of 100,000 B of each kind, of which 1,000 B of sram are taken; and one of which little is known.
HARDWARE = """\
hardware: 1
devices:
  m55_board:
    memories:
      flash: {size: 100 kB, holds: weights, bandwidth: 100 MB/s}
      sram: {size: 100 kB, holds: activations, reserve: 1 kB, bandwidth: 1 GB/s}
    macs: {int8: 1 GMAC/s, float32: 100 MMAC/s}
    arena: {planner: greedy_by_size, align: 1}
    array: {rows: 8, columns: 8, dataflow: weight_stationary, clock: 100 MHz}
    source: made up
  bare: {memories: {sram: {size: 1 MB, holds: activations}}, source: made up}
"""
VISION = Path(__file__).with_name("vision.yaml").read_text(encoding="utf-8")


def model(text: str, *, limits: str = "{params: 1 k}") -> str:
    """A budget of one torch model with more keys of its own."""
    body = f"    torch: a:b\n    limits: {limits}\n" if limits else "    torch: a:b\n"
    return f"model_budget: 1\nmodels:\n  net:\n{body}{text}\n"


def inputs(spec: str) -> str:
    return model(f"    inputs: {spec}")


def limits(text: str) -> str:
    return model("    inputs: float32 1x3", limits=text)
