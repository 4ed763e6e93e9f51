"""``--model-budget-json``: the record itself, for other programs."""

from __future__ import annotations

import json

from pytest_modelbudget.reports.report import Record


def render(report: Record) -> str:
    """The record as JSON; the same bytes for the same numbers, but for ``timings``."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"
