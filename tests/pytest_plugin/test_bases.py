"""The base is what the host says it is, or where a branch parts; a first parent only of the host's own merge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget.git import NOT_TOLD, uncommitted
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
    result = repository.project.run("--rootdir", ".", "--model-budget-json=out.json", *args)
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


@pytest.mark.parametrize(
    ("told", "depth"),
    [("ref", 1), ("ref", 3), *((told, 2) for told in ("nothing", "ref", "ref and commit", "event", "odd event"))],
)
def test_p1_the_changes_own_commit_is_no_base(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, told: str, depth: int
) -> None:
    """``ref: head.sha`` checks out the author's merge of main, whose first parent is the change: never within.

    GITHUB_REF stays refs/pull/N/merge there, and GITHUB_SHA the test merge, which is not what was checked out.
    """
    commits = updated_branch(repository)
    clone = cloned(repository, "feature", depth, monkeypatch)
    head = {"pull_request": {"head": {"sha": commits["head"]}, "base": {"sha": "0" * 40}}}
    event = {"event": head, "ref": head, "odd event": "[" * 9}.get(told)
    others = {} if told == "nothing" else {"GITHUB_REF": "refs/pull/1/merge"}
    if told in ("ref and commit", "odd event"):
        others["GITHUB_SHA"] = "1" * 40
    on_github(monkeypatch, clone, event, **others)
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "unknown", None)
    assert "fetch-depth: 0, or on pull_request no ref:" in report["lock"][0]["text"]


def test_p1_the_event_names_a_base_that_is_in_the_clone(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main as it was merged is in a clone of depth 2, and pull_request.base.sha says which commit that is."""
    commits = updated_branch(repository)
    clone = cloned(repository, "feature", 2, monkeypatch)
    shas = {"head": {"sha": commits["head"]}, "base": {"sha": commits["main"]}}
    on_github(monkeypatch, clone, {"pull_request": shas}, GITHUB_REF="refs/pull/1/merge")
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "over", commits["main"])


def test_p1_a_full_clone_knows_the_branch(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fetch-depth: 0 the base is main as it was merged, whatever is checked out."""
    commits = updated_branch(repository)
    clone = cloned(repository, "feature", 0, monkeypatch)
    repository.git("update-ref", "refs/remotes/origin/main", commits["main"], folder=clone)
    on_github(monkeypatch, clone, GITHUB_REF="refs/pull/1/merge", GITHUB_SHA="1" * 40)
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "over", commits["main"])


def test_p1_a_stale_base_is_no_reason_to_take_the_change_for_it(repository: Repository) -> None:
    """Base and change part before main's newest commit: the author's merge holds both, and still is the author's."""
    stale = repository.git("rev-parse", "main")
    updated_branch(repository)
    report = repository.project.report(f"--model-budget-base={stale}")
    assert report["base"] == stale
    assert report["models"][0]["checks"][0]["outcome"] == "over"


@pytest.mark.parametrize(("told", "depth"), [("ref", 2), ("commit", 2), ("event", 2), ("event", 3)])
def test_p1_githubs_own_merge_has_the_base_as_first_parent(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, told: str, depth: int
) -> None:
    """By its ref where nothing speaks against it, by GITHUB_SHA, or by the change that it merges."""
    commits = updated_branch(repository)
    repository.git("branch", "-q", "pull", repository.merged("feature"))
    clone = cloned(repository, "pull", depth, monkeypatch)
    others = {"GITHUB_REF": "refs/pull/1/merge"} if told != "event" else {}
    if told == "commit":
        others["GITHUB_SHA"] = repository.git("rev-parse", "pull")
    event = {"pull_request": {"head": {"sha": commits["head"]}}} if told == "event" else None
    on_github(monkeypatch, clone, event, **others)
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "over", commits["main"])


def test_p1_an_octopus_is_no_test_merge(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub's own merge has two parents."""
    commits = updated_branch(repository)
    repository.git("checkout", "-q", "-b", "third", "main")
    repository.write("third", "x")
    repository.commit()
    repository.git("checkout", "-q", "-b", "fourth", "main")
    repository.write("fourth", "x")
    repository.commit()
    repository.git("checkout", "-q", "--detach", commits["head"])
    repository.git("merge", "-q", "-m", "octopus", "third", "fourth")
    repository.git("branch", "-q", "octopus")
    clone = cloned(repository, "octopus", 2, monkeypatch)
    on_github(monkeypatch, clone, GITHUB_REF="refs/pull/1/merge")
    code, report, outcome = judged(repository, clone)
    assert (code, outcome, report["base"]) == (1, "unknown", None)


@pytest.mark.parametrize(("shas", "outcome"), [("source", "within"), ("none", "over")])
def test_p1_gitlabs_merged_results(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, shas: str, outcome: str
) -> None:
    """Main grew to 60 and the change did not: GitLab names the change that its merge has as second parent.

    Without that word main's growth is the change's, which is red and never green.
    """
    start = repository.git("rev-parse", "main")
    repository.branch("change")
    repository.write("note", "x")
    change = repository.commit()
    repository.git("checkout", "-q", "main")
    repository.locked("4 10 2")
    repository.merged("change")
    if shas == "source":
        monkeypatch.setenv("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", change)
    report = repository.project.report(f"--model-budget-base={start}")
    assert report["models"][0]["checks"][0]["outcome"] == outcome


@pytest.mark.parametrize(
    ("method", "depth"),
    [("rebase", 1), ("rebase", 2), ("rebase", 3), ("rebase", 0), ("squash", 1), ("squash", 2), ("merge", 2)],
)
def test_p3_a_merge_queue_names_its_base(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, method: str, depth: int
) -> None:
    """Rebased, the change's growth stands two commits below HEAD: HEAD^1 is the change's own."""
    base = repository.git("rev-parse", "main")
    repository.branch("queue")
    repository.locked("4 9 2", "grow")
    repository.write("note", "docs")
    repository.commit("docs")
    if method != "rebase":
        repository.git("checkout", "-q", "-b", "target", "main")
        repository.git("merge", "-q", *(["--squash"] if method == "squash" else ["--no-ff", "-m", "queue"]), "queue")
        repository.git("commit", "-q", "--allow-empty", "-m", "squashed")
        if method == "merge":
            repository.git("reset", "-q", "--hard", "HEAD^1")
        repository.git("branch", "-q", "-f", "queue")
    clone = cloned(repository, "queue", depth, monkeypatch)
    event = {"merge_group": {"base_sha": base, "base_ref": "refs/heads/main"}}
    on_github(monkeypatch, clone, event, GITHUB_EVENT_NAME="merge_group")
    code, report, outcome = judged(repository, clone)
    reaches = depth == 0 or depth >= (3 if method == "rebase" else 2)
    assert (code, outcome, report["base"]) == (1, *(("over", base) if reaches else ("unknown", None)))
    if not reaches:
        assert "the base main is no commit in this clone: " in report["lock"][0]["text"]
        assert "fetch-depth: 0" in report["lock"][0]["text"]


@pytest.mark.parametrize("event", [None, "{", {"merge_group": None}, {"merge_group": {"base_sha": 7}}])
def test_p3_a_queue_that_names_no_base_is_unknown(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, event: object
) -> None:
    """HEAD^1 is no stand-in."""
    repository.branch("queue")
    repository.locked("4 9 2", "grow")
    repository.commit("docs")
    on_github(monkeypatch, repository.path, event, GITHUB_EVENT_NAME="merge_group")
    code, report, outcome = judged(repository, repository.path)
    assert (code, outcome, report["base"]) == (1, "unknown", None)
    assert "names no merge_group.base_sha: name the base with --model-budget-base" in report["lock"][0]["text"]


@pytest.mark.parametrize(
    ("environment", "told", "untold"),
    [
        pytest.param({}, "git fetch --unshallow", "fetch-depth", id="at a desk"),
        pytest.param({"GITLAB_CI": "true"}, "GIT_DEPTH: 0", "fetch-depth", id="GitLab"),
        pytest.param(GITHUB, "fetch-depth: 0, or on pull_request no ref:", "unshallow", id="GitHub"),
    ],
)
def test_p8_the_way_out_is_the_hosts(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str, untold: str
) -> None:
    """A clone of depth 2 without a merge does not have main: fetch-depth: 2, which was done, is no way out."""
    repository.branch("feature")
    for number in range(3):
        repository.write("note", str(number))
        repository.commit()
    clone = cloned(repository, "feature", 2, monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, report, outcome = judged(repository, clone, *([] if "GITHUB_ACTIONS" in environment else [AGAINST]))
    text = report["lock"][0]["text"]
    assert outcome == "unknown"
    assert told in text
    assert untold not in text


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
    assert "give actions/checkout fetch-depth: 2" in lock["text"]
    assert judged(repository, clone, "--model-budget-base=HEAD")[0] == 0  # who wants no comparison says so


def test_p1_without_git_the_base_is_unknown(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git compares with nothing, and says so."""
    monkeypatch.setenv("PATH", "/nowhere")
    code, report, outcome = judged(repository, repository.path, AGAINST)
    assert (code, outcome) == (1, "unknown")
    assert "git cannot be run" in report["lock"][0]["text"]


def test_p1_a_worktree_has_the_base_of_its_branch(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second worktree of the repository, whose .git is a file."""
    repository.branch("change")
    repository.locked("4 9 2")
    tree = repository.path / "tree"
    repository.git("worktree", "add", "-q", "--detach", str(tree), "change")
    monkeypatch.chdir(tree)
    assert judged(repository, tree, AGAINST)[2] == "over"


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
    _, report, _ = judged(repository, repository.path, "--model-budget-comment=c.md", "--model-budget-summary=s.md")
    assert (report["base_name"], report["base"], report["head"]) == ("origin/main", main, change)
    line = f"<code>{change[:7]}</code> measured, compared with <code>origin/main</code> (<code>{main[:7]}</code>)."
    for name in ("c.md", "s.md"):
        assert line in (repository.path / name).read_text(encoding="utf-8").splitlines()


def test_p10_a_base_that_is_not_known_is_named(repository: Repository) -> None:
    """With the commit that was measured."""
    head = repository.git("rev-parse", "HEAD")
    repository.project.run("--model-budget-base=nowhere", "--model-budget-comment=c.md")
    text = (repository.path / "c.md").read_text(encoding="utf-8")
    assert f"<code>{head[:7]}</code> measured, and not compared: the base <code>nowhere</code> is not known." in text


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        pytest.param("v1", (1, "over", "v1"), id="a release"),
        pytest.param("main", (0, "within", "main"), id="the branch it goes to"),
        pytest.param("origin/main", (0, "within", "main"), id="as a remote has it"),
        pytest.param("never", (1, "unknown", ""), id="no commit"),
        pytest.param("{v1}", (1, "over", "v1"), id="a release by its digits"),
        pytest.param("{base}", (0, "within", "main"), id="the commit that the branch was at"),
    ],
)
def test_p1_the_base_that_is_named_is_the_one_compared_with(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, named: str, expected: tuple[int, str, str]
) -> None:
    """The first parent of a test merge speaks for the branch that the change goes to, and for no release."""
    repository.git("tag", "v1")  # 48 parameters
    base = repository.commit("the event's base")
    repository.locked("4 9 2", "six more")  # on main: 54
    repository.branch("feature")
    repository.commit("nothing")
    head = repository.merged("feature")
    event = {"pull_request": {"base": {"sha": base}}}
    on_github(monkeypatch, repository.path, event, GITHUB_REF="refs/pull/1/merge", GITHUB_SHA=head)
    option = named.format(v1=repository.git("rev-parse", "v1"), base=base)
    code, report, outcome = judged(repository, repository.path, f"--model-budget-base={option}")
    compared_with = repository.git("rev-parse", expected[2]) if expected[2] else None
    assert (code, outcome, report["base"]) == (*expected[:2], compared_with)


def test_a_tree_that_git_cannot_compare_is_not_as_committed(repository: Repository, tmp_path: Path) -> None:
    """Nothing changed, one file changed, a damaged index; and where there is no commit at all."""
    assert uncommitted(repository.path) == ""
    repository.write("budgets/net.widths", "4 9 2")
    assert len(uncommitted(repository.path)) == 64  # a SHA-256 in hexadecimal digits
    (repository.path / ".git" / "index").write_bytes(b"not an index")
    assert uncommitted(repository.path) == NOT_TOLD
    assert uncommitted(tmp_path) == ""


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_base_of_the_projects_settings_is_passed_over_for_the_hosts(
    project: Project, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """A change that compares with itself would loosen, and grow, what it likes."""
    project.budget("  net: {widths: net.widths, limits: {params: 50}}\n")
    repository = Repository(project)
    main = repository.commit()
    repository.git("update-ref", "refs/remotes/origin/main", main)
    repository.branch("change")
    project.budget("  net: {widths: net.widths, limits: {params: 500}}\n")
    repository.write("pytest.ini", "[pytest]\naddopts = --model-budget-base=HEAD\n")
    repository.commit()
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    result = project.run(workers)
    result.stdout.fnmatch_lines(
        [
            "*--model-budget-base=HEAD of addopts is passed over for origin/main, which GitHub names*",
            "*net: budget loosened +900.0 %: params 50 -> 500*",
        ]
    )
    own = project.run(workers, "--model-budget-base=HEAD")
    own.stdout.no_fnmatch_line("*budget loosened*")
    own.stdout.no_fnmatch_line("*passed over*")


@pytest.mark.parametrize("asked", ["main", "main@{0}"])
def test_a_name_of_a_tag_and_of_a_branch_is_no_base(repository: Repository, asked: str) -> None:
    """Git takes the tag, which a clone of all tags brings: the change itself was compared with itself, and green."""
    repository.branch("feature")
    repository.locked("4 9 2", "six more")
    assert repository.project.run(f"--model-budget-base={asked}").ret == 1
    repository.git("tag", "main")
    result = repository.project.run(f"--model-budget-base={asked}")
    assert result.ret == 1
    told = " ".join(result.stdout.str().split())
    assert "main is the name of a tag and of a branch: say which, as refs/tags/main or refs/heads/main" in told
    assert "params 54 > 48" in repository.project.run("--model-budget-base=refs/heads/main").stdout.str()
    assert repository.project.run("--model-budget-base=refs/tags/main").ret == 0


def test_a_tag_and_a_branch_of_one_commit_are_one_base(repository: Repository) -> None:
    """An annotated tag, too: it is the commit that counts."""
    repository.git("tag", "-a", "-m", "the first", "main", "main")
    repository.branch("feature")
    repository.locked("4 9 2", "six more")
    assert "params 54 > 48" in repository.project.run(AGAINST).stdout.str()


def test_a_tag_named_as_a_remotes_branch_is_no_base(repository: Repository) -> None:
    """As origin/main, which GitHub's and GitLab's own variables lead to."""
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    repository.branch("feature")
    repository.locked("4 9 2", "six more")
    repository.git("tag", "origin/main")
    result = repository.project.run("--model-budget-base=origin/main")
    assert result.ret == 1
    assert "of a tag and of a remote's branch" in " ".join(result.stdout.str().split())
