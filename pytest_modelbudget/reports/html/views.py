"""What the page shows of one model: its limits, numbers, operations and transforms, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports.cases import cases_of
from pytest_modelbudget.reports.html.rows import (
    ABSENT,
    MARK,
    CheckRow,
    check_row,
    exact_number,
    model_name,
    number,
    worst,
)
from pytest_modelbudget.reports.record import Record
from pytest_modelbudget.units import readable_pair, room

ERRORS = ("algebra", "precision", "max_abs", "p99_abs", "mse", "sqnr", "cosine", "top1")
MOST_CHANGED = 30  # layers told one by one; the rest is counted


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before and after; fill is the length of after where before fills MARK per cent."""

    metric: str
    before: str
    after: str
    exact: str
    change: str
    fill: str


@dataclass(frozen=True, slots=True)
class TransformView:
    """One transform of a model. columns and outputs are the table of its equivalence check.

    changed are (layer, operation, what became of it), divergence the (output, error) pairs of the
    plot, pairs what is known of the first layer that differs.
    """

    name: str
    error: str
    changes: tuple[Change, ...]
    changed: tuple[tuple[str, str, str], ...]
    unlisted: int
    outcome: str
    summary: str
    reason: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]
    first_divergence: tuple[tuple[str, str], ...]
    divergence: tuple[tuple[str, str], ...]


def transform_view(model: Record, transform: Record) -> TransformView:
    """One transform of a model's record."""
    equivalence = transform.get("equivalence") or {}
    outputs = equivalence.get("outputs", ())
    columns = tuple(key for key in ERRORS if any(key in output for output in outputs))
    met = transform.get("changes", ())
    return TransformView(
        name=str(transform["name"]),
        error=str(transform.get("error", "")),
        changes=tuple(_changes(model["metrics"], transform.get("metrics", {}))),
        changed=tuple(_changed(each) for each in met[:MOST_CHANGED]),
        unlisted=max(0, len(met) - MOST_CHANGED),
        outcome=str(equivalence.get("outcome", "")),
        summary=", ".join(_basis(equivalence)),
        reason=str(equivalence.get("reason", "")),
        notes=tuple(map(str, equivalence.get("notes", ()))),
        columns=("outcome", *columns) if any("outcome" in each for each in outputs) else columns,
        outputs=tuple(_output(output, columns) for output in outputs),
        first_divergence=tuple(_divergence(equivalence.get("first_divergence") or {})),
        divergence=tuple(
            (f"{output.get('name', '')}, {output.get('family', '')}", str(output["algebra"]))
            for output in outputs
            if output.get("algebra") is not None
        ),
    )


def _changes(before: Record, after: Record) -> Iterator[Change]:
    """Metrics that both sides have a value of."""
    for key, new in after.items():
        old = before.get(key, {})
        if old.get("value") is None or new.get("value") is None:
            continue
        first, second, unit = Fraction(old["value"]), Fraction(new["value"]), new["unit"]
        was, now = readable_pair(first, second, unit)
        yield Change(
            metric=key,
            before=was,
            after=now,
            exact=f"{exact_number(old['value'], unit)} → {exact_number(new['value'], unit)}",
            change=_change(first, second),
            fill=f"{float(min(second / first * MARK, Fraction(100))):.1f}" if first else "",
        )


def _change(before: Fraction, after: Fraction) -> str:
    if before == after:
        return "same"
    return room((after - before) / before, signed=True) if before else "new"


def _changed(met: Record) -> tuple[str, str, str]:
    """A layer that the transform met, and what became of it or why it stayed."""
    stayed = f"unchanged: {met.get('why', '')}".removesuffix(": ")
    return scope_text(met.get("scope")), str(met.get("operation", "")), met.get("became") or stayed


def _basis(equivalence: Record) -> Iterator[str]:
    """What a claim rests on: its kind, the weights, how it was tested, the seeds."""
    for key in ("kind", "weights", "basis"):
        if equivalence.get(key):
            yield f"weights {equivalence[key]}" if key == "weights" else str(equivalence[key])
    seeds = equivalence.get("seeds")
    if seeds:
        yield f"input seeds {', '.join(map(str, seeds))}"


def _output(output: Record, columns: tuple[str, ...]) -> tuple[str, ...]:
    told = [str(output["outcome"])] if "outcome" in output else []
    figures = (output.get(column) for column in columns)
    cells = (ABSENT if figure is None else str(figure) for figure in figures)
    return (str(output.get("name", "")), str(output.get("family", "")), *told, *cells)


def _divergence(found: Record) -> Iterator[tuple[str, str]]:
    """Where outputs first differ: the layer, by how much, where most, and how to see it again."""
    if not found:
        return
    yield "layer", scope_text(found.get("scope"))
    if "error" in found:
        yield "error", f"{found['error']} of its size"
    most = found.get("worst")
    if most:
        yield "most at", f"{most['index']}: {most['original']} → {most['transformed']}"
    if found.get("repeat"):
        yield "repeat", str(found["repeat"])


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
