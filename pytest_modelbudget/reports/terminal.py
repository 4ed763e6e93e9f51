"""The table at the end of a pytest run, 80 columns wide: verdicts, with -v bars, with -vv layers.

budgets/vision.yaml                   measured     limit headroom
over    mobilenet_v2::params            3.73 M    3.51 M    -6.2%
within  resnet18::macs               1.81 GMAC 1.82 GMAC    0.33%
2 limits: 1 over, 0 warn, 1 within, 0 unknown

With -v all limits stand under their model::

mobilenet_v2
over    params                          3.73 M    3.51 M    -6.2% [##########+
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from fractions import Fraction
from itertools import groupby
from textwrap import shorten, wrap
from typing import NamedTuple

from pytest_modelbudget.graph.scopes import scope_text
from pytest_modelbudget.reports.cases import (
    Case,
    cases_of,
    changes_counted,
    counts,
    headroom,
    headroom_text,
    is_lower_bound,
    maximum,
)
from pytest_modelbudget.reports.record import Record
from pytest_modelbudget.reports.sentences import costs, grown_lines, largest_shares, reservations
from pytest_modelbudget.units import readable, readable_pair, room, several

WIDTH = 79  # a line of 80 characters wraps on some terminals
OUTCOME_WIDTH, HEADROOM_WIDTH = 8, 9
BAR = 10  # characters of a bar between its ends; a full one is exactly at the limit
NARROWEST_NAME = 16
UNTOLD = "?"  # in place of a figure that nobody knows
LEAST_CUT = 5  # "a...b"


class Detail(IntEnum):
    """How much to show, as pytest counts its -v."""

    TIGHTEST = 0
    ALL = 1
    LAYERS = 2


class Line(NamedTuple):
    """One line of the table, and how it is to be coloured: an outcome, "warn", "file" or ""."""

    text: str
    colour: str = ""


class Row(NamedTuple):
    """One limit as text; layers are the lines below it.

    subject is the model, variant or transform that it stands under, "" where its name says so.
    """

    colour: str
    name: str
    measured: str
    limit: str
    headroom: str
    bar: str = ""
    layers: tuple[str, ...] = ()
    subject: str = ""


class Widths(NamedTuple):
    """Characters that the columns beside the name take."""

    measured: int
    limit: int
    bar: int


def lines(report: Record, detail: int) -> Iterator[Line]:
    """The whole table, file by file, without the line that counts the verdicts."""
    by_file: dict[str, list[Row]] = {}
    for model in report["models"]:
        by_file.setdefault(model["file"], []).extend(rows(model, detail))
    widths = _widths([row for rows_ in by_file.values() for row in rows_])
    for file, file_rows in by_file.items():
        if file_rows:
            heading = Row("file", file, "measured", "limit", "headroom")
            yield Line(_aligned(heading, widths, lead=0), "file")
        for subject, some in groupby(file_rows, key=lambda row: row.subject):
            if subject:
                yield Line(_cut(subject, WIDTH))
            for row in some:
                yield Line(_aligned(row, widths, lead=OUTCOME_WIDTH), row.colour)
                yield from (Line(layer) for layer in row.layers)
    for broken in report["broken"]:
        count = len(broken["problems"])
        problems = several(count, "problem")
        yield Line(
            f"{'broken':<{OUTCOME_WIDTH}}{broken['id'].partition('::')[0]}: {problems}", "over"
        )


def counted(report: Record) -> str:
    """One line: "12 limits: 1 over, 1 warn, 10 within, 0 unknown"."""
    told = counts(report)
    total = sum(told.values())
    said = [f"{count} {outcome}" for outcome, count in told.items()]
    broken = len(report["broken"])
    if broken:
        said.append(several(broken, "broken file"))
    said += changes_counted(report)
    return f"{several(total, 'limit')}: {', '.join(said)}"


def rows(model: Record, detail: int) -> list[Row]:
    """The limits of a model and of its transforms that deserve a line at this level of detail."""
    told = list(cases_of(model))
    if detail < Detail.ALL:
        by_owner = groupby(told, key=lambda case: case.id.rpartition("::")[0])
        tightest = [min(some, key=_tightness) for _, some in by_owner]
        told = [case for case in told if _is_told(case) or case in tightest]
    shown = {case.id: _row(case, detail) for case in told}
    for last in {id(case.owner): case for case in told if case.owner is not model}.values():
        row = shown[last.id]
        told_costs = (line for each in costs(model, last.owner) for line in _wrapped(each))
        shown[last.id] = row._replace(layers=(*row.layers, *told_costs))
    return list(shown.values())


def _is_told(case: Case) -> bool:
    """Whether a limit is shown without being asked for."""
    return case.outcome != "within" or case.is_claim


def _tightness(case: Case) -> tuple[bool, Fraction]:
    room = headroom(case.check)
    return (room is None, room or Fraction(0))


def _row(case: Case, detail: int) -> Row:
    return Row(
        case.outcome,
        case.name if detail >= Detail.ALL else case.id.partition("::")[2],
        *(_claimed(case.check) if case.is_claim else _figures(case.check)),
        bar=_bar(case.check) if detail >= Detail.ALL else "",
        layers=(*_reservations(case), *(_layers(case) if detail >= Detail.LAYERS else ())),
        subject=case.subject if detail >= Detail.ALL else "",
    )


def _bar(check: Record) -> str:
    """How much of a maximum is used: "[######....]", and "[##########+" where it is broken.

    "" where there is no maximum, or nobody knows. Only what is exactly at its limit is full.
    """
    most = maximum(check)
    if check["outcome"] == "unknown" or check["actual"] is None or not most:
        return ""
    if _nearer_bound(check) != most:
        return ""
    used = BAR * Fraction(check["actual"]) / most
    if used > BAR:
        return f"[{'#' * BAR}+"
    return f"[{'#' * used.__floor__():.<{BAR}}]"


def _figures(check: Record) -> tuple[str, str, str]:
    """Measured, limit and headroom of a row; a lower bound has none that anybody knows."""
    unit, actual, bound = check.get("unit", ""), check["actual"], _nearer_bound(check)
    is_unknown = check["outcome"] == "unknown"
    left = UNTOLD if is_unknown else headroom_text(check)
    if actual is None:
        return "-", "-", left
    is_ratio = isinstance(actual, str)
    actual = Fraction(actual)
    if bound is None:
        return readable(actual, unit), "-", left
    measured, limit = readable_pair(actual, bound, unit)
    if is_unknown and is_ratio:  # over unmeasured ops: not even a bound
        return UNTOLD, limit, left
    least = ">= " if is_lower_bound(check) else ""
    return least + measured, limit, left


def _claimed(check: Record) -> tuple[str, str, str]:
    """How far outputs differ at most and what is allowed; there is no share of it to be left."""
    return check.get("measured", "-"), check.get("allowed", "-"), ""


def _nearer_bound(check: Record) -> Fraction | None:
    """The maximum, or the minimum where that is broken or stands alone."""
    most, least = maximum(check), check.get("min")
    if least is None or (most is not None and Fraction(check["actual"] or 0) >= Fraction(least)):
        return most
    return Fraction(least)


def _reservations(case: Case) -> Iterator[str]:
    """Under a claim that holds, a line for each reason why it rests on less than usual."""
    for said in reservations(case):
        yield " " * OUTCOME_WIDTH + shorten(said, WIDTH - OUTCOME_WIDTH, placeholder="...")


def _layers(case: Case) -> Iterator[str]:
    """What grew since the baseline, then the largest shares with their part of the whole."""
    indent = " " * (OUTCOME_WIDTH - 2)
    yield from (_cut(indent + line, WIDTH) for line in grown_lines(case.check.get("blame", ())))
    metric = case.measurement
    total = Fraction(case.check["actual"] or 0)
    for scope, value in largest_shares(case):
        part = room(value / total) if total and "exact" not in metric else ""
        text = readable(value, metric["unit"])
        yield _cut(f"{'':<{OUTCOME_WIDTH}}{text:>14}{part:>8}  {scope_text(scope)}", WIDTH)


def _wrapped(text: str) -> list[str]:
    indent = " " * OUTCOME_WIDTH
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _widths(all_rows: Iterable[Row]) -> Widths:
    heading = Row("", "", "measured", "limit", "")
    found = [heading, *all_rows]
    return Widths(
        max(len(row.measured) for row in found),
        max(len(row.limit) for row in found),
        max(len(row.bar) for row in found),
    )


def _aligned(row: Row, widths: Widths, lead: int) -> str:
    """One line: the name, cut in its middle if need be, and its columns right-aligned.

    lead is how many characters stand before the name for the outcome, or 0.
    """
    beside = sum(widths) + HEADROOM_WIDTH + 2 + (1 if widths.bar else 0)
    space = max(WIDTH - beside, lead + NARROWEST_NAME)
    name = row.colour.ljust(lead) if lead else ""
    name += _cut_name(row.name, space - lead)
    figures = f"{row.measured:>{widths.measured}} {row.limit:>{widths.limit}}"
    return f"{name:<{space}} {figures}{row.headroom:>{HEADROOM_WIDTH}} {row.bar}".rstrip()


def _cut_name(name: str, width: int) -> str:
    """A name of at most that width; the model's part of it gives way first."""
    model, colons, metric = name.rpartition("::")
    left = width - len(metric) - len(colons)
    return f"{_cut(model, left)}{colons}{metric}" if left >= LEAST_CUT else _cut(name, width)


def _cut(text: str, width: int) -> str:
    """Text of at most that width; what is left out of its middle shows as dots."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"
