"""What the page shows of limits and models, as text and lengths of bars: no markup, no reckoning.

A limit that is over, drawn once::

    CheckRow(status="over", model="resnet18", metric="params", measured="3.73 M", limit="3.51 M",
             headroom="-6.2%", fill="79.7", least="", exact="3,729,047 (limit 3,510,000)", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.reports.report import Record, warns
from pytest_modelbudget.reports.terminal import headroom
from pytest_modelbudget.units import exact, readable, readable_pair, room
from pytest_modelbudget.verdict import is_in_scope

STATUSES = ("over", "unknown", "warn", "within")  # worst first
MARK = 75  # per cent of a bar's width at which its limit stands
LARGEST_SHARES = 5
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Contribution:
    """A layer's part of a number, or what it added to it: text for each column."""

    name: str
    value: str
    part: str = ""
    shapes: str = ""


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


def status_of(check: Record) -> str:
    """Over, unknown, warn (over, and only said aloud) or within."""
    return "warn" if warns(check) else str(check["outcome"])


def worst(statuses: Sequence[str]) -> str:
    """The status of a model: that of its worst limit; without any, within."""
    return min(statuses, key=STATUSES.index, default="within")


def check_row(model: Record, check: Record) -> CheckRow:
    """One limit of one model."""
    share = headroom(check)
    measured, limit = _figures(check)
    fill, least = _bar(check)
    layers = tuple(_layers(model, check)) if check.get("blame") or _is_above(check) else ()
    return CheckRow(
        status=status_of(check),
        id=str(check["id"]),
        model=model_name(model),
        metric=str(check["id"]).removeprefix(f"{model['id']}::"),
        measured=measured,
        limit=limit,
        headroom="?" if check["outcome"] == "unknown" else room(share) if share is not None else "",
        exact=_exact(check),
        fill=fill,
        least=least,
        room=float(share) if share is not None else float("inf"),
        reason=str(check["reason"]),
        place=f"{model['file']}:{check['line']}" if check["line"] else str(model["file"]),
        growth=_growth(check),
        layers=layers,
    )


def model_name(model: Record) -> str:
    """Its name in its file, variants after "::"."""
    return str(model["id"]).partition("::")[2] or str(model["id"])


def number(value: int | str | None, unit: str) -> str:
    """A figure of the record, rounded for eyes."""
    return ABSENT if value is None else readable(_parsed(value), unit)


def exact_number(value: int | str | None, unit: str) -> str:
    """A figure of the record, every digit of it."""
    return ABSENT if value is None else exact(_parsed(value), unit)


def signed(change: int, unit: str) -> str:
    """A change with its sign, every digit of it."""
    text = exact(abs(change), unit)
    return f"+{text}" if change > 0 else f"−{text}" if change < 0 else text


def _parsed(value: int | str) -> int | Fraction:
    return value if isinstance(value, int) else Fraction(value)


def _figures(check: Record) -> tuple[str, str]:
    """Measured and limit; the limit of ``ops`` in words, and of two ends both."""
    unit, actual, most, least = (
        check.get("unit", ""), check["actual"], check["limit"], check.get("min")
    )  # fmt: skip
    lower = check["outcome"] == "unknown" or check.get("lower_bound")
    sign = "≥ " if lower and actual is not None else ""
    if "ops" in check:
        return sign + number(actual, unit), "; ".join(_ops_words(check["ops"])) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(_parsed(actual), _parsed(most), unit)
        return sign + measured, bound
    ends = [f"≥ {number(least, unit)}"] if least is not None else []
    ends += [f"≤ {number(most, unit)}"] if most is not None else []
    return sign + number(actual, unit), ", ".join(ends) or ABSENT


def _ops_words(ops: Record) -> Iterator[str]:
    if ops["allow"] is not None:
        yield f"only {', '.join(ops['allow'])}"
    if ops["deny"]:
        yield f"no {', '.join(ops['deny'])}"
    yield from (f"{name} ≤ {most:,}" for name, most in ops["max"].items())


def _exact(check: Record) -> str:
    """Every digit of measured and limit, for the title of a figure."""
    unit, limit = check.get("unit", ""), check["limit"]
    told = f"{exact_number(check['actual'], unit)}"
    return f"{told}, limit {exact_number(limit, unit)}" if limit is not None else told


def _bar(check: Record) -> tuple[str, str]:
    """Lengths in per cent: the value's, and where a minimum stands beside a maximum."""
    actual, most, least = check["actual"], check["limit"], check.get("min")
    bound = Fraction(most if most is not None else least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"


def _growth(check: Record) -> str:
    """Since the base: before, after and change, and how much was allowed."""
    baseline, actual, unit = check.get("baseline"), check["actual"], check.get("unit", "")
    if baseline is None or actual is None:
        return ""
    before, after = _parsed(baseline), _parsed(actual)
    change = after - before
    if not change:
        return f"unchanged since the base: {exact(before, unit)}"
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    told = signed(change, unit) if isinstance(change, int) else readable(abs(change), unit)
    allowed = check.get("allowed")
    most = "" if allowed is None else f"; allowed {number(allowed, unit)}"
    return f"{texts[0]} → {texts[1]} since the base ({told}{part}{most})"


def _is_above(check: Record) -> bool:
    """Whether a maximum is broken, which the largest layers may be asked about."""
    actual, most = check["actual"], check["limit"]
    return (
        check["outcome"] == "over"
        and None not in (actual, most)
        and Fraction(actual) > Fraction(most)
    )


def _layers(model: Record, check: Record) -> Iterator[Contribution]:
    """Who made a number grow, where that is known; else who it is mostly made of."""
    if check.get("blame"):
        grown = (each for each in check["blame"] if each["delta"])
        yield from (_blamed(each, check.get("unit", "")) for each in grown)
        return
    metric = model["metrics"].get(check["metric"], {})
    glob = check.get("scope")
    shares = [share for share in metric.get("shares", ()) if is_in_scope(share["scope"], glob)]
    total = Fraction(check["actual"] or 0)
    if not total or "exact" in metric or "ops" in check:
        return
    for share in sorted(shares, key=lambda each: -Fraction(each["value"]))[:LARGEST_SHARES]:
        part = room(Fraction(share["value"]) / total)
        value = exact_number(share["value"], metric["unit"])
        yield Contribution(share["scope"] or "(model)", value, part)


def _blamed(blame: Record, unit: str) -> Contribution:
    """A layer's growth, with its shapes before and after; the rest has no scope."""
    name = ".".join(filter(None, (blame.get("scope"), blame.get("name"))))
    if blame.get("scope") is None:
        name = blame.get("name") or "everything else"
    shapes = [blame.get("shape_before"), blame.get("shape_after")]
    told = " → ".join("×".join(map(str, shape)) for shape in shapes if shape)
    change = blame["delta"]
    is_whole = isinstance(change, int)
    value = signed(change, unit) if is_whole else f"{change} {unit}"
    return Contribution(name or "(model)", value, shapes=told)
