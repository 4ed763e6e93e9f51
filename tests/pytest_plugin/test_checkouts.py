"""What a checkout leaves in place of a file, or leaves out, in real repositories of git."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

AGAINST = "--model-budget-base=main"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 130\n"


def check(report: Any) -> Any:
    (model,) = report["models"]
    (only,) = model["checks"]
    return only


def test_a_lock_that_is_a_pointer_of_git_lfs_says_how_to_fetch_it(project: Project) -> None:
    """It is neither broken nor to be deleted."""
    project.budget(BUDGET)
    project.write("budgets/a.lock.json", POINTER)
    reason = check(project.report())["reason"]
    assert "budgets/a.lock.json is a pointer of Git LFS: fetch it with git lfs pull" in reason
    assert project.run("--model-budget-update=create").ret == 1
    assert (project.path / "budgets" / "a.lock.json").read_text(encoding="utf-8") == POINTER


def test_a_base_in_git_lfs_says_that_git_has_no_more_than_a_pointer(project: Project) -> None:
    """Whatever is fetched, the base has the pointer."""
    project.budget(BUDGET)
    repository = Repository(project)
    repository.locked()
    lock = (project.path / "budgets" / "a.lock.json").read_text(encoding="utf-8")
    repository.write("budgets/a.lock.json", POINTER)
    repository.commit()
    repository.branch("change")
    repository.write("budgets/a.lock.json", lock)
    reason = check(project.report(AGAINST))["reason"]
    assert "a.lock.json is in Git LFS at main" in reason
    assert "take it out of .gitattributes" in reason


def test_a_pointer_that_a_change_removes_may_have_been_a_budget(project: Project) -> None:
    """What it held nobody can read: that is said. Data that stay in Git LFS are no business of the gate."""
    project.budget(BUDGET)
    project.write("data/a.yaml", POINTER)
    project.write("data/b.yaml", POINTER)
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    assert project.report(AGAINST)["loosened"] == []
    repository.git("rm", "-q", "data/b.yaml")
    (found,) = project.report(AGAINST)["loosened"]
    assert (found["file"], found["what"]) == ("data/b.yaml", "unknown")
    assert "b.yaml is in Git LFS at main" in found["text"]
