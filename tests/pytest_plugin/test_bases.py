"""Which base a session compares with, and what its reports say of it; tests/budget/test_revision.py has the scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

AGAINST = "--model-budget-base=main"
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_BASE_REF": "main"}


@pytest.fixture
def repository(project: Project) -> Repository:
    """One commit on main: 48 locked parameters that may grow by 2%, which is none."""
    project.budget(BUDGET)
    made = Repository(project)
    made.locked()
    return made


def updated_branch(repository: Repository) -> dict[str, str]:
    """A branch that grew to 54 and wrote its own lock, into which its author merged main; the commits by name."""
    repository.branch("feature")
    change = repository.locked("4 9 2", "six more")  # 9 x 4 + 2 x 9 = 54
    repository.git("checkout", "-q", "main")
    repository.write("note", "elsewhere")
    main = repository.commit("main moves")
    repository.git("checkout", "-q", "feature")
    repository.git("merge", "-q", "--no-ff", "-m", "update branch", "main")
    return {"change": change, "main": main, "head": repository.git("rev-parse", "HEAD")}


def cloned(repository: Repository, branch: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one branch as CI makes it: on no branch, as deep as it was asked for, no other ref."""
    clone = repository.path / "ci"
    clone.mkdir()
    repository.git("init", "-q", folder=clone)
    depths = [f"--depth={depth}"] if depth else []
    refs = f"+{branch}:refs/remotes/origin/{branch}"
    repository.git("fetch", "-q", *depths, f"file://{repository.path}", refs, folder=clone)
    repository.git("checkout", "-q", f"origin/{branch}", folder=clone)
    monkeypatch.chdir(clone)
    return clone


def judged(repository: Repository, folder: Path, *args: str) -> tuple[int, Any, str]:
    """Exit code, report and the one check's outcome of a session in a folder."""
    result = repository.project.run("--rootdir", ".", "--model-budget-report=json:out.json", *args)
    report = json.loads((folder / "out.json").read_text())
    ((check,),) = [model["checks"] for model in report["models"]]
    return int(result.ret), report, check["outcome"]


def on_github(monkeypatch: pytest.MonkeyPatch, folder: Path, event: object = None, **others: str) -> None:
    """The environment that GitHub gives a step, with its event file."""
    for name, value in {**GITHUB, **others}.items():
        monkeypatch.setenv(name, value)
    if event is not None:
        (folder / "event").write_text(event if isinstance(event, str) else json.dumps(event))
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(folder / "event"))


def test_a_base_that_is_not_in_the_clone_is_red(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ref: head.sha`` checks out the author's merge of main, whose first parent is the change: never within."""
    commits = updated_branch(repository)
    clone = cloned(repository, "feature", 2, monkeypatch)
    event = {"pull_request": {"head": {"sha": commits["head"]}, "base": {"sha": "0" * 40}}}
    on_github(monkeypatch, clone, event, GITHUB_REF="refs/pull/1/merge")
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "unknown", None)
    assert "set fetch-depth: 0 in actions/checkout; or, on pull_request," in report["lock"][0]["text"]


def test_a_hosts_merge_is_compared_with_its_first_parent(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event names the change that it merges; what main has gained is no growth of the change."""
    commits = updated_branch(repository)
    repository.git("branch", "-q", "pull", repository.merged("feature"))
    clone = cloned(repository, "pull", 2, monkeypatch)
    on_github(monkeypatch, clone, {"pull_request": {"head": {"sha": commits["head"]}}})
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "over", commits["main"])


def test_a_merge_queue_names_its_base(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebased, the change's growth is two commits below HEAD: HEAD^1 is the change's own."""
    base = repository.git("rev-parse", "main")
    repository.branch("queue")
    repository.locked("4 9 2", "grow")
    repository.write("note", "docs")
    repository.commit("docs")
    event = {"merge_group": {"base_sha": base, "base_ref": "refs/heads/main"}}
    on_github(monkeypatch, repository.path, event, GITHUB_EVENT_NAME="merge_group")
    code, report, outcome = judged(repository, repository.path)
    assert (code, outcome, report["base"]) == (1, "over", base)


def test_p8_a_base_that_github_names_and_the_clone_lacks_is_red(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit grows, and main forbids what the change does: it loosens a limit, and the ban goes with it."""
    models = "models:\n  net: {{widths: net.widths, inputs: float32 1x4, limits: {{params: {params}}}}}\n"
    repository.git("checkout", "-q", "main")
    repository.write("budgets/a.yaml", f"model_budget: 1\nloosen: forbid\n{models.format(params=50)}")
    repository.commit("forbid")
    repository.branch("feature")
    repository.write("budgets/a.yaml", f"model_budget: 1\n{models.format(params=90)}")
    repository.commit("loosen")
    merge = repository.merged("feature")
    repository.git("update-ref", "refs/heads/pull", merge)
    clone = cloned(repository, "pull", 1, monkeypatch)
    on_github(monkeypatch, clone, GITHUB_REF="refs/pull/1/merge", GITHUB_SHA=merge)
    code, report, outcome = judged(repository, clone)
    assert (code, outcome) == (1, "within")
    (lock,) = [lock for lock in report["lock"] if lock["state"] == "unreachable"]
    assert lock["fails"]
    assert "set fetch-depth: 2 in actions/checkout" in lock["text"]
    assert judged(repository, clone, "--model-budget-base=HEAD")[0] == 0  # who wants no comparison says so


@pytest.mark.parametrize("widths", ["4 8 2", "4 9 2"], ids=["quiet", "over"])
def test_p10_comment_and_summary_name_base_and_change(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, widths: str
) -> None:
    """Of GitHub's test merge, the change's own commit, which people know."""
    repository.branch("feature")
    repository.write("note", "x")
    change = repository.locked(widths)
    repository.git("checkout", "-q", "main")
    repository.write("other", "x")
    main = repository.commit()
    repository.merged("feature")
    on_github(monkeypatch, repository.path, {"pull_request": {"head": {"sha": change}}})
    _, report, _ = judged(
        repository, repository.path, "--model-budget-report=comment:c.md", "--model-budget-report=summary:s.md"
    )
    assert (report["base_name"], report["base"], report["head"]) == ("origin/main", main, change)
    line = f"<code>{change[:7]}</code> measured, compared with <code>origin/main</code> (<code>{main[:7]}</code>)."
    for name in ("c.md", "s.md"):
        assert line in (repository.path / name).read_text(encoding="utf-8").splitlines()


def test_p10_a_base_that_is_not_known_is_named(repository: Repository) -> None:
    """With the commit that was measured."""
    head = repository.git("rev-parse", "HEAD")
    repository.project.run("--model-budget-base=nowhere", "--model-budget-report=comment:c.md")
    text = (repository.path / "c.md").read_text(encoding="utf-8")
    assert f"<code>{head[:7]}</code> measured, and not compared: the base <code>nowhere</code> is not known." in text
