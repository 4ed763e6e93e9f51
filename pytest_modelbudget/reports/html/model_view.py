"""One model on the page: its limits, numbers and layers, its transforms, and what it is on devices."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.metrics.table import METRICS
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import EquivalenceReport
from pytest_modelbudget.reports.findings import Cause
from pytest_modelbudget.reports.html import limit_view
from pytest_modelbudget.reports.html.limit_view import ABSENT, MARK, STATUSES, signed
from pytest_modelbudget.reports.messages import grown_name, shapes, uncovered
from pytest_modelbudget.reports.record import Case
from pytest_modelbudget.units import exact, readable, readable_pair, room, several

ERRORS = ("algebra", "precision", "max_abs", "p99_abs", "mse", "sqnr", "cosine", "top1")
DEFINITIONS = {metric.key: metric.definition for metric in METRICS}


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model; anchor is its address on the page, history how its locked numbers went, by check."""

    report: record.ModelReport
    anchor: str
    history: Mapping[str, Sequence[record.PastNumber]]
    cases: tuple[Case, ...]
    causes: tuple[Cause, ...]

    @property
    def name(self) -> str:
        return self.report.address.path or self.report.id

    @property
    def origin(self) -> str:
        return " · ".join(filter(None, (self.report.format, self.report.defined_at)))

    @property
    def noticed(self) -> list[Case]:
        """The limits that a reader must look at, the worst first."""
        some = (case for case in self.cases if case.outcome != "within")
        return sorted(some, key=lambda case: STATUSES.index(case.outcome))

    @property
    def tightest(self) -> Case | None:
        return min(self.cases, key=limit_view.headroom, default=None)

    @property
    def counted(self) -> str:
        """The number of its limits: "3 limits: 1 over, 2 within"."""
        numbers = Counter(case.outcome for case in self.cases)
        told = ", ".join(f"{numbers[status]} {status}" for status in STATUSES if numbers[status])
        return f"{several(len(self.cases), 'limit')}: {told}" if told else "no limits"

    @property
    def status(self) -> str:
        """The status of the worst limit; nothing judged is nothing known."""
        return min((case.outcome for case in self.cases), key=STATUSES.index, default="unknown")

    @property
    def memory_limit(self) -> int | None:
        """The limit in the plot of memory."""
        checks = (check for check in self.report.checks if check.metric == "peak_activation")
        limits = [check.limit for check in checks if check.scope is None]
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    def line(self, case: Case) -> limit_view.HistoryView | None:
        return limit_view.history_view(self.history.get(case.id, ()), case.check.unit)

    def growth(self, metric: str) -> str:
        """By how much a number of the whole model grew since the base."""
        checks = [check for check in self.report.checks if check.metric == metric and check.scope is None]
        return limit_view.growth(checks[-1]) if checks else ""

    @property
    def lacking(self) -> Iterator[tuple[str, int, str, str, str]]:
        """(operation, count, scope, why, the metrics that do not cover them) of all that was not measured."""
        measured = {key: metric for key in self.report.metrics if (metric := self.report.measured(key))}
        for (op, count, scope, why), keys in uncovered(measured).items():
            yield op, count, scope_text(scope), why, ", ".join(keys)


# Numbers.


def rounded(metric: record.MeasuredMetric | record.FailedMetric) -> str:
    """A number as people read it, "≥ " or "≤ " before a bound."""
    if isinstance(metric, record.FailedMetric):
        return "unknown"
    return f"{'' if metric.complete else f'{metric.bounds} '}{readable(metric.value, metric.unit)}"


def digits(metric: record.MeasuredMetric | record.FailedMetric) -> str:
    """A number in every digit, a ratio as its two parts."""
    if isinstance(metric, record.FailedMetric):
        return ""
    return "{:,} / {:,}".format(*metric.exact) if metric.exact else exact(metric.value, metric.unit)


class MetricChange(NamedTuple):
    """One metric before and after; fill is the length of after where before fills MARK per cent."""

    metric: str
    before: str
    after: str
    exact: str
    change: str
    fill: str


def metric_changes(model: record.ModelReport, other: record.SubjectReport) -> Iterator[MetricChange]:
    """Metrics that both sides have a value of."""
    for key in other.metrics:
        before, after = model.measured(key), other.measured(key)
        if before is None or after is None:
            continue
        first, second, unit = Fraction(before.value), Fraction(after.value), after.unit
        every_digit = f"{exact(before.value, unit)} → {exact(after.value, unit)}"
        change = room((second - first) / first, signed=True) if first else "new"
        fill = f"{float(min(second / first * MARK, Fraction(100))):.1f}" if first else ""
        change = "same" if first == second else change
        yield MetricChange(key, *readable_pair(first, second, unit), every_digit, change, fill)


def grown_layers(model: record.ModelReport) -> Iterator[tuple[str, str, str, str, str, str]]:
    """(number, layer, base, now, change, shapes) of each layer that a number changed by since the base."""
    for check in model.checks:
        for entry in check.blame:
            ends = (None, None) if isinstance(entry, record.OtherGrowth) else (entry.before, entry.after)
            before, after = (ABSENT if end is None else exact(end, check.unit) for end in ends)
            if entry.delta:
                delta = signed(entry.delta, check.unit)
                yield check.metric, grown_name(entry), before, after, delta, shapes(entry)


# A transform, and a model on a device.


def basis(equivalence: EquivalenceReport) -> str:
    """What a claim rests on: its kind, the weights, how it was tested, the seeds."""
    weights = f"weights {equivalence.weights}" if equivalence.weights else ""
    seeds = f"input seeds {', '.join(map(str, equivalence.seeds))}" if equivalence.seeds else ""
    return ", ".join(filter(None, (equivalence.kind, equivalence.decided, weights, equivalence.basis, seeds)))


def errors(equivalence: EquivalenceReport) -> list[str]:
    """The figures that some output has."""
    return [key for key in ERRORS if any(getattr(output, key) for output in equivalence.outputs)]


def deployments(model: record.ModelReport) -> list[tuple[str, record.DeploymentReport]]:
    """The model on each device, and what its transforms made of it on theirs: "tiled / array"."""
    own = len(model.address.names)
    devices = (each for each in model.subjects() if isinstance(each, record.DeploymentReport))
    return [(" / ".join(each.address.names[own:]), each) for each in devices]


def unknown_numbers(deployment: record.DeploymentReport) -> Iterator[tuple[str, str]]:
    """(metrics, why they are not known there)."""
    unknown: dict[str, list[str]] = {}
    for key, metric in deployment.metrics.items():
        if isinstance(metric, record.FailedMetric):
            unknown.setdefault(metric.error, []).append(key)
    yield from ((", ".join(keys), why) for why, keys in unknown.items())
