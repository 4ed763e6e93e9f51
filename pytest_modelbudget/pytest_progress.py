"""A line for each model that took long, as soon as it is measured, between pytest's own."""

from __future__ import annotations

import json

import pytest

from pytest_modelbudget.pytest_gate import STATEMENT

SLOW_SECONDS = 5.0


class Progress:
    """Tells which models a session has been waiting for, each once."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.told: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how long a slow model took; its first limit brings its time, from any worker."""
        said = json.loads(getattr(report, STATEMENT, "{}"))
        if "model" not in said or self.config.get_verbosity() < 0:
            return
        model_id, seconds = said["model"]["id"], float(said["seconds"])
        if seconds >= SLOW_SECONDS and model_id not in self.told:
            self.told.add(model_id)
            self._write(f"{model_id} measured in {seconds:.1f} s")

    def _write(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        reporter.ensure_newline()
        writer = self.config.get_terminal_writer()
        if writer.width_of_current_line:  # xdist's letters stand behind no file name
            writer.line()
        reporter.write_line(line)
