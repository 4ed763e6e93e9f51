"""The answer to one limit on what a model gives or takes where it runs: within, over or unknown.

None of it is a static number: each is said together with the inputs, or the machine, that it was measured on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

from pytest_modelbudget.budget.budget import Limit, MeasuredCheck, StatisticsCheck
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.benchmark import LATENCY, RUN_FIGURES, Processor, Timing
from pytest_modelbudget.units import Number, readable, readable_pair, several
from pytest_modelbudget.values.capture import Captured
from pytest_modelbudget.values.judgement import FIGURES, figure_over, nine_digits

T = TypeVar("T")
RunCheck = StatisticsCheck | MeasuredCheck


@dataclass(frozen=True, slots=True)
class Observation(Generic[T]):
    """What was seen of a model that ran, or why nothing was; lacks_device says that its device is not there."""

    value: T | None = None
    failure: str = ""
    lacks_device: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer to one limit on what was seen: reason is one line, evidence names the layers that it comes from.

    measured_on says on which inputs, or where, the figure was measured.
    """

    limit: Limit
    outcome: Outcome
    reason: str
    measured_on: str
    unit: str
    value: Number | None = None
    evidence: tuple[str, ...] = ()


def rule(limit: Limit, check: RunCheck, observation: Observation[Any]) -> Ruling:
    """Hold what was seen to a limit."""
    if isinstance(check, StatisticsCheck):
        return rule_on_values(limit, check, observation)
    return rule_on_run(limit, check, observation)


def rule_on_values(limit: Limit, check: StatisticsCheck, observation: Observation[Captured]) -> Ruling:
    """Hold the values of layers to a limit; exactly at it is within."""
    inputs, unit = check.inputs.text, FIGURES[limit.metric].unit
    if observation.value is None:
        reason = f"{limit.name} unknown: {observation.failure}"
        return Ruling(limit, Outcome.UNKNOWN, reason, f"to be measured on {inputs}", unit)
    captured = observation.value
    on = f"measured on {inputs}: {several(captured.calls, 'call')}, {several(len(captured.layers), 'layer')}"
    figure = figure_over(limit.metric, captured.layers)
    why = captured.unseen or figure.why_unknown
    if figure.value is None or why:
        return Ruling(limit, Outcome.UNKNOWN, f"{limit.name} unknown: {why}", on, unit)
    evidence = (
        f"  {layer}: {where}{'' if unit == 'channel' else f' ({readable(Fraction(value), unit)})'}"
        for layer, value, where in figure.layers
    )
    notes = (f"  {note}" for note in captured.notes)
    return _held(limit, figure.value, unit, on, (*evidence, *notes))


def rule_on_run(limit: Limit, check: MeasuredCheck, observation: Observation[Timing]) -> Ruling:
    """Hold the time or the memory of calls to a limit."""
    unit, plan = RUN_FIGURES[limit.metric].unit, check.plan
    if observation.value is None:
        on = f"to be measured on {plan.device.value}"
        return Ruling(limit, Outcome.UNKNOWN, f"{limit.name} unknown: {observation.failure}", on, unit)
    timing = observation.value
    threads = f", {several(plan.threads, 'thread')}" if plan.device is Processor.CPU else ""
    on = f"measured on {timing.machine}{threads}: {several(plan.repeats, 'call')} after {plan.warmup}"
    if limit.metric == LATENCY:
        return _held(
            limit, nine_digits(timing.median), unit, f"{on}, quartiles {readable(Fraction(timing.spread), unit)} apart"
        )
    assert timing.peak_memory is not None, "a plan for such a limit asks for memory"
    return _held(limit, timing.peak_memory, unit, f"measured on {timing.machine}: the peak of one call")


def _held(limit: Limit, value: Number, unit: str, on: str, evidence: tuple[str, ...] = ()) -> Ruling:
    """The ruling on a value that is known; nine digits are kept of a ratio."""
    assert limit.max is not None, "a limit on what runs is a maximum"
    outcome = Outcome.WITHIN if value <= limit.max else Outcome.OVER
    kept = value if isinstance(value, int) else nine_digits(float(value))
    measured, most = readable_pair(kept, limit.max, unit)
    reason = f"{limit.name} {measured} {'<=' if outcome is Outcome.WITHIN else '>'} {most}"
    return Ruling(limit, outcome, reason, on, unit, kept, evidence)
