"""A project to run pytest in, and the page that a run on GitHub writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytest_modelbudget.pytest_plugin.items  # noqa: F401  # pytester forgets what runs import anew
from pytest_modelbudget.formats import table as formats_table
from tests.builders.project import Project


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(formats_table, "FORMATS", formats_table.FORMATS)
    monkeypatch.setenv("COLUMNS", "80")
    # They take longer to import than a run takes, in each of its processes, and change nothing.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio")
    pytester.syspathinsert()
    return Project(pytester)


@pytest.fixture
def page(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page of the run, in a checkout whose top is the project."""
    page = project.path / "page.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    return page
