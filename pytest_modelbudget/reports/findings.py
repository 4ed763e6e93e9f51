"""All that a session found amiss, one thing at a time: what readers of lists of problems are given.

A limit that is over, drawn once::

    Finding(id="budgets/a.yaml::net::params", rule="params", level="error", file="budgets/a.yaml", line=8,
            message="params 3.73 M > 3.51 M ...", below=("  +224,000  classifier.1.weight  ...",))

Whatever of a report fails a session is a finding of level "error".
"""

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from pytest_modelbudget.budget import FOLDER
from pytest_modelbudget.reports.cases import Case, cases, changes, unmeasured
from pytest_modelbudget.reports.changes import LOCK, bans
from pytest_modelbudget.reports.record import BrokenFile, Report
from pytest_modelbudget.reports.sentences import headline, short_lines
from pytest_modelbudget.reports.text import one_line, printed_line

ERROR, WARNING, NOTE = "error", "warning", "note"
BROKEN, UNMEASURED = "broken-budget", "unmeasured"
_PLACED = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?:\d+: )?(?P<text>.*)", re.DOTALL)


class Finding(NamedTuple):
    """One thing that fails a session, or that it says aloud.

    id is the same as long as the thing is, and no other finding's: the node id of a limit. rule is its metric, or the
    word for what is no limit. below are a few lines more, of layers or of what forbids a change. case is the limit,
    None of anything else.
    """

    id: str
    rule: str
    level: str
    file: str
    line: int
    message: str
    below: tuple[str, ...] = ()
    case: Case | None = None

    @property
    def fingerprint(self) -> str:
        """Its id as letters and digits, for readers that take no more."""
        return sha256(self.id.encode("utf-8", "backslashreplace")).hexdigest()[:32]

    @property
    def path(self) -> str:
        """Its file, as text that any file can hold."""
        return printed_line(self.file or FOLDER)


def findings(report: Report) -> Iterator[Finding]:
    """Everything, in the order of files and lines; an id that comes again has its number behind it."""
    met: Counter[str] = Counter()
    for finding in _findings(report):
        met[finding.id] += 1
        number = met[finding.id]
        yield finding if number == 1 else finding._replace(id=f"{finding.id} #{number}")


def _findings(report: Report) -> Iterator[Finding]:
    for broken in report.broken:
        yield from (_of_problem(broken, problem) for problem in broken.problems or ("cannot be read",))
    yield from (_of_case(case) for case in cases(report) if case.outcome != "within")
    banned = bans(change for _, change in changes(report))
    for word, change in changes(report):
        level, below = (ERROR, banned.get(change.file, ())) if change.forbidden else (WARNING, ())
        yield Finding(f"{change.id} {word}", word, level, change.file, change.line, one_line(change.sentence), below)
    for lock in report.failing_locks:
        yield Finding(lock.id, LOCK, ERROR, lock.file or _any_file(report), 1, one_line(lock.text))
    if sentence := unmeasured(report):
        yield Finding(UNMEASURED, UNMEASURED, ERROR, _any_file(report), 1, sentence)


def _of_case(case: Case) -> Finding:
    """A limit that does not simply hold; what neither fails nor is to be warned of is a note."""
    level = ERROR if case.check.fails else WARNING if case.check.warns else NOTE
    message = f"{case.subject}: {headline(case)}"
    return Finding(case.id, case.check.metric, level, case.file, case.line, message, tuple(short_lines(case)), case)


def _of_problem(broken: BrokenFile, problem: str) -> Finding:
    line, text = placed(problem)
    return Finding(broken.id, BROKEN, ERROR, broken.address.file, line, one_line(text))


def placed(problem: str) -> tuple[int, str]:
    """The line that a problem of a budget file names, and its text; the first line where it names none."""
    match = _PLACED.fullmatch(problem)
    return (int(match["line"]), match["text"].strip()) if match else (1, problem)


def _any_file(report: Report) -> str:
    """A budget that the session knew: readers show nothing that has no place."""
    return next((subject.address.file for subject in (*report.models, *report.broken)), FOLDER)
