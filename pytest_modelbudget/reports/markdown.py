"""Markdown that GitHub shows: the summary on the page of a run, and a comment on a pull request.

Exceptions that a change grants stand first, then what fails, with its cause, what the change loosened,
warnings, what is accepted, and what changed; what is within and unchanged is folded.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from pytest_modelbudget.reports.findings import (
    CHANGES,
    ERROR,
    Cause,
    Finding,
    causes,
    changes_counted,
    counts,
    findings,
    severity,
    unmeasured,
)
from pytest_modelbudget.reports.messages import headline, reservations
from pytest_modelbudget.reports.record import LOCK, BudgetChange, Case, Check, LoosenedLimit, Report
from pytest_modelbudget.reports.text import one_line, printable
from pytest_modelbudget.units import exact, in_a_row, room, several

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
    """Lines inside <pre>, where tags and entities mean something, and nothing may mention anybody."""
    return re.sub("[&<@#]", lambda sign: f"&#{ord(sign[0])};", printable(text))


MOST_BYTES = 1_000_000  # GitHub drops a summary of more than 1 MiB
DETAILED = 25  # failures that are shown with their layers; the others are rows alone
NEW_LINE = "\n"
DIGITS = 7  # of a commit's name
SIGNS = {"over": "❌", "unused": "❌", "warn": "⚠️", "accepted": "☑️", "within": "✅", "unknown": "❓"}
COLUMNS = "| | model | limit on | measured | limit | change | where |"
RULE = "|---|---|---|--:|--:|--:|---|"
EXACT = "| model | limit on | measured | limit | base |\n|---|---|--:|--:|--:|\n"


class Section(NamedTuple):
    """A part of the summary; rows are left out from the end where there is no room for all."""

    opening: str
    rows: list[str]
    closing: str = ""

    def left_out(self, kept: int) -> str:
        """The line that says how many rows are missing."""
        rest = len(self.rows) - kept
        return f"\nand {rest:,} more, not shown here\n" if rest else ""


def render(report: Report) -> str:
    """``--model-budget-report=summary``: the summary, within what GitHub takes."""
    return summary(report, MOST_BYTES)


def summary(report: Report, most_bytes: int) -> str:
    """The summary in at most so many bytes; what fails is the last to give way."""
    parts = list(sections(report))
    frames = "".join(section.opening + section.closing + section.left_out(0) + "\n" for section in parts)
    left = most_bytes - nbytes(frames)
    text = ""
    for section in parts:
        kept = 0
        for row in section.rows:
            if nbytes(row) + 1 > left:
                break
            left -= nbytes(row) + 1
            kept += 1
        rows = "".join(f"{row}\n" for row in section.rows[:kept])
        text += section.opening + rows + section.left_out(kept) + section.closing + "\n"
    return text


def title(report: Report) -> str:
    """One line of plain text: "Model budget: 1 over, 1 unknown (12 limits)"."""
    numbers = counts(report)
    total = sum(numbers.values())
    limits = several(total, "limit")
    told = ("over", "unused", "unknown", "warn", "accepted")
    noticed = [f"{numbers[key]} {key}" for key in told if numbers.get(key)]
    noticed += [several(len(report.broken), "broken file")] if report.broken else []
    noticed += changes_counted(report)
    unfit = sum(lock.file is not None for lock in report.failing_locks)
    noticed += [several(unfit, "unfit lock file")] if unfit else []
    noticed += ["base not known"] if len(report.failing_locks) > unfit else []
    noticed += [f"{report.unanswered} not measured"] if report.unanswered else []
    if noticed:
        return f"Model budget: {', '.join(noticed)} ({limits})"
    return f"Model budget: {limits}, all within" if total else "Model budget: nothing measured"


def commits(report: Report) -> str:
    """One line: the commit that was measured, and what it was compared with; "" where there is no base."""
    if not report.base_name:
        return ""
    measured = f"{code(report.head[:DIGITS])} measured" if report.head else "Measured"
    if not report.base:
        return f"{measured}, and not compared: the base {code(report.base_name)} is not known.\n"
    return f"{measured}, compared with {code(report.base_name)} ({code(report.base[:DIGITS])}).\n"


def sections(report: Report) -> Iterator[Section]:
    """All parts, in the order in which they give way last."""
    yield Section(f"## {title(report)}\n", [])
    if sentence := commits(report):
        yield Section(sentence, [])
    if sentence := unmeasured(report):
        yield Section(f"❌ {sentence}.\n", [])
    if report.selected:
        yield Section("Only a part of the limits was selected, and measured.\n", [])
    found = list(findings(report))
    changes = [each for each in found if each.kind in CHANGES]
    yield from _changes("Exceptions granted by this change", [each for each in changes if _grants(each)])
    judged = [each.source for each in found if isinstance(each.source, Case)]
    failing = sorted((case for case in judged if case.check.fails), key=severity)
    warned = sorted((case for case in judged if case.outcome == "warn"), key=severity)
    within = [case for case in judged if case.outcome == "within"]
    if problems := [problem for broken in report.broken for problem in broken.problems]:
        yield Section("### Broken budget files\n\n", [f"- {code(one_line(problem))}" for problem in problems])
    if failing:
        blocks = [f"<pre>{preformatted(NEW_LINE.join(each.lines))}</pre>\n" for each in _causes(report)]
        yield Section("### Failing\n\n", blocks[:DETAILED])
    yield from _table("", failing)
    for kind in CHANGES:
        others = [each for each in changes if each.kind == kind and not _grants(each)]
        yield from _changes(f"{kind.capitalize()} by this change", others)
    if locks := [each for each in found if each.kind == LOCK]:
        rows = [f"- {'❌ ' if each.level == ERROR else ''}{code(each.lines[0])}" for each in locks]
        yield Section("### Lock files\n\n", rows)
    yield from _table("### Warnings", warned)
    if accepted := [case for case in judged if case.outcome == "accepted"]:
        sign = SIGNS["accepted"]
        rows = [f"- {sign} {code(headline(each))} in {code(each.subject)}, {code(each.place)}" for each in accepted]
        yield Section("### Accepted\n\n", rows)
    yield from _table("### Changed since the base", [case for case in within if changed(case)])
    unchanged = [case for case in within if not changed(case)]
    yield from _table(f"<details><summary>{len(unchanged)} within</summary>", unchanged, "\n</details>\n")
    if moved := [case for case in judged if (case.check.fails or changed(case)) and not case.check.is_claim]:
        yield Section(
            f"<details><summary>Exact figures</summary>\n\n{EXACT}",
            [_exact_row(case) for case in moved],
            "\n</details>\n",
        )


def _causes(report: Report) -> list[Cause]:
    """What fails, the worst first."""
    found = [cause for model in report.models for cause in causes(model, report.base_text)]
    return sorted(found, key=lambda cause: min(map(severity, cause.cases)))


def changed(case: Case) -> bool:
    """Whether a number is known to differ from its baseline."""
    return case.check.baseline not in (None, case.check.actual)


def nbytes(text: str) -> int:
    """Its length in UTF-8."""
    return len(text.encode("utf-8", "replace"))


# The comment on a pull request.

MARKER = "<!-- model-budget -->"
COMMENT_BYTES = 65_000  # GitHub takes 65,536 characters


def comment(report: Report) -> str:
    """``--model-budget-report=comment``: a line where all is well, else the summary, within what GitHub takes."""
    if is_quiet(report):
        count = sum(changed(case) for case in report.cases())
        moved = f", {count} changed since the base" if count else ""
        below = f"\n{sentence}" if (sentence := commits(report)) else ""
        return f"{MARKER}\n✅ {title(report)}{moved}\n{below}"
    return f"{MARKER}\n{summary(report, COMMENT_BYTES - nbytes(MARKER) - 1)}"


def is_quiet(report: Report) -> bool:
    """Whether something was measured, all of it is within, and no budget was changed."""
    numbers = counts(report)
    odd = (report.selected, report.unanswered, report.broken, changes_counted(report))
    is_within = numbers["within"] == sum(numbers.values()) > 0
    return is_within and not any((*odd, report.failing_locks))


# The parts.


def _table(heading: str, some: list[Case], closing: str = "") -> Iterator[Section]:
    if some:
        yield Section(f"{heading}\n\n{COLUMNS}\n{RULE}\n".lstrip(), [_row(case) for case in some], closing)


def _row(case: Case) -> str:
    cells = (
        f"{SIGNS[case.outcome]} {case.outcome}",
        code(case.subject),
        code(case.name),
        *_figures(case),
        case.check.change_text,
        code(case.place),
    )
    return f"| {' | '.join(cells)} |"


def _figures(case: Case) -> tuple[str, str]:
    """Measured and limit for eyes, on one scale; of a claim in its own words."""
    check = case.check
    bound = check.min if check.maximum is None else check.maximum
    if check.actual is None or bound is None or check.is_claim or check.least is not None or check.most is not None:
        return _measured(case), _held(case)
    measured, limit = in_a_row(check.actual, bound, check.unit)
    return ("≥ " if check.is_lower_bound else "") + measured, limit


def _exact_row(case: Case) -> str:
    """Every digit of a limit."""
    cells = (code(case.subject), code(case.name), _measured(case), _held(case), _baseline(case.check))
    return f"| {' | '.join(cells)} |"


def _measured(case: Case) -> str:
    check = case.check
    if check.actual is not None:
        ends = (("least", check.least), ("most", check.most))
        others = [f"{word} {exact(end, check.unit)}" for word, end in ends if end is not None]
        return ", ".join([("≥ " if check.is_lower_bound else "") + exact(check.actual, check.unit), *others])
    if not check.measured:
        return ""
    said = [*reservations(case)]
    is_told = any(each.startswith(check.measured) for each in said)  # with the bound that decided
    return code("; ".join(said if is_told else (check.measured, *said)))


def _held(case: Case) -> str:
    """The maximum, else the minimum, or what an equivalence allows."""
    check, most = case.check, case.check.maximum
    if case.check.is_claim:
        return code(str(check.allowed)) if check.allowed else ""
    bound = check.min if most is None else most
    return "" if bound is None else exact(bound, check.unit)


def _baseline(check: Check) -> str:
    """The locked number and the growth: "3,505,960 (+219,047, +6.2%)", "unchanged", or "" without one."""
    before, after = check.baseline, check.actual
    if before is None or after is None:
        return ""
    if before == after:
        return "unchanged"
    change = f"{after - before:+,}" if isinstance(before, int) and isinstance(after, int) else ""
    part = room(Fraction(after - before) / Fraction(before), signed=True) if before else ""
    return f"{exact(before, check.unit)} ({', '.join(filter(None, (change, part)))})"


def _changes(heading: str, some: list[Finding]) -> Iterator[Section]:
    """A row for each change; below them what forbids them, once for each budget file."""
    banned = dict.fromkeys((each.file, each.lines[1:]) for each in some if each.lines[1:])
    rows = [*map(_change, some), *(f"\n<pre>{preformatted(NEW_LINE.join(lines))}</pre>\n" for _, lines in banned)]
    if rows:
        yield Section(f"### {heading}\n\n", rows)


def _grants(change: Finding) -> bool:
    """Whether it lets a broken limit pass for a while, or for longer."""
    return isinstance(change.source, LoosenedLimit) and change.source.grants_exception


def _change(change: Finding) -> str:
    sign = "❌ forbidden:" if change.level == ERROR else SIGNS["warn"]
    subject = change.source.address.title if isinstance(change.source, BudgetChange) else ""
    return f"- {sign} {code(change.lines[0])} in {code(subject)}, {code(f'{change.file}:{change.line}')}"
