"""The record that every report renders: plain, JSON-able, the same wherever it was made.

Drawn once, with one model, one check and one file that could not be read::

    {"schema": "model-budget-report/1", "selected": False, "environment": {"python": "3.12.3"},
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
     "timings": {"budgets/a.yaml::net": "0.012"}}
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

from pytest_modelbudget.budget.budget import Level, Limit, OpsLimit
from pytest_modelbudget.errors import ModelBudgetError
from pytest_modelbudget.metrics.census import OpCount
from pytest_modelbudget.metrics.measurement import Measurement, Number
from pytest_modelbudget.units import decimal_text
from pytest_modelbudget.verdict import Outcome, Verdict, is_red

SCHEMA = "model-budget-report/1"
FRAMEWORKS = ("pytest-modelbudget", "torch", "torchvision", "onnx", "onnxruntime")
SHORT = 12  # significant digits up to which a ratio is written exactly

Record = dict[str, Any]
NO_TRANSFORMS: Mapping[str, list[Record]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Every number of one model, or why there is none.

    failure is set where the model could not be loaded, and all else is then empty. failures holds
    the metrics that could not be worked out, by key. scopes are the paths of all its modules.
    seconds is wall time, for eyes only.
    """

    format: str
    traced: str = ""
    notes: tuple[str, ...] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, ModelBudgetError] = field(default_factory=dict)
    census: tuple[OpCount, ...] = ()
    scopes: tuple[str, ...] = ()
    failure: ModelBudgetError | None = None
    seconds: float = 0.0


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
    record["ops"] = [
        {"kind": row.kind, "name": row.name, "count": row.count} for row in model.census
    ]
    return record


def check_record(node_id: str, verdict: Verdict) -> Record:
    """One limit and what became of it; limit is the maximum, min stands beside it if asked for."""
    limit, measurement = verdict.limit, verdict.measurement
    record: Record = {
        "id": node_id,
        "metric": limit.metric,
        "limit": _bound(limit.max) if isinstance(limit, Limit) else None,
        "actual": number_record(measurement.value) if measurement else None,
        "baseline": None,
        "outcome": verdict.outcome.value,
        "level": limit.level.value,
        "line": limit.place.line,
        "reason": verdict.reason,
    }
    if isinstance(limit, OpsLimit):
        record["ops"] = {
            "allow": None if limit.allow is None else list(limit.allow),
            "deny": list(limit.deny),
            "max": dict(limit.max),
        }
    elif limit.min is not None:
        record["min"] = _bound(limit.min)
    if measurement:
        record["unit"] = measurement.unit
    if limit.scope is not None:
        record["scope"] = limit.scope
    if verdict.marked:
        record["lower_bound"] = True
    return record


def _bound(value: Number | None) -> int | str | None:
    return None if value is None else number_record(value)


def lost_check_record(node_id: str, reason: str) -> Record:
    """A limit whose item ended before it could answer, such as in a crashed worker."""
    return {
        "id": node_id,
        "metric": node_id.rpartition("::")[2].partition("@")[0],
        "limit": None,
        "actual": None,
        "baseline": None,
        "outcome": "unknown",
        "level": "error",
        "line": None,
        "reason": reason,
    }


def fails(check: Record) -> bool:
    """Whether a check makes the gate red."""
    return is_red(Outcome(check["outcome"]), Level(check["level"]))


def checks_of(model: Record) -> list[Record]:
    """Every check of a model's record: its own, and those of its transforms."""
    below = (check for each in model["transforms"] for check in each["checks"])
    return [*model["checks"], *below]


def warns(check: Record) -> bool:
    """Whether a check is over and only said aloud."""
    return str(check["outcome"]) == "over" and not fails(check)


def environment() -> dict[str, str]:
    """Versions that the numbers may depend on, read without importing any of the packages."""
    versions = {"python": platform.python_version()}
    for package in FRAMEWORKS:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def report(
    *,
    models: Iterable[Record],
    checks: Mapping[str, Iterable[Record]],
    broken: Iterable[Record],
    timings: Mapping[str, str],
    selected: bool,
    transforms: Mapping[str, list[Record]] = NO_TRANSFORMS,
) -> Record:
    """The whole record, sorted by file and line, whichever order it came in.

    checks and transforms stand under the id of their model.
    """
    return {
        "schema": SCHEMA,
        "selected": selected,
        "environment": environment(),
        "models": [
            {
                **model,
                "checks": _sorted_checks(checks.get(model["id"], ())),
                "transforms": sorted(
                    transforms.get(model["id"], ()), key=lambda each: (each["line"], each["id"])
                ),
            }
            for model in sorted(models, key=lambda each: (each["file"], each["line"], each["id"]))
        ],
        "broken": sorted(broken, key=lambda each: str(each["id"])),
        "timings": dict(sorted(timings.items())),
    }


def _sorted_checks(checks: Iterable[Record]) -> list[Record]:
    return sorted(checks, key=lambda each: (each["line"] or 0, each["id"]))
