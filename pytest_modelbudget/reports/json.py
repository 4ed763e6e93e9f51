"""``--model-budget-json``: the record itself, for other programs."""

from __future__ import annotations

import json

from pytest_modelbudget.reports.record import Record


def render(report: Record) -> str:
    """The record as JSON; the same bytes for the same numbers, but for ``timings``.

    A model's ``profile`` is left out: it is there only if a page was asked for too, and what one
    file says may not depend on which others are written.
    """
    models = [_without_profile(model) for model in report["models"]]
    return json.dumps({**report, "models": models}, indent=1, allow_nan=False) + "\n"


def _without_profile(model: Record) -> Record:
    return {key: value for key, value in model.items() if key != "profile"}
