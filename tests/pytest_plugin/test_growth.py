"""Growth is told from the base's lock file, and never from what the base has gained since."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

AGAINST = "--model-budget-base=main"


@pytest.fixture
def repository(project: Project) -> Repository:
    """One commit on main: 48 locked parameters that may grow by 2%, which is none."""
    project.budget(BUDGET)
    made = Repository(project)
    made.locked()
    return made


def check(report: Any) -> Any:
    (model,) = report["models"]
    (only,) = model["checks"]
    return only


def behind_a_base_that_grew(repository: Repository) -> None:
    """A branch that leaves the model alone, behind five commits on main that widen its layer.

    From 8 to 10: 60 parameters, and their lock.
    """
    repository.branch("change")
    repository.write("note", "nothing to do with the model")
    repository.commit()
    repository.git("checkout", "-q", "main")
    for number in range(4):
        repository.write(f"note{number}", "unrelated")
        repository.commit()
    repository.locked("4 10 2")
    repository.git("checkout", "-q", "change")


def test_a_branch_behind_a_base_that_grew_has_grown_by_nothing(repository: Repository) -> None:
    """Main gained 12 parameters in five commits; the branch, which lacks them, gained none."""
    behind_a_base_that_grew(repository)
    found = check(repository.project.report(AGAINST))
    assert (found["baseline"], found["actual"], found["outcome"]) == (48, 48, "within")


def test_the_merge_of_such_a_branch_has_grown_by_nothing(repository: Repository) -> None:
    """What GitHub checks out holds main's growth: its first parent does too."""
    behind_a_base_that_grew(repository)
    main = repository.git("rev-parse", "main")
    repository.merged("change")
    report = repository.project.report(AGAINST)
    assert report["base"] == main
    assert (check(report)["baseline"], check(report)["actual"]) == (60, 60)


def test_a_stale_base_blames_no_growth_of_main_on_the_change(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base commit of yesterday is passed over for the first parent of GitHub's test merge."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_REF", "refs/pull/1/merge")
    yesterday = repository.git("rev-parse", "main")
    behind_a_base_that_grew(repository)
    repository.merged("change")
    found = check(repository.project.report(f"--model-budget-base={yesterday}"))
    assert found["baseline"] == found["actual"] == 60


def test_merging_main_hides_no_growth_of_the_branch(repository: Repository) -> None:
    """The first parent of a merge of main is the change itself: main is compared with."""
    repository.branch("change")
    repository.locked("4 9 2")  # 9 x 4 + 2 x 9 = 54
    repository.git("checkout", "-q", "main")
    repository.write("note", "elsewhere")
    main = repository.commit()
    repository.git("checkout", "-q", "change")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "main")
    report = repository.project.report(AGAINST)
    assert report["base"] == main
    assert (check(report)["baseline"], check(report)["actual"]) == (48, 54)


def test_a_widened_layer_is_named_with_its_shapes(repository: Repository) -> None:
    """8 -> 9: layer0 gains 4 weights, layer1 two; delta, name, shape then and now."""
    repository.branch("change")
    repository.locked("4 9 2")
    repository.merged("change")
    found = check(repository.project.report(AGAINST))
    assert (found["baseline"], found["allowed"], found["actual"]) == (48, 48, 54)
    assert found["outcome"] == "over"
    assert found["blame"] == [
        {
            "scope": "layer0", "name": "weight", "delta": 4, "before": 32, "after": 36,
            "shape_before": [8, 4], "shape_after": [9, 4],
        },
        {
            "scope": "layer1", "name": "weight", "delta": 2, "before": 16, "after": 18,
            "shape_before": [2, 8], "shape_after": [2, 9],
        },
    ]  # fmt: skip


def test_the_terminal_tells_it(repository: Repository) -> None:
    """The block: number, baseline, who grew, and a command."""
    repository.branch("change")
    repository.locked("4 9 2")
    result = repository.project.run(AGAINST)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "params 54 > 48 (+12.5% vs base)   base 48, grow 2.0%   budgets/a.yaml:7",
            "  layer0   4→8 becomes 4→9",
            "  layer1   8→2 becomes 9→2",
            "fix: shrink the layer above, or accept: pytest --model-budget "
            "--model-budget-update=fix --model-budget-base=main budgets/a.yaml::net::params",
        ],
        consecutive=True,
    )


def test_growth_within_what_is_allowed(repository: Repository) -> None:
    """floor allows 6 of 48 where 2% allow none."""
    repository.project.budget(BUDGET.replace("{grow: 2%}", "{grow: 2%, floor: 6}"))
    repository.commit()
    repository.write("budgets/net.widths", "4 9 2")
    found = check(repository.project.report())
    assert (found["outcome"], found["allowed"], found["actual"]) == ("within", 54, 54)


def test_a_limit_that_the_base_does_not_know_has_not_grown(repository: Repository) -> None:
    """A new model is compared with the lock that comes with it, and that is said."""
    repository.branch("change")
    repository.project.budget(BUDGET + BUDGET.replace("net:", "twin:"))
    repository.project.run("--model-budget-update=create")
    repository.commit()
    report = repository.project.report(AGAINST)
    assert [model["checks"][0]["outcome"] for model in report["models"]] == ["within", "within"]


def test_a_base_without_locks_is_said(project: Project) -> None:
    """The change that brings the first lock is compared with it, aloud."""
    project.budget(BUDGET)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.locked()
    report = project.report(AGAINST)
    assert check(report)["outcome"] == "within"
    assert [each["state"] for each in report["lock"]] == ["fresh", "missing"]
    result = project.run(AGAINST)
    result.stdout.fnmatch_lines(["*main (???????) has no budgets/a.lock.json: compared with *"])


def test_no_lock_is_unknown(project: Project) -> None:
    """Without a lock nobody knows what grew: red, with the command that makes one."""
    project.budget(BUDGET)
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["params 48   nothing to grow from: there is no budgets/a.lock.json: pytest "
         "--model-budget --model-budget-update=create writes it   budgets/a.yaml:7"]
    )  # fmt: skip


@pytest.mark.parametrize("asked", ["nowhere", "origin/main"])
def test_a_missing_base_is_unknown(repository: Repository, asked: str) -> None:
    """A commit that is not here can be no base, and the message says how to get it."""
    report = repository.project.report(f"--model-budget-base={asked}")
    assert check(report)["outcome"] == "unknown"
    assert report["base"] is None
    assert report["lock"][0]["state"] == "unreachable"
    assert report["lock"][0]["fails"]
    result = repository.project.run(f"--model-budget-base={asked}")
    result.stdout.fnmatch_lines([f"*the base {asked} is no commit in this clone: *git fetch --unshallow*"])
    result.stdout.no_fnmatch_line("*fetch-depth*")  # which are words of GitHub's


@pytest.mark.parametrize(("depth", "outcome"), [("1", "unknown"), ("2", "over")])
def test_a_shallow_checkout_of_a_merge(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, depth: str, outcome: str
) -> None:
    """On GitHub, without any option: depth 2 holds the first parent, depth 1 says so."""
    repository.branch("change")
    repository.locked("4 9 2")
    merge = repository.merged("change")
    repository.git("update-ref", "refs/heads/pull", merge)
    clone = repository.path / "clone"
    repository.git("clone", "-q", "--depth", depth, "--branch", "pull", f"file://{repository.path}", str(clone))
    for name, value in (
        ("GITHUB_ACTIONS", "true"), ("GITHUB_EVENT_NAME", "pull_request"),
        ("GITHUB_BASE_REF", "main"), ("GITHUB_REF", "refs/pull/1/merge"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(clone)
    result = repository.project.run("--model-budget-report=json:out.json", "--rootdir", ".")
    report = json.loads((clone / "out.json").read_text())
    assert check(report)["outcome"] == outcome
    if depth == "1":
        assert "fetch-depth: 2" in check(report)["reason"]
    else:  # the command must grow from the same base on a desk
        fix = "*=fix --model-budget-base=origin/main budgets/a.yaml::net::params"
        result.stdout.fnmatch_lines([f"fix: {fix}"])


def test_a_repository_of_another_owner_says_how_git_reads_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the clone often is another user's, which git refuses; its own switch for tests says so here."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    subprocess.run(["git", "init", "-q"], cwd=project.path, check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    (lock,) = project.report("--model-budget-base=main")["lock"]
    assert "dubious ownership in repository at" in lock["text"]
    assert "git config --global --add safe.directory, with that path, lets git read it" in lock["text"]


def test_outside_of_a_repository(project: Project) -> None:
    """What is no repository has no base; limits that do not grow are judged all the same, and the session is red."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    report = project.report("--model-budget-base=main")
    assert check(report)["outcome"] == "within"
    assert "not a git repository" in report["lock"][0]["text"]
    result = project.run("--model-budget-base=main", "--model-budget-report=comment:c.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED base::lock - *"])
    comment = (project.path / "c.md").read_text(encoding="utf-8")
    assert "## Model budget: base not known (1 limit)" in comment.splitlines()


def test_workers_tell_the_same_growth(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is the same bytes under -n2 and another hash seed."""
    repository.branch("change")
    repository.locked("4 9 2")
    texts = []
    for seed, *words in (("1", "-n0"), ("2", "-n2")):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        repository.project.run_apart(AGAINST, "--model-budget-report=json:out.json", *words)
        texts.append((repository.path / "out.json").read_text().partition('"timings"')[0])
    assert texts[0] == texts[1]
    assert '"blame"' in texts[0]


def test_a_project_within_a_larger_repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked for below the project, also from one of git's own hooks."""
    repository = Repository(project)
    team = project.path / "team a" / "n\u00e4t"
    for name in ("conftest.py", "pytest.ini", "widths_format.py"):
        (project.path / name).rename(project.write(f"team a/n\u00e4t/{name}", ""))
    (project.path / "budgets" / "net.widths").rename(project.write("team a/n\u00e4t/budgets/net.widths", ""))
    project.budget(BUDGET, "team a/n\u00e4t/budgets/a.yaml")
    project.budget(BUDGET, "team a/n\u00e4t/budgets/b.yaml")
    monkeypatch.chdir(team)
    project.run("--rootdir", ".", "--model-budget-update=create")
    repository.commit()
    repository.branch("change")
    (team / "budgets" / "net.widths").write_text("4 9 2")
    (team / "budgets" / "b.yaml").unlink()
    monkeypatch.setenv("GIT_DIR", str(repository.path / ".git"))
    project.run("--rootdir", ".", "--model-budget-report=json:out.json", AGAINST)
    report = json.loads((team / "out.json").read_text())
    assert (check(report)["baseline"], check(report)["actual"]) == (48, 54)
    assert [(each["file"], each["what"]) for each in report["loosened"]] == [("budgets/b.yaml", "model dropped")]


def test_an_empty_base_is_a_usage_error(project: Project) -> None:
    """A variable that CI did not set must not turn into a comparison with the change itself."""
    project.budget(BUDGET)
    result = project.run("--model-budget-base=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--model-budget-base is empty: name a revision*"])
