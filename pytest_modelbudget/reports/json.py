"""``--model-budget-json``: the record itself, for other programs."""

from __future__ import annotations

import json
from dataclasses import replace

from pytest_modelbudget.reports.record import Report
from pytest_modelbudget.reports.typed_json import to_json


def render(report: Report) -> str:
    """The record as JSON; the same bytes for the same numbers, but for ``timings``.

    A model's ``profile`` is left out: it is there only if a page was asked for too, and what one
    file says may not depend on which others are written.
    """
    models = tuple(replace(model, profile="") for model in report.models)
    return json.dumps(to_json(replace(report, models=models)), indent=1, allow_nan=False) + "\n"
