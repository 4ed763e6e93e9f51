"""A change that holds limits on something else says so, and fails where that is forbidden."""

from __future__ import annotations

import pytest

from pytest_modelbudget.reports.markdown import code
from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
ALONE = ("-p", "no:pytest_github_actions_annotate_failures")
BUDGET = """model_budget: 1
loosen: {loosen}
models:
  net:
    widths: net.widths
    inputs: {inputs}
    limits:
      macs: 3.5 M
"""
TEXT = "model changed: inputs float32 2x4 -> float32 1x4: its limits now apply to a different model"


def project_with(project: Project, loosen: str, inputs: str) -> Repository:
    """Main measures with a batch of 2; the branch, with these inputs."""
    project.write("budgets/a.yaml", BUDGET.format(loosen=loosen, inputs="float32 2x4"))
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.write("budgets/a.yaml", BUDGET.format(loosen=loosen, inputs=inputs))
    repository.commit()
    return repository


def test_other_inputs_are_announced_on_their_line(project: Project) -> None:
    """Half the batch is half the MACs: 1 x (4 x 8 + 8 x 2) = 48 of 96, and no limit was raised."""
    repository = project_with(project, "warn", "float32 1x4")
    report = repository.project.report(BASE)
    assert report["models"][0]["checks"][0]["actual"] == 48
    assert report["loosened"] == []
    assert report["redefined"] == [
        {
            "file": "budgets/a.yaml",
            "line": 6,
            "id": "budgets/a.yaml::net",
            "what": "inputs",
            "before": "float32 2x4",
            "after": "float32 1x4",
            "forbidden": False,
            "text": TEXT,
        }
    ]
    result = repository.project.run(BASE)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*{TEXT}   budgets/a.yaml:6", "1 limit: *, 1 redefined"])


def test_every_report_says_so(project: Project) -> None:
    """JUnit, the page, the summary and the comment, each as red as the session."""
    project_with(project, "forbid", "float32 1x4")
    files = ("junit.xml", "page.html", "page.md", "comment.md")
    kinds = ("junit", "html", "summary", "comment")
    asked = [f"--model-budget-report={kind}:{file}" for kind, file in zip(kinds, files, strict=True)]
    assert project.run(BASE, *ALONE, *asked).ret == 1
    junit, page, summary, comment = ((project.path / name).read_text(encoding="utf-8") for name in files)
    assert 'name="net redefined: inputs"' in junit
    assert '<failure type="redefined"' in junit
    assert "Models that this change redefines" in page
    for text in (summary, comment):
        assert "1 redefined (1 limit)" in text
        assert "### Redefined by this change" in text
        assert f"❌ forbidden: {code(TEXT)} in {code('net')}, {code('budgets/a.yaml:6')}" in text


def test_it_is_annotated_on_its_line(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a warning, where it is not forbidden."""
    project_with(project, "warn", "float32 1x4")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "page.md"))
    commands = [line for line in project.run(BASE, *ALONE).outlines if line.startswith("::")]
    assert commands == [f"::warning file=budgets/a.yaml,line=6,title=net / redefined::{TEXT}"]


def test_a_model_under_another_name_is_a_new_one(project: Project) -> None:
    """The old one is dropped, which a ban forbids."""
    repository = project_with(project, "forbid", "float32 2x4")
    text = BUDGET.format(loosen="forbid", inputs="float32 2x4").replace("  net:", "  new:")
    repository.write("budgets/a.yaml", text)
    report = repository.project.report(BASE)
    assert [change["what"] for change in report["loosened"]] == ["model dropped"]
    assert repository.project.run(BASE).ret == 1
