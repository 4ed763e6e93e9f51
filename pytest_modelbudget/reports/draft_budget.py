"""A commented budget out of what a model measures: a first draft, and a true one."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction

from pytest_modelbudget.budget.budget import DeploymentCheck, Place
from pytest_modelbudget.budget.deployment_forms import lower_texts
from pytest_modelbudget.budget.fit_verdict import judge_fit
from pytest_modelbudget.budget.grammar import PLAIN_WORD
from pytest_modelbudget.budget.source_forms import RUN_ON
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.units import exact, percentage, readable, snug_quantity

COMMENT_AT = 34  # column behind a limit's own at which what was measured stands
ARENA = "activation_arena"
NO_DEVICE = "    # deployments: add --device NAME (modelbudget devices lists them) to hold it on a device"
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


def draft_text(
    name: str,
    source: ModelSource,
    target: str,
    metrics: Mapping[str, Metric],
    measurements: Mapping[str, Measurement],
    *,
    headroom: Fraction,
    versions: Mapping[str, str],
    deployed: DeployedModel | None = None,
    hardware: str = "",
    inputs_about: str = "",
) -> str:
    """The budget file of one model, also on a device.

    target is where the model is, seen from the file; hardware is so the file of the device, "" of one that is shipped.
    inputs_about is what a reader must know of the inputs.
    """
    with_what = " with " + ", ".join(map(" ".join, versions.items())) if versions else ""
    room = f", and {percentage(headroom)} on top" if headroom else ""
    lines = [
        f"# Measured{with_what}{room}; rounded up at the third digit.",
        "# Held by: pytest --model-budget",
        "model_budget: 1",
        *([f"hardware: {_word(hardware)}"] if hardware else []),
        "models:",
        f"  {_word(name)}:",
        f"    {source.format}: {_word(target)}",
        *(f"    {field.key}: {field.form.text(value)}" for field in RUN_ON if (value := getattr(source, field.key))),
        *([f"    # inputs: {inputs_about}"] if inputs_about and source.inputs else []),
        "    limits:",
        *(f"      {_limit(metrics[key], measurement, headroom)}" for key, measurement in measurements.items()),
        *(_deployment(deployed, headroom) if deployed else [NO_DEVICE]),
    ]
    return "\n".join(lines) + "\n"


def _deployment(model: DeployedModel, headroom: Fraction) -> Iterator[str]:
    """The model on a device: that it fits, where it does, and its arena; a comment where that is a lower bound."""
    deployment, usual = model.deployment, lower_texts(Lowering())
    lower = {key: text for key, text in lower_texts(deployment.lowering).items() if text != usual.get(key)}
    place, arena = Place("", 1), model.measured.measurements[ARENA]
    verdict = judge_fit(DeploymentCheck(place, deployment, fits=place), model)
    name, settings = _word(deployment.device.name), ", ".join(f"{key}: {text}" for key, text in lower.items())
    lines = (
        "deployments:",
        f"  {name}:",
        f"    device: {name}",
        *([f"    lower: {{{settings}}}"] if settings else []),
        "    fits: true" if verdict.outcome is Outcome.WITHIN else f"    # fits: true  # {verdict.reason}",
        f"    limits: {{{ARENA}: {snug_quantity(arena.value * (1 + headroom), arena.unit)}}}  # {_figure(arena)}",
    )
    yield from (f"    {'' if arena.complete else '# '}{line}" for line in lines)


def _limit(metric: Metric, measurement: Measurement, headroom: Fraction) -> str:
    """One limit with the exact figure beside it; what few limit, or nobody can, is a comment.

    Of what is unmeasured there is no limit, which somebody might take for one, but the reason.
    """
    value, unit = measurement.value, metric.unit
    if not measurement.complete:
        return f"{f'# {metric.key}: left out':<{COMMENT_AT}}  # {_figure(measurement)}: {_cause(measurement)}"
    if metric.by_kind:
        kinds = ", ".join(f"{kind}: {count}" for kind, count in measurement.parts.items())
        return f"# {metric.key}: {{max: {{{kinds}}}}}"
    if measurement.unreduced is not None:
        least = snug_quantity(value / (1 + headroom), unit, down=True)
        written = f"{metric.key}: {{min: {least}}}"
    else:
        written = f"{metric.key}: {snug_quantity(value * (1 + headroom), unit)}"
    line = f"{'' if metric.drafted else '# '}{written}"
    return f"{line:<{COMMENT_AT}}  # {_figure(measurement)}: {metric.definition}"


def _cause(measurement: Measurement) -> str:
    """What a number leaves out, and why, in one line: the first of several."""
    missing = dict.fromkeys(f"{op.op}: {' '.join(op.why.split())}" for op in measurement.unmeasured)
    if not missing:
        return f"at least {exact(measurement.at_least or 0, measurement.unit)}: nobody has proved the number itself"
    first, *others = missing
    return f"without {first}{f' (and {len(others)} more)' if others else ''}"


def _figure(measurement: Measurement) -> str:
    value, unit = measurement.value, measurement.unit
    return measurement.sign + (readable(value, unit) if measurement.unreduced else exact(value, unit))


def _word(text: str) -> str:
    """A word as YAML reads it back as the same text."""
    is_plain = PLAIN_WORD.fullmatch(text) and not text.endswith(":") and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)
