"""The record put together: out of what was measured and judged, statement by statement.

An item says what it knows in a ``Statement``, which travels from any process as text; an
``Assembly`` takes statements in, in any order, and gives the ``Report``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, TypeVar

from pytest_modelbudget.budget.address import Address
from pytest_modelbudget.budget.budget import EQUIVALENCE, EquivalenceCheck, Limit, OpsLimit, TransformCheck
from pytest_modelbudget.budget.changes import Loosening, Redefinition
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.divergence import Divergence, Worst
from pytest_modelbudget.equivalence.figures import ALGEBRA, Figures
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputRecord
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.versions import environment
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.growth import Blame
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement
from pytest_modelbudget.reports.record import (
    AskedOps,
    BrokenFile,
    ChangedLayer,
    Check,
    CountedOps,
    EquivalenceReport,
    FailedMetric,
    FirstDivergence,
    Growth,
    LoosenedLimit,
    MeasuredMetric,
    ModelReport,
    OtherGrowth,
    OutputReport,
    RedefinedModel,
    Report,
    ScopeShare,
    SubjectReport,
    TransformReport,
    UncoveredOps,
    Version,
    WorstElement,
)
from pytest_modelbudget.reports.typed_json import Entry, from_json, number_json, rare, to_json

E = TypeVar("E", bound=Entry)


def _like(entry_type: type[E], source: object, **others: Any) -> E:
    """An entry with the attributes of the same names of another object, but for these."""
    names = (known.name for known in fields(entry_type) if known.name not in (*others, "more"))
    return entry_type(**{name: getattr(source, name) for name in names} | others)


# One measurement, model, verdict.


def metric_report(measurement: Measurement) -> MeasuredMetric:
    """One metric of one model."""
    return MeasuredMetric(
        value=measurement.value,
        unit=measurement.unit,
        complete=measurement.complete,
        unmeasured=tuple(_like(UncoveredOps, ops) for ops in measurement.unmeasured),
        parts=dict(measurement.parts),
        exact=measurement.unreduced,
        convention=measurement.convention or "",
        shares=tuple([ScopeShare(scope=share.scope, value=share.value) for share in measurement.shares]),
    )


def counted_ops(census: Iterable[OpCount]) -> tuple[CountedOps, ...]:
    """The number of operations that ran, by kind and foreign name."""
    return tuple(_like(CountedOps, ops) for ops in census)


def _subject(node_id: str, file: str, line: int, model: MeasuredModel) -> dict[str, Any]:
    """The fields that a model and a transform have in common."""
    measured = {key: metric_report(number) for key, number in model.measurements.items()}
    failed = {key: FailedMetric(error=str(error)) for key, error in model.failures.items()}
    return {
        "id": node_id, "file": file, "line": line, "format": model.format, "traced": model.traced,
        "notes": tuple(model.notes), "error": str(model.failure) if model.failure else "",
        "metrics": {**measured, **failed}, "ops": counted_ops(model.census),
    }  # fmt: skip


def model_report(node_id: str, file: str, line: int, model: MeasuredModel) -> ModelReport:
    """One model under one set of inputs, before its checks."""
    return ModelReport(**_subject(node_id, file, line, model), profile=model.profile or "")


def transform_report(
    node_id: str, check: TransformCheck, model: MeasuredModel, changes: tuple[Change, ...]
) -> TransformReport:
    """One transform of a model, before its checks."""
    return TransformReport(
        **_subject(node_id, check.place.file, check.place.line, model),
        name=check.name,
        transform=check.transform,
        changes=tuple(_like(ChangedLayer, change) for change in changes),
    )


def check_report(node_id: str, verdict: Verdict) -> Check:
    """One limit and what became of it."""
    limit, measurement, locked = verdict.limit, verdict.measurement, verdict.baseline.locked
    check = Check(
        id=node_id,
        metric=limit.metric,
        actual=measurement.value if measurement else None,
        baseline=locked.value if locked else None,
        outcome=verdict.outcome,
        level=limit.level,
        line=limit.place.line,
        reason=verdict.reason,
        allowed=verdict.allowed,
        blame=blame_report(verdict.blame),
        unit=measurement.unit if measurement else "",
        complete=measurement.complete if measurement else None,
        scope=limit.scope,
        lower_bound=verdict.marked,
    )
    if isinstance(limit, OpsLimit):
        return replace(check, ops=_like(AskedOps, limit, max=dict(limit.max)))
    return replace(check, limit=limit.max, min=limit.min, **_growth_asked(limit))


def _growth_asked(limit: Limit) -> Mapping[str, Any]:
    return {} if limit.grow is None else {"grow": Fraction(limit.grow), "floor": limit.floor}


def blame_report(blame: Blame) -> tuple[OtherGrowth | Growth, ...]:
    """The layers that a growth is due to, the largest first; what is left of it in a last entry."""
    named = tuple(_like(Growth, difference) for difference in blame.differences)
    if not (blame.rest or blame.others):
        return named
    return (*named, OtherGrowth(scope=None, delta=blame.rest, count=blame.others))


def lost_check(node_id: str, reason: str) -> Check:
    """A limit whose item ended before it could answer, such as in a crashed worker."""
    metric = Address.parse(node_id).metric
    return Check(id=node_id, metric=metric, outcome=Outcome.UNKNOWN, reason=reason)


# One claim about outputs.


def claim_report(node_id: str, check: EquivalenceCheck, equivalence: Equivalence) -> Check:
    """The claim as one check among others.

    exact_algebra shows how far float64 outputs differ, other claims the least SQNR.
    """
    algebra = [output.algebra for output in equivalence.outputs if output.algebra is not None]
    noise = [output.figures.sqnr for output in equivalence.outputs]
    measured = f"{min(noise):.1f} dB" if noise else "-"
    return Check(
        id=node_id,
        metric=EQUIVALENCE,
        outcome=equivalence.outcome,
        line=check.place.line,
        reason=equivalence.reason,
        measured=decimal(max(algebra)) if algebra else measured,
        allowed=decimal(ALGEBRA) if algebra else "-",
    )


def equivalence_report(equivalence: Equivalence) -> EquivalenceReport:
    """The evidence: every output under every family."""
    divergence = equivalence.first_divergence
    return _like(
        EquivalenceReport,
        equivalence,
        kind=equivalence.kind.value,
        basis=equivalence.basis.value,
        seeds=tuple(equivalence.seeds),
        outputs=tuple(_output(output) for output in equivalence.outputs),
        first_divergence=None if divergence is None else _divergence(divergence),
    )


def _output(output: OutputRecord) -> OutputReport:
    amounts: dict[str, Any] = {figure.name: getattr(output.figures, figure.name) for figure in fields(Figures)}
    amounts |= {"algebra": output.algebra, "precision": output.precision}
    figures: dict[str, Any] = {name: decimal(amount) for name, amount in amounts.items() if amount is not None}
    return OutputReport(
        name=output.name,
        family=output.family,
        dtype=output.dtype,
        outcome=output.outcome,
        reason=output.reason,
        worst=_worst(output.worst),
        **figures,
    )


def _divergence(divergence: Divergence) -> FirstDivergence:
    return FirstDivergence(
        scope=divergence.scope,
        error=decimal(divergence.error),
        worst=_worst(divergence.worst),
        repeat=divergence.repeat,
    )


def _worst(worst: Worst | None) -> WorstElement | None:
    if worst is None:
        return None
    original, transformed = decimal(worst.original), decimal(worst.transformed)
    return WorstElement(index=worst.index, original=original, transformed=transformed)


def decimal(value: float) -> str:
    """A float as a short decimal string: rounding differs from machine to machine behind it."""
    return f"{value:.4g}"


# What the change since the base does.


def loosened_limit(loosening: Loosening, *, forbidden: bool) -> LoosenedLimit:
    """One thing that a budget no longer asks, or asks less of."""
    place = loosening.place
    address = Address.parse(place.file) / loosening.path / (loosening.check or "")
    before, after = (
        number_json(value) if isinstance(value, (int, Fraction)) else value
        for value in (loosening.before, loosening.after)
    )
    where = {"file": place.file, "line": place.line, "id": str(address)}
    return _like(LoosenedLimit, loosening, **where, before=before, after=after, forbidden=forbidden)


def redefined_model(redefinition: Redefinition, *, forbidden: bool) -> RedefinedModel:
    """One thing that a model, or a transform, is now said to be."""
    place = redefinition.place
    address = str(Address.parse(place.file) / redefinition.path)
    where = {"file": place.file, "line": place.line, "id": address}
    return _like(RedefinedModel, redefinition, **where, forbidden=forbidden)


# From items to the report.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Entry):
    """The words of one item: its check, or a broken file, and what it is the first to know.

    number is the measured one as a lock file has it, and the path of the budget that it belongs
    to; no report shows it. model took so many seconds to measure.
    """

    check: Check | None = rare(None)
    broken: BrokenFile | None = rare(None)
    number: Mapping[str, Any] | None = rare(None)
    model: ModelReport | None = rare(None)
    seconds: str = rare("")
    transform: TransformReport | None = rare(None)
    equivalence: EquivalenceReport | None = rare(None)

    def __str__(self) -> str:
        return json.dumps(to_json(self))

    @classmethod
    def parse(cls, text: str) -> Statement:
        """The statement that was written as text."""
        return from_json(cls, json.loads(text))


class Assembly:
    """Statements as they arrive, in any order; an item that is run again replaces its own."""

    def __init__(self) -> None:
        self._models: dict[str, ModelReport] = {}
        self._timings: dict[str, str] = {}
        self._checks: dict[str, Check] = {}
        self._broken: dict[str, BrokenFile] = {}
        self._transforms: dict[str, TransformReport] = {}
        self._equivalences: dict[str, EquivalenceReport] = {}
        self.numbers: dict[str, Mapping[str, Any]] = {}  # by check, as a lock file has them

    def add(self, statement: Statement) -> None:
        """Take in what one item said."""
        if statement.broken:
            self._broken[statement.broken.id] = statement.broken
        check, model, transform = statement.check, statement.model, statement.transform
        if check:
            self._checks[check.id] = check
            if statement.equivalence:
                self._equivalences[str(check.address.above)] = statement.equivalence
            if statement.number:
                self.numbers[check.id] = statement.number
        if transform:
            self._transforms.setdefault(transform.id, transform)
        if model and model.id not in self._models:
            self._models[model.id] = model
            self._timings[model.id] = statement.seconds

    def lose(self, node_id: str, reason: str) -> None:
        """Note a limit whose item failed without a word; it is unknown."""
        if node_id not in self._checks and node_id not in self._broken:
            self._checks[node_id] = lost_check(node_id, reason)

    @property
    def answered(self) -> int:
        """The number of items that have spoken: all limits, unknown ones too, and broken files."""
        return len(self._checks) + len(self._broken)

    def report(self, *, selected: bool, unanswered: int = 0) -> Report:
        """The record for all renderers, sorted by file and line, whichever order it came in.

        unanswered items have not spoken, and should have.
        """
        checks: dict[str, list[Check]] = {}
        for check in sorted(self._checks.values(), key=lambda check: (check.line or 0, check.id)):
            checks.setdefault(str(check.address.above), []).append(check)
        transforms: dict[str, list[TransformReport]] = {}
        for transform in sorted(self._transforms.values(), key=_place):
            key = str(Address.parse(transform.id).above)
            transforms.setdefault(key, []).append(
                replace(
                    transform,
                    checks=tuple(checks.get(transform.id, ())),
                    equivalence=self._equivalences.get(transform.id),
                )
            )
        lost = {key: _lost_model(key) for key in checks.keys() - self._transforms.keys()}
        models = (
            replace(model, checks=tuple(checks.get(model.id, ())), transforms=tuple(transforms.get(model.id, ())))
            for model in {**lost, **self._models}.values()
        )
        return Report(
            schema=Version.ONE,
            selected=selected,
            unanswered=unanswered,
            environment=environment(),
            models=tuple(sorted(models, key=_place)),
            broken=tuple(sorted(self._broken.values(), key=lambda broken: broken.id)),
            timings=dict(sorted(self._timings.items())),
        )


def _place(subject: SubjectReport) -> tuple[str, int, str]:
    return (subject.file, subject.line, subject.id)


def _lost_model(model_id: str) -> ModelReport:
    """A model of which nothing arrived; its checks say why."""
    return ModelReport(id=model_id, file=Address.parse(model_id).file)
