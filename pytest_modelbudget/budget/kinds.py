"""The kinds of check, a row each: how a check is judged by what was seen, and compared with what it was at the base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar, Union

from pytest_modelbudget.budget.budget import (
    FITS,
    Acceptance,
    AnyLimit,
    Check,
    ClaimCheck,
    FitsCheck,
    Level,
    Limit,
    OpsLimit,
    Place,
    TimedRun,
    ValuesRun,
)
from pytest_modelbudget.budget.grammar import Field
from pytest_modelbudget.budget.limit_forms import AUTO
from pytest_modelbudget.budget.lock_file import Baseline
from pytest_modelbudget.budget.value_forms import RUNTIME, STATISTICS
from pytest_modelbudget.budget.verdict import (
    NO_BASELINE,
    Verdict,
    compared,
    judge,
    judge_ops,
    known_scopes,
    named_ops,
    with_blame,
)
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import ALGEBRA
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.formats.benchmark import Processor
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.metrics.on_device import Fitting, MemoryUse
from pytest_modelbudget.runners.paired import Growth
from pytest_modelbudget.runners.timing import GROWTH, PEAK_MEMORY, RUN_FIGURES, table
from pytest_modelbudget.units import Number, percentage, readable, readable_pair, several
from pytest_modelbudget.values.capture import Captured
from pytest_modelbudget.values.judgement import FIGURES, figure_over, nine_digits

T = TypeVar("T")
GRANTS = ("exception added", "exception raised", "exception prolonged")
LimitSetting = Union[Number, str, None]
Texts = tuple[str, str]
NOT_KNOWN = "-"
ON_NOTHING = "no input has an element: what is counted is a run on nothing"
NOT_SHOWN: Mapping[str, Any] = {"measured": NOT_KNOWN, "allowed": NOT_KNOWN}


# What a limit holds of static numbers.


def judge_limit(limit: AnyLimit, model: MeasuredModel, baseline: Baseline = NO_BASELINE) -> Verdict:
    """The verdict on one limit; what could not be measured is unknown."""
    why: object = model.failure or model.failures.get(limit.metric)
    if why is None and limit.metric not in model.measurements:
        why = "it is measured where it is asked for: training='adam', or serving={'context': 8192}"
    elif why is None and limit.metric in model.of_nothing:
        why = f"{ON_NOTHING}: give inputs, or dims, of at least 1"
    if why is not None:
        return Verdict(limit, Outcome.UNKNOWN, None, f"{limit.metric} unknown: {why}", baseline=baseline)
    measurement = model.measurements[limit.metric]
    scopes = {*model.scopes, *known_scopes(model.measurements.values())} if limit.scope is not None else ()
    if isinstance(limit, OpsLimit):
        verdict = judge_ops(limit, measurement, model.census, model.branches, scopes=scopes, baseline=baseline)
    else:
        verdict = judge(limit, measurement, scopes=scopes, baseline=baseline)
    if model.reservation and verdict.outcome is not Outcome.WITHIN:
        verdict = replace(verdict, reason=f"{verdict.reason}   {model.reservation}")
    return with_blame(verdict, model.parts.get(limit.metric, ()))


# Limits on a model that runs. Such a number is not static: it is shown with its inputs, or its machine.


@dataclass(frozen=True, slots=True)
class Observation(Generic[T]):
    """What was seen of a model that ran, or why nothing was; lacks_device says that its device is not there."""

    value: T | None = None
    failure: str = ""
    lacks_device: bool = False


def _judge_values(limit: Limit, observation: Observation[Captured], baseline: Baseline = NO_BASELINE) -> Verdict:
    """Hold the values of layers to a limit; exactly at it is within."""
    assert isinstance(limit.run, ValuesRun), "its kind says so"
    inputs, unit = limit.run.inputs.text, FIGURES[limit.metric].unit
    if observation.value is None:
        return _unknown_run(limit, observation.failure, f"to be measured on {inputs}", unit)
    captured = observation.value
    on = f"measured on {inputs}: {several(captured.calls, 'call')}, {several(len(captured.layers), 'layer')}"
    figure = figure_over(limit.metric, captured.layers)
    why = captured.unseen or figure.why_unknown
    if figure.value is None or why:
        return _unknown_run(limit, why, on, unit)
    evidence = (
        f"  {layer}: {where}{'' if unit == 'channel' else f' ({readable(Fraction(value), unit)})'}"
        for layer, value, where in figure.layers
    )
    notes = (f"  {note}" for note in captured.notes)
    return _judge_end(limit, figure.value, unit, on, (*evidence, *notes))


def _judge_run(limit: Limit, observation: Observation[Any], baseline: Baseline = NO_BASELINE) -> Verdict:
    """Hold a figure of timed calls, or their growth since the base, to a limit."""
    assert isinstance(limit.run, TimedRun), "its kind says so"
    if limit.metric == GROWTH:
        return _judge_growth(limit, observation)
    figure, plan = RUN_FIGURES[limit.metric], limit.run.plan
    if observation.value is None:
        return _unknown_run(limit, observation.failure, f"to be measured on {plan.device.value}", figure.unit)
    timing, value = observation.value, figure.of(observation.value)
    threads = f", {several(plan.threads, 'thread')}" if plan.device is Processor.CPU else ""
    on = f"measured on {timing.machine}{threads}: {several(plan.repeats, 'call')} after {plan.warmup}, quartiles "
    on += f"{readable(Fraction(timing.spread), 's')} apart"
    if isinstance(value, str):
        return replace(_unknown_run(limit, value, on, figure.unit), seen=timing)
    if limit.metric == PEAK_MEMORY:
        return _judge_end(limit, value, figure.unit, f"measured on {timing.machine}: the peak of one call")
    return replace(_judge_end(limit, value, figure.unit, on, table(timing)), seen=timing)


def _judge_growth(limit: Limit, observation: Observation[Growth]) -> Verdict:
    """The verdict on the growth of paired calls: unknown if its interval reaches to both sides of the limit."""
    growth, most = observation.value, limit.max or 0
    if growth is None:
        return _unknown_run(limit, observation.failure, "to be compared with the base", "%")
    if growth.is_decided(most):
        return _judge_end(limit, nine_digits(growth.ratio - 1), "%", growth.text)
    why = f"{growth.interval} straddles {percentage(Fraction(most))}: run it on an idle machine, or raise 'grow'"
    return _unknown_run(limit, why, growth.text, "%")


def _unknown_run(limit: Limit, why: str, on: str, unit: str) -> Verdict:
    return Verdict(limit, Outcome.UNKNOWN, None, f"{limit.name} unknown: {why}", unit=unit, measured_on=on)


def _judge_end(limit: Limit, value: Number, unit: str, on: str, evidence: tuple[str, ...] = ()) -> Verdict:
    """The verdict on a value that is known, by the one end of its limit; nine digits are kept of a ratio."""
    end = limit.min if limit.max is None else limit.max
    assert end is not None, "a limit on what runs has one end"
    is_broken = value < end if limit.max is None else value > end
    kept = value if isinstance(value, int) else nine_digits(float(value))
    reason = f"{limit.name} {compared(kept, end, unit, is_broken=is_broken)}"
    outcome = Outcome.OVER if is_broken else Outcome.WITHIN
    return Verdict(limit, outcome, Measurement(kept, unit), reason, measured_on=on, evidence=evidence)


# What a claim and a device are held to.


def _judge_claim(check: ClaimCheck, found: Equivalence, baseline: Baseline = NO_BASELINE) -> Verdict:
    """The verdict of a comparison; exact_algebra shows how far float64 is off, others the bound that decided."""
    algebra = [output.algebra for output in found.outputs if output.algebra is not None]
    noise = [output.figures.sqnr for output in found.outputs]
    measured, allowed = f"{min(noise):.1f} dB" if noise else NOT_KNOWN, NOT_KNOWN
    if algebra:
        measured, allowed = f"{max(algebra):.4g}", f"{ALGEBRA:.4g}"
    elif decision := found.decision:
        measured, allowed = decision.measured, decision.allowed
    return Verdict(check, found.outcome, None, found.reason, measured=measured, allowed=allowed, seen=found)


def judge_fit(check: FitsCheck, model: DeployedModel, baseline: Baseline = NO_BASELINE) -> Verdict:
    """Hold every memory against its size without what is reserved; exactly full is within.

    A memory that is too full even by a lower bound is over; what else is not known leaves it unknown.
    """
    fit = model.fitting
    if fit is None:
        return Verdict(check, Outcome.UNKNOWN, None, f"{FITS} unknown: {model.measured.failure}", **NOT_SHOWN)
    over = [use for use in fit.uses if use.headroom < 0]
    unknown = list(_unknown_memories(check, fit))
    outcome = Outcome.OVER if over else Outcome.UNKNOWN if unknown else Outcome.WITHIN
    words = [_full_memory(use) for use in over] or unknown or [_full_memory(use) for use in fit.uses]
    reason = f"{FITS} unknown: " * (outcome is Outcome.UNKNOWN) + "; ".join(words)
    if model.measured.reservation and outcome is not Outcome.WITHIN:
        reason = f"{reason}   {model.measured.reservation}"
    fullest = min(fit.uses, key=lambda use: Fraction(use.headroom, use.memory.size), default=None)
    if fullest is None:
        return Verdict(check, outcome, None, reason, **NOT_SHOWN, seen=fit)
    used, held = readable_pair(fullest.used, fullest.memory.room, "B", binary=fullest.memory.binary)
    return Verdict(check, outcome, None, reason, measured=f"{fullest.memory.name} {used}", allowed=held, seen=fit)


def _full_memory(use: MemoryUse) -> str:
    """One memory: "sram 1.510 MB < 1.970 MB (23.3% left)"."""
    more, is_over = " or more" if use.unmeasured else "", use.headroom < 0
    words = compared(use.used, use.memory.room, "B", is_broken=is_over, more=more, binary=use.memory.binary)
    return f"{use.memory.name} {words}"


def _unknown_memories(check: FitsCheck, fit: Fitting) -> Iterator[str]:
    device = check.deployment.device
    if fit.lacking:
        yield f"{device.name} names no memory that holds {' or '.join(fit.lacking)}: add one to its memories"
    for use in fit.uses:
        if use.unmeasured:
            least = readable(use.used, "B")
            yield f"{use.memory.name} holds {least} or more   unmeasured: {named_ops(use.unmeasured)}"


# What a check asks less than at the base.


@dataclass(frozen=True, slots=True)
class Loosening:
    """One thing that a budget no longer asks, or asks less of.

    place is where it stands today, line 1 where nothing is left of it. check is the name of the
    limit ("params@layer4.*"), None where a whole model or file is meant. before and after are
    numbers in the metric's unit, or words; None is nothing.
    """

    place: Place
    path: str
    check: str | None
    metric: str | None
    what: str
    before: LimitSetting
    after: LimitSetting
    text: str
    percent: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The check that changed, and its place today."""

    path: str
    check: Check
    place: Place
    metrics: Mapping[str, Metric]

    def lost(self, what: str, before: LimitSetting, after: LimitSetting, words: str) -> Loosening:
        """Something that is no longer asked."""
        name, metric, text = self.check.name, self.check.metric, f"budget loosened: {words}"
        return Loosening(self.place, self.path, name, metric, what, before, after, text)

    def moved(self, what: str, before: Number, after: Number, end: str = "", texts: Texts | None = None) -> Loosening:
        """A bound that moved: "budget loosened +14.3 %: params 3.5 M -> 4.0 M"."""
        share = Fraction(after - before) / Fraction(before) if before else None
        percent = None if share is None else f"{'+' if share > 0 else ''}{percentage(share)[:-1]}"
        metric = self.metrics.get(self.check.metric)
        first, second = texts or readable_pair(before, after, metric.unit if metric else "op")
        by, name = f" {percent} %" if percent else "", self.check.name
        text = f"budget loosened{by}: {f'{name} {end}'.rstrip()} {first} -> {second}"
        return Loosening(self.place, self.path, name, self.check.metric, what, before, after, text, percent)


def _compare_limits(subject: Lost, before: Any, now: Any) -> Iterator[Loosening]:
    """What one limit asks less than it did; None is a limit that is gone."""
    if now is None:
        was = "a limit on operations"
        if isinstance(before, Limit):  # as its file spells it, where it is a quantity
            was = before.written or f"grow {percentage(before.grow or Fraction())}"
        yield subject.lost("metric removed", was, None, f"{before.name} removed, was {was}")
        return
    subject = replace(subject, place=now.place)
    if before.level is Level.ERROR and now.level is Level.WARN:
        yield subject.lost("level lowered", "error", "warn", f"level of {before.name} error -> warn")
    for op in now.allow_unmeasured:
        if op not in before.allow_unmeasured:
            yield subject.lost("op newly allowed", None, op, f"{before.name} accepts {op} unmeasured")
    if isinstance(before, Limit) and isinstance(now, Limit):
        yield from _of_limit(subject, before, now)
    elif isinstance(before, OpsLimit) and isinstance(now, OpsLimit):
        yield from _of_ops(subject, before, now)


def _of_limit(subject: Lost, before: Limit, now: Limit) -> Iterator[Loosening]:
    texts = {"max": (before.written, now.written), "min": None}
    for end, moved, way in (("max", "raised", 1), ("min", "lowered", -1)):
        was, value = getattr(before, end), getattr(now, end)
        if was is not None and value is None:
            after = AUTO if end in now.auto else None
            yield subject.lost(f"{end} removed", was, after, f"{end} of {now.name} {'is auto' if after else 'removed'}")
        elif was is not None and way * value > way * was:
            yield subject.moved(f"{end} {moved}", was, value, "" if end == "max" else end, texts[end])
    if before.grow is not None and now.grow is None:
        words = f"grow of {before.name} removed, was {percentage(before.grow)}"
        yield subject.lost("grow removed", before.grow, None, words)
    elif before.grow is not None and now.grow is not None:
        if now.grow > before.grow:
            shares = percentage(before.grow), percentage(now.grow)
            yield subject.moved("grow raised", before.grow, now.grow, "grow", shares)
        if now.floor > before.floor:
            yield subject.moved("floor raised", before.floor, now.floor, "floor")
    yield from compare_exceptions(subject, before.waiver, now.waiver)


def compare_exceptions(subject: Lost, before: Acceptance | None, now: Acceptance | None) -> Iterator[Loosening]:
    """Compare an exception with what it was: another one, a larger amount, or a later day."""
    if now is None:
        return
    added, raised, prolonged = GRANTS
    subject, name = replace(subject, place=now.place), subject.check.name
    if before is None or before.end != now.end:
        yield subject.lost(added, before.written if before else None, now.written, f"{name} {now.words}")
        return
    if now.to != before.to and (now.to < before.to) == (now.end == "min"):
        words = f"{name} accepted to {before.written} -> {now.written}: {now.reason}"
        yield subject.lost(raised, before.written, now.written, words)
    if now.until > before.until:
        words = f"{name} accepted until {before.until} -> {now.until}: {now.reason}"
        yield subject.lost(prolonged, str(before.until), str(now.until), words)


def _of_ops(subject: Lost, before: OpsLimit, now: OpsLimit) -> Iterator[Loosening]:
    if before.allow is not None and now.allow is None:
        yield subject.lost("op newly allowed", ", ".join(before.allow), None, "any operation is allowed")
    for op in now.allow or ():
        if before.allow is not None and op not in before.allow:
            yield subject.lost("op newly allowed", None, op, f"{op} is newly allowed")
    for op in before.deny:
        if op not in now.deny:
            yield subject.lost("op newly allowed", op, None, f"{op} is no longer denied")
    for op, most in before.max.items():
        if op not in now.max:
            yield subject.lost("max removed", most, None, f"max of {op} removed")
        elif now.max[op] > most:
            yield subject.moved("max raised", most, now.max[op], op)


def _compare_claims(subject: Lost, before: ClaimCheck, now: ClaimCheck | None) -> Iterator[Loosening]:
    """A claim about the outputs of a transform that is no longer made, or is a weaker one."""
    path, claim, same = subject.path, before.claim, now.claim if now else None
    kinds = claim.kind.value, same.kind.value if same else None
    if same is None:
        what, words = "claim removed", f"equivalence of {path} removed, was {kinds[0]}"
    elif same != claim and same.is_weaker_than(claim):
        what, words = "claim weakened", f"equivalence of {path} asks for less"
        if kinds[0] != kinds[1]:
            words = f"equivalence of {path} {kinds[0]} -> {kinds[1]}"
        elif claim.given not in (None, same.given):
            words = f"equivalence of {path} applies to other inputs than {claim.given.text}"
    else:
        return
    yield subject.lost(what, *kinds, words)


def _compare_fits(check: Lost, before: FitsCheck, now: FitsCheck | None) -> Iterator[Loosening]:
    was, still = ("training" if each and each.deployment.is_trained else "true" for each in (before, now))
    if now is None or was != still == "true":
        what, words = ("fits removed", "removed") if now is None else ("fits weakened", "is of no training step")
        yield check.lost(what, was, still if now else None, f"{FITS} of {check.path} {words}")


# The table.


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check.

    sees is what is judged: all "numbers" of a subject, a "device", the "outputs" of two models, or a "run". compare
    gives what a check asks less than at the base, where it may be gone. field is the key of a model that such checks
    stand under, read as several; none of those that stand elsewhere.
    """

    sees: str
    judge: Callable[[Any, Any, Baseline], Verdict]
    compare: Callable[[Lost, Any, Any], Iterator[Loosening]]
    field: Field | None = None


# In the order in which a change with the base is told.
KINDS: Mapping[str, Kind] = {
    "claim": Kind("outputs", _judge_claim, _compare_claims),
    "fits": Kind("device", judge_fit, _compare_fits),
    "number": Kind("numbers", judge_limit, _compare_limits),
    "ops": Kind("numbers", judge_limit, _compare_limits),
    "statistics": Kind("run", _judge_values, _compare_limits, STATISTICS),
    "runtime": Kind("run", _judge_run, _compare_limits, RUNTIME),
}
