"""What a checkout leaves in place of a file, or leaves out, in real repositories of git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.parametrize(
    ("args", "far"),
    [
        *((args, "budgets/far") for args in [(), ("-n1",), ("budgets",), (".",), (AGAINST,)]),
        *((args, "budgets/far away/ü") for args in [(), (AGAINST,)]),
    ],
    ids=str,
)
def test_exit0_a_budget_that_a_sparse_checkout_left_out_is_red(
    project: Project, args: tuple[str, ...], far: str
) -> None:
    """It is named, and the YAML beside it, which git's index knows to be none, is not; nobody has removed it."""
    repository = with_far(project, far)
    assert project.run(*args).ret == 0
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    result, report = project.run_and_report(*args)
    assert broken(report) == [f"{far}/b.yaml"]
    assert report["loosened"] == []
    assert result.ret == 1
    assert project.run(*args, f"--ignore={far}").ret == 0


def test_exit0_a_folder_of_budgets_that_a_sparse_checkout_left_out_is_red(project: Project) -> None:
    """Nothing has to be written there, nor corrected."""
    repository = with_far(project)
    repository.git("sparse-checkout", "set", "--cone", "models")
    result, report = project.run_and_report()
    assert broken(report) == ["budgets/a.yaml", "budgets/far/b.yaml"]
    assert result.ret == 1
    project.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets/far\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"far, which does not exist: {LEFT_OUT}" in result.stderr.str()


def publish(repository: Repository, origin: Path) -> None:
    """A copy to clone from, also in part."""
    repository.git("clone", "-q", "--bare", str(repository.path), str(origin))
    repository.git("config", "uploadpack.allowFilter", "true", folder=origin)


@pytest.mark.parametrize("args", [(), (".",)], ids=["budgets", "project"])
def test_what_a_partial_clone_has_not_fetched_may_be_a_budget(
    project: Project, tmp_path_factory: pytest.TempPathFactory, args: tuple[str, ...]
) -> None:
    """Nothing is fetched to tell: red among budgets, and said where the whole project is searched."""
    repository = with_far(project)
    origin = tmp_path_factory.mktemp("origin") / "o.git"
    publish(repository, origin)
    for name in (".git", "budgets", "conftest.py"):
        (project.path / name).rename(origin.parent / name)
    repository.git("init", "-q")
    repository.git("remote", "add", "origin", origin.as_uri())
    repository.git("sparse-checkout", "set", "--no-cone", "/*", "!/budgets/far/")
    repository.git("fetch", "-q", "--filter=blob:none", "origin", "main")
    repository.git("checkout", "-q", "-f", "FETCH_HEAD")
    assert (project.path / "budgets" / "a.yaml").exists()
    result, report = project.run_and_report(*args)
    assert broken(report) == ([] if args else ["budgets/far/b.yaml", "budgets/far/data.yaml"])
    assert result.ret == (0 if args else 1)
    said = "far/b.yaml, budgets/far/data.yaml not held, if there are budgets: a sparse checkout left it out"
    assert (said in " ".join(result.stdout.str().replace("\\", "/").split())) == bool(args)


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("way", ["removed", "changed"])
def test_exit0_a_base_of_which_a_partial_clone_can_fetch_no_more_is_red(
    project: Project, tmp_path_factory: pytest.TempPathFactory, way: str, is_reached: bool
) -> None:
    """Without the words of the base nobody knows whether they forbid what the change does."""
    project.budget(KEPT)
    project.write("budgets/b.yaml", FORBIDS + "defaults: {inputs: float32 1x4}\nmodels:\n" + KEPT)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    (project.path / "budgets" / "b.yaml").unlink()
    if way == "changed":
        project.budget(KEPT.replace("48", "480"), name="budgets/b.yaml")
    repository.commit()
    origin = tmp_path_factory.mktemp("origin") / "o.git"
    publish(repository, origin)
    shutil.rmtree(project.path / ".git")
    repository.git("clone", "-q", "--no-checkout", "--filter=blob:none", origin.as_uri(), "clone")
    (project.path / "clone" / ".git").rename(project.path / ".git")
    repository.git("checkout", "-q", "-f", "change")
    if not is_reached:
        origin.rename(origin.with_name("elsewhere"))
    result = project.run("--model-budget-base=origin/main")
    assert result.ret == 1
    output = " ".join(result.stdout.str().split())
    assert ("(forbidden)" in output) == is_reached
    assert ("FAILED base::lock - budgets at origin/main" in output) != is_reached
    assert ("this clone is partial, and cannot fetch what it lacks" in output) != is_reached


WITHOUT_GIT = {
    "a foreign owner": ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "safe.directory"),
    "no git": ({"PATH": ""}, "git cannot be run"),
}


@pytest.mark.parametrize("place", ["clone", "worktree"])
@pytest.mark.parametrize(("variables", "why"), WITHOUT_GIT.values(), ids=WITHOUT_GIT)
def test_exit0_a_sparse_checkout_of_which_git_tells_nothing_is_red(
    project: Project, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], why: str, place: str
) -> None:
    """What it left out nobody knows. Any other checkout needs no git, nor does one that was sparse."""
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
    with monkeypatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        result = project.run()
    assert result.ret == 1
    output = " ".join(result.stdout.str().split())
    assert "budgets is not held: nobody can tell what a sparse checkout left out of it: git" in output
    assert why in output
    with monkeypatch.context() as patched:
        repository.git("config", "--worktree", "core.sparseCheckout", "false")  # by hand: the files are still left out
        for name, value in variables.items():
            patched.setenv(name, value)
        assert project.run().ret == 1
    repository.git("sparse-checkout", "disable")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert project.run().ret == 0


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


@pytest.mark.skipif(os.name == "nt", reason="names there are always Unicode")
def test_a_budget_whose_name_is_no_utf_8_is_dropped_as_any_other(project: Project) -> None:
    """git keeps names as bytes: the session ended with an internal error."""
    project.budget(KEPT)
    path = project.path / os.fsdecode(b"budgets/caf\xe9.yaml")
    path.write_text(FORBIDS + "models:\n" + KEPT, encoding="utf-8")
    Repository(project).commit()
    path.unlink()
    result = project.run(AGAINST)
    assert result.ret == 1
    assert "model net dropped with 1 limit (forbidden)" in result.stdout.str()


# Submodules, whose budgets are compared with the commit that the base names.


BAN = "model_budget: 1\nloosen: forbid\nmodels:\n  sub:\n    widths: net.widths\n    inputs: float32 1x4\n"
LIBRARY = BAN + "    limits: {params: 48}\n"


def with_submodule(project: Project, origin: Path, folder: str, *settings: str) -> Repository:
    """A repository with a budget of its own, and a submodule with one that forbids to loosen it, on a branch."""
    project.budget(KEPT)
    repository = Repository(project)
    repository.git("init", "-q", "-b", "main", str(origin))
    (origin / "net.widths").write_text("4 8 2", encoding="utf-8")
    commit_there(repository, origin, LIBRARY)
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", *settings)
    repository.git(*add, origin.as_uri(), folder)
    repository.commit()
    repository.branch("change")
    return repository


def commit_there(repository: Repository, folder: Path, text: str | None, *more: str) -> None:
    """Commit this as the budget of a submodule; None removes it."""
    if text is None:
        (folder / "s.yaml").unlink()
    else:
        (folder / "s.yaml").write_text(text, encoding="utf-8")
    repository.git("add", "-A", folder=folder)
    repository.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", *more, folder=folder)


@pytest.fixture
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the submodule comes from."""
    return tmp_path_factory.mktemp("origin") / "lib"


@pytest.mark.parametrize(
    ("args", "folder"),
    [*((args, "budgets/lib") for args in [(), (".",), ("-n1",)]), ((), "budgets/own library/ü")],
    ids=str,
)
def test_a_submodule_that_did_not_change_loosens_nothing(
    project: Project, origin: Path, folder: str, args: tuple[str, ...]
) -> None:
    """Its budgets have a base: the commit that the base names, which is the one that is checked out."""
    repository = with_submodule(project, origin, folder)
    result = project.run(AGAINST, *args)
    assert (result.ret, "loosened" in result.stdout.str()) == (0, False)
    repository.git("mv", folder, "budgets/elsewhere")
    result = project.run(AGAINST, *args)
    assert (result.ret, "loosened" in result.stdout.str()) == (0, False)


RAISED = LIBRARY.replace("48", "480"), "budget loosened +900.0 %: params 48 -> 480"
REMOVED = None, "budget loosened: model sub dropped with 1 limit"


@pytest.mark.parametrize(
    ("text", "words", "args"),
    [
        pytest.param(*RAISED, (), id="raised"),
        pytest.param(*RAISED, ("-n1",), id="raised, in workers"),
        pytest.param(*REMOVED, (), id="removed"),
        pytest.param(*REMOVED, (".",), id="removed, below a folder that is named"),
        pytest.param(LIBRARY + "# the same\n", "", (), id="the same"),
    ],
)
def test_a_submodule_at_another_commit_is_compared(
    project: Project, origin: Path, text: str | None, words: str, args: tuple[str, ...]
) -> None:
    """As any other budget: also a file that the submodule has no more."""
    repository = with_submodule(project, origin, "budgets/lib")
    commit_there(repository, project.path / "budgets" / "lib", text)
    repository.commit()
    result = project.run(AGAINST, *args)
    assert result.ret == bool(words)
    assert (f"{words} (forbidden)" in result.stdout.str()) == bool(words)


def test_a_budget_beside_a_submodule_is_a_new_one(project: Project, origin: Path) -> None:
    """It lies in no submodule because its neighbour is one."""
    with_submodule(project, origin, "budgets/lib")
    project.write("budgets/c.yaml", BAN.replace("sub:", "new:") + "    limits: {params: {max: 48}}\n")
    result = project.run(AGAINST)
    assert (result.ret, "in a submodule" in result.stdout.str()) == (0, False)


def remove(repository: Repository) -> None:
    repository.git("rm", "-q", "budgets/lib")


def replace_by_a_folder(repository: Repository) -> None:
    repository.git("rm", "-q", "budgets/lib")
    repository.write("budgets/lib/README", "it was a submodule")


def replace_by_another(repository: Repository) -> None:
    """As a clone without history has it, which lacks the commit of the base."""
    folder = repository.path / "budgets" / "lib"
    commit_there(repository, folder, None, "--amend", "--allow-empty")
    repository.git("reflog", "expire", "--expire=now", "--all", folder=folder)
    repository.git("update-ref", "-d", "refs/remotes/origin/main", folder=folder)
    repository.git("update-ref", "-d", "refs/remotes/origin/HEAD", folder=folder)
    repository.git("gc", "-q", "--prune=now", folder=folder)


WAYS = {
    remove: "which is gone: where that is meant, who may merge past this decides",
    replace_by_a_folder: "which is gone",
    replace_by_another: "whose clone lacks its commit",
}


@pytest.mark.parametrize(
    ("way", "args"),
    [*((way, ()) for way in WAYS), (remove, ("-n1",)), (replace_by_a_folder, ("budgets",))],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_exit0_a_submodule_of_budgets_that_a_change_removes_is_red(
    project: Project, origin: Path, way: Callable[[Repository], None], args: tuple[str, ...]
) -> None:
    """Nobody can read what its budgets held, or whether they forbade it."""
    repository = with_submodule(project, origin, "budgets/lib")
    way(repository)
    repository.commit()
    result = project.run(AGAINST, *args)
    assert result.ret == 1
    output = " ".join(result.stdout.str().split())
    assert "what budgets in budgets/lib held or forbade cannot be read: lib lies in a submodule at main" in output
    assert WAYS[way] in output
    assert project.run(AGAINST, *args, "--ignore=budgets/lib").ret == 0
    repository.git("checkout", "-q", "-B", "main")
    assert project.run("--model-budget-base=HEAD", *args).ret == 0  # once it is merged


def test_a_submodule_elsewhere_that_a_change_removes_had_no_budgets(project: Project, origin: Path) -> None:
    """Where all of the project is searched, it is said that nobody knows."""
    repository = with_submodule(project, origin, "third_party/lib")
    repository.git("rm", "-q", "third_party/lib")
    repository.commit()
    for args, is_said in [((), False), ((".",), True)]:
        result = project.run(AGAINST, *args)
        words = "third_party/lib not compared with the base, if there were budgets"
        assert (result.ret, words in " ".join(result.stdout.str().split())) == (0, is_said)


@pytest.mark.parametrize("folder", ["data", "third_party/lib"])
def test_yaml_that_is_no_budget_costs_no_run_of_git_each(
    project: Project, origin: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monorepo has thousands of such files, of its own or in a submodule: they are read together."""
    repository = with_submodule(project, origin, "third_party/lib")
    runs: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **rest: (runs.append(words), run(words, **rest))[1])

    def runs_with(count: int) -> int:
        for number in range(count):
            project.write(f"{folder}/{number}.yaml", f"a: {number}\n")
        repository.git("add", "-A", folder=project.path / folder)
        words = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
        repository.git(*words, folder=project.path / folder)
        repository.commit()
        runs.clear()
        assert project.run("--model-budget-base=HEAD", ".").ret == 0
        return len(runs)

    assert runs_with(1) == runs_with(40)


@pytest.mark.parametrize("options", ["--ignore third_party/lib", "--junit-prefix third_party"])
def test_the_value_of_an_option_makes_no_submodule_one_of_budgets(project: Project, origin: Path, options: str) -> None:
    """It looks like a path in addopts, whatever the option is, and may be none under which budgets are."""
    project.write("pytest.ini", f"[pytest]\naddopts = {options}\n")
    repository = with_submodule(project, origin, "third_party/lib")
    repository.git("rm", "-q", "third_party/lib")
    repository.commit()
    result = project.run(AGAINST)
    said = "third_party/lib not compared with the base, if there were budgets"
    assert (result.ret, said in " ".join(result.stdout.str().split())) == (0, True)


@pytest.mark.parametrize("args", [(), (".",)], ids=str)
def test_data_in_git_lfs_are_passed_by_where_they_are_named(project: Project, args: tuple[str, ...]) -> None:
    """Nobody can tell such YAML from a budget: who knows that it is none says so."""
    project.budget(KEPT)
    project.write("budgets/data/b.yaml", POINTER)
    assert project.run(*args).ret == 1
    assert project.run(*args, "--ignore=budgets/data").ret == 0
