"""``--model-budget-comment``: the summary as the text of one comment on a pull request.

The first line is a marker that nobody sees, by which the comment is found again and replaced.
"""

from __future__ import annotations

from pytest_modelbudget.reports.cases import cases, changes_counted, counts, failing_locks
from pytest_modelbudget.reports.markdown import changed, nbytes, summary, title
from pytest_modelbudget.reports.record import Report

MARKER = "<!-- model-budget -->"
MOST_BYTES = 65_000  # GitHub takes 65,536 characters


def render(report: Report) -> str:
    """The comment: a line where all is well, else the summary, within what GitHub takes."""
    if is_quiet(report):
        return f"{MARKER}\n✅ {title(report)}{_changes(report)}\n"
    return f"{MARKER}\n{summary(report, MOST_BYTES - nbytes(MARKER) - 1)}"


def is_quiet(report: Report) -> bool:
    """Whether something was measured, all of it is within, and no budget was changed."""
    numbers = counts(report)
    odd = (report.selected, report.unanswered, report.broken, changes_counted(report))
    is_within = numbers["within"] == sum(numbers.values()) > 0
    return is_within and not any((*odd, failing_locks(report)))


def _changes(report: Report) -> str:
    count = sum(changed(case) for case in cases(report))
    return f", {count} changed since the baseline" if count else ""
