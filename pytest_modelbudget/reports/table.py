"""Every report that goes to a file: the one list to add a format to.

The plugin reads this table to declare its options, in every pytest run of everybody: so an entry
names the module that renders and does not import it, and is a NamedTuple, which costs least.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_modelbudget.reports.record import Report
    from pytest_modelbudget.reports.shard import Part


class FileReport(NamedTuple):
    """A file format: its command-line option, what it holds, and the module with ``render``, or "module:function".

    profile names the module whose ``profile`` it wants of each model, worked out while the model's
    graph is there; its text is all that is kept. package is what the module needs
    that is not installed with the project itself, extra the name under which it is. is_of_whole: it speaks of a whole
    run, and no shard writes it.
    """

    option: str
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


JSON, SUMMARY = "--model-budget-json", "--model-budget-summary"

PART = FileReport(JSON, "what modelbudget merge joins, of a shard", "pytest_modelbudget.reports.shard:part_text")

FILE_REPORTS: tuple[FileReport, ...] = (
    FileReport(
        JSON, "all measurements and verdicts, for other programs", "pytest_modelbudget.reports.record:report_text"
    ),
    FileReport(
        "--model-budget-junit", "one JUnit test case for each limit, for dashboards", "pytest_modelbudget.reports.junit"
    ),
    FileReport(
        SUMMARY,
        "a summary in Markdown; by default, on GitHub, to the page of the run",
        "pytest_modelbudget.reports.markdown",
        is_of_whole=True,
    ),
    FileReport(
        "--model-budget-comment",
        "the text of a comment on a pull request, in Markdown",
        "pytest_modelbudget.reports.markdown:comment",
        is_of_whole=True,
    ),
    FileReport(
        "--model-budget-sarif", "what is not within, as SARIF, for code scanning", "pytest_modelbudget.reports.sarif"
    ),
    FileReport(
        "--model-budget-codequality",
        "what is not within, as GitLab's code quality report",
        "pytest_modelbudget.reports.codequality",
    ),
    FileReport(
        "--model-budget-openmetrics",
        "every number as a gauge, for Prometheus and GitLab's metrics report",
        "pytest_modelbudget.reports.openmetrics",
    ),
    FileReport(
        "--model-budget-html",
        "a page for people: limits, layers, memory over time, roofline",
        "pytest_modelbudget.reports.html.page",
        profile="pytest_modelbudget.reports.html.profile",
        package="jinja2",
        extra="html",
    ),
)
