"""The record that every report renders: plain, JSON-able, the same wherever it was made.

Drawn once, with one model, one check and one file that could not be read::

    {"schema": "model-budget-report/1", "selected": False, "unanswered": 0,
     "environment": {"python": "3.12.3"},
     "models": [{"id": "budgets/a.yaml::net", "file": "budgets/a.yaml", "line": 3,
                 "format": "torch", "traced": "meta",
                 "metrics": {"params": {"value": 42, "unit": "param", "complete": True,
                                        "shares": [{"scope": "fc", "value": 42}]}},
                 "ops": [{"kind": "linear", "name": "aten::linear", "count": 1}],
                 "checks": [{"id": "budgets/a.yaml::net::params", "metric": "params",
                             "limit": 50, "actual": 42, "baseline": None, "outcome": "within",
                             "level": "error", "line": 6, "reason": ""}],
                 "transforms": []}],
     "broken": [{"id": "budgets/b.yaml::budget", "problems": ["budgets/b.yaml:2:1: ..."]}],
     "base": None, "lock": [], "loosened": [], "redefined": [],
     "timings": {"budgets/a.yaml::net": "0.012"}}

Of the limits that selection left, unanswered counts those that were skipped, or never came to
their turn: they fail the session.

A check that a lock file knows has a baseline: the value locked at the base, or in the working tree
(an int, or a decimal string of a ratio). With ``grow`` it also has what growth allows, which is a
maximum beside limit; and where it is above its baseline, who that is due to::

    {..., "limit": None, "actual": 3728872, "baseline": 3504872, "allowed": 3574969,
     "grow": "0.02", "floor": 0,
     "blame": [{"scope": "classifier.1", "name": "weight", "delta": 224000,
                "before": 1280000, "after": 1504000,
                "shape_before": [1000, 1280], "shape_after": [1175, 1280]},
               {"scope": None, "delta": 175, "count": 1}]}

Blame has the largest |delta| first. name is a stored tensor's, None for a layer's operations;
before (after) is None where the layer is new (gone), and a shape where nobody knows it. The last
entry, with scope None, sums up the ``count`` parts that were cut; all deltas add up to the growth.

At the top, base is the commit (all its digits) that was compared with, or None; lock says of each
lock file what became of it; loosened lists every limit that the change since base makes easier to
keep; and redefined every key of a model, or of a transform, that says something else than at base,
while limits on it stay. All are in the order of file and line; each has one line of text for
people::

    "lock": [{"file": "budgets/a.lock.json", "state": "stale", "text": "...", "fails": False}],
    "loosened": [{"file": "budgets/a.yaml", "line": 6, "id": "budgets/a.yaml::net::params",
                  "metric": "params", "what": "max raised", "before": 3500000, "after": 4000000,
                  "percent": "+14.3", "forbidden": False,
                  "text": "budget loosened +14.3 %: params 3.5 M -> 4.0 M"}],
    "redefined": [{"file": "budgets/a.yaml", "line": 5, "id": "budgets/a.yaml::net",
                   "what": "inputs", "before": "float32 2x4", "after": "float32 1x4",
                   "forbidden": False, "text": "model changed: inputs float32 2x4 -> ..."}]

A state is fresh, stale, missing or broken (unreadable), or of the base unreachable (it is not
here; file is then None). A lock file may have two entries: one for the working tree, one for the
base. percent is None where there is none; line is 1 where nothing is left of a model; metric is
None where a whole model is gone. what of redefined is the key, "source" for where a model comes
from, or "transform" for which one it is; before (after) is None where there was (is) nothing.

Where a page was asked for, each model also has a "profile": JSON text, made by ``profile()``, which
no file but the page holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from decimal import Context, Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from pytest_modelbudget.budget.budget import (
    EQUIVALENCE,
    EquivalenceCheck,
    Level,
    Limit,
    OpsLimit,
    TransformCheck,
)
from pytest_modelbudget.budget.changes import Loosening, Redefinition
from pytest_modelbudget.budget.verdict import Verdict, is_red
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
from pytest_modelbudget.units import Number, decimal_text

SCHEMA = "model-budget-report/1"
SHORT = 12  # significant digits up to which a ratio is written exactly

Record = dict[str, Any]
NO_TRANSFORMS: Mapping[str, list[Record]] = MappingProxyType({})


def number_record(value: Number) -> int | str:
    """An int as it is; a ratio as a decimal string, exact where that is short."""
    if isinstance(value, int):
        return value
    short = Context(prec=SHORT).divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(short) if Fraction(short) == value else decimal_text(value)


def measurement_record(measurement: Measurement) -> Record:
    """One metric of one model; shares in execution order."""
    record: Record = {
        "value": number_record(measurement.value),
        "unit": measurement.unit,
        "complete": measurement.complete,
    }
    if measurement.unmeasured:
        record["unmeasured"] = [
            {"op": op.op, "count": op.count, "scope": op.scope, "why": op.why}
            for op in measurement.unmeasured
        ]
    if measurement.parts:
        record["parts"] = dict(measurement.parts)
    if measurement.unreduced:
        record["exact"] = list(measurement.unreduced)
    if measurement.convention:
        record["convention"] = measurement.convention
    record["shares"] = [
        {"scope": share.scope, "value": number_record(share.value)} for share in measurement.shares
    ]
    return record


def model_record(node_id: str, file: str, line: int, model: MeasuredModel) -> Record:
    """One model under one set of inputs, before its checks; seconds stand apart, in timings."""
    record: Record = {"id": node_id, "file": file, "line": line, "format": model.format}
    record["traced"] = model.traced
    if model.notes:
        record["notes"] = list(model.notes)
    if model.failure:
        record["error"] = str(model.failure)
    metrics = {key: measurement_record(each) for key, each in model.measurements.items()}
    metrics.update({key: {"error": str(error)} for key, error in model.failures.items()})
    record["metrics"] = metrics
    record["ops"] = census_record(model.census)
    if model.profile is not None:
        record["profile"] = model.profile
    return record


def census_record(census: Iterable[OpCount]) -> list[Record]:
    """How often each operation ran, by kind and foreign name."""
    return [{"kind": row.kind, "name": row.name, "count": row.count} for row in census]


def check_record(node_id: str, verdict: Verdict) -> Record:
    """One limit and what became of it; limit is the maximum, min stands beside it if asked for."""
    limit, measurement, locked = verdict.limit, verdict.measurement, verdict.baseline.locked
    record: Record = {
        "id": node_id,
        "metric": limit.metric,
        "limit": _bound(limit.max) if isinstance(limit, Limit) else None,
        "actual": number_record(measurement.value) if measurement else None,
        "baseline": number_record(locked.value) if locked else None,
        "outcome": verdict.outcome.value,
        "level": limit.level.value,
        "line": limit.place.line,
        "reason": verdict.reason,
    }
    if verdict.allowed is not None:
        record["allowed"] = verdict.allowed
    if verdict.blame.differences or verdict.blame.rest:
        record["blame"] = blame_record(verdict.blame)
    if isinstance(limit, OpsLimit):
        record["ops"] = {
            "allow": None if limit.allow is None else list(limit.allow),
            "deny": list(limit.deny),
            "max": dict(limit.max),
        }
    else:
        record |= _further_ends(limit)
    if measurement:
        record |= {"unit": measurement.unit, "complete": measurement.complete}
    if limit.scope is not None:
        record["scope"] = limit.scope
    if verdict.marked:
        record["lower_bound"] = True
    return record


def _further_ends(limit: Limit) -> Record:
    """What a limit asks beside a maximum; grow is a share, as a decimal."""
    record: Record = {}
    if limit.min is not None:
        record["min"] = _bound(limit.min)
    if limit.grow is not None:
        record |= {"grow": number_record(limit.grow), "floor": limit.floor}
    return record


def blame_record(blame: Blame) -> list[Record]:
    """Who a growth is due to, the largest first; what is left of it in a last entry."""
    record: list[Record] = [
        {
            "scope": each.scope,
            "name": each.name,
            "delta": each.delta,
            "before": each.before,
            "after": each.after,
            "shape_before": None if each.shape_before is None else list(each.shape_before),
            "shape_after": None if each.shape_after is None else list(each.shape_after),
        }
        for each in blame.differences
    ]
    if blame.rest or blame.others:
        record.append({"scope": None, "delta": blame.rest, "count": blame.others})
    return record


def loosening_record(loosening: Loosening, *, forbidden: bool) -> Record:
    """One thing that a budget no longer asks, or asks less of."""
    place = loosening.place
    path = "::".join(filter(None, (place.file, loosening.path, loosening.check)))
    return {
        "file": place.file,
        "line": place.line,
        "id": path,
        "metric": loosening.metric,
        "what": loosening.what,
        "before": _setting(loosening.before),
        "after": _setting(loosening.after),
        "percent": loosening.percent,
        "forbidden": forbidden,
        "text": loosening.text,
    }


def redefinition_record(redefinition: Redefinition, *, forbidden: bool) -> Record:
    """One thing that a model, or a transform, is now said to be."""
    place = redefinition.place
    return {
        "file": place.file,
        "line": place.line,
        "id": f"{place.file}::{redefinition.path}",
        "what": redefinition.what,
        "before": redefinition.before,
        "after": redefinition.after,
        "forbidden": forbidden,
        "text": redefinition.text,
    }


def _setting(value: Number | str | None) -> int | str | None:
    return value if value is None or isinstance(value, str) else number_record(value)


def _bound(value: Number | None) -> int | str | None:
    return None if value is None else number_record(value)


def lost_check_record(node_id: str, reason: str) -> Record:
    """A limit whose item ended before it could answer, such as in a crashed worker."""
    metric = node_id.rpartition("::")[2].partition("@")[0]
    return numberless_check(node_id, metric, "unknown", reason, line=None)


def numberless_check(
    node_id: str, metric: str, outcome: str, reason: str, *, line: int | None, level: str = "error"
) -> Record:
    """A check that no one number answers, before what else its kind has to say."""
    return {
        "id": node_id,
        "metric": metric,
        "limit": None,
        "actual": None,
        "baseline": None,
        "outcome": outcome,
        "level": level,
        "line": line,
        "reason": reason,
    }


def fails(check: Record) -> bool:
    """Whether a check makes the gate red."""
    return is_red(Outcome(check["outcome"]), Level(check["level"]))


def warns(check: Record) -> bool:
    """Whether a check is over and only said aloud."""
    return str(check["outcome"]) == "over" and not fails(check)


def report(
    *,
    models: Iterable[Record],
    checks: Mapping[str, Iterable[Record]],
    broken: Iterable[Record],
    timings: Mapping[str, str],
    selected: bool,
    transforms: Mapping[str, list[Record]] = NO_TRANSFORMS,
    unanswered: int = 0,
) -> Record:
    """The whole record, sorted by file and line, whichever order it came in.

    checks and transforms stand under the id of their model.
    """
    return {
        "schema": SCHEMA,
        "selected": selected,
        "unanswered": unanswered,
        "environment": environment(),
        "models": [
            {
                **model,
                "checks": sorted_checks(checks.get(model["id"], ())),
                "transforms": sorted(
                    transforms.get(model["id"], ()), key=lambda each: (each["line"], each["id"])
                ),
            }
            for model in sorted(models, key=lambda each: (each["file"], each["line"], each["id"]))
        ],
        "broken": sorted(broken, key=lambda each: str(each["id"])),
        "base": None,
        "lock": [],
        "loosened": [],
        "redefined": [],
        "timings": dict(sorted(timings.items())),
    }


def sorted_checks(checks: Iterable[Record]) -> list[Record]:
    """Checks in the order of their lines."""
    return sorted(checks, key=lambda each: (each["line"] or 0, each["id"]))


def check_statement(
    check: Record,
    model: Record | None,
    seconds: float,
    number: Record | None = None,
    *,
    transform: Record | None = None,
    equivalence: Record | None = None,
) -> str:
    """What an item says about its check, and about what it is the first to know.

    number is the measured one as a lock file has it, and the path of the budget that it belongs
    to; no report shows it. model took so many seconds to measure.
    """
    told: Record = {"number": number, "transform": transform, "equivalence": equivalence}
    if model is not None:
        told |= {"model": model, "seconds": f"{seconds:.3f}"}
    known = {key: each for key, each in told.items() if each is not None}
    return json.dumps({"check": check, **known})


def broken_statement(node_id: str, problems: tuple[str, ...]) -> str:
    """What the item of an unreadable file says."""
    return json.dumps({"broken": {"id": node_id, "problems": list(problems)}})


class Assembly:
    """Statements as they arrive, in any order; an item that is run again replaces its own."""

    def __init__(self) -> None:
        self._models: dict[str, Record] = {}
        self._timings: dict[str, str] = {}
        self._checks: dict[str, Record] = {}
        self._broken: dict[str, Record] = {}
        self._transforms: dict[str, Record] = {}
        self._equivalences: dict[str, Record] = {}
        self.numbers: dict[str, Record] = {}  # by id of the check, as a lock file has them

    def add(self, statement: str) -> None:
        """Take in what one item said."""
        said: Record = json.loads(statement)
        if "broken" in said:
            self._broken[said["broken"]["id"]] = said["broken"]
            return
        self._checks[said["check"]["id"]] = said["check"]
        if "transform" in said:
            self._transforms.setdefault(said["transform"]["id"], said["transform"])
        if "equivalence" in said:
            self._equivalences[said["check"]["id"].rpartition("::")[0]] = said["equivalence"]
        if "number" in said:
            self.numbers[said["check"]["id"]] = said["number"]
        if "model" in said and said["model"]["id"] not in self._models:
            self._models[said["model"]["id"]] = said["model"]
            self._timings[said["model"]["id"]] = said["seconds"]

    def lose(self, node_id: str, reason: str) -> None:
        """Note a limit whose item failed without a word; it is unknown."""
        if node_id not in self._checks and node_id not in self._broken:
            self._checks[node_id] = lost_check_record(node_id, reason)

    @property
    def answered(self) -> int:
        """How many items have spoken: limits, unknown ones included, and unreadable files."""
        return len(self._checks) + len(self._broken)

    def report(self, *, selected: bool, unanswered: int = 0) -> Record:
        """The record for all renderers; unanswered items have not spoken, and should have."""
        by_model: dict[str, list[Record]] = {}
        for check in self._checks.values():
            by_model.setdefault(check["id"].rpartition("::")[0], []).append(check)
        models = dict(self._models)
        for model_id in by_model.keys() - self._transforms.keys():
            models.setdefault(model_id, _lost_model(model_id))
        return report(
            models=models.values(),
            checks=by_model,
            transforms=self._nested(by_model),
            broken=self._broken.values(),
            timings=self._timings,
            selected=selected,
            unanswered=unanswered,
        )

    def _nested(self, checks: dict[str, list[Record]]) -> dict[str, list[Record]]:
        """Transforms with their checks, under the id of their model."""
        nested: dict[str, list[Record]] = {}
        for key, transform in self._transforms.items():
            found = sorted_checks(checks.get(key, ()))
            record = {**transform, "checks": found}
            if key in self._equivalences:
                record["equivalence"] = self._equivalences[key]
            nested.setdefault(key.rpartition("::")[0], []).append(record)
        return nested


def _lost_model(model_id: str) -> Record:
    """A model of which nothing arrived; its checks say why."""
    return model_record(model_id, model_id.partition("::")[0], 0, MeasuredModel(format=""))


def transform_record(
    node_id: str, check: TransformCheck, model: MeasuredModel, changes: tuple[Change, ...]
) -> Record:
    """One transform before its checks; its metrics stand here as in a model's record."""
    record = model_record(node_id, check.place.file, check.place.line, model)
    record["name"] = check.name
    record["transform"] = check.transform
    record["changes"] = [_change(each) for each in changes]
    return record


def _change(change: Change) -> Record:
    record = {"scope": change.scope, "operation": change.operation, "became": change.became}
    return {**record, "why": change.why} if change.why else record


def equivalence_check_record(
    node_id: str, check: EquivalenceCheck, equivalence: Equivalence
) -> Record:
    """The claim as one check among others; measured and allowed are for eyes.

    exact_algebra shows how far float64 outputs differ, other claims the least SQNR.
    """
    algebra = [record.algebra for record in equivalence.outputs if record.algebra is not None]
    noise = [record.figures.sqnr for record in equivalence.outputs]
    measured = f"{min(noise):.1f} dB" if noise else "-"
    outcome, reason = equivalence.outcome.value, equivalence.reason
    return {
        **numberless_check(node_id, EQUIVALENCE, outcome, reason, line=check.place.line),
        "measured": decimal(max(algebra)) if algebra else measured,
        "allowed": decimal(ALGEBRA) if algebra else "-",
    }


def equivalence_record(equivalence: Equivalence) -> Record:
    """The evidence: every output under every family, floats as decimal strings."""
    record: Record = {
        "outcome": equivalence.outcome.value,
        "kind": equivalence.kind.value,
        "reason": equivalence.reason,
        "weights": equivalence.weights,
        "basis": equivalence.basis.value,
        "seeds": list(equivalence.seeds),
        "outputs": [_output(each) for each in equivalence.outputs],
    }
    if equivalence.notes:
        record["notes"] = list(equivalence.notes)
    if equivalence.first_divergence is not None:
        record["first_divergence"] = _divergence(equivalence.first_divergence)
    return record


def _output(output: OutputRecord) -> Record:
    record: Record = {
        "name": output.name,
        "family": output.family,
        "dtype": output.dtype,
        "outcome": output.outcome.value,
    }
    if output.reason:
        record["reason"] = output.reason
    record.update(_figures(output))
    if output.worst is not None:
        record["worst"] = _worst(output.worst)
    return record


def _figures(output: OutputRecord) -> Iterator[tuple[str, str]]:
    """Every figure that is known, as a decimal string."""
    for name, value in (("algebra", output.algebra), ("precision", output.precision)):
        if value is not None:
            yield name, decimal(value)
    for each in fields(Figures):
        found: float | None = getattr(output.figures, each.name)
        if found is not None:
            yield each.name, decimal(found)


def _divergence(divergence: Divergence) -> Record:
    record: Record = {"scope": divergence.scope, "error": decimal(divergence.error)}
    if divergence.worst is not None:
        record["worst"] = _worst(divergence.worst)
    if divergence.repeat:
        record["repeat"] = divergence.repeat
    return record


def _worst(worst: Worst) -> Record:
    return {
        "index": list(worst.index),
        "original": decimal(worst.original),
        "transformed": decimal(worst.transformed),
    }


def decimal(value: float) -> str:
    """A float as a short decimal string: rounding differs from machine to machine behind it."""
    return f"{value:.4g}"
