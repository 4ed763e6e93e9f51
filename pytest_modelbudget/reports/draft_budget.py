"""The budget that ``init`` drafts: measured numbers as limits, each with what it means."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction

from pytest_modelbudget.budget.budget import FitsCheck, Place
from pytest_modelbudget.budget.deployment_forms import lower_texts
from pytest_modelbudget.budget.grammar import PLAIN_WORD, flow
from pytest_modelbudget.budget.kinds import judge_fit
from pytest_modelbudget.budget.limit_forms import AUTO
from pytest_modelbudget.budget.source_forms import RUN_ON
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.lowering.lowered import Lowering
from pytest_modelbudget.metrics.measured_model import DeployedModel
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.units import snug_quantity

COMMENT_AT = 34  # column of a comment, counted from its limit
ARENA = "activation_arena"
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


def draft_text(
    name: str,
    source: ModelSource,
    target: str,
    metrics: Mapping[str, Metric],
    measurements: Mapping[str, Measurement],
    *,
    headroom: Fraction,
    deployed: DeployedModel | None = None,
    hardware: str = "",
    inputs_about: str = "",
) -> str:
    """The budget file of one model, also on a device."""
    lines = [
        f"# Measured numbers{' and headroom' if headroom else ''}, rounded up at the third digit.",
        "# Checked by: pytest --model-budget",
        "model_budget: 1",
        *([f"hardware: {_word(hardware)}"] if hardware else []),
        "models:",
        f"  {_word(name)}:",
        f"    {source.format}: {_word(target)}",
        *(
            f"    {field.key}: {flow(field.form.texts(value))}"
            for field in RUN_ON
            if (value := getattr(source, field.key))
        ),
        *([f"    # {inputs_about}"] if inputs_about and source.inputs else []),
        "    limits:",
        *(
            f"      {_limit(metrics[key], measurement, headroom)}"
            for key, measurement in measurements.items()
            if metrics[key].drafted
        ),
        *(_deployment(deployed, headroom) if deployed else ()),
    ]
    return "\n".join(lines) + "\n"


def _deployment(model: DeployedModel, headroom: Fraction) -> Iterator[str]:
    """The model on a device: that it fits, if it does, and its arena; a comment if the arena is a lower bound."""
    deployment, usual = model.deployment, lower_texts(Lowering())
    lower = {key: text for key, text in lower_texts(deployment.lowering).items() if text != usual.get(key)}
    place, arena = Place("", 1), model.measured.measurements[ARENA]
    verdict = judge_fit(FitsCheck(place, deployment), model)
    unfit = "it does not fit" if verdict.outcome is Outcome.OVER else "unknown"
    most = snug_quantity(arena.value * (1 + headroom), arena.unit) if arena.complete else AUTO
    name, settings = _word(deployment.device.name), ", ".join(f"{key}: {text}" for key, text in lower.items())
    lines = (
        "deployments:",
        f"  {name}:",
        f"    device: {name}",
        *([f"    lower: {{{settings}}}"] if settings else []),
        "    fits: true" if verdict.outcome is Outcome.WITHIN else f"    # fits: true  # {unfit}: see modelbudget fit",
        f"    limits: {{{ARENA}: {most}}}",
    )
    yield from (f"    {'' if arena.complete else '# '}{line}" for line in lines)


def _limit(metric: Metric, measurement: Measurement, headroom: Fraction) -> str:
    """One limit and its definition. An unmeasured number has no limit, but a comment with the reason."""
    if not measurement.complete:
        return f"{f'# {metric.key}: no limit':<{COMMENT_AT}}  # {_cause(measurement)}"
    is_ratio = measurement.unreduced is not None
    amount = measurement.value / (1 + headroom) if is_ratio else measurement.value * (1 + headroom)
    quantity = snug_quantity(amount, metric.unit, down=is_ratio)
    line = f"{metric.key}: {f'{{min: {quantity}}}' if is_ratio else quantity}"
    return f"{line:<{COMMENT_AT}}  # {metric.definition}"


def _cause(measurement: Measurement) -> str:
    """The first cause of a bound, in one line."""
    missing = dict.fromkeys(f"{op.op}: {' '.join(op.why.split())}" for op in measurement.unmeasured)
    if not missing:
        return "an upper bound: the number itself is not proved"
    first, *others = missing
    return f"without {first}{' (and others)' if others else ''}"


def _word(text: str) -> str:
    """A word as YAML reads it back as the same text."""
    is_plain = PLAIN_WORD.fullmatch(text) and not text.endswith(":") and text.lower() not in _WORDS
    return text if is_plain else json.dumps(text, ensure_ascii=False)
