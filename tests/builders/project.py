"""A project with budgets over a framework-free model format, to run pytest in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

WIDTHS_FORMAT = Path(__file__).with_name("widths_format.py")
CONFTEST = """
from pytest_modelbudget.formats import table as formats_table
from pytest_modelbudget.formats.table import Format

WIDTHS = Format("widths", "path of a widths file", "widths_format", suffixes=(".widths",))
if WIDTHS not in formats_table.FORMATS:
    formats_table.FORMATS += (WIDTHS,)
"""
# Plugins that take longer to import than a run takes, and change nothing; workers hear of arguments, not of variables.
LEAN = ("-p", "no:hypothesispytest", "-p", "no:anyio")
LOCK = "--model-budget-lock"
HEAD = "model_budget: 1\ndefaults: {inputs: float32 1x4}\nmodels:\n"


def keeping_locks(args: Iterable[str]) -> tuple[str, ...]:
    """The option that writes no lock file, unless a test says something of locks itself."""
    return () if any(arg.startswith(LOCK) for arg in args) else (f"{LOCK}=keep",)


class Project:
    """A user's repository: files are written by name, pytest is run in it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.write("widths_format.py", WIDTHS_FORMAT.read_text())
        self.write("conftest.py", CONFTEST)
        self.write("pytest.ini", "[pytest]\n")
        self.write("budgets/net.widths", "4 8 2")  # 4 * 8 + 8 * 2 = 48 parameters and MACs

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def budget(self, models: str, name: str = "budgets/a.yaml") -> Path:
        """A budget file; ``models`` is its part below ``models:``, which is line 4 and on."""
        return self.write(name, HEAD + models)

    def configure(self, text: str) -> None:
        """Add to the user's conftest.py."""
        path = self.path / "conftest.py"
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    def run(self, *args: str, switch: bool = True) -> pytest.RunResult:
        """Pytest in this process, with every warning an error."""
        given = ("--model-budget", *keeping_locks(args), *args) if switch else args
        return self.pytester.runpytest_inprocess(*LEAN, "-p", "no:cacheprovider", "-Werror", *given)

    def run_apart(self, *args: str) -> pytest.RunResult:
        """Pytest in a process of its own, with the switch."""
        return self.pytester.runpytest_subprocess(*LEAN, "--model-budget", "-Werror", *args)

    def report(self, *args: str, run: Callable[..., pytest.RunResult] | None = None) -> Any:
        """The JSON report of a run, without its timings."""
        return self.run_and_report(*args, run=run)[1]

    def run_and_report(
        self, *args: str, run: Callable[..., pytest.RunResult] | None = None
    ) -> tuple[pytest.RunResult, Any]:
        """What a run shows, and its JSON report, without its timings."""
        result = (run or self.run)("--model-budget-report=json:out.json", *args)
        report = json.loads((self.path / "out.json").read_text(encoding="utf-8"))
        report.pop("timings")
        return result, report

    @property
    def loads(self) -> list[str]:
        """Names of the model files in the order in which they were loaded."""
        return (self.path / "budgets" / "loads").read_text().split()
