"""The output of a run for GitHub, through the plugin's own hooks: annotations and the summary.

Registered in the process that reports, where GITHUB_ACTIONS says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.pytest_plugin.options import report_files
from pytest_modelbudget.pytest_plugin.session_models import UNWRITTEN
from pytest_modelbudget.reports import markdown, record, table
from pytest_modelbudget.reports.annotations import commands, path_in_checkout
from pytest_modelbudget.reports.json_records import from_json

OTHER_ANNOTATOR = "pytest_github_actions_annotate_failures"  # its entry point; -p has its module, .plugin


def is_on_github() -> bool:
    """Whether this process runs in a workflow of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class GitHub:
    """Annotations on the lines of budgets, and the summary on the page of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.report: record.Report | None = None
        self.annotated: set[str] = set()  # ids of failing items that another plugin shows

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whose failure another plugin annotates, which it does for failing calls."""
        names = (OTHER_ANNOTATOR, f"{OTHER_ANNOTATOR}.plugin")
        other = any(map(self.config.pluginmanager.has_plugin, names))
        if other and report.failed and report.when == "call":
            self.annotated.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_model_budget_report(self, report: dict[str, Any]) -> None:
        """Keep the report before others change it, and show the summary unless it has a file."""
        self.report = from_json(record.Report, report)
        if any(kind.type == table.SUMMARY for kind, _ in report_files(self.config)) or not os.environ.get(
            "GITHUB_STEP_SUMMARY"
        ):
            return
        page = Path(os.environ["GITHUB_STEP_SUMMARY"])
        try:
            nbytes = page.stat().st_size if page.exists() else 0  # of what earlier commands of the step wrote
            with page.open("a", encoding="utf-8") as file:
                file.write(markdown.summary(self.report, markdown.MOST_BYTES - nbytes))  # within what GitHub takes
        except OSError as error:
            why = f"cannot write {page}, the file GITHUB_STEP_SUMMARY: {error.strerror or error}"
            self.config.stash.setdefault(UNWRITTEN, []).append(why)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a workflow command a line; nothing else may stand on it."""
        if self.report is None:
            return
        root = path_in_checkout(self.config.rootpath, os.environ)
        for command in commands(self.report, root=root, annotated=self.annotated):
            terminalreporter.write_line(command)
