"""One model on the page: its limits, numbers, operations and transforms, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports.cases import NO_EVIDENCE, cases_of
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
from pytest_modelbudget.reports.record import (
    ChangedLayer,
    CountedOps,
    EquivalenceReport,
    FailedMetric,
    FirstDivergence,
    MeasuredMetric,
    ModelReport,
    OutputReport,
    TransformReport,
)
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


def transform_view(model: ModelReport, transform: TransformReport) -> TransformView:
    """One transform of a model."""
    equivalence = transform.equivalence or NO_EVIDENCE
    outputs, layers = equivalence.outputs, transform.changes
    columns = tuple(key for key in ERRORS if any(getattr(output, key) for output in outputs))
    return TransformView(
        name=transform.name,
        error=transform.error,
        changes=tuple(_changes(model, transform)),
        changed=tuple(_changed(layer) for layer in layers[:MOST_CHANGED]),
        unlisted=max(0, len(layers) - MOST_CHANGED),
        outcome=equivalence.outcome.value if transform.equivalence else "",
        summary=", ".join(_basis(equivalence)),
        reason=equivalence.reason,
        notes=equivalence.notes,
        columns=("outcome", *columns) if outputs else columns,
        outputs=tuple(_output(output, columns) for output in outputs),
        first_divergence=tuple(_divergence(equivalence.first_divergence)),
        divergence=tuple(
            (f"{output.name}, {output.family}", output.algebra) for output in outputs if output.algebra is not None
        ),
    )


def _changes(model: ModelReport, transform: TransformReport) -> Iterator[Change]:
    """Metrics that both sides have a value of."""
    for key in transform.metrics:
        before, after = model.measured(key), transform.measured(key)
        if before is None or after is None:
            continue
        first, second, unit = Fraction(before.value), Fraction(after.value), after.unit
        was, now = readable_pair(first, second, unit)
        yield Change(
            metric=key,
            before=was,
            after=now,
            exact=f"{exact_number(before.value, unit)} → {exact_number(after.value, unit)}",
            change=_change(first, second),
            fill=f"{float(min(second / first * MARK, Fraction(100))):.1f}" if first else "",
        )


def _change(before: Fraction, after: Fraction) -> str:
    if before == after:
        return "same"
    return room((after - before) / before, signed=True) if before else "new"


def _changed(layer: ChangedLayer) -> tuple[str, str, str]:
    """A layer that the transform met, and what became of it or why it stayed."""
    stayed = f"unchanged: {layer.why}".removesuffix(": ")
    return scope_text(layer.scope), layer.operation, layer.became or stayed


def _basis(equivalence: EquivalenceReport) -> Iterator[str]:
    """The things that a claim rests on: its kind, the weights, how it was tested, the seeds."""
    weights = f"weights {equivalence.weights}" if equivalence.weights else ""
    yield from filter(None, (equivalence.kind, weights, equivalence.basis))
    if equivalence.seeds:
        yield f"input seeds {', '.join(map(str, equivalence.seeds))}"


def _output(output: OutputReport, columns: tuple[str, ...]) -> tuple[str, ...]:
    cells = (getattr(output, column) or ABSENT for column in columns)
    return (output.name, output.family, output.outcome.value, *cells)


def _divergence(divergence: FirstDivergence | None) -> Iterator[tuple[str, str]]:
    """The first divergence: the layer, by how much, where most, and how to see it again."""
    if divergence is None:
        return
    yield "layer", scope_text(divergence.scope)
    yield "error", f"{divergence.error} of its size"
    if worst := divergence.worst:
        yield "most at", f"{list(worst.index)}: {worst.original} → {worst.transformed}"
    if divergence.repeat:
        yield "repeat", divergence.repeat


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
    census: tuple[CountedOps, ...]
    transforms: tuple[TransformView, ...]
    profile: str
    memory_limit: int | None


def model_view(position: int, model: ModelReport) -> ModelView:
    """The view of the model at that position of the report."""
    rows = tuple(check_row(case) for case in cases_of(model))
    traced = f"traced: {model.traced}" if model.traced else ""
    return ModelView(
        anchor=f"model-{position}",
        name=model_name(model),
        file=model.file,
        place=f"{model.file}:{model.line}" if model.line else model.file,
        origin=" · ".join(filter(None, (model.format, traced))),
        status=worst([row.status for row in rows]),
        error=model.error,
        notes=model.notes,
        rows=rows,
        figures=tuple(_figure(key, metric) for key, metric in model.metrics.items()),
        lacking=tuple(_lacking(model)),
        census=model.ops,
        transforms=tuple(transform_view(model, transform) for transform in model.transforms),
        profile=model.profile,
        memory_limit=_memory_limit(model),
    )


def _figure(key: str, metric: MeasuredMetric | FailedMetric) -> Figure:
    definition = DEFINITIONS.get(key, "")
    if isinstance(metric, FailedMetric):
        return Figure(key, definition, "unknown", "", error=metric.error)
    exact = exact_number(metric.value, metric.unit)
    return Figure(
        key,
        definition,
        number(metric.value, metric.unit),
        "{:,} / {:,}".format(*metric.exact) if metric.exact else exact,
        is_lower_bound=not metric.complete,
        parts=", ".join(f"{name} {value:,}" for name, value in metric.parts.items()),
    )


def _lacking(model: ModelReport) -> Iterator[Lacking]:
    """Each unmeasured operation once, with the metrics that are lower bounds for it."""
    keys: dict[tuple[str, int, str, str], list[str]] = {}
    for key in model.metrics:
        metric = model.measured(key)
        for ops in metric.unmeasured if metric else ():
            keys.setdefault((ops.op, ops.count, ops.scope, ops.why), []).append(key)
    for (op, count, scope, why), lacking in keys.items():
        yield Lacking(op, count, scope_text(scope), why, ", ".join(lacking))


def _memory_limit(model: ModelReport) -> int | None:
    """The limit that stands in the plot of memory."""
    checks = (check for check in model.checks if check.metric == "peak_activation")
    limits = [check.limit for check in checks if check.scope is None]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
