"""The table at the end of a pytest run, 80 columns wide: verdicts, and with -vv the layers.

budgets/vision.yaml                            measured        limit headroom
over    mobilenet_v2::params                     3.73 M       3.51 M    -6.2%
within  resnet18::macs                        1.81 GMAC    1.82 GMAC    0.33%
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.reports.report import Record, checks_of, fails, warns
from pytest_modelbudget.reports.transform_costs import costs
from pytest_modelbudget.units import readable, readable_pair, room
from pytest_modelbudget.verdict import is_in_scope

WIDTH = 79  # a line of 80 characters wraps on some terminals
OUTCOME_WIDTH, HEADROOM_WIDTH = 8, 9
NARROWEST_NAME = 16
LARGEST_SHARES = 5
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
    """One limit as text; layers are the lines below it."""

    colour: str
    name: str
    measured: str
    limit: str
    headroom: str
    layers: tuple[str, ...] = ()


def lines(report: Record, detail: int) -> Iterator[Line]:
    """The whole table, file by file, and a line that counts the verdicts."""
    by_file: dict[str, list[Row]] = {}
    for model in report["models"]:
        shown = by_file.setdefault(model["file"], [])
        shown.extend(rows(model, detail))
        for transform in model["transforms"]:
            shown.extend(transform_rows(model, transform, detail))
    widths = _widths([row for rows_ in by_file.values() for row in rows_])
    for file, file_rows in by_file.items():
        if file_rows:
            yield Line(_aligned(file, "measured", "limit", "headroom", widths, lead=0), "file")
        for row in file_rows:
            name = row.colour.ljust(OUTCOME_WIDTH) + row.name
            text = _aligned(name, row.measured, row.limit, row.headroom, widths, OUTCOME_WIDTH)
            yield Line(text, row.colour)
            yield from (Line(layer) for layer in row.layers)
    for broken in report["broken"]:
        count = len(broken["problems"])
        problems = f"{count} problem{'s' if count > 1 else ''}"
        yield Line(
            f"{'broken':<{OUTCOME_WIDTH}}{broken['id'].partition('::')[0]}: {problems}", "over"
        )
    yield Line(counted(report))


def counted(report: Record) -> str:
    """One line: "12 limits: 10 within, 1 over, 1 over (warning)"."""
    checks = [check for model in report["models"] for check in checks_of(model)]
    warned = sum(warns(check) for check in checks)
    counts = {
        "within": sum(check["outcome"] == "within" for check in checks),
        "over": sum(check["outcome"] == "over" for check in checks) - warned,
        "unknown": sum(check["outcome"] == "unknown" for check in checks),
        "over (warning)": warned,
        "broken file": len(report["broken"]),
    }
    if counts["broken file"] > 1:
        counts["broken files"] = counts.pop("broken file")
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{len(checks)} limit{'' if len(checks) == 1 else 's'}: {said or 'none'}"


def rows(model: Record, detail: int) -> list[Row]:
    """The limits of one model that deserve a line at this level of detail, in file order."""
    checks = model["checks"]
    if detail < Detail.ALL:
        tightest = min(checks, key=_tightness, default=None)
        checks = [c for c in checks if fails(c) or warns(c) or c is tightest or "measured" in c]
    return [_row(model, check, detail) for check in checks]


def transform_rows(model: Record, transform: Record, detail: int) -> list[Row]:
    """A transform's limits and its claim, then what it costs beside the model that it changes."""
    found = rows(transform, detail)
    if not found:
        return []
    return [*found[:-1], found[-1]._replace(layers=(*found[-1].layers, *costs(model, transform)))]


def headroom(check: Record) -> Fraction | None:
    """How far a number is from its nearer bound, as a share of that bound; negative when over.

    None where nobody knows: a lower bound may be anywhere above what it says.
    """
    if check["actual"] is None or check.get("outcome") == "unknown":
        return None
    actual = Fraction(check["actual"])
    distances = []
    if check["limit"] is not None and (most := Fraction(check["limit"])):
        distances.append((most - actual) / most)
    if check.get("min") is not None and (least := Fraction(check["min"])):
        distances.append((actual - least) / least)
    return min(distances, default=None)


def _tightness(check: Record) -> tuple[bool, Fraction]:
    room = headroom(check)
    return (room is None, room or Fraction(0))


def _row(model: Record, check: Record, detail: int) -> Row:
    layers = tuple(_layers(model, check)) if detail >= Detail.LAYERS else ()
    colour = "warn" if warns(check) else check["outcome"]
    return Row(colour, check["id"].partition("::")[2], *_figures(check), layers)


def _figures(check: Record) -> tuple[str, str, str]:
    """Measured, limit and headroom of a row; a lower bound has none that anybody knows."""
    if "measured" in check:  # a claim, which no one number is held to
        return check["measured"], check["allowed"], ""
    unit, actual, bound = check.get("unit", ""), check["actual"], _nearer_bound(check)
    is_unknown = check["outcome"] == "unknown"
    share = headroom(check)
    left = UNTOLD if is_unknown else "" if share is None else room(share)
    if actual is None:
        return "-", "-", left
    is_ratio = isinstance(actual, str)
    actual = Fraction(actual)
    if bound is None:
        return _number(actual, unit), "-", left
    measured, limit = readable_pair(actual, bound, unit)
    if is_unknown and is_ratio:  # over unmeasured ops: not even a bound
        return UNTOLD, limit, left
    least = ">= " if is_unknown or check.get("lower_bound") else ""
    return least + measured, limit, left


def _nearer_bound(check: Record) -> Fraction | None:
    """The maximum, or the minimum where that is broken or stands alone."""
    most, least = check["limit"], check.get("min")
    if least is None or (most is not None and Fraction(check["actual"] or 0) >= Fraction(least)):
        return None if most is None else Fraction(most)
    return Fraction(least)


def _layers(model: Record, check: Record) -> Iterator[str]:
    """The largest shares of a check's metric, with their part of the whole."""
    metric = model["metrics"].get(check["metric"], {})
    glob = check.get("scope")
    shares = [share for share in metric.get("shares", ()) if is_in_scope(share["scope"], glob)]
    total = Fraction(check["actual"] or 0)
    largest = sorted(shares, key=lambda share: -Fraction(share["value"]))[:LARGEST_SHARES]
    for share in largest:
        value = Fraction(share["value"])
        part = room(value / total) if total and "exact" not in metric else ""
        text = _number(value, metric["unit"])
        yield _cut(
            f"{'':<{OUTCOME_WIDTH}}{text:>14}{part:>8}  {share['scope'] or '(model)'}", WIDTH
        )


def _number(value: Fraction, unit: str) -> str:
    return readable(int(value) if value.denominator == 1 else value, unit)


def _widths(all_rows: Iterable[Row]) -> tuple[int, int]:
    measured, limit = len("measured"), len("limit")
    for row in all_rows:
        measured, limit = max(measured, len(row.measured)), max(limit, len(row.limit))
    return measured, limit


def _aligned(
    name: str, measured: str, limit: str, left: str, widths: tuple[int, int], lead: int
) -> str:
    """One line: the name, cut in its middle if need be, and three right-aligned columns."""
    space = WIDTH - sum(widths) - HEADROOM_WIDTH - 2
    space = max(space, lead + NARROWEST_NAME)
    name = name[:lead] + _cut_name(name[lead:], space - lead)
    figures = f"{measured:>{widths[0]}} {limit:>{widths[1]}}{left:>{HEADROOM_WIDTH}}"
    return f"{name:<{space}} {figures}".rstrip()


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
