"""The record put together: out of what was measured and judged, statement by statement.

An item says what it measured in a ``Statement``, which is text between processes and in files; an
``Assembly`` takes statements in, in any order, and gives the ``Report``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from sys import intern
from typing import Any

from msgspec import field
from msgspec.structs import replace

from pytest_modelbudget.budget.budget import Address, Limit, OpsLimit, Place, Subject, Transformation
from pytest_modelbudget.budget.changes import Redefinition
from pytest_modelbudget.budget.deployment_forms import lower_texts
from pytest_modelbudget.budget.kinds import Loosening
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.metrics.compute import OpCount, Operation
from pytest_modelbudget.metrics.growth import Blame
from pytest_modelbudget.metrics.measured_model import DeployedModel, Deployment, MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Metric
from pytest_modelbudget.registry import environment
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import EquivalenceReport
from pytest_modelbudget.reports.devices import LeftStep, arena_report, deployment_notes, filled_memories, peak_report
from pytest_modelbudget.reports.json_records import Record, as_written, from_json, json_text, like, number_json
from pytest_modelbudget.units import Number

# One measurement, model, verdict.


def metric_report(measurement: Measurement) -> record.MeasuredMetric:
    """One metric of one model."""
    exact, convention = measurement.unreduced, measurement.convention or ""
    return like(record.MeasuredMetric, measurement, exact=exact, convention=convention)


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
    declared: Mapping[str, str] | None = None,
) -> record.ModelReport:
    """One model under one set of inputs, before its checks."""
    subject = _subject(node_id, place, model, failing_at)
    profile = model.profile or ""
    return record.ModelReport(**subject, declared=declared or {}, defined_at=model.defined_at, profile=profile)


def deployment_report(
    node_id: str, part: Subject[Deployment], model: DeployedModel, failing_at: Place | None = None
) -> record.DeploymentReport:
    """One model on a device, before its checks."""
    subject, deployment = _subject(node_id, part.place, model.measured, failing_at), part.made
    return record.DeploymentReport(
        **{**subject, "notes": (*deployment_notes(model), *subject["notes"])},
        name=part.name,
        device=deployment.device.name,
        lower=lower_texts(deployment.lowering),
        left=tuple(like(LeftStep, step) for step in model.left),
        arena=arena_report(model.arena) if model.arena else None,
        memories=tuple(filled_memories(model.fitting)) if model.fitting else (),
        peak=peak_report(model.fitting) if model.fitting else None,
        profile=model.measured.profile or "",
    )


def transform_report(
    node_id: str,
    part: Subject[Transformation],
    model: MeasuredModel,
    changes: tuple[Change, ...],
    failing_at: Place | None = None,
) -> record.TransformReport:
    """One transform of a model, before its checks."""
    return record.TransformReport(
        **_subject(node_id, part.place, model, failing_at),
        name=part.name,
        transform=part.made.transform,
        changes=tuple(like(record.ChangedLayer, change) for change in changes),
    )


def check_report(node_id: str, verdict: Verdict, metrics: Mapping[str, Metric]) -> record.Check:
    """One check and what became of it; metrics say the unit of what could not be measured."""
    limit, measurement, locked = verdict.limit, verdict.measurement, verdict.baseline.locked
    known = metrics.get(limit.metric)
    check = record.Check(
        id=node_id,
        metric=limit.metric,
        actual=as_written(measurement.value) if measurement else None,
        baseline=as_written(locked.value) if locked else None,
        outcome=verdict.outcome,
        level=limit.level,
        line=limit.place.line,
        reason=verdict.reason,
        allowed=verdict.allowed,
        blame=blame_report(verdict.blame),
        frameworks=verdict.frameworks,
        unit=measurement.unit if measurement else verdict.unit or (known.unit if known else ""),
        complete=measurement.complete if measurement else None,
        scope=None if verdict.measured_on else limit.scope,
        at_least=measurement.at_least if measurement else None,
        lower_bound=verdict.marked,
        measured=verdict.measured,
        measured_on=verdict.measured_on,
        evidence=verdict.evidence,
        operators=getattr(verdict.seen, "operators", ()),
    )
    if isinstance(limit, OpsLimit):
        return replace(check, ops=like(record.AskedOps, limit))
    if not isinstance(limit, Limit):
        return check
    grown: Mapping[str, Any] = {} if limit.grow is None else {"grow": Fraction(limit.grow), "floor": limit.floor}
    least, most = _least_and_most(limit, verdict)
    amounts = {"least": least, "most": most, "limit": limit.max, "min": limit.min, **grown}
    written = {key: as_written(amount) for key, amount in amounts.items()}
    return replace(check, **written, waiver=_exemption(verdict))


def _least_and_most(limit: Limit, verdict: Verdict) -> tuple[Number | None, Number | None]:
    """What the ends of a limit are compared with, where that is not the number itself."""
    part, is_decided = verdict.measurement, verdict.outcome is not Outcome.UNKNOWN
    if part is None:
        return None, None
    has_most = (limit.max is not None or verdict.allowed is not None) and is_decided and not verdict.marked
    least = part.least if limit.min is not None and part.least < part.value else None
    return least, part.most if has_most and part.most > part.value else None


def _exemption(verdict: Verdict) -> record.Exemption | None:
    """The exception that a limit was judged with."""
    waiver = verdict.limit.waiver if isinstance(verdict.limit, Limit) else None
    if waiver is None or verdict.today is None:
        return None
    days = {"until": waiver.until.isoformat(), "today": verdict.today.isoformat()}
    return like(record.Exemption, waiver, **days, text=waiver.words, line=waiver.place.line)


def blame_report(blame: Blame) -> tuple[record.AnyGrowth, ...]:
    """The layers that a growth is due to, the largest first; what is left of it in a last entry."""
    named = tuple(like(record.Growth, difference) for difference in blame.differences)
    if not (blame.rest or blame.others):
        return named
    return (*named, record.OtherGrowth(scope=None, delta=blame.rest, count=blame.others))


# What the change since the base does.


def loosened_limit(loosening: Loosening, *, forbidden_by: str) -> record.LoosenedLimit:
    """One thing that a budget no longer asks, or asks less of; forbidden_by is where that is forbidden, or ""."""
    before, after = (
        number_json(value) if isinstance(value, (int, Fraction)) else value
        for value in (loosening.before, loosening.after)
    )
    where = _where(loosening, loosening.check or "")
    return like(record.LoosenedLimit, loosening, **where, before=before, after=after, **_ban(forbidden_by))


def redefined_model(redefinition: Redefinition, *, forbidden_by: str) -> record.RedefinedModel:
    """One thing that a model, or a transform, is now said to be."""
    return like(record.RedefinedModel, redefinition, **_where(redefinition), **_ban(forbidden_by))


def _ban(forbidden_by: str) -> dict[str, Any]:
    return {"forbidden": bool(forbidden_by), "forbidden_by": forbidden_by}


def _where(change: Loosening | Redefinition, check: str = "") -> dict[str, Any]:
    place = change.place
    return {"file": place.file, "line": place.line, "id": str(Address.parse(place.file) / change.path / check)}


# From items to the report.


class Statement(Record, frozen=True, kw_only=True):
    """The words of one item: its check, or a broken file, and the subjects that it is the first to measure.

    number is the measured one as a lock file has it, and the path of the budget that it belongs
    to; no report shows it. took has the seconds of all that was done for the first time, by id: a model, a transform,
    a comparison of outputs.
    """

    check: record.Check | None = None
    broken: record.BrokenFile | None = None
    number: Mapping[str, Any] | None = None
    model: record.ModelReport | None = None
    transform: record.TransformReport | None = None
    deployment: record.DeploymentReport | None = None
    equivalence: EquivalenceReport | None = None
    took: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The node id of its item."""
        spoken = self.check or self.broken
        return spoken.id if spoken else ""

    def __str__(self) -> str:
        return json_text(self)

    @classmethod
    def parse(cls, text: str) -> Statement:
        return from_json(cls, json.loads(text))


AnySubject = record.ModelReport | record.TransformReport | record.DeploymentReport


def session_report(**known: Any) -> record.Report:
    """The report of a session, and of this environment, in which no item has spoken."""
    return record.Report(schema=record.Version.ONE, environment=environment(), **known)


class Assembly:
    """Statements as they arrive, in any order; an item that is run again replaces its own.

    One that keeps results has all of them, from which another process makes the same report.
    """

    def __init__(self, *, keeps_results: bool = False) -> None:
        self.results: list[Statement] = []
        self._keeps_results = keeps_results
        self._subjects: dict[str, AnySubject] = {}
        self._timings: dict[str, str] = {}
        self._checks: dict[str, record.Check] = {}
        self._broken: dict[str, record.BrokenFile] = {}
        self._equivalences: dict[str, EquivalenceReport] = {}  # by transform
        self.numbers: dict[str, Mapping[str, Any]] = {}  # by check, as a lock file has them

    def add(self, statement: Statement) -> None:
        """Take in what one item said."""
        if self._keeps_results:
            self.results.append(statement)
        if statement.broken:
            self._broken[statement.broken.id] = statement.broken
        if check := statement.check:
            self._checks[check.id] = check
            if statement.equivalence:
                self._equivalences[str(check.address.above)] = statement.equivalence
            if statement.number:
                self.numbers[check.id] = statement.number
        for subject in (statement.model, statement.transform, statement.deployment):
            if subject:
                self._subjects.setdefault(subject.id, subject)
        for node_id, seconds in statement.took.items():
            self._timings.setdefault(node_id, seconds)

    def lose(self, node_id: str, reason: str) -> None:
        """Note a limit whose item failed without a word, such as in a crashed worker; it is unknown."""
        if node_id not in self._checks and node_id not in self._broken:
            metric = Address.parse(node_id).metric
            lost = record.Check(id=node_id, metric=metric, outcome=Outcome.UNKNOWN, reason=reason)
            self.add(Statement(check=lost))

    @property
    def answered(self) -> int:
        """The number of items that have spoken: all limits, unknown ones too, and broken files."""
        return len(self._checks) + len(self._broken)

    def report(self, session: record.Report) -> record.Report:
        """The record for all renderers, sorted by file and line, whichever order it came in."""
        broken = {**{file.id: file for file in session.broken}, **self._broken}
        return replace(
            session,
            models=tuple(self._judged_models()),
            broken=tuple(broken[key] for key in sorted(broken)),
            timings=dict(sorted(self._timings.items())),
        )

    def _judged_models(self) -> Iterator[record.ModelReport]:
        """Every model with its checks, transforms and deployments, each with theirs."""
        checks: dict[str, list[record.Check]] = defaultdict(list)
        for check in sorted(self._checks.values(), key=lambda check: (check.line or 0, check.id)):
            checks[str(check.address.above)].append(check)
        # Nothing arrived of some models; their checks say why.
        lost = {key: record.ModelReport(id=key, file=Address.parse(key).file) for key in checks}
        below: dict[str, list[AnySubject]] = defaultdict(list)
        models = []
        for subject in sorted({**lost, **self._subjects}.values(), key=lambda each: (each.file, each.line, each.id)):
            if isinstance(subject, record.ModelReport):
                models.append(subject)
            else:
                below[str(subject.address.above)].append(subject)

        def judged(subject: Any) -> Any:
            parts: dict[str, Any] = {"checks": tuple(checks[subject.id])}
            for key, kind in {"transforms": record.TransformReport, "deployments": record.DeploymentReport}.items():
                if hasattr(subject, key):
                    parts[key] = tuple(judged(each) for each in below[subject.id] if isinstance(each, kind))
            if isinstance(subject, record.TransformReport):
                parts["equivalence"] = self._equivalences.get(subject.id)
            return replace(subject, **parts)

        yield from map(judged, models)
