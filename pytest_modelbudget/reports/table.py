"""Every report that goes to a file: the one list to add a format to.

The plugin reads this table to declare its options, in every pytest run of everybody: so an entry
names the module that renders and does not import it, and is a NamedTuple, which costs least.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_modelbudget.reports.record import Report
    from pytest_modelbudget.reports.shard import Part


class FileReport(NamedTuple):
    """A file format: its type in ``--model-budget-report=TYPE[:FILE]``, the file where none is named, what it holds.

    module has ``render``, or is "module:function". profile names the module whose ``profile`` it wants of each model,
    worked out while the model's graph is there; its text is all that is kept. package is what the module needs
    that is not installed with the project itself, extra the name under which it is. is_of_whole: it speaks of a whole
    run, and no shard writes it.
    """

    type: str
    file: str
    describes: str
    module: str
    profile: str = ""
    package: str = ""
    extra: str = ""
    is_of_whole: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether the package that it needs is there; nothing is imported to find out."""
        return not self.package or find_spec(self.package) is not None

    def render(self, report: Report | Part) -> str:
        """The text of the file."""
        module, _, function = self.module.partition(":")
        renderer: Callable[[Report | Part], str] = getattr(import_module(module), function or "render")
        return renderer(report)


HERE = "pytest_modelbudget.reports"
JSON, SUMMARY = "json", "summary"

PART = FileReport(JSON, "part.json", "what modelbudget merge joins, of a shard", f"{HERE}.shard:part_text")

FILE_REPORTS: tuple[FileReport, ...] = (
    FileReport(JSON, "model_budget.json", "all numbers and verdicts", f"{HERE}.record:report_text"),
    FileReport("junit", "model_budget.xml", "a test case for each limit", f"{HERE}.junit"),
    FileReport(
        SUMMARY, "model_budget_summary.md", "Markdown for the page of a run", f"{HERE}.markdown", is_of_whole=True
    ),
    FileReport(
        "comment",
        "model_budget_comment.md",
        "Markdown for a pull request",
        f"{HERE}.markdown:comment",
        is_of_whole=True,
    ),
    FileReport("sarif", "model_budget.sarif", "for code scanning", f"{HERE}.sarif"),
    FileReport("codequality", "gl-code-quality-report.json", "for GitLab", f"{HERE}.codequality"),
    FileReport("openmetrics", "model_budget_metrics.txt", "gauges for Prometheus and GitLab", f"{HERE}.openmetrics"),
    FileReport(
        "html",
        "model_budget.html",
        "a page for people",
        f"{HERE}.html.page",
        profile=f"{HERE}.html.profile",
        package="jinja2",
        extra="html",
    ),
)

SHAPE = "TYPE[:FILE]"  # how a report is asked for on a command line


def asked_report(text: str) -> str:
    """``TYPE:FILE`` for ``TYPE[:FILE]``; raises ArgumentTypeError, which argparse shows, for another type."""
    name, colon, file = text.partition(":")
    kinds = {report.type: report for report in FILE_REPORTS}
    if name not in kinds:
        from pytest_modelbudget.budget.yaml_text import shown, suggestion

        raise ArgumentTypeError(f"{shown(name)} is no type of report: {suggestion(name, kinds)}")
    if colon and not file:
        raise ArgumentTypeError(f"'{text}' names no file: write {name}:{kinds[name].file}, or {name} alone")
    return f"{name}:{file or kinds[name].file}"


def asked_reports(words: Iterable[str]) -> Iterator[tuple[FileReport, str]]:
    """The reports that ``TYPE:FILE`` words ask for, and the file of each."""
    kinds = {report.type: report for report in FILE_REPORTS}
    for word in words:
        name, _, file = word.partition(":")
        yield kinds[name], file


def report_help() -> str:
    """What the option says of itself: each type, what it holds and where it is written."""
    types = "; ".join(f"{report.type}, {report.describes} ({report.file})" for report in FILE_REPORTS)
    return f"write a report, or several if repeated, to FILE or to the file in brackets: {types}"
