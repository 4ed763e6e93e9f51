"""What the page shows of limits, as text and lengths of bars: no markup, no reckoning.

A limit that is over, drawn once::

    CheckRow(status="over", model="resnet18", metric="params", measured="3.73 M", limit="3.51 M",
             headroom="-6.2%", fill="79.7", least="", exact="3,729,047, limit 3,510,000", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.reports.cases import Case, headroom, headroom_text, is_lower_bound, maximum
from pytest_modelbudget.reports.record import Record
from pytest_modelbudget.reports.sentences import grown_name, largest_shares, shapes
from pytest_modelbudget.units import exact, readable, readable_pair, room

ABSENT = "–"


def parsed(value: int | str) -> int | Fraction:
    """The exact number that a record means; a ratio is a decimal string there."""
    return value if isinstance(value, int) else Fraction(value)


def number(value: int | str | None, unit: str) -> str:
    """A figure of the record, rounded for eyes."""
    return ABSENT if value is None else readable(parsed(value), unit)


def exact_number(value: int | str | None, unit: str) -> str:
    """A figure of the record, every digit of it."""
    return ABSENT if value is None else exact(parsed(value), unit)


def signed(change: int | Fraction, unit: str) -> str:
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


def growth(check: Record) -> str:
    """Since the base: before, after and change, and how much was allowed."""
    baseline, actual, unit = check.get("baseline"), check["actual"], check.get("unit", "")
    if baseline is None or actual is None:
        return ""
    before, after = parsed(baseline), parsed(actual)
    change = after - before
    if not change:
        return f"unchanged since the base: {exact(before, unit)}"
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    allowed = check.get("allowed")
    most = "" if allowed is None else f"; allowed {number(allowed, unit)}"
    return f"{texts[0]} → {texts[1]} since the base ({signed(change, unit)}{part}{most})"


def contributions(case: Case) -> tuple[Contribution, ...]:
    """Who made a number grow, where that is known; of a broken maximum, its largest parts."""
    check, unit = case.check, case.check.get("unit", "")
    if check.get("blame"):
        grown = (each for each in check["blame"] if each["delta"])
        return tuple(_grown(each, unit) for each in grown)
    most = maximum(check)
    actual = Fraction(check["actual"] or 0)
    if check["outcome"] != "over" or most is None or actual <= most:
        return ()
    if "exact" in case.measurement or "ops" in check:  # a ratio is not made of its shares
        return ()
    return tuple(
        Contribution(scope_text(scope), exact(value, unit), room(value / actual))
        for scope, value in largest_shares(case)
    )


def _grown(entry: Record, unit: str) -> Contribution:
    """A layer's growth with its shapes; the last entry sums up the others."""
    value = signed(parsed(entry["delta"]), unit)
    return Contribution(grown_name(entry), value, shapes=shapes(entry))


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
        metric=case.id.removeprefix(f"{case.model['id']}::"),
        measured=measured,
        limit=limit,
        headroom="?" if case.outcome == "unknown" else headroom_text(check),
        exact=_exact(check),
        fill=fill,
        least=least,
        room=float(left) if left is not None else float("inf"),
        reason=str(check["reason"]),
        place=case.place,
        growth=growth(check),
        layers=contributions(case),
    )


def model_name(model: Record) -> str:
    """Its name in its file, variants after "::"."""
    return str(model["id"]).partition("::")[2] or str(model["id"])


def _figures(check: Record) -> tuple[str, str]:
    """Measured and limit; the limit of ``ops`` in words, of two ends both, of a claim its own."""
    if "measured" in check:
        return str(check["measured"]), str(check.get("allowed", ABSENT))
    unit, actual, least = check.get("unit", ""), check["actual"], check.get("min")
    most = maximum(check)
    sign = "≥ " if is_lower_bound(check) and actual is not None else ""
    if "ops" in check:
        return sign + number(actual, unit), "; ".join(_ops_words(check["ops"])) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(parsed(actual), most, unit)
        return sign + measured, bound
    ends = [f"≥ {number(least, unit)}"] if least is not None else []
    ends += [f"≤ {readable(most, unit)}"] if most is not None else []
    return sign + number(actual, unit), ", ".join(ends) or ABSENT


def _ops_words(ops: Record) -> Iterator[str]:
    if ops["allow"] is not None:
        yield f"only {', '.join(ops['allow'])}"
    if ops["deny"]:
        yield f"no {', '.join(ops['deny'])}"
    yield from (f"{name} ≤ {most:,}" for name, most in ops["max"].items())


def _exact(check: Record) -> str:
    """Every digit of measured and limit, for the title of a figure."""
    if "measured" in check:
        return ""
    unit, limit = check.get("unit", ""), check["limit"]
    told = exact_number(check["actual"], unit)
    return f"{told}, limit {exact_number(limit, unit)}" if limit is not None else told


def _bar(check: Record) -> tuple[str, str]:
    """Lengths in per cent: the value's, and where a minimum stands beside a maximum."""
    actual, most, least = check["actual"], maximum(check), check.get("min")
    bound = most if most is not None else Fraction(least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"
