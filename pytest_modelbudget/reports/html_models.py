"""What the page shows of one model: its limits, numbers, operations and transforms, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_modelbudget.metrics.metric_table import METRICS
from pytest_modelbudget.reports.cases import cases_of
from pytest_modelbudget.reports.html_numbers import exact_number, number
from pytest_modelbudget.reports.html_rows import CheckRow, check_row, model_name, worst
from pytest_modelbudget.reports.html_transforms import TransformView, transform_view
from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.reports.scope_text import scope_text

DEFINITIONS = {metric.key: metric.definition for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a model: rounded, exact, and what it is the sum of."""

    key: str
    definition: str
    rounded: str
    exact: str
    is_lower_bound: bool = False
    parts: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Operations that some metrics of a model do not cover."""

    op: str
    count: int
    scope: str
    why: str
    metrics: str


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model. profile is the JSON that its plots are drawn from, "" where there is none."""

    anchor: str
    name: str
    file: str
    place: str
    origin: str
    status: str
    error: str
    notes: tuple[str, ...]
    rows: tuple[CheckRow, ...]
    figures: tuple[Figure, ...]
    lacking: tuple[Lacking, ...]
    census: tuple[Record, ...]
    transforms: tuple[TransformView, ...]
    profile: str
    memory_limit: int | None


def model_view(position: int, model: Record) -> ModelView:
    """The view of the model at that position of the report."""
    rows = tuple(check_row(case) for case in cases_of(model))
    traced = f"traced: {model['traced']}" if model.get("traced") else ""
    return ModelView(
        anchor=f"model-{position}",
        name=model_name(model),
        file=str(model["file"]),
        place=f"{model['file']}:{model['line']}" if model["line"] else str(model["file"]),
        origin=" · ".join(filter(None, (model["format"], traced))),
        status=worst([row.status for row in rows]),
        error=str(model.get("error", "")),
        notes=tuple(model.get("notes", ())),
        rows=rows,
        figures=tuple(_figure(key, metric) for key, metric in model["metrics"].items()),
        lacking=tuple(_lacking(model["metrics"])),
        census=tuple(model["ops"]),
        transforms=tuple(transform_view(model, each) for each in model["transforms"]),
        profile=model.get("profile") or "",
        memory_limit=_memory_limit(model),
    )


def _figure(key: str, metric: Record) -> Figure:
    definition = DEFINITIONS.get(key, "")
    if "error" in metric:
        return Figure(key, definition, "unknown", "", error=str(metric["error"]))
    unit = metric["unit"]
    parts = ", ".join(f"{name} {value:,}" for name, value in metric.get("parts", {}).items())
    exact = exact_number(metric["value"], unit)
    if "exact" in metric:
        exact = "{:,} / {:,}".format(*metric["exact"])
    return Figure(
        key,
        definition,
        number(metric["value"], unit),
        exact,
        is_lower_bound=not metric["complete"],
        parts=parts,
    )


def _lacking(metrics: Mapping[str, Record]) -> Iterator[Lacking]:
    """Each unmeasured operation once, with the metrics that are lower bounds for it."""
    keys: dict[tuple[str, int, str, str], list[str]] = {}
    for key, metric in metrics.items():
        for op in metric.get("unmeasured", ()):
            entry = (str(op["op"]), int(op["count"]), str(op["scope"]), str(op["why"]))
            keys.setdefault(entry, []).append(key)
    for (op, count, scope, why), lacking in keys.items():
        yield Lacking(op, count, scope_text(scope), why, ", ".join(lacking))


def _memory_limit(model: Record) -> int | None:
    """The limit that stands in the plot of memory."""
    limits = [check["limit"] for check in model["checks"] if check["metric"] == "peak_activation"
              and "scope" not in check]  # fmt: skip
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
