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


KEPT = "  net: {widths: net.widths, limits: {params: 48}}\n"  # 4 * 8 + 8 * 2
FORBIDS = "model_budget: 1\nloosen: forbid\n"
LEFT_OUT = "a sparse checkout left it out: add its folder with git sparse-checkout add"


def with_far(project: Project, far: str = "budgets/far") -> Repository:
    """A repository with a budget, and one far from it, with YAML beside it that is none."""
    project.budget(KEPT)
    project.write(f"{far}/net.widths", "4 8 2")
    project.budget(KEPT, name=f"{far}/b.yaml")
    project.write(f"{far}/data.yaml", "a: 1\n")
    repository = Repository(project)
    repository.commit()
    return repository


def broken(report: Any) -> list[str]:
    """Files that are broken for what a sparse checkout left out."""
    found = [problem.partition(":1: ") for file in report["broken"] for problem in file["problems"]]
    assert all(why.startswith(LEFT_OUT) for _, _, why in found)
    return [file for file, _, _ in found]


@pytest.mark.parametrize("args", [(), ("-n2",), ("budgets",), (".",), (AGAINST,)], ids=str)
@pytest.mark.parametrize("far", ["budgets/far", "budgets/far away/ü"])
def test_exit0_a_budget_that_a_sparse_checkout_left_out_is_red(
    project: Project, args: tuple[str, ...], far: str
) -> None:
    """It is named, and the YAML beside it, which git's index knows to be none, is not; nobody has removed it."""
    repository = with_far(project, far)
    assert project.run(*args).ret == 0
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    report = project.report(*args)
    assert broken(report) == [f"{far}/b.yaml"]
    assert report["loosened"] == []
    assert project.run(*args).ret == 1
    assert project.run(*args, f"--ignore={far}").ret == 0


def test_exit0_a_folder_of_budgets_that_a_sparse_checkout_left_out_is_red(project: Project) -> None:
    """Nothing has to be written there, nor corrected."""
    repository = with_far(project)
    repository.git("sparse-checkout", "set", "--cone", "models")
    assert broken(project.report()) == ["budgets/a.yaml", "budgets/far/b.yaml"]
    assert project.run().ret == 1
    project.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets/far\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"far, which does not exist: {LEFT_OUT}" in result.stderr.str()


@pytest.mark.parametrize("args", [(), (".",)], ids=["budgets", "project"])
def test_what_a_partial_clone_has_not_fetched_may_be_a_budget(
    project: Project, tmp_path_factory: pytest.TempPathFactory, args: tuple[str, ...]
) -> None:
    """Nothing is fetched to tell: red among budgets, and said where the whole project is searched."""
    repository = with_far(project)
    origin = tmp_path_factory.mktemp("origin") / "o.git"
    repository.git("clone", "-q", "--bare", str(project.path), str(origin))
    repository.git("config", "uploadpack.allowFilter", "true", folder=origin)
    for name in (".git", "budgets", "conftest.py"):
        (project.path / name).rename(origin.parent / name)
    repository.git("init", "-q")
    repository.git("remote", "add", "origin", origin.as_uri())
    repository.git("sparse-checkout", "set", "--no-cone", "/*", "!/budgets/far/")
    repository.git("fetch", "-q", "--filter=blob:none", "origin", "main")
    repository.git("checkout", "-q", "-f", "FETCH_HEAD")
    assert (project.path / "budgets" / "a.yaml").exists()
    report = project.report(*args)
    assert broken(report) == ([] if args else ["budgets/far/b.yaml", "budgets/far/data.yaml"])
    result = project.run(*args)
    assert result.ret == (0 if args else 1)
    said = "far/b.yaml, budgets/far/data.yaml not held, if there are budgets: a sparse checkout left it out"
    assert (said in " ".join(result.stdout.str().replace("\\", "/").split())) == bool(args)


WITHOUT_GIT = {
    "a foreign owner": ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "safe.directory"),
    "no git": ({"PATH": ""}, "git cannot be run"),
}


@pytest.mark.parametrize("place", ["clone", "worktree"])
@pytest.mark.parametrize(("variables", "why"), WITHOUT_GIT.values(), ids=WITHOUT_GIT)
def test_exit0_a_sparse_checkout_of_which_git_tells_nothing_is_red(
    project: Project, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], why: str, place: str
) -> None:
    """What it left out nobody knows. Any other checkout needs no git."""
    repository = with_far(project)
    if place == "worktree":
        (project.path / ".git").rename(project.path / "main.git")
        repository.git("--git-dir=main.git", "config", "core.bare", "true")
        repository.git("--git-dir=main.git", "worktree", "add", "-q", "--no-checkout", "tree", "-b", "other")
        (project.path / "tree" / ".git").rename(project.path / ".git")
        repository.git("--git-dir=main.git", "worktree", "repair", str(project.path))
        repository.git("reset", "-q")
    with monkeypatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        assert project.run().ret == 0
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    assert broken(project.report()) == ["budgets/far/b.yaml"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = project.run()
    assert result.ret == 1
    output = " ".join(result.stdout.str().split())
    assert "budgets is not held: nobody can tell what a sparse checkout left out of it: git" in output
    assert why in output


def test_a_hooks_variables_move_no_repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """git sets them in its hooks, as of a commit in another repository."""
    repository = with_far(project)
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    monkeypatch.setenv("GIT_DIR", str(project.path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(project.path / "elsewhere" / "index"))
    assert broken(project.report(AGAINST)) == ["budgets/far/b.yaml"]


def test_a_budget_elsewhere_that_a_sparse_checkout_left_out_is_not_dropped(project: Project) -> None:
    """A session of one team's folder leaves out another's: what the change keeps it has not dropped."""
    project.budget(KEPT)
    project.write("other/c.yaml", FORBIDS + "models:\n" + KEPT)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.git("sparse-checkout", "set", "--cone", "budgets")
    report = project.report(AGAINST)
    assert (report["loosened"], report["broken"]) == ([], [])
    repository.git("rm", "-q", "--sparse", "other/c.yaml")
    (found,) = project.report(AGAINST)["loosened"]
    assert (found["file"], found["forbidden"]) == ("other/c.yaml", True)
