"""The record put together: out of what was measured and judged, statement by statement.

An item says what it knows in a ``Statement``, which travels from any process as text; an
``Assembly`` takes statements in, in any order, and gives the ``Report``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from sys import intern
from types import MappingProxyType
from typing import Any, TypeVar

from pytest_modelbudget.budget.budget import (
    EQUIVALENCE,
    Address,
    DeploymentCheck,
    EquivalenceCheck,
    Limit,
    OpsLimit,
    Place,
    TransformCheck,
)
from pytest_modelbudget.budget.changes import Loosening, Redefinition
from pytest_modelbudget.budget.ruling import Ruling
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.divergence import LayerError, Worst
from pytest_modelbudget.equivalence.figures import ALGEBRA, Figures
from pytest_modelbudget.equivalence.judgement import Equivalence, OutputRecord
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.metrics.compute import OpCount
from pytest_modelbudget.metrics.growth import Blame
from pytest_modelbudget.metrics.measured_model import DeployedModel, MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.metrics.operations import Operation
from pytest_modelbudget.registry import environment
from pytest_modelbudget.reports import deployments, record
from pytest_modelbudget.reports.equivalence import (
    EquivalenceReport,
    FirstDivergence,
    LayerErrorReport,
    OutputReport,
    WorstElement,
)
from pytest_modelbudget.reports.typed_json import (
    EMPTY,
    Columns,
    Entry,
    as_written,
    from_json,
    json_text,
    number_json,
    rare,
    to_json,
)
from pytest_modelbudget.units import Number

E = TypeVar("E", bound=Entry)


def _like(entry_type: type[E], source: object, **others: Any) -> E:
    """An entry with the attributes of the same names of another object, but for these."""
    kind: Any = entry_type  # which mypy does not take for something with a hash
    return entry_type(**{name: getattr(source, name) for name in _names(kind) if name not in others}, **others)


@cache
def _names(entry_type: type[Entry]) -> tuple[str, ...]:
    """The declared keys of an entry."""
    return tuple(known.name for known in fields(entry_type) if known.name != "more")


# One measurement, model, verdict.


def metric_report(measurement: Measurement) -> record.MeasuredMetric:
    """One metric of one model."""
    return _like(
        record.MeasuredMetric,
        measurement,
        value=as_written(measurement.value),
        unmeasured=tuple(_like(record.UncoveredOps, ops) for ops in measurement.unmeasured),
        parts=dict(measurement.parts),
        exact=measurement.unreduced,
        convention=measurement.convention or "",
        shares=Columns(
            record.ScopeShare,
            scope=[share.scope for share in measurement.shares],
            value=[number_json(share.value) for share in measurement.shares],
        ),
    )


def counted_ops(census: Iterable[OpCount]) -> tuple[record.CountedOps, ...]:
    """The number of operations that ran, by kind and foreign name."""
    counts: Counter[tuple[str, str]] = Counter()
    for ops in census:
        counts[ops.kind, ops.name] += ops.count
    return tuple(record.CountedOps(kind=kind, name=name, count=count) for (kind, name), count in counts.items())


def _subject(node_id: str, place: Place, model: MeasuredModel, failing_at: Place | None) -> dict[str, Any]:
    """The fields that a model and a transform have in common."""
    measured = {key: metric_report(number) for key, number in model.measurements.items()}
    failed = {key: record.FailedMetric(error=str(error)) for key, error in model.failures.items()}
    return {
        "id": node_id, "file": place.file, "line": place.line, "format": model.format, "traced": model.traced,
        "notes": tuple(model.notes), "error": str(model.failure) if model.failure else "",
        "error_line": failing_at.line if failing_at else None,
        "metrics": {**measured, **failed}, "ops": counted_ops(model.census),
        "operations": tuple(map(_executed_ops, model.operations)),
    }  # fmt: skip


def _executed_ops(operation: Operation) -> record.ExecutedOps:
    """Operations that are alike; shapes, of which there are few, are kept once for all models."""
    outputs, weights = tuple(map(intern, operation.outputs)), tuple(map(intern, operation.weights))
    return record.ExecutedOps(
        scope=operation.scope, kind=operation.kind, outputs=outputs, weights=weights, count=operation.count
    )


def model_report(
    node_id: str,
    place: Place,
    model: MeasuredModel,
    failing_at: Place | None = None,
    declared: Mapping[str, str] = EMPTY,
) -> record.ModelReport:
    """One model under one set of inputs, before its checks.

    failing_at says what of it could not be measured, declared what the budget says of it.
    """
    subject = _subject(node_id, place, model, failing_at)
    return record.ModelReport(**subject, declared=declared, defined_at=model.defined_at, profile=model.profile or "")


def deployment_report(
    node_id: str, check: DeploymentCheck, model: DeployedModel, failing_at: Place | None = None
) -> record.DeploymentReport:
    """One model on a device, before its checks."""
    return deployments.deployment_report(_subject(node_id, check.place, model.measured, failing_at), check, model)


def transform_report(
    node_id: str,
    check: TransformCheck,
    model: MeasuredModel,
    changes: tuple[Change, ...],
    failing_at: Place | None = None,
) -> record.TransformReport:
    """One transform of a model, before its checks."""
    return record.TransformReport(
        **_subject(node_id, check.place, model, failing_at),
        name=check.name,
        transform=check.transform,
        changes=tuple(_like(record.ChangedLayer, change) for change in changes),
    )


def check_report(node_id: str, verdict: Verdict, metrics: Mapping[str, Metric]) -> record.Check:
    """One limit and what became of it; metrics say the unit of what could not be measured."""
    limit, measurement, locked = verdict.limit, verdict.measurement, verdict.baseline.locked
    check = record.Check(
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
        unit=measurement.unit if measurement else metrics[limit.metric].unit,
        complete=measurement.complete if measurement else None,
        scope=limit.scope,
        at_least=measurement.at_least if measurement else None,
        lower_bound=verdict.marked,
    )
    if isinstance(limit, OpsLimit):
        return replace(check, ops=_like(record.AskedOps, limit, max=dict(limit.max)))
    grown: Mapping[str, Any] = {} if limit.grow is None else {"grow": Fraction(limit.grow), "floor": limit.floor}
    least, most = _least_and_most(limit, verdict)
    check = replace(check, least=least, most=most)
    return replace(check, limit=limit.max, min=limit.min, accept=_exemption(verdict), **grown)


def _least_and_most(limit: Limit, verdict: Verdict) -> tuple[Number | None, Number | None]:
    """What the ends of a limit are held against, where that is not the number itself."""
    part, is_decided = verdict.measurement, verdict.outcome is not Outcome.UNKNOWN
    if part is None:
        return None, None
    has_most = (limit.max is not None or verdict.allowed is not None) and is_decided and not verdict.marked
    least = part.least if limit.min is not None and part.least < part.value else None
    return least, part.most if has_most and part.most > part.value else None


def _exemption(verdict: Verdict) -> record.Exemption | None:
    """The exception that a limit was judged with."""
    accept = verdict.limit.accept if isinstance(verdict.limit, Limit) else None
    if accept is None or verdict.today is None:
        return None
    days = {"until": accept.until.isoformat(), "today": verdict.today.isoformat()}
    return _like(record.Exemption, accept, **days, text=accept.words, line=accept.place.line)


def ruling_report(node_id: str, ruling: Ruling) -> record.Check:
    """One limit on what a model gives or takes where it runs."""
    limit = ruling.limit
    return record.Check(
        id=node_id,
        metric=limit.metric,
        limit=limit.max,
        actual=ruling.value,
        outcome=ruling.outcome,
        level=limit.level,
        line=limit.place.line,
        reason=ruling.reason,
        unit=ruling.unit,
        complete=None if ruling.value is None else True,
        measured_on=ruling.measured_on,
        evidence=ruling.evidence,
    )


def blame_report(blame: Blame) -> tuple[record.OtherGrowth | record.Growth, ...]:
    """The layers that a growth is due to, the largest first; what is left of it in a last entry."""
    named = tuple(_like(record.Growth, difference) for difference in blame.differences)
    if not (blame.rest or blame.others):
        return named
    return (*named, record.OtherGrowth(scope=None, delta=blame.rest, count=blame.others))


# One claim about outputs.


def claim_report(node_id: str, check: EquivalenceCheck, equivalence: Equivalence) -> record.Check:
    """The claim as one check among others.

    exact_algebra shows how far float64 outputs differ, other claims the bound that decided.
    """
    algebra = [output.algebra for output in equivalence.outputs if output.algebra is not None]
    noise = [output.figures.sqnr for output in equivalence.outputs]
    measured, allowed = f"{min(noise):.1f} dB" if noise else "-", "-"
    if algebra:
        measured, allowed = decimal(max(algebra)), decimal(ALGEBRA)
    elif decision := equivalence.decision:
        measured, allowed = decision.measured, decision.allowed
    return record.Check(
        id=node_id,
        metric=EQUIVALENCE,
        outcome=equivalence.outcome,
        line=check.place.line,
        reason=equivalence.reason,
        measured=measured,
        allowed=allowed,
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
        outputs=tuple(_output(output, equivalence.furthest) for output in equivalence.outputs),
        layers=tuple(_layer_error(layer) for layer in equivalence.layers),
        decided=equivalence.decision.text if equivalence.decision else "",
        first_divergence=None
        if divergence is None
        else _like(FirstDivergence, divergence, error=decimal(divergence.error), worst=_worst(divergence.worst)),
    )


def _layer_error(layer: LayerError) -> LayerErrorReport:
    figures = {"of_its_size": layer.of_its_size, "sqnr": layer.sqnr, "max_abs": layer.max_abs}
    texts: dict[str, Any] = {name: None if each is None else decimal(each) for name, each in figures.items()}
    return _like(LayerErrorReport, layer, **texts)


def _output(output: OutputRecord, furthest: OutputRecord | None) -> OutputReport:
    amounts = {figure.name: getattr(output.figures, figure.name) for figure in fields(Figures)}
    amounts |= {"algebra": output.algebra, "precision": output.precision}
    figures: dict[str, Any] = {name: None if amount is None else decimal(amount) for name, amount in amounts.items()}
    decided = output.decision.text if output.decision else ""
    worst, is_furthest = _worst(output.worst), output is furthest
    return _like(OutputReport, output, **figures, decided=decided, worst=worst, furthest=is_furthest)


def _worst(worst: Worst | None) -> WorstElement | None:
    if worst is None:
        return None
    return _like(WorstElement, worst, original=decimal(worst.original), transformed=decimal(worst.transformed))


def decimal(value: float) -> str:
    """A float as a short decimal string: rounding differs from machine to machine behind it."""
    return f"{value:.4g}"


# What the change since the base does.


def loosened_limit(loosening: Loosening, *, forbidden_by: str) -> record.LoosenedLimit:
    """One thing that a budget no longer asks, or asks less of; forbidden_by is where that is forbidden, or ""."""
    before, after = (
        number_json(value) if isinstance(value, (int, Fraction)) else value
        for value in (loosening.before, loosening.after)
    )
    where = _where(loosening, loosening.check or "")
    return _like(record.LoosenedLimit, loosening, **where, before=before, after=after, **_ban(forbidden_by))


def redefined_model(redefinition: Redefinition, *, forbidden_by: str) -> record.RedefinedModel:
    """One thing that a model, or a transform, is now said to be."""
    return _like(record.RedefinedModel, redefinition, **_where(redefinition), **_ban(forbidden_by))


def _ban(forbidden_by: str) -> dict[str, Any]:
    return {"forbidden": bool(forbidden_by), "forbidden_by": forbidden_by}


def _where(change: Loosening | Redefinition, check: str = "") -> dict[str, Any]:
    place = change.place
    return {"file": place.file, "line": place.line, "id": str(Address.parse(place.file) / change.path / check)}


# From items to the report.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Entry):
    """The words of one item: its check, or a broken file, and what it is the first to know.

    number is the measured one as a lock file has it, and the path of the budget that it belongs
    to; no report shows it. model took so many seconds to measure; took has those of what else was done for the first
    time, by id: a transform, a comparison of outputs.
    """

    check: record.Check | None = rare(None)
    broken: record.BrokenFile | None = rare(None)
    number: Mapping[str, Any] | None = rare(None)
    model: record.ModelReport | None = rare(None)
    seconds: str = rare("")
    took: Mapping[str, str] = rare(MappingProxyType({}))
    transform: record.TransformReport | None = rare(None)
    deployment: record.DeploymentReport | None = rare(None)
    equivalence: EquivalenceReport | None = rare(None)

    def __str__(self) -> str:
        return json_text(self)

    @classmethod
    def of(cls, check: record.Check, **others: Any) -> Statement:
        """The statement of a check, whose ratios have the digits that are written."""
        return cls(check=from_json(record.Check, to_json(check)), **others)

    @classmethod
    def parse(cls, text: str) -> Statement:
        """The statement that was written as text."""
        return from_json(cls, json.loads(text))


class Assembly:
    """Statements as they arrive, in any order; an item that is run again replaces its own."""

    def __init__(self) -> None:
        self._models: dict[str, record.ModelReport] = {}
        self._timings: dict[str, str] = {}
        self._checks: dict[str, record.Check] = {}
        self._broken: dict[str, record.BrokenFile] = {}
        self._transforms: dict[str, record.TransformReport] = {}
        self._deployments: dict[str, record.DeploymentReport] = {}
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
        if statement.deployment:
            self._deployments.setdefault(statement.deployment.id, statement.deployment)
        if model and model.id not in self._models:
            self._models[model.id] = model
            self._timings[model.id] = statement.seconds
        for node_id, seconds in statement.took.items():
            self._timings.setdefault(node_id, seconds)

    def lose(self, node_id: str, reason: str) -> None:
        """Note a limit whose item failed without a word, such as in a crashed worker; it is unknown."""
        if node_id not in self._checks and node_id not in self._broken:
            metric = Address.parse(node_id).metric
            self._checks[node_id] = record.Check(id=node_id, metric=metric, outcome=Outcome.UNKNOWN, reason=reason)

    @property
    def answered(self) -> int:
        """The number of items that have spoken: all limits, unknown ones too, and broken files."""
        return len(self._checks) + len(self._broken)

    def report(self, *, selected: bool, unanswered: int = 0) -> record.Report:
        """The record for all renderers, sorted by file and line, whichever order it came in.

        unanswered items have not spoken, and should have.
        """
        return record.Report(
            schema=record.Version.ONE,
            selected=selected,
            unanswered=unanswered,
            environment=environment(),
            models=tuple(sorted(self._judged_models(), key=place_in_order)),
            broken=tuple(sorted(self._broken.values(), key=lambda broken: broken.id)),
            timings=dict(sorted(self._timings.items())),
        )

    def _judged_models(self) -> Iterator[record.ModelReport]:
        """Every model with its checks, transforms and deployments, each with theirs."""
        checks: dict[str, list[record.Check]] = defaultdict(list)
        for check in sorted(self._checks.values(), key=lambda check: (check.line or 0, check.id)):
            checks[str(check.address.above)].append(check)
        deployed: dict[str, list[record.DeploymentReport]] = defaultdict(list)
        for deployment in sorted(self._deployments.values(), key=place_in_order):
            judged_there = replace(deployment, checks=tuple(checks[deployment.id]))
            deployed[str(deployment.address.above)].append(judged_there)
        transforms: dict[str, list[record.TransformReport]] = defaultdict(list)
        for transform in sorted(self._transforms.values(), key=place_in_order):
            judged = replace(
                transform,
                checks=tuple(checks[transform.id]),
                equivalence=self._equivalences.get(transform.id),
                deployments=tuple(deployed[transform.id]),
            )
            transforms[str(transform.address.above)].append(judged)
        lost = {  # nothing arrived of these models; their checks say why
            key: record.ModelReport(id=key, file=Address.parse(key).file)
            for key in checks.keys() - self._transforms.keys() - self._deployments.keys()
        }
        for model in {**lost, **self._models}.values():
            yield replace(
                model,
                checks=tuple(checks[model.id]),
                transforms=tuple(transforms[model.id]),
                deployments=tuple(deployed[model.id]),
            )


def place_in_order(subject: record.SubjectReport) -> tuple[str, int, str]:
    """The place of a subject among those of its report."""
    return (subject.file, subject.line, subject.id)
