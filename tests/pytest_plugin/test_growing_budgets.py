"""What a budget of many models asks of git and of YAML does not grow with their number."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pytest_modelbudget.budget import base_inventory, revision
from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
LIMITS = {"a size": "params: 50", "growth": "params: {grow: 5%}"}


def models(count: int, limit: str, letter: str = "m") -> str:
    return "".join(f"  {letter}{number}: {{widths: net.widths, limits: {{{limit}}}}}\n" for number in range(count))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often git ran, and how often the text of a budget was read for the names of its models."""
    seen: Counter[str] = Counter()

    def counted(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen[name] += 1
            return own(*args, **kwargs)

        return call

    monkeypatch.setattr(subprocess, "run", counted("git", subprocess.run))
    monkeypatch.setattr(base_inventory, "models_in", counted("names", base_inventory.models_in))
    return seen


@pytest.mark.parametrize("letter", ["m", "x"], ids=["models of the base", "models that it lacks"])
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_base_is_asked_as_often_for_three_models_as_for_thirty(
    project: Project, calls: Counter[str], limit: str, letter: str
) -> None:
    asked = []
    repository = Repository(project)
    for count in (3, 30):
        project.budget(models(count, limit))
        if "grow" in limit:
            project.run("--model-budget-update=create")
        repository.commit()
        project.budget(models(count, limit, letter))
        calls.clear()
        project.run(BASE)
        asked.append(dict(calls))
    assert asked[0] == asked[1]
    assert asked[0]["git"] > 5


def test_what_a_base_lacks_is_known_from_its_list_of_files(project: Project, calls: Counter[str]) -> None:
    """Twenty files that might be settings take the one run of git that lists what is there."""
    Repository(project).commit()
    base = revision.base_revision(revision.AskedBase("main", ("main",)), project.path, {})
    calls.clear()
    lacking = [project.path / "budgets" / f"{number}" / "tox.ini" for number in range(20)]
    assert [path for path in lacking if base_inventory.text_at(base, path) is not None] == []
    assert calls == {"git": 1}
