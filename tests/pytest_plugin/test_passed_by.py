"""A budget that a change's settings of pytest pass by is dropped, like one whose file is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pytest_modelbudget.gate.ignored_files import PASSED_BY, literal_lists
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


# What pytest itself does since these versions.
NATIVE = pytest.mark.skipif(
    pytest.version_tuple < (9,),
    reason="pytest 9 is the first that takes ini settings out of addopts, and reads its own tables",
)

WAYS = [
    pytest.param(in_ini("model_budget_paths = budgets/a.yaml"), id="model_budget_paths"),
    pytest.param(in_ini("norecursedirs = far"), id="norecursedirs"),
    pytest.param(in_ini("addopts = --ignore=budgets/far"), id="addopts: --ignore"),
    pytest.param(in_ini("addopts = -o model_budget_paths=budgets/a.yaml"), id="addopts: -o", marks=NATIVE),
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
        lambda repository: repository.write("budgets/far/pyvenv.cfg", "home = /usr\n"),
        id="marked as an environment",
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
    result, report = project.run_and_report(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])
    (found,) = report["loosened"]
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


WRITTEN_OUT = [way for way in WAYS if way.id != "a hook"]


@pytest.mark.parametrize("change", WRITTEN_OUT)
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
    result, report = project.run_and_report(BASE)
    assert (report["loosened"], result.ret) == ([], 0)


def test_what_a_hook_of_the_base_ignores_nobody_knows(project: Project) -> None:
    """It is the same while conftest.py is, and possibly dropped with any change of it."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("budgets/far/b.yaml", budget())
    repository = Repository(project)
    next(way for way in WAYS if way.id == "a hook").values[0](repository)
    repository.commit()
    repository.branch("change")
    assert loosened(project) == []
    project.configure("\nREMARK = 'unlike before'\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*budgets/far/b.yaml is possibly dropped, and counts as such: conftest.py at main (*) says by code, *"]
    )


def test_several_processes_find_the_same(project: Project) -> None:
    """Workers collect, and the controller compares."""
    in_ini("norecursedirs = far")(on_branch(project))
    result = project.run(BASE, "-n2")
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


# Settings that are odd, on either side.

PATHS_MOVED = 'model_budget_paths = ["budgets/a.yaml"]'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("pyproject.toml", f"[tool.pytest.ini_options]\n{PATHS_MOVED}\nnorecursedirs = 5\n", id="a number"),
        pytest.param("pyproject.toml", f"[tool.pytest.ini_options]\n{PATHS_MOVED}\naddopts = 0\n", id="options"),
        pytest.param("pyproject.toml", f"[tool.pytest.ini_options]\n{PATHS_MOVED}\ntestpaths = 1.5\n", id="tests"),
        pytest.param("pyproject.toml", f"[tool.pytest.ini_options]\n{PATHS_MOVED}\nnorecursedirs = {{a=1}}\n", id="a"),
        pytest.param(
            "pyproject.toml",
            f"[tool.pytest]\n{PATHS_MOVED}\n[tool.pytest.ini_options]\n",
            id="two tables",
            marks=NATIVE,
        ),
        pytest.param(
            "pyproject.toml", f"[tool.pytest]\n{PATHS_MOVED}\nnorecursedirs = 5\n", id="native", marks=NATIVE
        ),
        pytest.param("pytest.toml", f"[pytest]\n{PATHS_MOVED}\n", id="pytest.toml", marks=NATIVE),
        pytest.param(
            ".pytest.toml", f"[pytest]\n{PATHS_MOVED}\nnorecursedirs = true\n", id=".pytest.toml", marks=NATIVE
        ),
        pytest.param("pytest.ini", "[pytest]\nmodel_budget_paths = budgets/a.yaml\nnorecursedirs = '\n", id="quote"),
        pytest.param(".pytest.ini", "[pytest]\nmodel_budget_paths = budgets/a.yaml\n", id=".pytest.ini"),
        pytest.param("tox.ini", "[DEFAULT]\na\n[pytest]\nmodel_budget_paths = budgets/a.yaml\n", id="tox.ini"),
        pytest.param("setup.cfg", "[tool:pytest]\nmodel_budget_paths = budgets/a.yaml\n[a]\n[a]\n", id="setup.cfg"),
    ],
)  # fmt: skip
def test_odd_settings_of_a_change_hide_nothing(project: Project, file: str, text: str) -> None:
    """Whether pytest takes a setting or refuses it: the session is red. One that it takes is told of."""
    repository = on_branch(project)
    (project.path / "pytest.ini").unlink()
    repository.write(file, text)
    result = project.run(BASE, "--rootdir=.")
    assert result.ret != 0
    if result.ret == 1:
        result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])
        result.stdout.no_fnmatch_line("*main (*) cannot be read*")


@pytest.mark.parametrize("setting", ["norecursedirs = 5", "addopts = []", "NORECURSEDIRS = 'far'", "testpaths = '.'"])
def test_odd_settings_of_the_base_hide_nothing(project: Project, setting: str) -> None:
    """What pytest makes of them there is made of them here: the base held the budget."""
    (project.path / "pytest.ini").unlink()
    project.write("pyproject.toml", f"[tool.pytest.ini_options]\n{setting}\n")
    repository = on_branch(project)
    repository.write("pyproject.toml", f"[tool.pytest.ini_options]\n{PATHS_MOVED}\n")
    assert [found["forbidden"] for found in loosened(project)] == [True]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("pytest.ini", "[pytest]\nmodel_budget_paths = it's\n", id="a quote"),
        pytest.param("pytest.ini", "model_budget_paths = budgets\n", id="no section"),
        pytest.param("pyproject.toml", "[tool.pytest\n", id="no TOML"),
        pytest.param("setup.cfg", "[tool:pytest]\n  a\nb\n", id="no INI"),
    ],
)
def test_a_broken_base_possibly_held_it(project: Project, file: str, text: str) -> None:
    """The base is to blame, by name; where the change has the same, pytest refuses it."""
    (project.path / "pytest.ini").unlink()
    project.write(file, text)
    repository = on_branch(project)
    (project.path / file).unlink()
    repository.write("pytest.ini", "[pytest]\nnorecursedirs = far\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*budgets/far/b.yaml is possibly dropped, and counts as such: settings at main (*) cannot be read: *",
            f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1",
        ]
    )


# What a conftest.py of the base lists.


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("# collect_ignore = []\n'a pytest_ignore_collect here'", {}, id="words"),
        pytest.param("collect_ignore = ['a', 'b']", {"collect_ignore": ("a", "b")}, id="assigned"),
        pytest.param("collect_ignore: list[str] = ['a']", {"collect_ignore": ("a",)}, id="annotated"),
        pytest.param("collect_ignore_glob = ('a',)", {"collect_ignore_glob": ("a",)}, id="globs"),
        pytest.param(
            "collect_ignore = ['a']\ncollect_ignore += ['b']\ncollect_ignore.append('c')\ncollect_ignore.extend(['d'])",
            {"collect_ignore": ("a", "b", "c", "d")},
            id="added",
        ),
        pytest.param("collect_ignore = ['a']\ncollect_ignore = ['b']", {"collect_ignore": ("b",)}, id="anew"),
        pytest.param("collect_ignore = ['a']\nHERE = 'b'", {"collect_ignore": ("a",)}, id="other texts"),
        pytest.param("collect_ignore = sorted(names)", None, id="computed"),
        pytest.param("collect_ignore = ['a', NAME]", None, id="computed in part"),
        pytest.param("collect_ignore = 'abc'", None, id="a text"),
        pytest.param("collect_ignore = ['a']\ncollect_ignore.remove('a')", None, id="removed"),
        pytest.param("collect_ignore = ['a']\nif here:\n    collect_ignore = []", None, id="now and then"),
        pytest.param("collect_ignore = ['a']\ndel collect_ignore", None, id="deleted"),
        pytest.param("collect_ignore = ['a']\nother = collect_ignore", None, id="another name"),
        pytest.param("globals()['collect_ignore'] = ['a']", None, id="by its name"),
        pytest.param("from tools import collect_ignore", None, id="imported"),
        pytest.param("from tools import *", None, id="all imported"),
        pytest.param("def pytest_ignore_collect(): return True", None, id="a hook"),
        pytest.param("from tools import ours as pytest_ignore_collect", None, id="an imported hook"),
        pytest.param("collect_ignore = [", None, id="no Python"),
    ],
)
def test_only_what_is_written_out_is_believed(text: str, lists: dict[str, tuple[str, ...]] | None) -> None:
    assert literal_lists(text) == lists


IGNORES = "collect_ignore = ['setup.py']\n"


@pytest.mark.parametrize(
    ("lines", "doubt"),
    [
        pytest.param(IGNORES, False, id="another file"),
        pytest.param(f"{IGNORES}FOLDER = 'budgets'\n", False, id="the folder in another text"),
        pytest.param(f"{IGNORES}NAMES = ['far', '*', 'budgets/far/b.yaml']\n", False, id="names in another list"),
        pytest.param("collect_ignore = ['far', 'b.yaml', 'budgets/*']\n", False, id="names of no path from there"),
        pytest.param("collect_ignore_glob = ['far', 'b.yaml']\n", False, id="globs of no path from there"),
        pytest.param("NAMES = []\ncollect_ignore = NAMES\n", True, id="computed"),
        pytest.param("def pytest_ignore_collect():\n    return None\n", True, id="a hook"),
    ],
)
def test_p12_texts_of_a_conftest_ignore_nothing(project: Project, lines: str, doubt: bool) -> None:
    """The base held the budget, whatever else its conftest.py says; where nobody can tell, that is said."""
    project.configure(f"\n{lines}")
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets/a.yaml\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])
    assert ("possibly dropped" in result.stdout.str()) is doubt


def test_of_several_conftests_the_nearest_list_speaks(project: Project) -> None:
    """Pytest looks no further: an empty list in far/ keeps what the one above lists."""
    project.configure("\ncollect_ignore = ['budgets/far/b.yaml']\n")
    project.write("budgets/far/conftest.py", "collect_ignore = []\n")
    repository = on_branch(project)
    assert loosened(project) == []
    assert [model["file"] for model in project.report(BASE)["models"]] == ["budgets/a.yaml", "budgets/far/b.yaml"]
    in_ini("norecursedirs = far")(repository)
    assert [found["file"] for found in loosened(project)] == ["budgets/far/b.yaml"]


# Where the base looked.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("addopts = -o model_budget_paths=limits", "", id="-o of addopts", marks=NATIVE),
        pytest.param("addopts = -omodel_budget_paths=limits", "", id="-o in one word", marks=NATIVE),
        pytest.param("addopts = limits", "", id="a path of addopts"),
        pytest.param(
            "model_budget_paths = limits\naddopts = --ignore=limits/*", "norecursedirs = far", id="no glob"
        ),
        pytest.param("model_budget_paths = limits", "addopts = main", id="a path named like the base"),
    ],
)  # fmt: skip
def test_what_the_base_held_by_any_setting_is_held(project: Project, before: str, after: str) -> None:
    """The change removes the setting, or hides behind one that is only its user's to give."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("main/a.yaml", budget(head="", name="other").replace("net.widths", "../budgets/net.widths"))
    project.write("limits/far/b.yaml", budget())
    project.write("limits/far/net.widths", "4 8 2")
    project.write("pytest.ini", f"[pytest]\n{before}\n")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    models = {model["file"] for model in project.report(BASE)["models"]}
    assert "limits/far/b.yaml" in models
    repository.write("pytest.ini", f"[pytest]\n{after}\n")
    result = project.run("--model-budget-base", "main", "--rootdir=.")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   limits/far/b.yaml:1"])


@pytest.mark.parametrize("before", ["model_budget_paths = limits limits/far", "testpaths = limits/far"])
def test_a_folder_that_is_named_itself_may_have_been_held(project: Project, before: str) -> None:
    """Pytest 8 enters it against norecursedirs, later ones do not beside the folder around it."""
    project.write("limits/far/b.yaml", budget())
    paths = "" if before.startswith("model") else "model_budget_paths = limits\n"
    project.write("pytest.ini", f"[pytest]\n{paths}norecursedirs = far\n{before}\n")
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    project.write("pytest.ini", "[pytest]\n")
    assert [found["file"] for found in loosened(project)] == ["limits/far/b.yaml"]


def test_lf_of_addopts_is_no_choice_of_the_user(project: Project) -> None:
    """With an empty cache it selects nothing, and the change would pass by what it likes."""
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\naddopts = --lf\nnorecursedirs = far\n")
    result = project.run_apart(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])


def test_c_of_addopts_is_no_choice_of_the_user(project: Project) -> None:
    """A new pytest.ini that says -c, which does nothing there, is not taken for the file of the command line."""
    (project.path / "pytest.ini").unlink()
    project.write("pyproject.toml", "[tool.pytest.ini_options]\n")
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\naddopts = -c a.ini\nnorecursedirs = far\n")
    assert [found["file"] for found in loosened(project)] == ["budgets/far/b.yaml"]


def test_a_named_folder_is_compared_with_the_base(project: Project) -> None:
    """The command line chose it, and not what the change's settings pass by in it."""
    repository = on_branch(project)
    in_ini("norecursedirs = far")(repository)
    result = project.run(BASE, "budgets")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])


@pytest.mark.parametrize(("folder", "args"), [("team", ()), ("budgets", ("budgets",))], ids=["started in", "a path"])
def test_settings_that_move_rootdir_drop_what_stood_above(project: Project, folder: str, args: tuple[str, ...]) -> None:
    """The base's rootdir was above; that of the change is the folder that pytest was started in, or was given."""
    for file in ("conftest.py", "widths_format.py"):  # which pytest finds in either rootdir
        project.write(f"{folder}/{file}", (project.path / file).read_text())
    project.write("team/budgets/a.yaml", budget(head="", name="other"))
    project.write("team/budgets/net.widths", "4 8 2")
    repository = on_branch(project)
    repository.write(f"{folder}/pytest.ini", "[pytest]\nnorecursedirs = far\n")
    words = [sys.executable, "-m", "pytest", "--model-budget", BASE, "-p", "no:cacheprovider", *args]
    start = project.path if args else project.path / folder
    run = subprocess.run(words, cwd=start, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    assert f"net: {DROPPED} (forbidden)" in run.stdout


# Links.


def linked(project: Project, target: str = "../limits") -> Repository:
    """The base holds limits/b.yaml through a link to its folder."""
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("limits/b.yaml", budget())
    project.write("limits/net.widths", "4 8 2")
    (project.path / "budgets/far").symlink_to(target, target_is_directory=True)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    return repository


@pytest.mark.parametrize("target", ["../limits", "./../limits", ".././limits/", "../budgets/../limits/."])
def test_a_link_to_a_folder_that_goes_drops_what_stood_behind_it(project: Project, target: str) -> None:
    repository = linked(project, target)
    assert loosened(project) == []
    (project.path / "budgets/far").unlink()
    repository.commit()
    assert [(found["file"], found["forbidden"]) for found in loosened(project)] == [("budgets/far/b.yaml", True)]


@pytest.mark.parametrize("target", ["../limits/b.yaml", "./.././limits/b.yaml", "to_b.yaml", "limits\n/b.yaml"])
def test_a_link_to_a_budget_that_goes_drops_it(project: Project, target: str) -> None:
    """However its target is written, also by way of another link, or in a folder of an odd name."""
    project.write("budgets/limits\n/b.yaml", budget())
    project.write("budgets/limits\n/net.widths", "4 8 2")
    (project.path / "budgets/to_b.yaml").symlink_to("./../limits/b.yaml")
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("limits/b.yaml", budget())
    project.write("budgets/net.widths", "4 8 2")
    (project.path / "budgets/b.yaml").symlink_to(target)
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    assert loosened(project) == []
    (project.path / "budgets/b.yaml").unlink()
    repository.commit()
    assert [(found["file"], found["forbidden"]) for found in loosened(project)] == [("budgets/b.yaml", True)]


@pytest.mark.parametrize("link", ["budgets/b.yaml", "budgets/far"])
def test_a_link_into_a_submodule_that_goes_drops_what_stood_behind_it(project: Project, link: str) -> None:
    inner = project.path / "shared"
    project.write("budgets/a.yaml", budget(head="", name="other"))
    project.write("shared/limits/b.yaml", budget())
    project.write("shared/limits/net.widths", "4 8 2")
    project.write("budgets/net.widths", "4 8 2")
    target = "../shared/limits/b.yaml" if link.endswith("yaml") else "../shared/limits"
    (project.path / link).symlink_to(target, target_is_directory=True)
    repository = Repository(project)
    repository.git("init", "-q", folder=inner)
    for words in (("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        repository.git(*words, folder=inner)
    repository.commit()
    repository.branch("change")
    assert loosened(project) == []
    (project.path / link).unlink()
    repository.commit()
    behind = link if link.endswith("yaml") else f"{link}/b.yaml"
    assert [(found["file"], found["forbidden"]) for found in loosened(project)] == [(behind, True)]


def test_what_stands_behind_a_link_is_passed_by_like_a_folder(project: Project) -> None:
    linked(project)
    in_ini("norecursedirs = far")
    project.write("pytest.ini", "[pytest]\nnorecursedirs = far\n")
    assert [(found["file"], found["forbidden"]) for found in loosened(project)] == [("budgets/far/b.yaml", True)]


def test_a_budget_held_by_a_new_name_alone_is_dropped(project: Project) -> None:
    """The new name has no base to be compared with: what the change raises there would be new."""
    repository = on_branch(project)
    repository.write("budgets/far/b.yaml", budget().replace("50", "5000"))
    (project.path / "other").mkdir()
    (project.path / "other/b.yaml").symlink_to("../budgets/far/b.yaml")
    repository.write("other/net.widths", "4 8 2")
    repository.write("pytest.ini", "[pytest]\nmodel_budget_paths = other\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])


@pytest.mark.parametrize("content", [b"caf\xe9: 1\n", b"\xff\xfem\x00"], ids=["latin-1", "a UTF-16 scrap"])
def test_a_file_that_is_no_utf8_hides_no_dropped_budget(project: Project, content: bytes) -> None:
    """It is no budget, and stands before them in git's list."""
    (project.path / "aaa.yaml").write_bytes(content)
    repository = on_branch(project)
    (project.path / "budgets/far/b.yaml").unlink()
    repository.commit()
    assert [(found["file"], found["forbidden"]) for found in loosened(project)] == [("budgets/far/b.yaml", True)]


def test_a_link_that_led_nowhere_at_the_base_held_nothing(project: Project) -> None:
    (project.path / "budgets/gone.yaml").symlink_to("nowhere.yaml")
    (project.path / "budgets/loop").symlink_to(".", target_is_directory=True)
    repository = on_branch(project)
    (project.path / "budgets/gone.yaml").unlink()
    (project.path / "budgets/loop").unlink()
    repository.commit()
    assert [found["file"] for found in loosened(project) if not found["file"].startswith("budgets/loop")] == []


def test_budgets_of_a_base_that_git_cannot_list_are_unknown_and_red(project: Project) -> None:
    """A clone may lack the trees of a commit that it has."""
    repository = on_branch(project)
    tree = repository.git("rev-parse", "main^{tree}")
    repository.write("budgets/far/b.yaml", budget().replace("50", "49"))
    repository.commit()
    (project.path / ".git/objects" / tree[:2] / tree[2:]).unlink()
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*budgets at main (*) cannot be listed: git *", "*FAILED base::lock*"])


# Limits that the change's settings leave out of a budget that is collected.


@pytest.mark.parametrize(
    ("addopts", "count", "workers"),
    [
        pytest.param("-k other", 2, "-n0", id="-k"),
        pytest.param("-k 'other or params'", 1, "-n0", id="-k of one limit"),
        pytest.param("-k 'other or params'", 1, "-n2", id="in workers"),
        pytest.param("--deselect budgets/far/b.yaml", 2, "-n0", id="--deselect"),
        pytest.param("-m 'not model_budget'", 2, "-n0", id="-m"),
    ],
)
def test_limits_that_settings_of_a_change_leave_out_are_loosened(
    project: Project, addopts: str, count: int, workers: str
) -> None:
    """The same on the command line, or at the base, is no change; net has two limits.

    Workers send how many they were left with, whatever left them out.
    """
    repository = on_branch(project)
    repository.write("pytest.ini", f"[pytest]\naddopts = {addopts}\n")
    result = project.run(BASE, workers)
    assert result.ret == 1
    limits = "1 limit" if count == 1 else f"{count} limits"
    flag = addopts.partition(" ")[0]
    result.stdout.fnmatch_lines(
        [f"*budget loosened: {limits} left out by {flag} of addopts (forbidden)   budgets/far/b.yaml:1"]
    )
    repository.commit()
    repository.git("branch", "-f", "main")
    project.run(BASE, workers).stdout.no_fnmatch_line("*budget loosened*")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("-k=other", "*budget loosened: 2 limits left out by -k of addopts", id="-k"),
        pytest.param("--ignore=budgets/far", f"*net: {DROPPED}", id="--ignore"),
        pytest.param("@more.txt", f"*net: {DROPPED}", id="a file in a file"),
    ],
)
def test_what_a_file_of_options_leaves_out_is_loosened(project: Project, line: str, words: str) -> None:
    """The addopts is the base's, and names a file that the change writes; with the same file nothing is loosened."""
    project.write("options.txt", "-ra\n")
    project.write("pytest.ini", "[pytest]\naddopts = @options.txt\n")
    repository = on_branch(project)
    project.write("options.txt", f"-ra\n{line}\n")
    project.write("more.txt", "--ignore\nbudgets/far\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"{words} (forbidden)   budgets/far/b.yaml:1"])
    repository.commit()
    repository.git("branch", "-f", "main")
    project.run(BASE).stdout.no_fnmatch_line("*budget loosened*")


def test_a_file_of_options_on_the_command_line_is_its_users_choice(project: Project) -> None:
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\naddopts = -ra\n")
    repository.write("options.txt", "--ignore=budgets/far\n-k\nmacs\n")
    result = project.run(BASE, "@options.txt")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*budget loosened*")


def test_a_selection_on_the_command_line_is_its_users_choice(project: Project) -> None:
    repository = on_branch(project)
    repository.write("pytest.ini", "[pytest]\naddopts = -k params\n")
    result = project.run(BASE, "-k", "macs")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*budget loosened*")


# Limits that hooks of the change leave out: of its conftest.py, of what that imports, and of plugins of its own.

TAKES_AWAY = (
    "def pytest_collection_modifyitems(items):\n    items[:] = [item for item in items if 'far' not in item.nodeid]\n"
)
NO_MODEL = (
    "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_make_collect_report(collector):\n    report = yield\n"
    "    if collector.name == 'net':\n        report.result = []\n    return report\n"
)
SETS_AN_OPTION = "def pytest_configure(config):\n    config.option.keyword = 'other'\n"
LEFT_OUT = "*budget loosened: 2 limits left out by a conftest.py or a plugin (forbidden)   budgets/far/b.yaml:1"
BY_HOOKS = {"items": TAKES_AWAY, "a model": NO_MODEL, "an option": SETS_AN_OPTION}


@pytest.mark.parametrize(
    ("hook", "workers"), [*((hook, "-n0") for hook in BY_HOOKS), ("items", "-n1"), ("an option", "-n1")]
)
def test_limits_that_a_hook_of_a_change_takes_away_are_loosened(project: Project, hook: str, workers: str) -> None:
    """The same hook at the base is no change. Hooks of collection run in workers alone, one of options everywhere."""
    repository = on_branch(project)
    in_conftest(BY_HOOKS[hook])(repository)
    result = project.run(BASE, workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines([LEFT_OUT])
    repository.commit()
    repository.git("branch", "-f", "main")
    unchanged = project.run(BASE, workers)
    assert unchanged.ret == 0
    unchanged.stdout.no_fnmatch_line("*budget loosened*")


def in_helper(project: Project, how: str) -> Repository:
    """Main has a helper.py without a hook, which its conftest.py or its settings bring in."""
    if how == "a plugin":
        project.write("pytest.ini", "[pytest]\naddopts = -p helper\npythonpath = .\n")
    else:
        project.configure("\nfrom helper import *\n")
    project.write("helper.py", "collect_ignore = []\n")
    return on_branch(project)


IGNORES = "def pytest_ignore_collect(collection_path):\n    return True if collection_path.name == 'far' else None\n"


@pytest.mark.parametrize("how", ["a plugin", "an import"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(TAKES_AWAY, LEFT_OUT, id="takes away"),
        pytest.param(IGNORES, f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1", id="ignores"),
    ],
)
def test_hooks_in_other_files_than_conftest_are_seen(project: Project, how: str, text: str, said: str) -> None:
    """The conftest.py and the settings are as they were."""
    repository = in_helper(project, how)
    repository.write("helper.py", text)
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([said])
    repository.commit()
    repository.git("branch", "-f", "main")
    assert project.run(BASE).ret == 0


def test_a_list_that_is_imported_is_seen(project: Project) -> None:
    """Of a conftest.py in the budget's own folder, which only workers load."""
    project.write("budgets/far/conftest.py", "from helper import collect_ignore\n")
    project.write("helper.py", "collect_ignore = []\n")
    project.write("pytest.ini", "[pytest]\npythonpath = .\n")
    repository = on_branch(project)
    repository.write("helper.py", "collect_ignore = ['b.yaml']\n")
    for workers in ("-n0", "-n1"):
        result = project.run(BASE, workers)
        assert result.ret == 1
        result.stdout.fnmatch_lines([f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1"])


def test_a_hook_of_the_base_in_a_plugin_that_changes_is_named(project: Project) -> None:
    """Whether the base passed the budget by nobody can tell."""
    repository = in_helper(project, "a plugin")
    repository.write("helper.py", IGNORES)
    repository.commit()
    repository.git("branch", "-f", "main")
    repository.write("helper.py", f"{IGNORES}REMARK = 'unlike before'\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*budgets/far/b.yaml is possibly dropped, *: helper.py at main (*) says by code what is ignored"]
    )


def test_a_file_that_a_hook_takes_away_is_dropped(project: Project) -> None:
    """It was found to be a budget, and nobody read it."""
    repository = on_branch(project)
    in_conftest(
        "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_collect_file(file_path):\n    nodes = yield\n"
        "    return [] if file_path.name == 'b.yaml' else nodes"
    )(repository)
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*budgets/far/b.yaml is not held: pytest was told to ignore it",
            f"*net: {DROPPED} (forbidden)   budgets/far/b.yaml:1",
        ]
    )


def test_a_selection_of_the_users_is_his_choice_whatever_hooks_changed(project: Project) -> None:
    in_conftest("REMARK = 'unlike before'")(on_branch(project))
    for args in (("-k", "other"), ("budgets/a.yaml::other",), ("--deselect=budgets/far/b.yaml",)):
        result = project.run(BASE, *args)
        assert result.ret == 0
        result.stdout.no_fnmatch_line("*budget loosened*")


def test_what_other_shards_have_is_not_left_out(project: Project) -> None:
    """A hook takes one limit of net away; other is in another shard than net."""
    repository = on_branch(project, head="")
    in_conftest(TAKES_AWAY.replace("'far'", "'far/b.yaml::net::macs'"))(repository)
    said = "*budget loosened: 1 limit left out by a conftest.py or a plugin   budgets/far/b.yaml:1"
    for shard in ("1/2", "2/2"):
        result = project.run(BASE, f"--model-budget-shard={shard}", "--model-budget-json=out.json")
        result.stdout.fnmatch_lines([said])
        result.stdout.no_fnmatch_line("*left out by a conftest.py*budgets/a.yaml*")


READS = (
    "from pathlib import Path\nBUDGETS = ['budgets/a.yaml']\nLISTED = {listed}\n"
    "def pytest_collection_modifyitems(items):\n"
    "    gone = LISTED.read_text().split() if LISTED.exists() else ['none']\n"
    "    items[:] = [item for item in items if not any(name in item.nodeid for name in gone)]\n"
)
LISTED = {
    "in a folder": ("Path(__file__).with_name('lists') / 'left_out.txt'", "lists/left_out.txt", "other.yaml"),
    "by its path": ("Path('lists/left_out.txt')", "lists/left_out.txt", "other.yaml"),
    "new": ("Path('lists/../left_out.txt')", "left_out.txt", None),
    "behind a folder": ("Path(f'{Path(__file__).parent}/left_out.txt')", "left_out.txt", "other.yaml"),
    "new behind a folder": ("Path(str(Path(__file__).parent) + '/left_out.txt')", "left_out.txt", None),
    "deep": (
        "Path(__file__).parent / 'own' / 'lists/of/what/left_out.txt'",
        "own/lists/of/what/left_out.txt",
        "other.yaml",
    ),
}


@pytest.mark.parametrize(("listed", "file", "before"), LISTED.values(), ids=LISTED)
def test_a_list_that_a_hook_reads_is_seen(project: Project, listed: str, file: str, before: str | None) -> None:
    """The hook is the base's, what it leaves out is not; a budget that it names may change."""
    project.configure(f"\n{READS.format(listed=listed)}")
    project.write("lists/kept", "")
    if before:
        project.write(file, before)
    repository = on_branch(project)
    repository.write(file, "far\n")
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([LEFT_OUT])
    repository.commit()
    repository.git("branch", "-f", "main")
    project.write("budgets/a.yaml", f"# unlike before\n{budget(head='', name='other')}")
    assert project.run(BASE).ret == 0


def test_a_text_that_is_too_long_for_a_file_names_none(project: Project) -> None:
    """240 letters of two bytes each: nothing changed, so that the base left out the same."""
    says = "\N{CYRILLIC SMALL LETTER YA}" * 240
    project.configure(f"\nSAYS = '{says}'\ndef pytest_configure(): pass\n")
    project.write("pytest.ini", "[pytest]\naddopts = -k params\n")
    on_branch(project)
    result = project.run(BASE)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*budget loosened*")


SPLITS = (
    "def pytest_addoption(parser):\n    parser.addoption('--group', type=int)\n"
    "def pytest_collection_modifyitems(config, items):\n"
    "    if config.getoption('group'):\n        items[:] = items[config.getoption('group') % 2 :: 2]\n"
)
HOOK = "def pytest_configure(config):\n    config.option.group = 1"


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_what_an_installed_plugin_leaves_out_is_its_users_choice(
    project: Project, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conftest.py that changes and has no hook has no part in it; one that sets the plugin's option has."""
    folder = project.write("site-packages/splits.py", SPLITS).parent
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    project.pytester.syspathinsert(folder)
    run = project.run if workers == "-n0" else project.run_apart  # workers have the path that this process began with
    repository = on_branch(project)
    in_conftest("REMARK = 'unlike before'")(repository)
    result = run(BASE, "-p", "splits", "--group=1", workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*2 of 4 limits measured, 2 left out by selection"])
    result.stdout.no_fnmatch_line("*budget loosened*")
    in_conftest(HOOK)(repository)
    changed = run(BASE, "-p", "splits", workers)
    assert changed.ret == 1
    changed.stdout.fnmatch_lines(["*budget loosened: 1 limit left out by a conftest.py or a plugin (forbidden)*"])


def test_an_installed_plugin_that_a_conftest_brings_is_the_changes(project: Project) -> None:
    """By pytest_plugins, without a hook of its own."""
    project.pytester.syspathinsert(project.write("site-packages/takes.py", TAKES_AWAY).parent)
    in_conftest("pytest_plugins = ['takes']")(on_branch(project))
    result = project.run(BASE)
    assert result.ret == 1
    result.stdout.fnmatch_lines([LEFT_OUT])
