"""The terminal that runs have, and the page that one on GitHub writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.project import Project


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures and remarks are folded in a narrow one, which tests of that ask for."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture
def page(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page of the run, in a checkout whose top is the project."""
    page = project.path / "page.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    return page
