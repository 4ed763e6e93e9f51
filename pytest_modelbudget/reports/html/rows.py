"""The limits on the page, as text and lengths of bars: no markup, no reckoning.

A limit that is over, drawn once::

    CheckRow(status="over", model="resnet18", metric="params", measured="3.73 M", limit="3.51 M",
             headroom="-6.2%", fill="79.7", least="", exact="3,729,047, limit 3,510,000", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.budget.address import path_of
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.reports.cases import Case, headroom, headroom_text, is_lower_bound, maximum
from pytest_modelbudget.reports.record import AskedOps, Check, Growth, ModelReport, OtherGrowth
from pytest_modelbudget.reports.sentences import grown_name, largest_shares, shapes
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room

ABSENT = "–"


def number(value: Number | None, unit: str) -> str:
    """A figure of the record, rounded for eyes."""
    return ABSENT if value is None else readable(value, unit)


def exact_number(value: Number | None, unit: str) -> str:
    """A figure of the record, every digit of it."""
    return ABSENT if value is None else exact(value, unit)


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


def growth(check: Check) -> str:
    """Since the base: before, after and change, and how much was allowed."""
    before, after, unit = check.baseline, check.actual, check.unit
    if before is None or after is None:
        return ""
    change = after - before
    if not change:
        return f"unchanged since the base: {exact(before, unit)}"
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    most = f"; allowed {number(check.allowed, unit)}" if isinstance(check.allowed, int) else ""
    return f"{texts[0]} → {texts[1]} since the base ({signed(change, unit)}{part}{most})"


def contributions(case: Case) -> tuple[Contribution, ...]:
    """The layers that a number grew by, where that is known; of a broken maximum, its largest."""
    check = case.check
    if check.blame:
        return tuple(_grown(entry, check.unit) for entry in check.blame if entry.delta)
    most, actual = maximum(check), Fraction(check.actual or 0)
    if check.outcome is not Outcome.OVER or most is None or actual <= most:
        return ()
    if check.ops or (case.measurement and case.measurement.exact):
        return ()  # a ratio is not made of its shares
    return tuple(
        Contribution(scope_text(scope), exact(value, check.unit), room(value / actual))
        for scope, value in largest_shares(case)
    )


def _grown(entry: OtherGrowth | Growth, unit: str) -> Contribution:
    """A layer's growth with its shapes; the last entry sums up the others."""
    return Contribution(grown_name(entry), signed(entry.delta, unit), shapes=shapes(entry))


STATUSES = ("over", "unknown", "warn", "within")  # worst first
MARK = 75  # per cent of a bar's width at which its limit stands


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One limit. fill and least are per cent of its bar: the value, and a minimum beside a maximum.

    room orders rows by headroom, the tightest first; layers are those that it is mostly made of,
    or that made it grow where growth is known.
    """

    status: str
    id: str
    model: str
    metric: str
    measured: str
    limit: str
    headroom: str
    exact: str
    fill: str
    least: str
    room: float
    reason: str
    place: str
    growth: str = ""
    layers: tuple[Contribution, ...] = ()

    @property
    def is_noticed(self) -> bool:
        """Whether a reader must look at it."""
        return self.status != "within"


def worst(statuses: Sequence[str]) -> str:
    """The status of a model: that of its worst limit; nothing judged is nothing known."""
    return min(statuses, key=STATUSES.index, default="unknown")


def check_row(case: Case) -> CheckRow:
    """One limit of a model, or of a transform of it."""
    check, left = case.check, headroom(case.check)
    measured, limit = _figures(check)
    fill, least = _bar(check)
    return CheckRow(
        status=case.outcome,
        id=case.id,
        model=model_name(case.model),
        metric=path_of(*case.address.names[len(case.model.address.names) :]),
        measured=measured,
        limit=limit,
        headroom="?" if case.outcome == "unknown" else headroom_text(check),
        exact=_exact(check),
        fill=fill,
        least=least,
        room=float(left) if left is not None else float("inf"),
        reason=check.reason,
        place=case.place,
        growth=growth(check),
        layers=contributions(case),
    )


def model_name(model: ModelReport) -> str:
    """Its name in its file, variants below it."""
    return model.address.path or model.id


def _figures(check: Check) -> tuple[str, str]:
    """Measured and limit; the limit of ``ops`` in words, of two ends both, of a claim its own."""
    if check.measured is not None:
        return check.measured, ABSENT if check.allowed is None else str(check.allowed)
    unit, actual, least, most = check.unit, check.actual, check.min, maximum(check)
    sign = "≥ " if is_lower_bound(check) and actual is not None else ""
    if check.ops:
        return sign + number(actual, unit), "; ".join(_ops_words(check.ops)) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(actual, most, unit)
        return sign + measured, bound
    ends = [f"≥ {number(least, unit)}"] if least is not None else []
    ends += [f"≤ {readable(most, unit)}"] if most is not None else []
    return sign + number(actual, unit), ", ".join(ends) or ABSENT


def _ops_words(ops: AskedOps) -> Iterator[str]:
    if ops.allow is not None:
        yield f"only {', '.join(ops.allow)}"
    if ops.deny:
        yield f"no {', '.join(ops.deny)}"
    yield from (f"{name} ≤ {most:,}" for name, most in ops.max.items())


def _exact(check: Check) -> str:
    """Every digit of measured and limit, for the title of a figure."""
    if check.measured is not None:
        return ""
    actual = exact_number(check.actual, check.unit)
    if check.limit is None:
        return actual
    return f"{actual}, limit {exact_number(check.limit, check.unit)}"


def _bar(check: Check) -> tuple[str, str]:
    """Lengths in per cent: the value's, and where a minimum stands beside a maximum."""
    actual, most, least = check.actual, maximum(check), check.min
    bound = most if most is not None else Fraction(least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"
