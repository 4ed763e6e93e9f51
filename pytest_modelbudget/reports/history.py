"""The history of locked numbers for readers: a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from pytest_modelbudget.budget.history import Point, Series, Skipped
from pytest_modelbudget.reports.json_records import number_json
from pytest_modelbudget.reports.text import aligned, cut_middle, printed_line
from pytest_modelbudget.units import exact, readable, room, several

SCHEMA = "model-budget-history/1"
DIGITS = 7  # of a commit's name
NARROWEST_SUBJECT = 12


# A table.


def table(series: Sequence[Series], width: int) -> str:
    """Each number, and a line for each commit that changed it."""
    lines: list[str] = []
    for each in series:
        lines.append(printed_line(each.id))
        lines += _rows(each, width)
    return "\n".join(lines)


def _rows(series: Series, width: int) -> Iterator[str]:
    pairs = zip(series.points, series.points[1:], strict=False)
    changes = ["" if series.is_cut else "locked", *(_change(was, now) for was, now in pairs)]
    values = ["-" if point.value is None else readable(point.value, point.unit) for point in series.points]
    rows = [
        (str(point.commit.day), point.commit.digits[:DIGITS], value, change)
        for point, value, change in zip(series.points, values, changes, strict=True)
    ]
    lines = aligned("  {:<}  {:<}  {:>}  {:<}", rows)
    longest = max(map(len, lines))
    for point, line in zip(series.points, lines, strict=True):
        subject = printed_line(point.commit.subject)
        yield f"{line:<{longest}}  {cut_middle(subject, max(width - longest - 2, NARROWEST_SUBJECT))}".rstrip()


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
    amount = exact(int(abs(change)), "param") if isinstance(now.value, int) else readable(abs(change), now.unit)
    return f"{'-' if change < 0 else '+'}{amount}{share}"


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
                    }
                    for point in each.points
                ],
            }
            for each in series
        ],
        "skipped": [{"commit": each.commit.digits, "file": each.path, "why": each.why} for each in skipped],
    }  # fmt: skip


def point_text(point: Point) -> str:
    """A point in words: the day, the commit, every digit of the number, and the commit's first line."""
    value = "" if point.value is None else exact(point.value, point.unit)
    return f"{point.commit.day} {point.commit.digits[:DIGITS]} {value}: {point.commit.subject}"
