"""The record that every report renders: the same wherever it was made, and JSON by its types alone.

``modelbudget schema report`` prints a JSON Schema that is made from these classes and their docstrings.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import field
from msgspec.structs import replace

from pytest_modelbudget.budget.budget import EQUIVALENCE, FITS, Address, Level, path_of
from pytest_modelbudget.budget.kinds import GRANTS
from pytest_modelbudget.budget.revision import BaseRevision, short
from pytest_modelbudget.budget.verdict import is_red
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.benchmark import OperatorTime
from pytest_modelbudget.metrics.measurement import UnmeasuredOp, bound
from pytest_modelbudget.reports import json_records
from pytest_modelbudget.reports.checkout import Checkout
from pytest_modelbudget.reports.claims import EquivalenceReport
from pytest_modelbudget.reports.devices import ArenaReport, FilledMemory, LeftStep, PeakReport
from pytest_modelbudget.reports.json_records import Number, OneOf, Record, always
from pytest_modelbudget.units import room

LOCK = "lock"  # name of an item that fails for a lock file, or a base, and for no limit


class Version(str, Enum):
    """Which version of the record a file holds."""

    ONE = "model-budget-report/1"


class Addressed(Record, frozen=True, kw_only=True):
    """Something with a node id of its own."""

    id: str

    @property
    def address(self) -> Address:
        return Address.parse(self.id)


class ScopeShare(Record, frozen=True, kw_only=True):
    """The contribution of one scope (a module path, "" for the model itself) to a number."""

    scope: str
    value: Number


class MetricEntry(OneOf):
    """A metric of a model, measured or failed."""

    __slots__ = ()


class MeasuredMetric(Record, MetricEntry, frozen=True, kw_only=True):
    """One metric of one model: a lower bound unless complete; shares in execution order.

    parts split the value by another view (bandwidth: read, weights, write); exact is the
    unreduced pair that a ratio was made from. at_least is proved of a value that is an upper bound, and not complete
    for that.
    """

    value: Number
    unit: str
    complete: bool
    unmeasured: tuple[UnmeasuredOp, ...] = ()
    parts: Mapping[str, Number] = field(default_factory=dict)
    exact: tuple[int, int] | None = None
    convention: str = ""
    at_least: Number | None = None
    shares: tuple[ScopeShare, ...] = always(())

    @property
    def bounds(self) -> str:
        """How the number itself lies to the value: "=", or "≥" and "≤" where only a bound is known."""
        return bound(self, "≥", "≤") or "="


class FailedMetric(Record, MetricEntry, frozen=True, kw_only=True):
    """A metric that could not be worked out, and why."""

    error: str


class CountedOps(Record, frozen=True, kw_only=True):
    """The number of operations of one kind and foreign name that ran."""

    kind: str
    name: str
    count: int


class ExecutedOps(Record, frozen=True, kw_only=True):
    """Operations of one kind in one scope that are alike: their results and the weights they read ("float32 1x64")."""

    scope: str
    kind: str
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    count: int = 1


class BlameEntry(OneOf):
    """A part of a growth: one layer, or the rest of them."""

    __slots__ = ()


class OtherGrowth(Record, BlameEntry, frozen=True, kw_only=True):
    """The sum of what was cut from a list of growths: so many more of them."""

    scope: None
    delta: int
    count: int


class Growth(Record, BlameEntry, frozen=True, kw_only=True):
    """A stored tensor (name is set) or a layer's operations that made a number grow.

    before (after) is None where it is new (gone), and a shape where nobody knows it.
    """

    scope: str
    name: str | None = always(None)
    delta: int
    before: int | None = always(None)
    after: int | None = always(None)
    shape_before: tuple[int, ...] | None = always(None)
    shape_after: tuple[int, ...] | None = always(None)


if TYPE_CHECKING:
    AnyMetric = MeasuredMetric | FailedMetric
    AnyGrowth = OtherGrowth | Growth
else:
    AnyMetric, AnyGrowth = MetricEntry, BlameEntry


class AskedOps(Record, frozen=True, kw_only=True):
    """Which operations a limit on ``ops`` lets a model run: by kind, or by foreign name."""

    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    max: Mapping[str, int]


class Exemption(Record, frozen=True, kw_only=True):
    """A waiver of a limit: the amount, the last day (in UTC), the reason, and who granted it.

    today is the day that it was held against, text all of it in words, line where it stands.
    """

    to: Number
    until: str
    reason: str
    by: str = ""
    today: str
    text: str
    line: int

    @property
    def is_past(self) -> bool:
        return self.today > self.until  # dates as ISO 8601 has them


class Check(Addressed, frozen=True, kw_only=True):
    """One limit, or one claim about outputs, and what became of it.

    limit is the maximum; min, and what growth allows from the baseline, stand beside it. The baseline is what a lock
    file knows, at the base or in the working tree. blame has the largest growth first, and all its deltas add up to the
    growth. frameworks are those whose other versions alone explain the number. Of a claim, measured and allowed are for
    eyes. measured_on says on which inputs, or where, a number was measured that is no static one, and evidence which
    layers it comes from; operators are the table of a timed run. update is the command that makes the limit of a
    failing one what was measured, where one does. Where data may take branches with less than the actual number, or
    with more, least is what min is held against, and most the maximum.
    """

    metric: str
    limit: Number | None = always(None)
    actual: Number | None = always(None)
    baseline: Number | None = always(None)
    outcome: Outcome
    level: Level = always(Level.ERROR)
    line: int | None = always(None)
    reason: str = always("")
    measured: str | None = None
    allowed: int | str | None = None
    blame: tuple[AnyGrowth, ...] = ()
    frameworks: str = ""
    ops: AskedOps | None = None
    min: Number | None = None
    grow: Number | None = None
    floor: int | None = None
    unit: str = ""
    complete: bool | None = None
    scope: str | None = None
    at_least: Number | None = None
    least: Number | None = None
    most: Number | None = None
    lower_bound: bool = False
    measured_on: str = ""
    evidence: tuple[str, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    waiver: Exemption | None = None
    update: str = ""

    @property
    def is_claim(self) -> bool:
        """Whether it checks no one number: an equivalence, or all memories of a device."""
        return self.metric in {EQUIVALENCE, FITS}

    @property
    def fails(self) -> bool:
        return is_red(self.outcome, self.level)

    @property
    def can_be_updated(self) -> bool:
        """Whether an update mends it: one writes no lower bounds, and no operations."""
        is_written = self.outcome is Outcome.OVER and self.complete and not self.ops and not self.is_short_elsewhere
        return self.fails and (is_written or self.outcome is Outcome.UNUSED)

    @property
    def lowest(self) -> Number | None:
        return self.actual if self.least is None else self.least

    @property
    def highest(self) -> Number | None:
        return self.actual if self.most is None else self.most

    @property
    def is_short_elsewhere(self) -> bool:
        return self.min is not None and self.least is not None and self.least < self.min

    @property
    def warns(self) -> bool:
        return self.outcome in (Outcome.OVER, Outcome.UNUSED) and not self.fails

    @property
    def maximum(self) -> Fraction | None:
        """The most that it lets pass: its limit, or what it may have grown to, if that is less."""
        if self.is_claim:  # whose allowed is a share of the outputs' size
            return None
        return min((Fraction(end) for end in (self.limit, self.allowed) if end is not None), default=None)

    @property
    def is_lower_bound(self) -> bool:
        """Whether a number may be larger than it says: accepted so, or unknown for that reason."""
        return self.lower_bound or (self.outcome is Outcome.UNKNOWN and not self.complete and self.at_least is None)

    @property
    def headroom(self) -> Fraction | None:
        """The distance of a number from its nearer bound, as a share of that bound; negative when over.

        None where nobody knows: a lower bound that breaks nothing may be anywhere above what it says.
        """
        is_open = self.lower_bound and self.outcome in (Outcome.WITHIN, Outcome.UNUSED)
        if self.highest is None or self.lowest is None or self.outcome is Outcome.UNKNOWN or is_open:
            return None
        most = self.maximum
        distances = [(most - Fraction(self.highest)) / most] if most else []
        if self.min:
            distances.append((Fraction(self.lowest) - self.min) / Fraction(self.min))
        return min(distances, default=None)

    @property
    def growth_text(self) -> str:
        """The growth since the base, "+6.2% vs base"; "" of none, and where the number broke its limit another way."""
        before, after = self.baseline, self.actual
        if not before or after is None or after == before:
            return ""
        grown = (Fraction(after) - Fraction(before)) / Fraction(before)
        is_short = self.min is not None and (self.lowest or 0) < self.min
        has_turned = self.outcome is Outcome.OVER and (grown > 0) is is_short
        return "" if has_turned else f"{room(grown, signed=True)} vs base"

    @property
    def change_text(self) -> str:
        """The one percentage of a row: its growth since the base, else "6.2% over", "6.2% short" or "6.2% left"."""
        left = self.headroom
        if left is None or self.growth_text:
            return "" if left is None else self.growth_text
        is_short = self.min is not None and (self.lowest or 0) < self.min
        return f"{room(abs(left))} {'left' if left >= 0 else 'short' if is_short else 'over'}"


class SubjectReport(Addressed, frozen=True, kw_only=True):
    """A subject of limits: a model under one set of inputs, or a model after a transform.

    error says why nothing of it was measured, and error_line where the file says what failed; seconds stand apart, in
    timings. operations are those that cost something, in execution order.
    """

    file: str = always("")
    line: int = always(0)
    format: str = always("")
    traced: str = always("")
    notes: tuple[str, ...] = ()
    error: str = ""
    error_line: int | None = None
    metrics: Mapping[str, AnyMetric] = always({})
    ops: tuple[CountedOps, ...] = always(())
    operations: tuple[ExecutedOps, ...] = ()

    def measured(self, metric: str) -> MeasuredMetric | None:
        """A metric of it; None where it could not be measured."""
        number = self.metrics.get(metric)
        return number if isinstance(number, MeasuredMetric) else None


class ChangedLayer(Record, frozen=True, kw_only=True):
    """A layer that a transform met, and what became of it, or why it stayed."""

    scope: str
    operation: str
    became: str = always("")
    why: str = ""


class DeploymentReport(SubjectReport, frozen=True, kw_only=True):
    """A model on a device: lowered as its compiler would, measured, and placed in its memories.

    lower has every setting as a budget spells it, left what stayed as it was, and why; profile is as a model's.
    """

    name: str
    device: str = always("")
    lower: Mapping[str, str] = always({})
    left: tuple[LeftStep, ...] = always(())
    arena: ArenaReport | None = always(None)
    memories: tuple[FilledMemory, ...] = always(())
    peak: PeakReport | None = always(None)
    profile: str = ""
    checks: tuple[Check, ...] = always(())


class TransformReport(SubjectReport, frozen=True, kw_only=True):
    """A model after a transform, and that on devices: the name that the file gives it, and the transform's own."""

    name: str
    transform: str = always("")
    changes: tuple[ChangedLayer, ...] = always(())
    checks: tuple[Check, ...] = always(())
    equivalence: EquivalenceReport | None = None
    deployments: tuple[DeploymentReport, ...] = ()


class PastNumber(Record, frozen=True, kw_only=True):
    """A locked number from some commit on, and that commit in words; None where it is locked no more."""

    value: Number | None
    text: str


class ModelReport(SubjectReport, frozen=True, kw_only=True):
    """A model under one set of inputs, its limits, what transforms made of it, and what it is on devices.

    declared is what the budget says of its source, and of what it is run on, by key. defined_at is the file and line of
    the user's code that built it: "b/nets.py:2". profile is JSON text that is there only where a page was asked for,
    and in shards, and no file but the page, and a part of a run, holds it.
    """

    declared: Mapping[str, str] = field(default_factory=dict)
    defined_at: str = ""
    profile: str = ""
    checks: tuple[Check, ...] = always(())
    transforms: tuple[TransformReport, ...] = always(())
    deployments: tuple[DeploymentReport, ...] = ()

    def subjects(self) -> Iterator["ModelReport | TransformReport | DeploymentReport"]:
        """It, each transform of it with that one's deployments, and its own."""
        yield self
        for transform in self.transforms:
            yield transform
            yield from transform.deployments
        yield from self.deployments

    def cases(self) -> Iterator["Case"]:
        for subject in self.subjects():
            yield from (Case(check, subject, self) for check in subject.checks)


class BrokenFile(Addressed, frozen=True, kw_only=True):
    """A budget file that could not be read, with all its problems and their places."""

    problems: tuple[str, ...]


NO_EVIDENCE = EquivalenceReport(outcome=Outcome.UNKNOWN, kind="")


class Case(NamedTuple):
    """One check; owner is the subject of its metric: a model, a transform, or a model on a device."""

    check: Check
    owner: ModelReport | TransformReport | DeploymentReport
    model: ModelReport

    @property
    def id(self) -> str:
        """The node id: "budgets/a.yaml::net::tiled::macs"."""
        return self.check.id

    @property
    def address(self) -> Address:
        return self.check.address

    @property
    def file(self) -> str:
        return self.address.file

    @property
    def line(self) -> int:
        """Line of the limit, or of what failed before it, from 1; the file's first where its item was lost."""
        return self.owner.error_line or self.check.line or self.model.line or 1

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def program(self) -> str:
        """The id of the model or transform that is measured, on whichever device."""
        is_lowered = isinstance(self.owner, DeploymentReport)
        return str(self.owner.address.above) if is_lowered else self.owner.id

    @property
    def subject(self) -> str:
        """Model, and variant or transform: "net / tiled"."""
        return self.address.above.title

    @property
    def name(self) -> str:
        """The limit among those of its subject: "macs", "params@layer4.*"."""
        return self.address.name

    @property
    def measurement(self) -> MeasuredMetric | None:
        return self.owner.measured(self.check.metric)

    @property
    def shares(self) -> Sequence[ScopeShare]:
        return self.measurement.shares if self.measurement else ()

    @property
    def evidence(self) -> EquivalenceReport:
        return (isinstance(self.owner, TransformReport) and self.owner.equivalence) or NO_EVIDENCE

    @property
    def outputs_differ(self) -> bool:
        """Whether it is a claim about outputs that is broken, or could not be tried."""
        return self.check.metric == EQUIVALENCE and self.outcome != "within"

    @property
    def outcome(self) -> str:
        """One of over, unused, warn, accepted, within, unknown: what only warns is "warn"."""
        return "warn" if self.check.warns else self.check.outcome.value


# Changes since the base.


class LockReport(Record, frozen=True, kw_only=True):
    """The state of a lock file, in the working tree or at the base, and whether that fails.

    state is fresh, stale, missing, broken (unreadable), or of the base unreachable (it is not here; file is then None).
    """

    file: str | None
    state: str
    text: str
    fails: bool = always(False)

    @property
    def id(self) -> str:
        """The node id under which it fails: "budgets/a.lock.json::lock", of a base that is not here "base::lock"."""
        return path_of(self.file or "base", LOCK)

    @property
    def is_fresh(self) -> bool:
        return self.state == "fresh"


class BudgetChange(Record, frozen=True, kw_only=True):
    """Something that the change since the base does to a budget, and where.

    line is 1 where nothing is left of a model. forbidden_by is where its budget forbids that, and at which base.
    """

    file: str
    line: int
    id: str
    forbidden: bool = always(False)
    forbidden_by: str = ""
    text: str = always("")

    @property
    def address(self) -> Address:
        return Address.parse(self.id)

    @property
    def subject(self) -> str:
        """The model, and variant or transform, as people read it; "" of a whole file."""
        return self.address.title

    @property
    def sentence(self) -> str:
        """What a terminal says of it: "net: budget loosened +20.0 %: params 50 -> 60 (forbidden)"."""
        lead = f"{self.subject}: " if self.subject else ""
        return f"{lead}{self.text}{' (forbidden)' if self.forbidden else ''}"


class LoosenedLimit(BudgetChange, frozen=True, kw_only=True):
    """A limit that the change since the base makes easier to keep; text says it to people.

    metric is None where a whole model is gone, percent where there is none.
    """

    metric: str | None = always(None)
    what: str = always("")
    before: int | str | None = always(None)
    after: int | str | None = always(None)
    percent: str | None = always(None)

    @property
    def grants_exception(self) -> bool:
        return self.what in GRANTS

    @property
    def subject(self) -> str:
        """The model of a limit, and variant or transform; "" of a whole file."""
        return self.address.title if self.metric is None else self.address.above.title


class RedefinedModel(BudgetChange, frozen=True, kw_only=True):
    """A key of a model, or of a transform, that says something else than at the base.

    what is the key, "source" for where a model comes from, "transform" for which one it is, or "file" of a model that
    was moved.
    """

    what: str = always("")
    before: str | None = always(None)
    after: str | None = always(None)


# The whole.


class Report(Record, frozen=True, kw_only=True):
    """All that one session measured and judged, in the order of files and lines.

    selected says that only a part was asked for; of the limits that selection left, unanswered
    counts those that were skipped or never came to their turn: they fail the session. base is the
    commit that was compared with, base_name how it was asked for, and head the commit that was measured: of a host's
    test merge, the change that it merges. history is how locked numbers went that ever changed, by check; it and
    checkout are there where a model's profile is. extra has keys that others added, which JSON has beside the report's
    own. The same but for timings in every run.
    """

    schema: Version
    selected: bool = always(False)
    unanswered: int = always(0)
    environment: Mapping[str, str] = always({})
    models: tuple[ModelReport, ...] = always(())
    broken: tuple[BrokenFile, ...] = always(())
    base: str | None = always(None)
    base_name: str = ""
    head: str = ""
    checkout: Checkout | None = None
    lock: tuple[LockReport, ...] = always(())
    loosened: tuple[LoosenedLimit, ...] = always(())
    redefined: tuple[RedefinedModel, ...] = always(())
    history: Mapping[str, tuple[PastNumber, ...]] = field(default_factory=dict)
    timings: Mapping[str, str] = always({})
    extra: Mapping[str, Any] = field(default_factory=dict)

    def cases(self) -> Iterator[Case]:
        """All checks, file by file and model by model, transforms and deployments after their model."""
        for model in self.models:
            yield from model.cases()

    @property
    def base_text(self) -> str:
        """The base as people name it: "main (1a2b3c4)"; "" without one."""
        return short(BaseRevision(self.base_name, self.base)) if self.base else ""

    @property
    def changes(self) -> tuple[LoosenedLimit | RedefinedModel, ...]:
        return (*self.loosened, *self.redefined)

    @property
    def failing_locks(self) -> list[LockReport]:
        return [lock for lock in self.lock if lock.fails]


def report_text(report: Report) -> str:
    """``--model-budget-report=json``: the record itself; the same bytes for the same numbers, but for ``timings``.

    ``checkout``, ``history`` and a model's ``profile`` are left out: they are there only if a page was asked for too,
    and what one file says may not depend on which others are written.
    """
    report = replace(report, checkout=None, history={}, models=tuple(map(_without_pictures, report.models)))
    return json_records.json_text(report) + "\n"


def _without_pictures(model: ModelReport) -> ModelReport:
    transforms = tuple(replace(each, deployments=_without_profiles(each.deployments)) for each in model.transforms)
    deployments = _without_profiles(model.deployments)
    return replace(model, profile="", transforms=transforms, deployments=deployments)


def _without_profiles(deployments: tuple[DeploymentReport, ...]) -> tuple[DeploymentReport, ...]:
    return tuple(replace(each, profile="") for each in deployments)


def schema_text() -> str:
    """The JSON Schema of a report as the text of a file."""
    return json_records.schema_text(Report, "Model budget report")
