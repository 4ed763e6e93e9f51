"""One limit on the page: what was measured, what it may be, and what made it so, as text and lengths of bars.

A limit that is over, drawn once::

    CheckRow(case=Case(...), model="resnet18", metric="params", measured="3.73 M", limit="3.51 M",
             headroom="-6.2%", fill="79.7", least="", exact="3,729,047, limit 3,510,000", ...)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.budget.budget import Place, path_of
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import FirstDivergence, WorstElement
from pytest_modelbudget.reports.messages import claim_lines, fix, grown_name, largest_shares, repeated, shapes
from pytest_modelbudget.reports.record import Case
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room, several

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


def difference_rows(case: Case) -> Iterator[tuple[str, str]]:
    """Where outputs that should be the same differ: the first layer, and the worst element of an output."""
    if not case.outputs_differ:
        return
    first = dict(divergence_words(case.evidence.first_divergence))
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
WIDTH, HEIGHT = 640, 132  # of the chart of a history
LEFT, RIGHT, TOP, BOTTOM = 12, 96, 34, 22  # around its line


@dataclass(frozen=True, slots=True)
class Drawing:
    """A line in steps: its path, a dot (x, y, words) for each change, and both extremes.

    A number applies from its commit to the next. Commits are at equal distances, whatever time lies between them.
    """

    path: str
    dots: tuple[tuple[str, str, str], ...]
    low: Number
    high: Number


def drawing(points: Sequence[tuple[Number | None, str]]) -> Drawing:
    """The line of numbers, each with its words; one at least is no None, which leaves a gap."""
    values = [value for value, _ in points if value is not None]
    low, high = min(values), max(values)
    places = [_place(position, value, len(points), low, high) for position, (value, _) in enumerate(points)]
    dots = ((x, y, words) for (x, y), (_, words) in zip(places, points, strict=True))
    return Drawing(
        _steps(places), tuple((f"{x:.1f}", f"{y:.1f}", words) for x, y, words in dots if y is not None), low, high
    )


def _place(position: int, value: Number | None, count: int, low: Number, high: Number) -> tuple[float, float | None]:
    """The place of a point; no height of a number that is locked no more."""
    x = LEFT + 4 + (WIDTH - LEFT - RIGHT - 8) * position / count
    if value is None:
        return x, None
    part = float(Fraction(value - low) / Fraction(high - low)) if high != low else 1.0
    return x, HEIGHT - BOTTOM - 6 - (HEIGHT - TOP - BOTTOM - 6) * part


def _steps(places: Sequence[tuple[float, float | None]]) -> str:
    """A line in steps through places, on to the right edge, with a gap where there is no number."""
    path, end = "", float(WIDTH - RIGHT)
    for place, (x, y) in enumerate(places):
        if y is None:
            continue
        is_new = place == 0 or places[place - 1][1] is None
        until = places[place + 1][0] if place + 1 < len(places) else end
        path += f"{'M' if is_new else 'L'}{x:.1f} {y:.1f}H{until:.1f}"
    return path


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
    def has_details(self) -> bool:
        """Whether there is more to say of it than its figures."""
        return bool(self.status != "within" or self.growth or self.history or self.evidence)

    @property
    def status(self) -> str:
        """The outcome; a reader must look at all but "within"."""
        return self.case.outcome


def check_row(case: Case, past: Sequence[record.PastNumber] = ()) -> CheckRow:
    """One limit of a model, or of a transform of it, and how its locked number went."""
    path = path_of(*case.address.names[len(case.model.address.names) :])
    check, left = case.check, case.check.headroom
    measured, limit = _figures(check)
    fill, least = _bar(check)
    layers = tuple(contributions(case))
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
        layers=layers,
        evidence=tuple(evidence(case)),
        history=history_view(past, check.unit),
        pairs=tuple(difference_rows(case)),
        fix=fix(check, Place(case.file, case.line), is_listed=bool(layers)).removesuffix(check.update),
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
    for word, end in (("least", check.least), ("most", check.most)):
        shown += "" if end is None else f", {word} {readable(end, unit)}"
    if check.ops:
        return shown, "; ".join(_ops_words(check.ops)) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(actual, most, unit)
        return (shown if check.most is not None else sign + measured), bound
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
    most, least = check.maximum, check.min
    actual = check.highest if most is not None else check.lowest
    bound = most if most is not None else Fraction(least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"


def divergence_words(divergence: FirstDivergence | None) -> Iterator[tuple[str, str]]:
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
