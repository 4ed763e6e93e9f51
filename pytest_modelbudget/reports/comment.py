"""``--model-budget-comment``: the summary as the text of one comment on a pull request.

The first line is a marker that nobody sees, by which the comment is found again and replaced.
"""

from __future__ import annotations

from pytest_modelbudget.reports.cases import cases, changes_counted, counts, failing_locks
from pytest_modelbudget.reports.markdown import changed, nbytes, summary, title
from pytest_modelbudget.reports.record import Record

MARKER = "<!-- model-budget -->"
MOST_BYTES = 65_000  # GitHub takes 65,536 characters


def render(report: Record) -> str:
    """The comment: a line where all is well, else the summary, within what GitHub takes."""
    if is_quiet(report):
        return f"{MARKER}\n✅ {title(report)}{_changes(report)}\n"
    return f"{MARKER}\n{summary(report, MOST_BYTES - nbytes(MARKER) - 1)}"


def is_quiet(report: Record) -> bool:
    """Whether something was measured, all of it is within, and no budget was changed."""
    told = counts(report)
    left = (report["selected"], report.get("unanswered"))
    return told["within"] == sum(told.values()) > 0 and not any(
        (*left, report["broken"], changes_counted(report), failing_locks(report))
    )


def _changes(report: Record) -> str:
    count = sum(changed(case) for case in cases(report))
    return f", {count} changed since the baseline" if count else ""
