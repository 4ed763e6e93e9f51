"""The table at the end of a pytest run, 80 columns wide: verdicts, with -v bars, with -vv layers and all notes.

budgets/vision.yaml                    measured      limit     change
over    mobilenet_v2::params            3.729 M    3.510 M      +6.4%
within  resnet18::macs               1.814 GMAC 1.820 GMAC 0.33% left
23 more limits passed (-v lists them)
25 limits: 1 over, 0 warn, 24 within, 0 unknown

Without -v a table of more than 15 limits has what is not within, and of each model the tightest limit.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from fractions import Fraction
from itertools import groupby
from textwrap import wrap
from typing import NamedTuple

from pytest_modelbudget.budget.budget import names_of, path_of
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.findings import CHANGES, changes_counted, counts, findings
from pytest_modelbudget.reports.messages import costs, error_lines, grown_lines, largest_shares, reservations
from pytest_modelbudget.reports.record import LOCK, Case, Check, ModelReport, Report, SubjectReport, TransformReport
from pytest_modelbudget.reports.text import aligned, cut_middle, printed_line
from pytest_modelbudget.units import in_a_row, readable, room, several

WIDTH = 79  # a line of 80 characters wraps on some terminals
OUTCOME_WIDTH = 8
BAR = 10  # characters of a bar between its ends; a full one is exactly at the limit
NARROWEST_NAME = 16
MOST_LISTED = 15  # limits that a table lists without -v
MOST_QUIET = 40  # rows of what is within: of more than so many models none is shown
MOST_LINES = 20  # of loosened limits, or of redefined models
NOBODY_KNOWS = "?"  # in place of a figure that nobody knows
LEAST_CUT = 5  # "a...b"
ASKS_NOTHING = " read on integers; 'qdq: as_written'"  # in notes that call for no action
RED = ("over", "unused")
BROKEN = (Outcome.OVER, Outcome.UNKNOWN, Outcome.ACCEPTED)
COLOURS = {  # of lines, by what colours them
    "within": "green", "over": "red", "unknown": "red", "unused": "red", "accepted": "yellow", "warn": "yellow",
    "file": "bold", "note": "light",
}  # fmt: skip


class Detail(IntEnum):
    """The amount of detail to show, as pytest counts its -v."""

    TIGHTEST = 0
    ALL = 1
    LAYERS = 2


class Line(NamedTuple):
    """One line of the table, and its colour: an outcome, "warn", "file", "note" or ""; of a row also its excess."""

    text: str
    colour: str = ""
    excess: str = ""

    @property
    def pieces(self) -> Iterator[tuple[str, str]]:
        """The line in pieces, each with its colour."""
        lead = len(self.text) if self.colour in ("file", "note") else OUTCOME_WIDTH
        yield self.text[:lead], self.colour
        before, excess, after = self.text[lead:].rpartition(self.excess or "\n")
        yield from ((before, ""), (excess, self.colour if excess else ""), (after, ""))


class Row(NamedTuple):
    """One limit as text; layers are the lines below it."""

    colour: str
    name: str
    measured: str
    limit: str
    change: str
    bar: str = ""
    layers: tuple[str, ...] = ()
    subject: str = ""

    @property
    def fails(self) -> bool:
        return self.colour in (*RED, "unknown")

    @property
    def is_quiet(self) -> bool:
        return self.colour == "within" and not self.layers


def lines(report: Report, detail: int, *, hides_failing: bool = False) -> Iterator[Line]:
    """The whole table, file by file, without the line that counts the verdicts."""
    yield from (line._replace(text=printed_line(line.text)) for line in _lines(report, detail, hides_failing))


def _lines(report: Report, detail: int, hides_failing: bool) -> Iterator[Line]:
    by_file: dict[str, list[Row]] = {}
    is_short = sum(counts(report).values()) <= MOST_LISTED
    for model in report.models:
        by_file.setdefault(model.file, []).extend(rows(model, detail, lists_all=is_short or detail >= Detail.ALL))
    if sum(row.is_quiet for some in by_file.values() for row in some) > MOST_QUIET and detail < Detail.ALL:
        by_file = {file: [row for row in some if not row.is_quiet] for file, some in by_file.items()}
    left_out = sum(counts(report).values()) - sum(map(len, by_file.values()))
    if hides_failing and detail < Detail.ALL:
        by_file = {file: [row for row in some if row.layers or not row.fails] for file, some in by_file.items()}
    table: list[Row] = []
    for file, file_rows in by_file.items():
        if file_rows:
            table += [Row("file", file, "measured", "limit", "change"), *file_rows]
    subject = ""
    for row, text in zip(table, _aligned(table), strict=True):
        if row.subject not in ("", subject):
            yield Line(cut_middle(row.subject, WIDTH))
        subject = row.subject
        yield Line(text, row.colour, row.change if row.colour in RED else "")
        yield from (Line(layer, "note") for layer in row.layers)
    for broken in report.broken:
        problems = several(len(broken.problems), "problem")
        file = broken.address.file
        yield Line(f"{'broken':<{OUTCOME_WIDTH}}{file}: {problems}", "over")
    if left_out:
        yield Line(f"{several(left_out, 'more limit')} passed (-v lists them)")


def counted(report: Report) -> str:
    """One line: "12 limits: 1 over, 1 warn, 10 within, 0 unknown"."""
    numbers = counts(report)
    texts = [f"{number} {outcome}" for outcome, number in numbers.items()]
    if report.broken:
        texts.append(several(len(report.broken), "broken file"))
    texts += changes_counted(report)
    return f"{several(sum(numbers.values()), 'limit')}: {', '.join(texts)}"


def change_lines(report: Report) -> Iterator[str]:
    """The base, what is odd about lock files, and what the change does to budgets, a line each."""
    if report.base:
        yield f"compared with {report.base_text}"
    found = list(findings(report))
    yield from (each.lines[0] for each in found if each.kind == LOCK)
    for kind in CHANGES:
        some = [each for each in found if each.kind == kind]
        yield from (f"{each.message}   {each.file}:{each.line}" for each in some[:MOST_LINES])
        if len(some) > MOST_LINES:
            yield f"{len(some) - MOST_LINES} more {kind}"


def rows(model: ModelReport, detail: int, *, lists_all: bool) -> list[Row]:
    """The limits of a model and of its transforms: all, or what is not within and the tightest of each."""
    shown = list(model.cases())
    if not lists_all:
        by_owner = groupby(shown, key=lambda case: case.address.above)
        tightest = [
            min(some, key=lambda case: (case.check.headroom is None, case.check.headroom or 0)) for _, some in by_owner
        ]
        shown = [
            case
            for case in shown
            if case.outcome != "within" or case.check.is_claim or case.check.is_lower_bound or case in tightest
        ]
    last = {id(case.owner): case.id for case in shown}
    return [_row(case, detail, costed=model if last[id(case.owner)] == case.id else None) for case in shown]


def _row(case: Case, detail: int, costed: ModelReport | None) -> Row:
    """A limit; below the last one of a model stand its notes, of a transform what it costs."""
    indent, check = " " * OUTCOME_WIDTH, case.check
    layers = [line for text in reservations(case) for line in _wrapped(text, indent)]
    if check.waiver and check.outcome is Outcome.ACCEPTED:
        layers += _wrapped(check.waiver.text, indent)
    if detail >= Detail.LAYERS:
        layers += _layers(case)
    if costed:
        layers += [line for text in _remarks(costed, case.owner, detail) for line in _wrapped(text, indent)]
    measured, limit, left = _figures(check)
    return Row(
        case.outcome,
        case.name if detail >= Detail.ALL else case.address.path,
        measured,
        limit,
        left,
        bar=_bar(check) if detail >= Detail.ALL else "",
        layers=tuple(layers),
        subject=_subject(case) if detail >= Detail.ALL else "",
    )


def _remarks(model: ModelReport, owner: SubjectReport, detail: int) -> Iterator[str]:
    """The notes on a subject; with -vv those that ask for nothing, too, and the cost of a transform that is kept."""
    is_whole = detail >= Detail.LAYERS
    if isinstance(owner, TransformReport):
        yield from costs(model, owner) if is_whole or any(check.outcome in BROKEN for check in owner.checks) else ()
        return
    yield from (note for note in owner.notes if is_whole or ASKS_NOTHING not in note)


def _subject(case: Case) -> str:
    """The heading of a model's limits: its name, and the user's code that built it."""
    definition = getattr(case.owner, "defined_at", "")
    return f"{case.subject}   {definition}" if definition else case.subject


def _wrapped(text: str, indent: str) -> list[str]:
    """A text below its row, on as many lines as it takes."""
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _bar(check: Check) -> str:
    """The used part of a maximum: "[######....]", and "[#########+]" where it is broken."""
    most = check.maximum
    is_open = check.outcome is Outcome.UNKNOWN or check.headroom is None
    if is_open or check.highest is None or not most or _nearer_bound(check) != most:
        return ""
    used = BAR * Fraction(check.highest) / most
    if used > BAR:
        return f"[{'#' * (BAR - 1)}+]"
    return f"[{'#' * used.__floor__():.<{BAR}}]"


def _figures(check: Check) -> tuple[str, str, str]:
    """Measured, limit and change of a row; a lower bound has none that anybody knows."""
    if check.is_claim:
        return check.measured or "-", str(check.allowed or "-"), ""
    bound = _nearer_bound(check)
    actual = check.lowest if check.maximum is None or bound != check.maximum else check.highest
    is_unknown = check.outcome is Outcome.UNKNOWN
    is_open = is_unknown or (check.is_lower_bound and check.headroom is None)
    left = NOBODY_KNOWS if is_open else check.change_text
    if actual is None:
        return "-", "-", left
    least = ">= " if check.is_lower_bound else ""
    if bound is None:
        return least + readable(Fraction(actual), check.unit), "-", left
    measured, limit = in_a_row(actual, bound, check.unit)
    if is_unknown and isinstance(actual, Fraction):  # over unmeasured ops: not even a bound
        return NOBODY_KNOWS, limit, left
    return least + measured, limit, left


def _nearer_bound(check: Check) -> Fraction | None:
    """The maximum, or the minimum where that is broken or is the only one."""
    most, least = check.maximum, check.min
    if least is None or (most is not None and (check.lowest or 0) >= least):
        return most
    return Fraction(least)


def _layers(case: Case) -> Iterator[str]:
    """The layers that grew since the baseline, then the largest shares with their part of all."""
    indent = " " * (OUTCOME_WIDTH - 2)
    yield from (cut_middle(indent + line, WIDTH) for line in grown_lines(case.check.blame))
    if case.check.is_claim:
        yield from (cut_middle(indent + "  " + line, WIDTH) for line in error_lines(case.evidence))
    metric, total = case.measurement, Fraction(case.check.actual or 0)
    for scope, value in largest_shares(case) if metric else ():
        part = room(value / total) if total and metric and not metric.exact else ""
        text = readable(value, metric.unit if metric else "")
        line = f"{'':<{OUTCOME_WIDTH}}{text:>14}{part:>8}  {scope_text(scope)}"
        yield cut_middle(line, WIDTH)


def _aligned(table: Sequence[Row]) -> list[str]:
    """Lines: the name, cut in its middle if need be, and its columns right-aligned."""
    cells = [(row.measured, row.limit, row.change, row.bar) for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    beside = sum(widths) + 3 + (1 if widths and widths[-1] else 0)
    named = [(_first_cell(row, WIDTH - beside), *those) for row, those in zip(table, cells, strict=True)]
    return aligned("{} {:>} {:>} {:>} {}", named)


def _first_cell(row: Row, width: int) -> str:
    """The outcome and the name of a limit, or a file's own name."""
    lead = "" if row.colour == "file" else f"{row.colour:<{OUTCOME_WIDTH - 1}} "
    space = max(width, len(lead) + NARROWEST_NAME)
    return (lead + _cut_name(row.name, space - len(lead))).ljust(space)


def _cut_name(name: str, width: int) -> str:
    """A name of at most that width; the model's part of it gives way first."""
    *model, metric = names_of(name)
    left = width - len(path_of("", metric))
    if not model or left < LEAST_CUT:
        return cut_middle(name, width)
    return path_of(cut_middle(path_of(*model), left), metric)
