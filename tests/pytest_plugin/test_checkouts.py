"""What a checkout leaves out, or leaves in place of a file, in real repositories of git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget import revision
from pytest_modelbudget.budget.base_inventory import NOT_THERE, SPARSE, ModelAtBase
from pytest_modelbudget.budget.git import checked_out
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.registry import tables
from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

AGAINST = "--model-budget-base=main"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 130\n"
KEPT = "  net: {widths: net.widths, limits: {params: 48}}\n"  # 4 * 8 + 8 * 2
FORBIDS = "model_budget: 1\nloosen: forbid\ndefaults: {inputs: float32 1x4}\nmodels:\n"


def problems(report: Any) -> list[str]:
    return [problem for file in report["broken"] for problem in file["problems"]]


def with_far(project: Project, far: str = "budgets/far") -> Repository:
    """A repository with a budget, one in another folder, and YAML there that is none."""
    project.budget(KEPT)
    project.write(f"{far}/net.widths", "4 8 2")
    project.budget(KEPT, name=f"{far}/b.yaml")
    project.write(f"{far}/data.yaml", "a: 1\n")
    repository = Repository(project)
    repository.commit()
    return repository


# Git LFS.


def test_a_lock_in_git_lfs_says_how_to_fetch_it(project: Project) -> None:
    """It is neither broken nor to be deleted."""
    project.budget(BUDGET)
    project.write("budgets/a.lock.json", POINTER)
    ((check,),) = [model["checks"] for model in project.report()["models"]]
    assert "budgets/a.lock.json is a pointer of Git LFS: fetch it with git lfs pull" in check["reason"]
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
    ((check,),) = [model["checks"] for model in project.report(AGAINST)["models"]]
    assert "a.lock.json at main" in check["reason"]
    assert "take it out of .gitattributes" in check["reason"]


@pytest.mark.parametrize("args", [(), (".",)], ids=str)
def test_data_in_git_lfs_are_excused_by_name(project: Project, args: tuple[str, ...]) -> None:
    """Nobody can tell such YAML from a budget: who knows that it is none says so."""
    project.budget(KEPT)
    project.write("budgets/data/b.yaml", POINTER)
    assert project.run(*args).ret == 1
    assert project.run(*args, "--ignore=budgets/data").ret == 0


# Sparse checkouts.


@pytest.mark.parametrize(
    ("args", "far"), [((), "budgets/far"), (("budgets",), "budgets/far"), ((AGAINST,), "budgets/far away/ü")], ids=str
)
def test_a_budget_outside_of_a_sparse_checkout_is_red(project: Project, args: tuple[str, ...], far: str) -> None:
    """The YAML there that is no budget is not named; nothing is dropped."""
    repository = with_far(project, far)
    assert project.run(*args).ret == 0
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    result, report = project.run_and_report(*args)
    assert (result.ret, problems(report), report["loosened"]) == (1, [f"{far}/b.yaml:1: {SPARSE}"], [])
    assert project.run(*args, f"--ignore={far}").ret == 0


def test_all_budgets_outside_of_a_sparse_checkout_are_red(project: Project) -> None:
    """Nothing has to be written there, nor corrected."""
    with_far(project).git("sparse-checkout", "set", "--cone", "models")
    assert [line.partition(":")[0] for line in problems(project.report())] == ["budgets/a.yaml", "budgets/far/b.yaml"]
    project.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets/far\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"far, which does not exist: {SPARSE}" in result.stderr.str()


@pytest.mark.parametrize("args", [(), ("budgets/near",)], ids=["all", "a path"])
def test_what_a_sparse_checkout_leaves_out_is_not_dropped(project: Project, args: tuple[str, ...]) -> None:
    """A session of one team's folder leaves out another's, until a change removes it from git."""
    project.write("budgets/far/c.yaml", FORBIDS + KEPT)
    project.write("budgets/near/net.widths", "4 8 2")
    project.budget(KEPT, name="budgets/near/a.yaml")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    repository.git("sparse-checkout", "set", "--cone", "budgets/near")
    report = project.report(AGAINST, *args)
    assert (report["loosened"], len(report["broken"])) == ([], 0 if args else 1)
    repository.git("rm", "-q", "--sparse", "budgets/far/c.yaml")
    (found,) = project.report(AGAINST, *args)["loosened"]
    assert (found["file"], found["forbidden"]) == ("budgets/far/c.yaml", True)


def test_a_hooks_variables_move_no_repository(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """git sets them in its hooks, as of a commit in another repository."""
    with_far(project).git("sparse-checkout", "set", "--cone", "budgets/near")
    monkeypatch.setenv("GIT_DIR", str(project.path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(project.path / "elsewhere" / "index"))
    assert problems(project.report(AGAINST)) == [f"budgets/far/b.yaml:1: {SPARSE}"]


# Partial clones.


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("way", ["removed", "changed"])
def test_a_base_of_which_a_partial_clone_can_fetch_no_more_is_red(
    project: Project, tmp_path_factory: pytest.TempPathFactory, way: str, is_reached: bool
) -> None:
    """Without the words of the base nobody knows whether they forbid what the change does."""
    project.budget(KEPT)
    project.write("budgets/b.yaml", FORBIDS + KEPT)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    (project.path / "budgets" / "b.yaml").unlink()
    if way == "changed":
        project.budget(KEPT.replace("48", "480"), name="budgets/b.yaml")
    repository.commit()
    origin = tmp_path_factory.mktemp("origin") / "o.git"
    repository.git("clone", "-q", "--bare", str(repository.path), str(origin))
    repository.git("config", "uploadpack.allowFilter", "true", folder=origin)
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


# Submodules and links.


def with_submodule(project: Project, origin: Path, folder: str) -> Repository:
    """A repository with a budget of its own, and a submodule with one that forbids to loosen it, on a branch."""
    project.budget(KEPT)
    repository = Repository(project)
    repository.commit()
    repository.git("init", "-q", "-b", "main", str(origin))
    (origin / "net.widths").write_text("4 8 2", encoding="utf-8")
    (origin / "s.yaml").write_text(FORBIDS + KEPT, encoding="utf-8")
    repository.git("add", "-A", folder=origin)
    repository.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", folder=origin)
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin.as_uri(), folder)
    repository.commit()
    repository.branch("change")
    return repository


@pytest.fixture
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the submodule comes from."""
    return tmp_path_factory.mktemp("origin") / "lib"


@pytest.mark.parametrize("args", [("-n1",), ("budgets",)], ids=["xdist", "named"])
def test_a_submodule_of_budgets_that_was_not_checked_out_is_red(
    project: Project, origin: Path, args: tuple[str, ...]
) -> None:
    """Its folder is empty, as actions/checkout leaves it; the fix is to fetch it, or to leave it out by name."""
    with_submodule(project, origin, "budgets/lib").git("submodule", "--quiet", "deinit", "--force", "--all")
    result, report = project.run_and_report(*args)
    assert (result.ret, problems(report)) == (1, [f"budgets/lib:1: {NOT_THERE}"])
    assert project.run(*args, "--ignore=budgets/lib").ret == 0


def test_submodules_elsewhere_have_no_budgets(project: Project, origin: Path) -> None:
    """Neither one that was not checked out nor one that a change removes is the gate's business."""
    repository = with_submodule(project, origin, "third_party/lib")
    repository.git("submodule", "--quiet", "deinit", "--force", "--all")
    assert project.run(AGAINST).ret == 0
    repository.git("rm", "-q", "third_party/lib")
    assert project.run(AGAINST).ret == 0


def test_a_budget_that_comes_with_a_new_submodule_is_new(project: Project, origin: Path) -> None:
    """The base had nothing there that it could be compared with."""
    repository = with_submodule(project, origin, "budgets/lib")
    repository.git("branch", "-q", "-f", "main", "main~1")
    assert project.report(AGAINST)["loosened"] == []


# The files of a base.


def main(repository: Repository, root: Path) -> revision.BaseRevision:
    return revision.base_revision(revision.AskedBase("main", ("main",)), root, {})


def test_a_model_of_a_submodule_is_not_new(project: Project, origin: Path, tmp_path: Path) -> None:
    """Git has no files of a submodule: its model at the base is unknown, and not one that has nothing to grow from."""
    repository = with_submodule(project, origin, "budgets/lib")
    repository.git("branch", "-q", "-f", "main", "change")
    known = ModelAtBase(main(repository, repository.path), repository.path / "budgets" / "lib" / "s.yaml", "net")
    source = ModelSource("torch", "nets:Net")
    with checked_out(repository.path, known.base.commit) as files, pytest.raises(BudgetError, match="cannot be read"):
        known.source(files, source, tables())
    new = ModelAtBase(known.base, repository.path / "budgets" / "new.yaml", "net")
    assert new.source(tmp_path, source, tables()) is None


def test_folders_are_those_of_the_base_behind_a_link_too(project: Project, tmp_path: Path) -> None:
    """A home folder is often a link, and PYTHONPATH has its name; packages in .venv are not the base's."""
    project.budget(KEPT)
    repository = Repository(project)
    repository.commit()
    (link := tmp_path / "link").symlink_to(repository.path)
    packages = repository.path / ".venv" / "lib" / "python3.12" / "site-packages"
    for root in (repository.path, link):
        known = ModelAtBase(main(repository, root), root / "budgets" / "a.yaml", "net")
        for path in (repository.path / "src", link / "src"):
            assert known.moved(path, Path("/base")) == Path("/base/src")
        assert known.moved(packages, Path("/base")) == packages
        assert known.moved(tmp_path, Path("/base")) == tmp_path


def test_the_files_of_a_commit_leave_nothing_in_git(project: Project, tmp_path: Path) -> None:
    """Whoever kills the process has the folder alone to remove; a sparse checkout leaves none of them out."""
    repository = with_far(project)
    repository.git("sparse-checkout", "set", "--no-cone", "/budgets/a.yaml")
    before = repository.git("status", "--short", "--ignored")
    with checked_out(repository.path, "main", tmp_path) as files:
        assert (files / "budgets" / "far" / "b.yaml").is_file()
        assert files.is_relative_to(tmp_path)
        assert "\n" not in repository.git("worktree", "list")
        assert repository.git("status", "--short", "--ignored") == before
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.name == "nt", reason="names there are always Unicode")
def test_a_budget_whose_name_is_no_utf_8_is_dropped_as_any_other(project: Project) -> None:
    """git keeps names as bytes."""
    project.budget(KEPT)
    path = project.path / os.fsdecode(b"budgets/caf\xe9.yaml")
    path.write_text(FORBIDS + KEPT, encoding="utf-8")
    project.budget(KEPT.replace("net:", "other:"))
    Repository(project).commit()
    path.unlink()
    result = project.run(AGAINST)
    assert result.ret == 1
    assert "model net dropped with 1 limit (forbidden)" in result.stdout.str()


def test_yaml_that_is_no_budget_costs_no_run_of_git_each(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monorepo has thousands of such files."""
    project.budget(KEPT)
    repository = Repository(project)
    runs: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **rest: (runs.append(words), run(words, **rest))[1])

    def runs_with(count: int) -> int:
        for number in range(count):
            project.write(f"data/{number}.yaml", f"a: {number}  # no model_budget\n")
        repository.commit()
        runs.clear()
        assert project.run("--model-budget-base=HEAD", ".").ret == 0
        return len(runs)

    assert runs_with(1) == runs_with(40)
