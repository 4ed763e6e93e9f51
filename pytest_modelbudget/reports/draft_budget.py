"""A commented budget out of what a model measures: a first draft, and a true one."""

import json
import re
from collections.abc import Mapping
from fractions import Fraction

from pytest_modelbudget.budget.source_forms import RUN_ON
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.units import exact, percentage, readable, snug_quantity

COMMENT_AT = 40  # column at which what was measured stands
_PLAIN = re.compile(r"[A-Za-z_./][\w./:+-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


def budget_text(
    name: str,
    source: ModelSource,
    target: str,
    metrics: Mapping[str, Metric],
    measurements: Mapping[str, Measurement],
    *,
    headroom: Fraction,
    versions: Mapping[str, str],
) -> str:
    """The budget file of one model; target is where the model is, seen from the file."""
    with_what = " with " + ", ".join(map(" ".join, versions.items())) if versions else ""
    room = f", and {percentage(headroom)} on top" if headroom else ""
    lines = [
        f"# Measured{with_what}{room}; rounded up at the third digit.",
        "# Held by: pytest --model-budget",
        "model_budget: 1",
        "models:",
        f"  {_word(name)}:",
        f"    {source.format}: {_word(target)}",
        *(f"    {field.key}: {field.form.text(value)}" for field in RUN_ON if (value := getattr(source, field.key))),
        "    limits:",
        *(_limit(metrics[key], measurement, headroom) for key, measurement in measurements.items()),
    ]
    return "\n".join(lines) + "\n"


def _limit(metric: Metric, measurement: Measurement, headroom: Fraction) -> str:
    """One limit with the exact figure beside it; what few limit, or nobody can, is a comment."""
    value, unit = measurement.value, metric.unit
    if metric.by_kind:
        kinds = ", ".join(f"{kind}: {count}" for kind, count in measurement.parts.items())
        return f"      # {metric.key}: {{max: {{{kinds}}}}}"
    if measurement.unreduced is not None:
        least = snug_quantity(value / (1 + headroom), unit, down=True)
        written = f"{metric.key}: {{min: {least}}}"
    else:
        written = f"{metric.key}: {snug_quantity(value * (1 + headroom), unit)}"
    is_held = metric.drafted and measurement.complete
    line = f"      {'' if is_held else '# '}{written}"
    least = "" if measurement.complete else ">= "
    figure = readable(value, unit) if measurement.unreduced else exact(value, unit)
    return f"{line:<{COMMENT_AT}}  # {least}{figure}: {metric.definition}"


def _word(text: str) -> str:
    """A word as YAML reads it back as the same text."""
    is_plain = _PLAIN.fullmatch(text) and not text.endswith(":") and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)
