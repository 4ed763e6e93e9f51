"""``--model-budget-summary``: the Markdown that GitHub shows on the page of a run.

What fails stands first, with the layers behind it, then what a change loosened, warnings, and what
changed; what is within and unchanged is folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_modelbudget.reports.cases import (
    LOOSENED,
    REDEFINED,
    Case,
    cases,
    changes_counted,
    counts,
    failing_locks,
    headroom_text,
    is_lower_bound,
    maximum,
    unmeasured,
    worst_first,
)
from pytest_modelbudget.reports.record import Check, LoosenedLimit, RedefinedModel, Report
from pytest_modelbudget.reports.sentences import detail_lines, figure, headline, reservations
from pytest_modelbudget.reports.text import one_line, printable
from pytest_modelbudget.reports.typed_json import number_json
from pytest_modelbudget.units import several

# All but what means nothing in the middle of a line, as an underscore within a word does.
_MARKUP = re.compile(r"""(?![\w .,:;/+%=>()'"!?-])[\s\S]|(?<![^\W_])_|_(?![^\W_])""")


def plain(text: str) -> str:
    """Text within a line, a cell of a table or a tag."""
    written = _MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", printable(text))
    return written.replace("//", "/&#47;").replace("www.", "www&#46;")


def code(text: str) -> str:
    """The same in a fixed-width face."""
    return f"<code>{plain(text)}</code>"


def preformatted(text: str) -> str:
    """Lines inside <pre>, where only a tag and an entity mean anything."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;")


MOST_BYTES = 1_000_000  # GitHub drops a summary of more than 1 MiB
DETAILED = 25  # failures whose layers are shown, before the rest is rows alone
SIGNS = {"over": "❌", "warn": "⚠️", "within": "✅", "unknown": "❓"}
COLUMNS = "| | model | limit on | measured | limit | headroom | baseline | where |"
RULE = "|---|---|---|--:|--:|--:|--:|---|"


class Section(NamedTuple):
    """A part of the summary; rows are left out from the end where there is no room for all."""

    opening: str
    rows: list[str]
    closing: str = ""

    def left_out(self, kept: int) -> str:
        """The line that says how many rows are missing."""
        rest = len(self.rows) - kept
        return f"\nand {rest:,} more, left out here\n" if rest else ""


def render(report: Report) -> str:
    """The summary, within what GitHub takes."""
    return summary(report, MOST_BYTES)


def summary(report: Report, most_bytes: int) -> str:
    """The summary in at most so many bytes; what fails is the last to give way."""
    return fitted(list(sections(report)), most_bytes)


def title(report: Report) -> str:
    """One line of plain text: "Model budget: 1 over, 1 unknown (12 limits)"."""
    numbers = counts(report)
    total = sum(numbers.values())
    limits = several(total, "limit")
    noticed = [f"{numbers[key]} {key}" for key in ("over", "unknown", "warn") if numbers[key]]
    noticed += [several(len(report.broken), "broken file")] if report.broken else []
    noticed += changes_counted(report)
    locks = failing_locks(report)
    noticed += [several(len(locks), "unfit lock file")] if locks else []
    noticed += [f"{report.unanswered} not measured"] if report.unanswered else []
    if noticed:
        return f"Model budget: {', '.join(noticed)} ({limits})"
    return f"Model budget: {limits}, all within" if total else "Model budget: nothing measured"


def sections(report: Report) -> Iterator[Section]:
    """All parts, in the order in which they give way last."""
    yield Section(f"## {title(report)}\n", [])
    if sentence := unmeasured(report):
        yield Section(f"❌ {sentence}.\n", [])
    if report.selected:
        yield Section("Only a part of the limits was selected, and measured.\n", [])
    judged = list(cases(report))
    failing = worst_first([case for case in judged if case.check.fails])
    warned = worst_first([case for case in judged if case.outcome == "warn"])
    within = [case for case in judged if case.outcome == "within"]
    yield from _broken(report)
    yield from _table("### Failing", failing)
    yield from _details(failing)
    yield from _changes(report)
    yield from _notes(report)
    yield from _table("### Warnings", warned)
    yield from _table("### Changed since the baseline", [case for case in within if changed(case)])
    yield from _folded([case for case in within if not changed(case)])


def changed(case: Case) -> bool:
    """Whether a number is known to differ from its baseline."""
    return case.check.baseline not in (None, case.check.actual)


def fitted(summary: list[Section], most_bytes: int) -> str:
    """Openings and closings of all sections, and as many of their rows as there is room for."""
    frames = "".join(section.opening + section.closing + section.left_out(0) + "\n" for section in summary)
    left = most_bytes - nbytes(frames)
    text = ""
    for section in summary:
        kept = 0
        for row in section.rows:
            if nbytes(row) + 1 > left:
                break
            left -= nbytes(row) + 1
            kept += 1
        rows = "".join(f"{row}\n" for row in section.rows[:kept])
        text += section.opening + rows + section.left_out(kept) + section.closing + "\n"
    return text


def nbytes(text: str) -> int:
    """Its length in UTF-8."""
    return len(text.encode("utf-8", "replace"))


# The parts.


def _table(heading: str, some: list[Case]) -> Iterator[Section]:
    if some:
        yield Section(f"{heading}\n\n{COLUMNS}\n{RULE}\n", [_row(case) for case in some])


def _folded(some: list[Case]) -> Iterator[Section]:
    if some:
        opening = f"<details><summary>{len(some)} within</summary>\n\n{COLUMNS}\n{RULE}\n"
        yield Section(opening, [_row(case) for case in some], "\n</details>\n")


def _row(case: Case) -> str:
    cells = (
        f"{SIGNS[case.outcome]} {case.outcome}",
        code(case.subject),
        code(case.name),
        _measured(case),
        _held(case),
        headroom_text(case.check),
        _baseline(case.check),
        code(case.place),
    )
    return f"| {' | '.join(cells)} |"


def _measured(case: Case) -> str:
    check = case.check
    if check.actual is None:
        return code("; ".join((check.measured, *reservations(case)))) if check.measured else ""
    return ("≥ " if is_lower_bound(check) else "") + figure(check.actual, check.unit)


def _held(case: Case) -> str:
    """The maximum, else the minimum, or what an equivalence allows."""
    check, most = case.check, maximum(case.check)
    if case.check.is_claim:
        return code(str(check.allowed)) if check.allowed else ""
    bound = check.min if most is None else most
    return "" if bound is None else figure(bound, check.unit)


def _baseline(check: Check) -> str:
    """The growth of a number: "+219,047", "unchanged", or "" without a baseline."""
    before, after = check.baseline, check.actual
    if before is None or after is None:
        return ""
    if before == after:
        return "unchanged"
    if isinstance(before, int) and isinstance(after, int):
        return f"{after - before:+,}"
    return f"was {code(str(number_json(before)))}"


def _broken(report: Report) -> Iterator[Section]:
    """Files without readable limits: their problems, each with its place."""
    problems = [problem for broken in report.broken for problem in broken.problems]
    if problems:
        rows = [f"- {code(one_line(problem))}" for problem in problems]
        yield Section("### Broken budget files\n\n", rows)


def _details(failing: list[Case]) -> Iterator[Section]:
    """Under each failure, unfolded by a click: its figures, and the layers that it comes from."""
    rows = [
        f"<details><summary>{code(f'{case.subject} / {case.name}')}: "
        f"{code(headline(case))}</summary>\n\n"
        f"<pre>{preformatted(chr(10).join(detail_lines(case)))}</pre>\n</details>\n"
        for case in failing[:DETAILED]
    ]
    if rows:
        yield Section("\n", rows)


def _changes(report: Report) -> Iterator[Section]:
    """Limits that let more pass than at the base, and models that are others than there."""
    for word, some in ((LOOSENED, report.loosened), (REDEFINED, report.redefined)):
        if some:
            yield Section(f"### {word.capitalize()} by this change\n\n", [*map(_change, some)])


def _change(change: LoosenedLimit | RedefinedModel) -> str:
    sign = "❌ forbidden:" if change.forbidden else SIGNS["warn"]
    subject = code(change.address.title)
    place = code(f"{change.file}:{change.line}")
    return f"- {sign} {code(one_line(change.text))} in {subject}, {place}"


def _notes(report: Report) -> Iterator[Section]:
    """Lock files that are not what was measured, in a sentence each."""
    rows = [f"- {'❌ ' if lock.fails else ''}{code(one_line(lock.text))}" for lock in report.lock if not lock.is_fresh]
    if rows:
        yield Section("### Lock files\n\n", rows)
