"""The one list of everything that a report says of a session, which every renderer filters.

A limit that is over, drawn once::

    Finding(kind="check", level="error", id="budgets/a.yaml::net::params", file="budgets/a.yaml", line=8,
            title="net / params", lines=("params 3.729 M > 3.510 M ...", "  +224,000  classifier.1.weight  ..."),
            source=Case(...))

The order: unreadable files, limits, changes since the base, lock files, limits without an answer. Whatever of a report
fails a session is a finding of level "error".
"""

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

from pytest_modelbudget.budget import FOLDER
from pytest_modelbudget.reports import messages
from pytest_modelbudget.reports.record import (
    LOCK,
    BrokenFile,
    Case,
    LockReport,
    LoosenedLimit,
    ModelReport,
    RedefinedModel,
    Report,
)
from pytest_modelbudget.reports.text import one_line, printed_line
from pytest_modelbudget.units import several

ERROR, WARNING, NOTE, QUIET = "error", "warning", "note", ""
BROKEN, CHECK, LOOSENED, REDEFINED, UNMEASURED = "broken-budget", "check", "loosened", "redefined", "unmeasured"
CHANGES = (LOOSENED, REDEFINED)
ORDER = (BROKEN, CHECK, *CHANGES, LOCK, UNMEASURED)
WAIVED = ("accepted", "unused")  # outcomes of limits with waivers
NOTHING = "nothing measured"
COMMAND = "pytest --model-budget"
_PLACED = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?:\d+: )?(?P<text>.*)", re.DOTALL)


class Finding(NamedTuple):
    """One thing that a report says; QUIET is the level of what is as it should be, or only worth a line.

    id is the same as long as the thing is, and no other finding's: the node id of a limit. The first of lines says
    everything; those below it are layers, or what forbids a change. source has the numbers; None of UNMEASURED.
    """

    kind: str
    level: str
    id: str
    file: str
    line: int
    title: str
    lines: tuple[str, ...]
    source: Case | BrokenFile | LoosenedLimit | RedefinedModel | LockReport | None = None

    @property
    def rule(self) -> str:
        """The metric of a limit, or the kind of anything else."""
        return self.source.check.metric if isinstance(self.source, Case) else self.kind

    @property
    def message(self) -> str:
        """The first line with its subject: "net: params 3.729 M > 3.510 M (+6.4%)"."""
        if isinstance(self.source, (LoosenedLimit, RedefinedModel)):
            return one_line(self.source.sentence)
        return f"{self.source.subject}: {self.lines[0]}" if isinstance(self.source, Case) else self.lines[0]

    @property
    def is_placed(self) -> bool:
        """Whether its file is its own; readers that show nothing without a place have that of any budget."""
        return self.kind != UNMEASURED and not (isinstance(self.source, LockReport) and self.source.file is None)

    @property
    def fingerprint(self) -> str:
        """Its id as letters and digits, for readers that take no more."""
        return sha256(self.id.encode("utf-8", "backslashreplace")).hexdigest()[:32]

    @property
    def path(self) -> str:
        return printed_line(self.file or FOLDER)


def findings(report: Report) -> Iterator[Finding]:
    """Everything, in one order; an id that comes again has its number behind it."""
    seen: Counter[str] = Counter()
    for finding in _findings(report):
        seen[finding.id] += 1
        number = seen[finding.id]
        yield finding if number == 1 else finding._replace(id=f"{finding.id} #{number}")


def problems(report: Report) -> Iterator[Finding]:
    """The findings that a list of problems shows."""
    return (finding for finding in findings(report) if finding.level)


def _findings(report: Report) -> Iterator[Finding]:
    for broken in report.broken:
        for line, text in map(placed, broken.problems or ("cannot be read",)):
            file = broken.address.file
            yield Finding(BROKEN, ERROR, broken.id, file, line, "broken budget", (one_line(text),), broken)
    yield from map(_of_case, report.cases())
    banned = messages.bans(report.changes)
    yield from (_of_change(change, banned.get(change.file, ())) for change in report.changes)
    for lock in report.lock:
        if not lock.is_fresh:
            level, file = ERROR if lock.fails else QUIET, lock.file or _any_file(report)
            yield Finding(LOCK, level, lock.id, file, 1, "lock file", (one_line(lock.text),), lock)
    if sentence := unmeasured(report):
        yield Finding(UNMEASURED, ERROR, UNMEASURED, _any_file(report), 1, "model budget", (sentence,))


def _of_case(case: Case) -> Finding:
    """A limit; one that neither fails nor warns is a note where it has a waiver."""
    level = ERROR if case.check.fails else WARNING if case.check.warns else NOTE if case.outcome != "within" else QUIET
    below = tuple(messages.layer_lines(case))[: messages.MOST_LAYERS_BELOW] if level else ()
    title = f"{case.subject} / {case.name}"
    return Finding(CHECK, level, case.id, case.file, case.line, title, (messages.headline(case), *below), case)


def _of_change(change: LoosenedLimit | RedefinedModel, banned: tuple[str, ...]) -> Finding:
    """A change since the base; below one that is forbidden stands what forbids it."""
    kind = LOOSENED if isinstance(change, LoosenedLimit) else REDEFINED
    level, below = (ERROR, banned) if change.forbidden else (WARNING, ())
    title, lines = (change.address / kind).title, (one_line(change.text), *map(one_line, below))
    return Finding(kind, level, f"{change.id} {kind}", change.file, change.line, title, lines, change)


def placed(problem: str) -> tuple[int, str]:
    """The line that a problem of a budget file names, and its text; the first line where it names none."""
    match = _PLACED.fullmatch(problem)
    return (int(match["line"]), match["text"].strip()) if match else (1, problem)


def _any_file(report: Report) -> str:
    """A budget of the session: readers show nothing that has no place."""
    return next((subject.address.file for subject in (*report.models, *report.broken)), FOLDER)


# Causes.


class Cause(NamedTuple):
    """What fails for one cause: the checks, and the lines that say so; items, pages and comments show the same."""

    cases: tuple[Case, ...]
    lines: tuple[str, ...]

    @property
    def fix(self) -> tuple[str, str]:
        """Its last line where that says what mends it: the words, and the command behind them."""
        words, start, rest = self.lines[-1].partition(COMMAND)
        return (words, start + rest) if words.startswith(("fix: ", "repeat: ")) else ("", "")


def causes(model: ModelReport, base: str = "") -> Iterator[Cause]:
    """One for all limits of a model that are over, on devices too; the same of each transform; one a check else.

    All that could not be measured for one error has one, too.
    """
    programs: dict[str, list[Case]] = {}
    unmeasured: dict[str, list[Case]] = {}
    for case in model.cases():
        if case.check.fails and case.owner.error:
            unmeasured.setdefault(case.owner.error, []).append(case)
        else:
            programs.setdefault(case.program, []).append(case)
    for why, cases in unmeasured.items():
        yield Cause(tuple(cases), messages.unknown_lines(cases[0].subject, len(cases), why, cases[0].place))
    for cases in programs.values():
        over = tuple(case for case in cases if messages.is_over(case.check))
        has_block = len(over) > 1
        if has_block:
            yield Cause(over, messages.cause_lines(cases, base))
        alone = (case for case in cases if case.check.fails and not (has_block and messages.is_over(case.check)))
        for case in alone:
            first, *others = messages.failure_lines(case, case.place)
            yield Cause((case,), (f"{case.subject}: {first}", *others))


# Counted.


def counts(report: Report) -> dict[str, int]:
    """The number of checks that are over, warned of, within and unknown; of waivers where there are any."""
    outcomes = Counter(case.outcome for case in report.cases())
    always = {outcome: outcomes[outcome] for outcome in ("over", "warn", "within", "unknown")}
    return always | {outcome: outcomes[outcome] for outcome in WAIVED if outcomes[outcome]}


def changes_counted(report: Report) -> list[str]:
    """The number of changes since the base, in words: ["2 loosened", "1 redefined"]."""
    some = {LOOSENED: len(report.loosened), REDEFINED: len(report.redefined)}
    return [f"{number} {word}" for word, number in some.items() if number]


def unmeasured(report: Report) -> str:
    """A sentence where limits were skipped or never came to their turn, or there are none."""
    if report.unanswered:
        return f"{several(report.unanswered, 'limit')} skipped or stopped, and so not measured"
    is_empty = not report.broken and next(report.cases(), None) is None
    return NOTHING if is_empty and not report.selected else ""


def severity(case: Case) -> tuple[bool, bool, Fraction]:
    """A key that sorts the worst first: unknown before over, and what is over by its share of the limit."""
    left = case.check.headroom
    return (case.outcome != "unknown", left is not None, left or Fraction(0))
