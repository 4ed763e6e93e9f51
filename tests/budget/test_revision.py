"""The base is what the host says it is, or where a branch parts; a first parent only of the host's own merge."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget.revision import BaseRevision, asked_base, base_revision

Environment = dict[str, str]
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
PULL = {"GITHUB_REF": "refs/pull/1/merge"}
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_BASE_REF": "main"}
QUEUE = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "merge_group"}
NONE = "0" * 40


def git(folder: Path, *words: str) -> str:
    run = subprocess.run(["git", *IDENTITY, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"git {' '.join(words)}: {run.stderr}"
    return run.stdout.strip()


def commit(folder: Path, name: str) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", name)
    git(folder, "update-ref", f"refs/scene/{name}", "HEAD")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    r"""A branch whose author merged main, the merge that a host makes of it, and what queues make of another branch.

    v1 --- early --- main              main grew twice since v1
      \          \     \
       change ---- feature - pull      feature: the author's own merge; pull: the host's
    """
    folder = tmp_path_factory.mktemp("origin")
    git(folder, "init", "-q", "-b", "main", "--template=")
    commit(folder, "start")
    git(folder, "tag", "v1")
    git(folder, "checkout", "-q", "-b", "feature")
    commit(folder, "change")
    git(folder, "checkout", "-q", "main")
    commit(folder, "early")
    git(folder, "checkout", "-q", "feature")
    git(folder, "merge", "-q", "--no-ff", "-m", "update branch", "main")
    git(folder, "checkout", "-q", "main")
    commit(folder, "late")
    git(folder, "checkout", "-q", "-b", "pull")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "feature")
    git(folder, "checkout", "-q", "-b", "rebased", "main")
    for name in ("first", "second"):
        commit(folder, name)
    git(folder, "checkout", "-q", "-b", "squashed", "main")
    commit(folder, "both")
    parents = ("-p", "feature", "-p", "refs/scene/first", "-p", "refs/scene/both")
    git(folder, "branch", "octopus", git(folder, "commit-tree", "-m", "octopus", *parents, "main^{tree}"))
    git(folder, "checkout", "-q", "pull")
    return folder


def named(origin: Path, text: str) -> str:
    """A text with the commits of refs in it: "{main}"."""
    refs = git(origin, "for-each-ref", "--format=%(refname:short) %(objectname)").splitlines()
    commits = dict(line.rsplit(" ", 1) for line in refs)
    for name, digits in commits.items():
        text = text.replace(f"{{{name.removeprefix('scene/')}}}", digits)
    return text


def cloned(origin: Path, folder: Path, branch: str, depth: int) -> Path:
    """A checkout of one branch as CI makes it: on no branch, as deep as it was asked for, no other ref."""
    git(folder, "init", "-q", "--template=")
    depths = [f"--depth={depth}"] if depth else []
    git(folder, "fetch", "-q", *depths, f"file://{origin}", f"+{branch}:refs/remotes/origin/{branch}")
    git(folder, "checkout", "-q", f"origin/{branch}")
    return folder


def base_of(folder: Path, environment: Environment, event: str = "", option: str | None = None) -> BaseRevision:
    if event:
        (folder / "event").write_text(event, encoding="utf-8")
        environment = {**environment, "GITHUB_EVENT_PATH": str(folder / "event")}
    asked = asked_base(option, environment)
    assert asked is not None
    return base_revision(asked, folder, environment)


def pull_request(head: str = "", base: str = NONE) -> str:
    return json.dumps({"pull_request": {"head": {"sha": head}, "base": {"sha": base}}})


def queue(base: Any) -> str:
    return json.dumps({"merge_group": {"base_sha": base, "base_ref": "refs/heads/main"}})


DEEPEN = "fetch-depth: 0 in actions/checkout; or, on pull_request,"
OWN = pull_request("{feature}")
AS_PULL = {**GITHUB, **PULL}
SCENES = [
    # ``ref: head.sha`` checks out the author's own merge, whose first parent is the change: never the base. GITHUB_REF
    # stays refs/pull/N/merge there, and GITHUB_SHA the test merge, which is not what was checked out.
    *(pytest.param("feature", depth, AS_PULL, OWN, None, DEEPEN, id=f"own merge, {depth} deep") for depth in (1, 2, 3)),
    pytest.param("feature", 2, GITHUB, "", None, DEEPEN, id="own merge, no word on it"),
    pytest.param("feature", 2, {**AS_PULL, "GITHUB_SHA": "1" * 40}, "", None, DEEPEN, id="own merge, another commit"),
    pytest.param("feature", 2, {**AS_PULL, "GITHUB_SHA": "1" * 40}, "[" * 9, None, DEEPEN, id="own merge, odd event"),
    pytest.param("feature", 2, AS_PULL, pull_request("{feature}", "{early}"), None, "early", id="the event's base"),
    pytest.param("feature", 0, {}, "", "{start}", "start", id="own merge, a stale base"),
    pytest.param("octopus", 2, AS_PULL, "", None, DEEPEN, id="three parents"),
    # The host's own merge: by its ref, by its commit, or by the change that it merges.
    pytest.param("pull", 2, AS_PULL, "", None, "main", id="host's merge, by its ref"),
    pytest.param("pull", 2, {**AS_PULL, "GITHUB_SHA": "{pull}"}, "", None, "main", id="host's merge, by its commit"),
    pytest.param("pull", 2, GITHUB, OWN, None, "main", id="host's merge, by its change"),
    pytest.param("pull", 3, GITHUB, OWN, None, "main", id="host's merge, depth 3"),
    pytest.param("pull", 1, AS_PULL, "", None, "the first parent of the merge commit HEAD is not in this clone: set",
                 id="host's merge, its parent is not here"),
    pytest.param("pull", 0, {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "{feature}"}, "", "{start}", "main", id="GitLab"),
    pytest.param("pull", 0, {}, "", "{start}", "start", id="GitLab, no word on it"),
    # Which base is named: the test merge speaks for the branch that the change goes to.
    *(
        pytest.param("pull", 0, {**AS_PULL, "GITHUB_SHA": "{pull}"}, pull_request(base="{early}"), option, expected,
                     id=f"named {option}")
        for option, expected in {"v1": "start", "main": "main", "origin/main": "main", "{start}": "start",
                                 "{early}": "main", "never": "never"}.items()
    ),
    # A merge queue names its base: rebased, the change is two commits below HEAD.
    *(
        pytest.param("rebased", depth, QUEUE, queue("{main}"), None, "main" if depth in (0, 3) else DEEPEN,
                     id=f"queue, rebased, depth {depth}")
        for depth in (1, 2, 3, 0)
    ),
    pytest.param("squashed", 1, QUEUE, queue("{main}"), None, DEEPEN, id="queue, squashed, depth 1"),
    pytest.param("squashed", 2, QUEUE, queue("{main}"), None, "main", id="queue, squashed, depth 2"),
    *(
        pytest.param("squashed", 0, QUEUE, event, None, "names no merge_group.base_sha: name the base with", id=event)
        for event in ("", "{", '{"merge_group": null}', queue(7), "[]")
    ),
    # The fix is the host's.
    pytest.param("rebased", 1, {}, "", "main", "git fetch --unshallow", id="at a desk"),
    pytest.param("rebased", 1, {"GITLAB_CI": "true"}, "", "main", "GIT_DEPTH: 0", id="on GitLab"),
]  # fmt: skip
COMMITS = {"start", "early", "main"}


@pytest.mark.parametrize(("branch", "depth", "environment", "event", "option", "expected"), SCENES)
def test_the_base_of_a_checkout(
    origin: Path, tmp_path: Path, branch: str, depth: int, environment: Environment, event: str, option: str | None,
    expected: str,
) -> None:  # fmt: skip
    """expected is the commit by name; else words of why there is none."""
    folder = cloned(origin, tmp_path, branch, depth)
    if option and depth == 0:  # a whole clone has the other refs, too
        git(folder, "fetch", "-q", "--tags", f"file://{origin}", "+refs/heads/*:refs/remotes/origin/*", "+main:main")
    environment = {name: named(origin, value) for name, value in environment.items()}
    base = base_of(folder, environment, named(origin, event), option and named(origin, option))
    if expected in COMMITS:
        assert (base.commit, base.why_not) == (named(origin, f"{{{expected}}}"), "")
    else:
        assert base.commit == ""
        assert expected in base.why_not
    assert base.measured == named(origin, "{feature}" if branch == "pull" and environment else f"{{{branch}}}")


def test_a_worktree_has_the_base_of_its_branch(origin: Path, tmp_path: Path) -> None:
    """A second worktree of the repository, whose .git is a file."""
    git(origin, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), "feature")
    assert base_of(tmp_path / "tree", {}, option="main").commit == named(origin, "{early}")


def test_without_git_the_base_is_unknown(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git compares with nothing, and says so."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert "git cannot be run" in base_of(origin, {}, option="main").why_not


@pytest.mark.parametrize("option", ["main", "main~0", "main@{0}", "main^{commit}", "origin/main"])
def test_a_name_of_a_tag_and_of_a_branch_is_no_base(origin: Path, tmp_path: Path, option: str) -> None:
    """Git takes the tag, which a clone of all tags brings: the change would be compared with itself."""
    git(tmp_path, "clone", "-q", f"file://{origin}", "clone")
    folder = tmp_path / "clone"
    git(folder, "branch", "-q", "main", "origin/main")
    name = option.partition("~")[0].partition("@")[0].partition("^")[0]
    early, main = (named(origin, f"{{{each}}}") for each in ("early", "main"))
    git(folder, "tag", "-a", "-m", "the same", name, main)
    assert base_of(folder, {}, option="refs/heads/main").commit == main
    assert base_of(folder, {}, option=name).commit == main  # it is the commit that counts
    git(folder, "tag", "-f", name, early)
    kind = "a remote's branch" if name == "origin/main" else "a branch"
    assert (
        f"{name} is the name of a tag and of {kind}: say which, as refs/tags/{name} or"
        in base_of(folder, {}, option=option).why_not
    )
    assert base_of(folder, {}, option=f"refs/tags/{name}").commit == early
