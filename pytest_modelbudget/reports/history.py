"""The history of locked numbers for readers: a table, JSON, and line charts as one SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from pytest_modelbudget.budget.history import Point, Series, Skipped
from pytest_modelbudget.reports.text import aligned, cut_middle, printable, printed_line
from pytest_modelbudget.reports.typed_json import number_json
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room, several

SCHEMA = "model-budget-history/1"
DIGITS = 7  # of a commit's name
NARROWEST_SUBJECT = 12


# A table.


def table(series: Sequence[Series], width: int) -> str:
    """Each number, and a line for each commit that changed it.

    budgets/mobile.yaml::mobilenet_v2::params
      2026-01-03  1a2b3c4  3.50 M                        Add a budget
      2026-02-01  9f8e7d6  3.73 M  +224,175 (+6.4%)      Widen the head
    """
    lines: list[str] = []
    for each in series:
        lines.append(printed_line(each.id))
        lines += _rows(each, width)
    return "\n".join(lines)


def _rows(series: Series, width: int) -> Iterator[str]:
    pairs = zip(series.points, series.points[1:], strict=False)
    changes = ["" if series.is_cut else "locked", *(_change(was, now) for was, now in pairs)]
    rows = [
        (str(point.commit.day), point.commit.digits[:DIGITS], _value(point), change)
        for point, change in zip(series.points, changes, strict=True)
    ]
    lines = aligned("  {:<}  {:<}  {:>}  {:<}", rows)
    longest = max(map(len, lines))
    for point, line in zip(series.points, lines, strict=True):
        subject = printed_line(f"{_renamed(series, point)}{point.commit.subject}")
        yield f"{line:<{longest}}  {cut_middle(subject, max(width - longest - 2, NARROWEST_SUBJECT))}".rstrip()


def _value(point: Point) -> str:
    return "-" if point.value is None else readable(point.value, point.unit)


def _change(was: Point, now: Point) -> str:
    """By how much a number changed: "+224,175 (+6.4%)", in every digit."""
    if now.value is None:
        return "locked no more"
    if was.value is None:
        return "locked"
    if was.unit != now.unit:
        return f"was {readable(was.value, was.unit)}"
    change = Fraction(now.value) - Fraction(was.value)
    share = f" ({room(change / Fraction(was.value), signed=True)})" if was.value else ""
    amount = _amount(abs(change), now)
    return f"{'-' if change < 0 else '+'}{amount}{share}"


def _amount(change: Fraction, now: Point) -> str:
    return exact(int(change), "param") if isinstance(now.value, int) else readable(change, now.unit)


def _renamed(series: Series, point: Point) -> str:
    """The name that a model had then, where it is another one now."""
    return f"(as {point.model}) " if point.model != series.model else ""


def remarks(skipped: Sequence[Skipped], depth: int | None) -> Iterator[str]:
    """What a history does not have, and why."""
    if depth is not None:
        reach = several(depth, "commit")
        yield f"this clone is shallow, and reaches back {reach}: git fetch --unshallow brings the others"
    for each in skipped:
        yield f"skipped {each.commit.digits[:DIGITS]}: {each.path}: {each.why}"


# JSON.


def history_record(series: Sequence[Series], skipped: Sequence[Skipped], depth: int | None) -> dict[str, Any]:
    """The history for programs; a value of null is a number that is locked no more."""
    return {
        "schema": SCHEMA,
        "shallow": depth,
        "series": [
            {
                "id": each.id, "file": each.file, "model": each.model, "check": each.check,
                "points": [
                    {
                        "commit": point.commit.digits, "day": str(point.commit.day), "subject": point.commit.subject,
                        "value": None if point.value is None else number_json(point.value), "unit": point.unit,
                        "model": point.model,
                    }
                    for point in each.points
                ],
            }
            for each in series
        ],
        "skipped": [{"commit": each.commit.digits, "file": each.path, "why": each.why} for each in skipped],
    }  # fmt: skip


# Line charts.

WIDTH, HEIGHT = 640, 132  # of one chart
LEFT, RIGHT, TOP, BOTTOM = 12, 96, 34, 22  # around its lines
MOST_CHARTS = 60
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1c1f24 }
.name { font-weight: 600 }
.muted { fill: #59616d }
path { fill: none; stroke: #2b6cb0; stroke-width: 2 }
circle { fill: #2b6cb0 }
line { stroke: #dfe2e6 }
@media (prefers-color-scheme: dark) {
  text { fill: #e7eaee }
  .muted { fill: #a3acb8 }
  path { stroke: #6db1ff }
  circle { fill: #6db1ff }
  line { stroke: #2f363f }
}
"""


def charts(series: Sequence[Series]) -> str:
    """One SVG with a line chart for each number, one below the other; readable on light and on dark pages."""
    drawn = [each for each in series if any(point.value is not None for point in each.points)]
    shown, rest = drawn[:MOST_CHARTS], len(drawn) - MOST_CHARTS
    height = HEIGHT * len(shown) + (30 if rest > 0 else 0)
    parts = [f'<g transform="translate(0 {HEIGHT * place})">{chart(each)}</g>' for place, each in enumerate(shown)]
    if rest > 0:
        parts.append(_text(LEFT, HEIGHT * len(shown) + 20, f"and {rest:,} more: name a model or --metric", "muted"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"])


def chart(series: Series) -> str:
    """The inside of one chart, with its name and days."""
    line = drawing([(point.value, point_text(point)) for point in series.points])
    unit = next(point.unit for point in reversed(series.points) if point.value is not None)
    least, most = readable_pair(line.low, line.high, unit)
    first, last = series.points[0].commit.day, series.points[-1].commit.day
    return "".join(
        [
            _text(LEFT, 20, series.id, "name"),
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>',
            f'<path d="{line.path}"/>',
            *(
                f'<circle cx="{x}" cy="{y}" r="3"><title>{_escaped(words)}</title></circle>'
                for x, y, words in line.dots
            ),
            _text(WIDTH - RIGHT + 10, TOP + 4, most, "muted"),
            "" if line.low == line.high else _text(WIDTH - RIGHT + 10, HEIGHT - BOTTOM, least, "muted"),
            _text(LEFT, HEIGHT - 6, str(first) if first == last else f"{first} to {last}", "muted"),
        ]
    )


@dataclass(frozen=True, slots=True)
class Drawing:
    """A number's way as a line in steps: the path, a dot (x, y, its words) for each change, and both extremes.

    A number holds from its commit to the next. Commits stand side by side at equal distances: what happened between
    them is no time, but changes.
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


def point_text(point: Point) -> str:
    """A point in words: the day, the commit, every digit of the number, and the commit's first line."""
    value = "" if point.value is None else exact(point.value, point.unit)
    return f"{point.commit.day} {point.commit.digits[:DIGITS]} {value}: {point.commit.subject}"


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{_escaped(words)}</text>'


def _escaped(words: str) -> str:
    return escape(printable(words))
