"""One model on the page: its limits, numbers and layers, its transforms, and what it is on devices."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from msgspec.structs import replace

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import EquivalenceReport
from pytest_modelbudget.reports.html.limit_view import (
    ABSENT,
    MARK,
    STATUSES,
    CheckRow,
    check_row,
    divergence_words,
    growth,
    model_name,
    signed,
)
from pytest_modelbudget.reports.messages import grown_name, shapes, uncovered
from pytest_modelbudget.units import exact, readable, readable_pair, room, several

ERRORS = ("algebra", "precision", "max_abs", "p99_abs", "mse", "sqnr", "cosine", "top1")
MOST_CHANGED = 30  # layers told one by one; the rest is counted


@dataclasses.dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric before and after; fill is the length of after where before fills MARK per cent."""

    metric: str
    before: str
    after: str
    exact: str
    change: str
    fill: str


@dataclasses.dataclass(frozen=True, slots=True)
class TransformView:
    """One transform of a model. columns and outputs are the table of its equivalence check.

    changed are (layer, operation, what became of it or why it stayed), divergence the (output, error) pairs of the
    plot, pairs what is known of the first layer that differs.
    """

    report: record.TransformReport
    changes: tuple[MetricChange, ...]
    changed: tuple[tuple[str, str, str], ...]
    unlisted: int
    summary: str
    columns: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]
    pairs: tuple[tuple[str, str], ...]
    divergence: tuple[tuple[str, str], ...]


def transform_view(model: record.ModelReport, transform: record.TransformReport) -> TransformView:
    """One transform of a model."""
    equivalence = transform.equivalence or record.NO_EVIDENCE
    outputs, layers = equivalence.outputs, transform.changes
    columns = tuple(key for key in ERRORS if any(getattr(output, key) for output in outputs))
    return TransformView(
        report=transform,
        changes=tuple(_changes(model, transform)),
        changed=tuple(
            (scope_text(layer.scope), layer.operation, layer.became or f"unchanged: {layer.why}".removesuffix(": "))
            for layer in layers[:MOST_CHANGED]
        ),
        unlisted=max(0, len(layers) - MOST_CHANGED),
        summary=", ".join(_basis(equivalence)),
        columns=("outcome", *columns) if outputs else columns,
        outputs=tuple(
            (output.name, output.family, output.outcome.value, *(getattr(output, key) or ABSENT for key in columns))
            for output in outputs
        ),
        pairs=tuple(divergence_words(equivalence.first_divergence)),
        divergence=tuple(
            (f"{output.name}, {output.family}", output.algebra) for output in outputs if output.algebra is not None
        ),
    )


def _changes(model: record.ModelReport, other: record.SubjectReport) -> Iterator[MetricChange]:
    """Metrics that both sides have a value of."""
    for key in other.metrics:
        before, after = model.measured(key), other.measured(key)
        if before is None or after is None:
            continue
        first, second, unit = Fraction(before.value), Fraction(after.value), after.unit
        was, now = readable_pair(first, second, unit)
        change = room((second - first) / first, signed=True) if first else "new"
        yield MetricChange(
            metric=key,
            before=was,
            after=now,
            exact=f"{exact(before.value, unit)} → {exact(after.value, unit)}",
            change="same" if first == second else change,
            fill=f"{float(min(second / first * MARK, Fraction(100))):.1f}" if first else "",
        )


def _basis(equivalence: EquivalenceReport) -> Iterator[str]:
    """The things that a claim rests on: its kind, the weights, how it was tested, the seeds."""
    weights = f"weights {equivalence.weights}" if equivalence.weights else ""
    yield from filter(None, (equivalence.kind, equivalence.decided, weights, equivalence.basis))
    if equivalence.seeds:
        yield f"input seeds {', '.join(map(str, equivalence.seeds))}"


# A model.

DEFINITIONS = {metric.key: metric.definition for metric in METRICS}


@dataclasses.dataclass(frozen=True, slots=True)
class MetricFigure:
    """One metric of a model: rounded, exact, and what it is the sum of."""

    key: str
    definition: str
    rounded: str
    exact: str
    bound: str = ""  # "≥ " or "≤ " where it is one
    parts: str = ""
    error: str = ""
    growth: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class GrownLayer:
    """A layer or parameter that a number changed by since the base: text for each column."""

    metric: str
    name: str
    before: str
    after: str
    change: str
    shapes: str


def grown_layers(model: record.ModelReport) -> Iterator[GrownLayer]:
    """What each number of a model grew or shrank by, layer by layer, as far as a lock file tells."""
    for check in model.checks:
        for entry in check.blame:
            ends = (None, None) if isinstance(entry, record.OtherGrowth) else (entry.before, entry.after)
            before, after = (ABSENT if end is None else exact(end, check.unit) for end in ends)
            if entry.delta:
                delta = signed(entry.delta, check.unit)
                yield GrownLayer(check.metric, grown_name(entry), before, after, delta, shapes(entry))


@dataclasses.dataclass(frozen=True, slots=True)
class DeploymentView:
    """A model on a device. figures are metrics that exist there alone, memories (name, used, room, what is left).

    unknown are (metrics, why they are not known there), has_array says whether there is an array to be drawn.
    """

    report: record.DeploymentReport
    lower: str
    changes: tuple[MetricChange, ...]
    figures: tuple[MetricFigure, ...]
    unknown: tuple[tuple[str, str], ...]
    memories: tuple[tuple[str, str, str, str], ...]
    has_array: bool


def deployment_view(model: record.ModelReport, deployment: record.DeploymentReport) -> DeploymentView:
    """One deployment of a model."""
    unknown: dict[str, list[str]] = {}
    for key, metric in deployment.metrics.items():
        if isinstance(metric, record.FailedMetric):
            unknown.setdefault(metric.error, []).append(key)
    alone = (key for key in deployment.metrics if deployment.measured(key) and not model.measured(key))
    return DeploymentView(
        report=deployment,
        lower=", ".join(f"{key} {text}" for key, text in deployment.lower.items()),
        changes=tuple(_changes(model, deployment)),
        figures=tuple(_figure(key, deployment.metrics[key]) for key in alone),
        unknown=tuple((", ".join(keys), why) for why, keys in unknown.items()),
        memories=tuple(
            (each.name, exact(each.used, "B"), exact(each.room, "B"), exact(each.room - each.used, "B"))
            for each in deployment.memories
        ),
        has_array=deployment.measured("array_cycles") is not None,
    )


def _deployment_views(model: record.ModelReport) -> Iterator[DeploymentView]:
    """The model on each device, and what its transforms made of it on theirs: "tiled / array"."""
    for each in model.subjects():
        if isinstance(each, record.DeploymentReport):
            below = each.address.names[len(model.address.names) :]
            yield deployment_view(model, replace(each, name=" / ".join(below)))


@dataclasses.dataclass(frozen=True, slots=True)
class ModelView:
    """One model. lacking are (operation, count, scope, why, the metrics that do not cover them)."""

    report: record.ModelReport
    anchor: str
    name: str
    place: str
    origin: str
    rows: tuple[CheckRow, ...]
    figures: tuple[MetricFigure, ...]
    layers: tuple[GrownLayer, ...]
    lacking: tuple[tuple[str, int, str, str, str], ...]
    transforms: tuple[TransformView, ...]
    deployments: tuple[DeploymentView, ...]

    @property
    def noticed(self) -> tuple[CheckRow, ...]:
        """The limits that a reader must look at, the worst first."""
        some = (row for row in self.rows if row.status != "within")
        return tuple(sorted(some, key=lambda row: STATUSES.index(row.status)))

    @property
    def tightest(self) -> CheckRow | None:
        """The limit with the least headroom."""
        return min(self.rows, key=lambda row: row.room, default=None)

    @property
    def counted(self) -> str:
        """The number of its limits: "3 limits: 1 over, 2 within"."""
        numbers = Counter(row.status for row in self.rows)
        told = ", ".join(f"{numbers[status]} {status}" for status in STATUSES if numbers[status])
        return f"{several(len(self.rows), 'limit')}: {told}" if told else "no limits"

    @property
    def status(self) -> str:
        """The status of the worst limit; nothing judged is nothing known."""
        return min((row.status for row in self.rows), key=STATUSES.index, default="unknown")

    @property
    def memory_limit(self) -> int | None:
        """The limit that stands in the plot of memory."""
        checks = (check for check in self.report.checks if check.metric == "peak_activation")
        limits = [check.limit for check in checks if check.scope is None]
        return min((limit for limit in limits if isinstance(limit, int)), default=None)


def model_view(
    position: int, model: record.ModelReport, history: Mapping[str, Sequence[record.PastNumber]]
) -> ModelView:
    """The view of the model at that position of the report; history is by check."""
    traced = f"traced: {model.traced}" if model.traced else ""
    measured = {key: metric for key in model.metrics if (metric := model.measured(key))}
    grown = {check.metric: growth(check) for check in model.checks if check.scope is None}
    return ModelView(
        report=model,
        anchor=f"model-{position}",
        name=model_name(model),
        place=f"{model.file}:{model.line}" if model.line else model.file,
        origin=" · ".join(filter(None, (model.format, traced, model.defined_at))),
        rows=tuple(check_row(case, history.get(case.id, ())) for case in model.cases()),
        figures=tuple(
            dataclasses.replace(_figure(key, metric), growth=grown.get(key, ""))
            for key, metric in model.metrics.items()
        ),
        layers=tuple(grown_layers(model)),
        lacking=tuple(
            (op, count, scope_text(scope), why, ", ".join(keys))
            for (op, count, scope, why), keys in uncovered(measured).items()
        ),
        transforms=tuple(transform_view(model, transform) for transform in model.transforms),
        deployments=tuple(_deployment_views(model)),
    )


def _figure(key: str, metric: record.MeasuredMetric | record.FailedMetric) -> MetricFigure:
    definition = DEFINITIONS.get(key, "")
    if isinstance(metric, record.FailedMetric):
        return MetricFigure(key, definition, "unknown", "", error=metric.error)
    return MetricFigure(
        key,
        definition,
        readable(metric.value, metric.unit),
        "{:,} / {:,}".format(*metric.exact) if metric.exact else exact(metric.value, metric.unit),
        bound="" if metric.complete else f"{metric.bounds} ",
        parts=", ".join(f"{name} {value:,}" for name, value in metric.parts.items()),
    )
