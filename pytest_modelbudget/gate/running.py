"""What a model gives and takes where it runs: the values of its layers, and the time and memory of its calls.

None of it is a static number: each is said together with the inputs, or the machine, that it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Generic, TypeVar

from pytest_modelbudget.budget.budget import Limit, MeasuredCheck, StatisticsCheck
from pytest_modelbudget.equivalence import inputs as draws
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import ModelBudgetError, SourceError, TransformError, user_code
from pytest_modelbudget.formats.model import Model, must_run
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.stopwatch import Device, MissingDeviceError, Plan, Stopped
from pytest_modelbudget.gate.measuring import first_on_path, undisturbed
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import Number, readable, readable_pair, several
from pytest_modelbudget.values import capture
from pytest_modelbudget.values.judgement import FIGURES, found

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What was seen of a model that ran, or why nothing was; is_missing says that its device is not there."""

    value: T | None = None
    failure: str = ""
    is_missing: bool = False


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


def observed(source: ModelSource, check: StatisticsCheck, registry: Tables, *, root: Path) -> Seen[capture.Captured]:
    """The statistics of the layers that a check is about."""

    def seen(model: Model) -> capture.Captured:
        return capture.statistics_of(
            model, check.selection, check.inputs, sigmas=check.sigmas, channel_axis=check.channels
        )

    return _seen(source, registry, root, seen)


def timed(source: ModelSource, plan: Plan, registry: Tables, *, root: Path) -> Seen[Stopped]:
    """What the calls of a model take, on one draw of its inputs, seed 0."""

    def seen(model: Model) -> Stopped:
        runnable = must_run(model, "so that no run of it is measured: leave out 'measured'")
        specs = runnable.inputs.specs
        family = draws.families_of(list(specs.values()), draws.FAMILIES[:1])[0]
        return runnable.timed(draws.drawn(specs, draws.Row(family, 0), draws.SCALES[0]), plan)

    return _seen(source, registry, root, seen)


def _seen(source: ModelSource, registry: Tables, root: Path, see: Callable[[Model], T]) -> Seen[T]:
    with undisturbed(registry.formats[source.format]):
        try:
            with first_on_path(root):
                with user_code("loading the model", SourceError):
                    model = registry.formats[source.format].load(source, registry.ops)
                with user_code("running the model", TransformError):
                    return Seen(see(model))
        except ModelBudgetError as error:
            return Seen(failure=str(error), is_missing=isinstance(error, MissingDeviceError))


def rule_on_values(limit: Limit, check: StatisticsCheck, seen: Seen[capture.Captured]) -> Ruling:
    """Hold the values of layers to a limit; exactly at it is within."""
    inputs, unit = check.inputs.text, FIGURES[limit.metric].unit
    if seen.value is None:
        reason = f"{limit.name} unknown: {seen.failure}"
        return Ruling(limit, Outcome.UNKNOWN, reason, f"measured on {inputs}", unit)
    captured = seen.value
    on = f"measured on {inputs}: {several(captured.calls, 'call')}, {several(len(captured.layers), 'layer')}"
    figure = found(limit.metric, captured.layers)
    if figure.value is None:
        return Ruling(limit, Outcome.UNKNOWN, f"{limit.name} unknown: {figure.why_unknown}", on, unit)
    evidence = (
        f"  {layer}: {where}{'' if unit == 'channel' else f' ({readable(Fraction(value), unit)})'}"
        for layer, value, where in figure.layers
    )
    outcome, reason = _held(limit, figure.value, unit)
    notes = (f"  {note}" for note in captured.notes)
    return Ruling(limit, outcome, reason, on, unit, figure.value, (*evidence, *notes))


RUN_UNITS = {"latency": "s", "peak_memory": "B"}


def rule_on_run(limit: Limit, check: MeasuredCheck, seen: Seen[Stopped]) -> Ruling:
    """Hold the time or the memory of calls to a limit."""
    unit, plan = RUN_UNITS[limit.metric], check.plan
    if seen.value is None:
        on = f"measured on {plan.device.value}"
        return Ruling(limit, Outcome.UNKNOWN, f"{limit.name} unknown: {seen.failure}", on, unit)
    stopped = seen.value
    threads = f", {several(plan.threads, 'thread')}" if plan.device is Device.CPU else ""
    on = f"measured on {stopped.machine}{threads}: {several(plan.repeats, 'call')} after {plan.warmup}"
    if limit.metric == "latency":
        value: Number = Fraction(stopped.median)
        on += f", quartiles {readable(Fraction(stopped.spread), unit)} apart"
    else:
        assert stopped.peak_memory is not None, "a plan for such a limit asks for memory"
        value, on = stopped.peak_memory, f"measured on {stopped.machine}: the peak of one call"
    outcome, reason = _held(limit, value, unit)
    return Ruling(limit, outcome, reason, on, unit, value)


def _held(limit: Limit, value: Number, unit: str) -> tuple[Outcome, str]:
    assert limit.max is not None, "a limit on what runs is a maximum"
    outcome = Outcome.WITHIN if value <= limit.max else Outcome.OVER
    measured, most = readable_pair(Fraction(value), Fraction(limit.max), unit)
    return outcome, f"{limit.name} {measured} {'<=' if outcome is Outcome.WITHIN else '>'} {most}"
