"""One model on the page: its limits, numbers, operations and transforms, as text and lengths of bars.

A limit that is over, drawn once::

    CheckRow(case=Case(...), model="resnet18", metric="params", measured="3.73 M", limit="3.51 M",
             headroom="-6.2%", fill="79.7", least="", exact="3,729,047, limit 3,510,000", ...)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pytest_modelbudget.budget.budget import Place, path_of
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.cases import NO_EVIDENCE, Case, cases_of
from pytest_modelbudget.reports.equivalence import EquivalenceReport, FirstDivergence, WorstElement
from pytest_modelbudget.reports.history import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, Drawing, drawing
from pytest_modelbudget.reports.sentences import (
    claim_lines,
    fix,
    grown_name,
    largest_shares,
    repeated,
    shapes,
    uncovered,
)
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room, several

# A limit.

ABSENT = "–"


def signed(change: Number, unit: str) -> str:
    """A change with its sign: every digit of a count, a ratio rounded."""
    amount = change if change > 0 else -change
    text = exact(amount, unit) if isinstance(amount, int) else readable(amount, unit)
    return f"+{text}" if change > 0 else f"−{text}" if change < 0 else text


@dataclass(frozen=True, slots=True)
class Contribution:
    """A layer's part of a number, or what it added to it: text for each column."""

    name: str
    value: str
    part: str = ""
    shapes: str = ""


def growth(check: record.Check) -> str:
    """Since the base: before, after and change, and how much was allowed."""
    before, after, unit = check.baseline, check.actual, check.unit
    if before is None or after is None:
        return ""
    change = after - before
    if not change:
        return f"unchanged since the base: {exact(before, unit)}"
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    most = f"; allowed {readable(check.allowed, unit)}" if isinstance(check.allowed, int) else ""
    return f"{texts[0]} → {texts[1]} since the base ({signed(change, unit)}{part}{most})"


def contributions(case: Case) -> Iterator[Contribution]:
    """The layers that a number grew by, where that is known; of a broken maximum, its largest."""
    check, most, actual = case.check, case.check.maximum, Fraction(case.check.actual or 0)
    is_ratio = case.measurement and case.measurement.exact  # which is not made of its shares
    if check.blame:
        for entry in check.blame:
            if entry.delta:
                yield Contribution(grown_name(entry), signed(entry.delta, check.unit), shapes=shapes(entry))
    elif check.outcome is Outcome.OVER and most is not None and actual > most and not (check.ops or is_ratio):
        for scope, value in largest_shares(case):
            yield Contribution(scope_text(scope), exact(value, check.unit), room(value / actual))


def evidence(case: Case) -> Iterator[str]:
    """On what a number was measured in a run, with its layers; of memories that are too small, what lives there."""
    if case.check.measured_on:
        yield from (case.check.measured_on, *case.check.evidence)
    elif case.outcome != "within" and isinstance(case.owner, record.DeploymentReport) and case.check.is_claim:
        yield from claim_lines(case)


def differences(case: Case) -> Iterator[tuple[str, str]]:
    """Where outputs that should be the same differ: the first layer, and the worst element of an output."""
    if not case.outputs_differ:
        return
    first = dict(_divergence(case.evidence.first_divergence))
    if "layer" in first:
        yield "first divergence", f"{first.pop('layer')}, {first.pop('error')}"
    yield from first.items()
    for output in case.evidence.outputs:
        if output.furthest and output.worst:
            yield "worst output", f"'{output.name}', {output.family} inputs, at {_element(output.worst)}"
    if case.evidence.decided:
        yield "decided by", case.evidence.decided


STATUSES = ("over", "unused", "unknown", "warn", "accepted", "within")  # worst first
MARK = 75  # per cent of a bar's width at which its limit stands


@dataclass(frozen=True, slots=True)
class HistoryView:
    """The line of a locked number through the commits that changed it; box is the drawing's."""

    line: Drawing
    box: str
    least: str
    most: str
    words: str


def history_view(points: Sequence[record.PastNumber], unit: str) -> HistoryView | None:
    """The line of some numbers of a unit."""
    if all(point.value is None for point in points):
        return None
    line = drawing([(point.value, point.text) for point in points])
    least, most = readable_pair(line.low, line.high, unit)
    words = f"locked numbers of {several(len(points), 'commit')}, from {least} to {most}"
    return HistoryView(line, f"0 {TOP - 6} {WIDTH - RIGHT} {HEIGHT - TOP - BOTTOM + 10}", least, most, words)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One limit. fill and least are per cent of its bar: the value, and a minimum beside a maximum.

    room orders rows by headroom, the tightest first; layers are those that it is mostly made of,
    or that made it grow where growth is known. evidence says on what a number was measured, and what it rests on;
    pairs are the same of outputs that differ. fix says what mends it, command accepts it, or repeats a claim.
    """

    case: Case
    model: str
    metric: str
    measured: str
    limit: str
    headroom: str
    exact: str
    fill: str
    least: str
    room: float
    growth: str = ""
    layers: tuple[Contribution, ...] = ()
    evidence: tuple[str, ...] = ()
    history: HistoryView | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    fix: str = ""
    command: str = ""

    @property
    def layers_are(self) -> str:
        """What its layers are to it."""
        return "What made it grow" if self.case.check.blame else "Largest parts"

    @property
    def is_told(self) -> bool:
        """Whether there is more to say of it than its figures."""
        return bool(self.status != "within" or self.growth or self.history or self.evidence)

    @property
    def status(self) -> str:
        """The outcome; a reader must look at all but "within"."""
        return self.case.outcome


def check_row(case: Case) -> CheckRow:
    """One limit of a model, or of a transform of it."""
    path = path_of(*case.address.names[len(case.model.address.names) :])
    check, left = case.check, case.check.headroom
    measured, limit = _figures(check)
    fill, least = _bar(check)
    return CheckRow(
        case=case,
        model=model_name(case.model),
        metric=path,
        measured=measured,
        limit=limit,
        headroom="?" if case.outcome == "unknown" else check.headroom_text,
        exact=_exact(check),
        fill=fill,
        least=least,
        room=float(left) if left is not None else float("inf"),
        growth=growth(check),
        layers=tuple(contributions(case)),
        evidence=tuple(evidence(case)),
        history=history_view(case.model.history.get(path, ()), check.unit),
        pairs=tuple(differences(case)),
        fix=fix(check, Place(case.file, case.line)).removesuffix(check.update),
        command=check.update or (repeated(case) if case.outputs_differ else ""),
    )


def model_name(model: record.ModelReport) -> str:
    """Its name in its file, variants below it."""
    return model.address.path or model.id


def _figures(check: record.Check) -> tuple[str, str]:
    """Measured and limit; the limit of ``ops`` in words, of two ends both, of a claim its own."""
    if check.measured is not None:
        return check.measured, ABSENT if check.allowed is None else str(check.allowed)
    unit, actual, least, most = check.unit, check.actual, check.min, check.maximum
    is_upper = check.outcome is Outcome.UNKNOWN and check.at_least is not None
    sign = "≥ " if check.is_lower_bound else "≤ " if is_upper else ""
    shown = ABSENT if actual is None else sign + readable(actual, unit)
    if check.ops:
        return shown, "; ".join(_ops_words(check.ops)) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(actual, most, unit)
        return sign + measured, bound
    ends = [f"≥ {readable(least, unit)}"] if least is not None else []
    ends += [f"≤ {readable(most, unit)}"] if most is not None else []
    return shown, ", ".join(ends) or ABSENT


def _ops_words(ops: record.AskedOps) -> Iterator[str]:
    if ops.allow is not None:
        yield f"only {', '.join(ops.allow)}"
    if ops.deny:
        yield f"no {', '.join(ops.deny)}"
    yield from (f"{name} ≤ {most:,}" for name, most in ops.max.items())


def _exact(check: record.Check) -> str:
    """Every digit of measured and limit, for the title of a figure."""
    if check.measured is not None:
        return ""
    limit = "" if check.limit is None else f", limit {exact(check.limit, check.unit)}"
    return (ABSENT if check.actual is None else exact(check.actual, check.unit)) + limit


def _bar(check: record.Check) -> tuple[str, str]:
    """Lengths in per cent: the value's, and where a minimum stands beside a maximum."""
    actual, most, least = check.actual, check.maximum, check.min
    bound = most if most is not None else Fraction(least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"


# A transform.

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

    changed are (layer, operation, what became of it or why it stayed), divergence the (output, error) pairs of the
    plot, pairs what is known of the first layer that differs.
    """

    report: record.TransformReport
    changes: tuple[Change, ...]
    changed: tuple[tuple[str, str, str], ...]
    unlisted: int
    summary: str
    columns: tuple[str, ...]
    outputs: tuple[tuple[str, ...], ...]
    pairs: tuple[tuple[str, str], ...]
    divergence: tuple[tuple[str, str], ...]


def transform_view(model: record.ModelReport, transform: record.TransformReport) -> TransformView:
    """One transform of a model."""
    equivalence = transform.equivalence or NO_EVIDENCE
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
        pairs=tuple(_divergence(equivalence.first_divergence)),
        divergence=tuple(
            (f"{output.name}, {output.family}", output.algebra) for output in outputs if output.algebra is not None
        ),
    )


def _changes(model: record.ModelReport, other: record.SubjectReport) -> Iterator[Change]:
    """Metrics that both sides have a value of."""
    for key in other.metrics:
        before, after = model.measured(key), other.measured(key)
        if before is None or after is None:
            continue
        first, second, unit = Fraction(before.value), Fraction(after.value), after.unit
        was, now = readable_pair(first, second, unit)
        change = room((second - first) / first, signed=True) if first else "new"
        yield Change(
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


def _divergence(divergence: FirstDivergence | None) -> Iterator[tuple[str, str]]:
    """The first divergence: the layer, by how much, and where most."""
    if divergence is None:
        return
    yield from (("layer", scope_text(divergence.scope)), ("error", f"{divergence.error} of its size"))
    if divergence.worst:
        yield "most at", _element(divergence.worst)
    if divergence.reservation:
        yield "but", divergence.reservation


def _element(worst: WorstElement) -> str:
    return f"{list(worst.index)}: {worst.original} → {worst.transformed}"


# A model.

DEFINITIONS = {metric.key: metric.definition for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of a model: rounded, exact, and what it is the sum of."""

    key: str
    definition: str
    rounded: str
    exact: str
    bound: str = ""  # "≥ " or "≤ " where it is one
    parts: str = ""
    error: str = ""
    growth: str = ""


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer or parameter that a number changed by since the base: text for each column."""

    metric: str
    name: str
    before: str
    after: str
    change: str
    shapes: str


def layer_changes(model: record.ModelReport) -> Iterator[LayerChange]:
    """What each number of a model grew or shrank by, layer by layer, as far as a lock file tells."""
    for check in model.checks:
        for entry in check.blame:
            ends = (None, None) if isinstance(entry, record.OtherGrowth) else (entry.before, entry.after)
            before, after = (ABSENT if end is None else exact(end, check.unit) for end in ends)
            if entry.delta:
                delta = signed(entry.delta, check.unit)
                yield LayerChange(check.metric, grown_name(entry), before, after, delta, shapes(entry))


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """A model on a device. figures are metrics that exist there alone, memories (name, used, room, what is left).

    unknown are (metrics, why they are not known there), has_array says whether there is an array to be drawn.
    """

    report: record.DeploymentReport
    lower: str
    changes: tuple[Change, ...]
    figures: tuple[Figure, ...]
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


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model. lacking are (operation, count, scope, why, the metrics that do not cover them)."""

    report: record.ModelReport
    anchor: str
    name: str
    place: str
    origin: str
    rows: tuple[CheckRow, ...]
    figures: tuple[Figure, ...]
    layers: tuple[LayerChange, ...]
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


def model_view(position: int, model: record.ModelReport) -> ModelView:
    """The view of the model at that position of the report."""
    traced = f"traced: {model.traced}" if model.traced else ""
    measured = {key: metric for key in model.metrics if (metric := model.measured(key))}
    grown = {check.metric: growth(check) for check in model.checks if check.scope is None}
    return ModelView(
        report=model,
        anchor=f"model-{position}",
        name=model_name(model),
        place=f"{model.file}:{model.line}" if model.line else model.file,
        origin=" · ".join(filter(None, (model.format, traced))),
        rows=tuple(check_row(case) for case in cases_of(model)),
        figures=tuple(
            replace(_figure(key, metric), growth=grown.get(key, "")) for key, metric in model.metrics.items()
        ),
        layers=tuple(layer_changes(model)),
        lacking=tuple(
            (op, count, scope_text(scope), why, ", ".join(keys))
            for (op, count, scope, why), keys in uncovered(measured).items()
        ),
        transforms=tuple(transform_view(model, transform) for transform in model.transforms),
        deployments=tuple(_deployment_views(model)),
    )


def _figure(key: str, metric: record.MeasuredMetric | record.FailedMetric) -> Figure:
    definition = DEFINITIONS.get(key, "")
    if isinstance(metric, record.FailedMetric):
        return Figure(key, definition, "unknown", "", error=metric.error)
    return Figure(
        key,
        definition,
        readable(metric.value, metric.unit),
        "{:,} / {:,}".format(*metric.exact) if metric.exact else exact(metric.value, metric.unit),
        bound="" if metric.complete else f"{metric.bounds} ",
        parts=", ".join(f"{name} {value:,}" for name, value in metric.parts.items()),
    )
