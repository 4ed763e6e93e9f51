"""A budget that a change's settings of pytest pass by is dropped, like one whose file is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_modelbudget.gate.passed_by import PASSED_BY
from tests.builders.project import Project
from tests.builders.repository import Repository

BASE = "--model-budget-base=main"
BUDGET = """model_budget: 1
{head}
models:
  {name}:
    widths: net.widths
    inputs: float32 1x4
    limits:
      params: 50
      macs: 50
"""
DROPPED = "budget loosened: model net dropped with 2 limits"
Change = Callable[[Repository], None]


def budget(head: str = "loosen: forbid", name: str = "net") -> str:
    return BUDGET.format(head=head, name=name)


def on_branch(project: Project, head: str = "loosen: forbid") -> Repository:
    """Main holds budgets/far/b.yaml, and budgets/a.yaml without a ban."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("budgets/far/b.yaml", budget(head))
    project.write("budgets/far/net.widths", "4 8 2")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    return repository


def in_ini(lines: str) -> Change:
    return lambda repository: repository.write("pytest.ini", f"[pytest]\n{lines}\n")


def in_conftest(lines: str) -> Change:
    return lambda repository: repository.project.configure(f"\n{lines}\n")


WAYS = [
    pytest.param(in_ini("model_budget_paths = budgets/a.yaml"), id="model_budget_paths"),
    pytest.param(in_ini("norecursedirs = far"), id="norecursedirs"),
    pytest.param(in_ini("addopts = --ignore=budgets/far"), id="addopts: --ignore"),
    pytest.param(in_ini("addopts = -o model_budget_paths=budgets/a.yaml"), id="addopts: -o"),
    pytest.param(in_ini("addopts = budgets/a.yaml"), id="addopts: a path"),
    pytest.param(in_conftest("collect_ignore = ['budgets/far']"), id="collect_ignore"),
    pytest.param(in_conftest("collect_ignore_glob = ['*far*']"), id="collect_ignore_glob"),
    pytest.param(
        in_conftest(
            "def pytest_ignore_collect(collection_path):\n"
            "    return True if collection_path.name == 'far' else None"
        ),
        id="a hook",
    ),
    pytest.param(
        lambda repository: repository.write("budgets/far/pyvenv.cfg", "home = /usr\n"), id="marked as an environment"
    ),
]  # fmt: skip


def loosened(project: Project, *args: str) -> Any:
    return project.report(BASE, *args)["loosened"]


@pytest.mark.parametrize("change", WAYS)
def test_a_budget_that_a_change_passes_by_is_dropped(project: Project, change: Change) -> None:
    """Its file stays as it was, and its ban is held."""
    repository = on_branch(project)
    change(repository)
    repository.commit()
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])
    (found,) = loosened(project)
    assert (found["file"], found["what"], found["forbidden"]) == ("budgets/far/b.yaml", "model dropped", True)


@pytest.mark.parametrize("change", WAYS[:2])
def test_without_a_ban_it_is_said(project: Project, change: Change) -> None:
    repository = on_branch(project, head="")
    change(repository)
    result = project.run(BASE)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*net: {DROPPED}   budgets/far/b.yaml:1"])


def test_what_paths_leave_out_is_named(project: Project) -> None:
    """Why a file that is there counts as dropped."""
    in_ini("model_budget_paths = budgets/a.yaml")(on_branch(project))
    line = "*budgets/far/b.yaml is not held: model_budget_paths leaves it out, and did not at main (*)"
    project.run(BASE).stdout.fnmatch_lines([line])


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(("pytest.ini", "[pytest]\nmodel_budget_paths = limits\n"), id="pytest.ini"),
        pytest.param(("tox.ini", "[pytest]\nmodel_budget_paths =\n    limits\n"), id="tox.ini"),
        pytest.param(
            ("pyproject.toml", '[tool.pytest.ini_options]\nmodel_budget_paths = ["limits"]\n'), id="pyproject"
        ),
        pytest.param(("setup.cfg", "[tool:pytest]\nmodel_budget_paths = limits\n"), id="setup.cfg"),
    ],
)
def test_the_settings_of_the_base_say_what_it_held(project: Project, configuration: tuple[str, str]) -> None:
    """Not those of the change, which has none any more: budgets/ was never held there."""
    (project.path / "pytest.ini").unlink()
    project.write(*configuration)
    project.write("budgets/a.yaml", budget(name="other"))
    project.write("limits/b.yaml", budget())
    project.write("limits/net.widths", "4 8 2")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    (project.path / configuration[0]).unlink()
    project.write("pytest.ini", "[pytest]\n")
    assert [found["file"] for found in loosened(project, "--rootdir=.")] == ["limits/b.yaml"]


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("budgets/a.yaml",), id="a path"),
        pytest.param(("budgets/a.yaml::other",), id="a node id"),
        pytest.param(("-k", "other"), id="-k"),
        pytest.param(("--deselect", "budgets/far/b.yaml"), id="--deselect"),
        pytest.param(("--ignore=budgets/far",), id="--ignore"),
        pytest.param(("--ignore", "budgets/far/b.yaml"), id="--ignore a file"),
        pytest.param(("--ignore-glob=*far*",), id="--ignore-glob"),
        pytest.param(("-o", "model_budget_paths=budgets/a.yaml"), id="-o"),
    ],
)
def test_what_the_user_leaves_out_is_not_dropped(project: Project, args: tuple[str, ...]) -> None:
    """The command line is the choice of this run, also where the change touches settings."""
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\naddopts = -ra\n")
    result = project.run(BASE, *args)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*budget loosened*")


@pytest.mark.parametrize("change", WAYS)
def test_what_the_base_passed_by_is_not_dropped(project: Project, change: Change) -> None:
    """It is named, as before; a change of other settings, and of conftest.py, makes it no loosened one."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("budgets/far/b.yaml", budget())
    repository = Repository(project)
    change(repository)
    repository.commit()
    repository.branch("change")
    assert loosened(project) == []
    project.configure("\nREMARK = 'unlike before'\n")
    assert loosened(project) == []
    assert project.run(BASE).ret == 0


def test_several_processes_find_the_same(project: Project) -> None:
    """Workers collect, and the controller compares."""
    in_ini("norecursedirs = far")(on_branch(project))
    result = project.run_apart(BASE, "-n2")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)*"])


def test_nothing_collected_at_all_drops_everything(project: Project) -> None:
    """Red, and not merely "no tests collected"."""
    repository = on_branch(project)
    repository.write("elsewhere/readme.txt", "no budget")
    in_ini("model_budget_paths = elsewhere")(repository)
    assert project.run(BASE).ret == 1
    assert [found["file"] for found in loosened(project)] == ["budgets/a.yaml", "budgets/far/b.yaml"]


def test_the_folders_that_pytest_passes_by_are_known(pytester: pytest.Pytester) -> None:
    """Ours are those of the pytest that is installed."""
    assert tuple(pytester.parseconfig().getini("norecursedirs")) == PASSED_BY
