"""Several projects in one repository: no row is shared, and nothing is left lying about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.project import Project

FOLDERS = {"audio": 40, "video": 60, "vision": 50}  # limits on 48 parameters


@pytest.fixture
def monorepo(project: Project) -> Project:
    """Three folders with a budget of one name and a model of one name; pytest takes vision for its rootdir."""
    (project.path / "pytest.ini").rename(project.write("vision/pytest.ini", ""))
    for folder, most in FOLDERS.items():
        project.write(f"{folder}/budgets/net.widths", "4 8 2")
        project.budget(f"  net: {{widths: net.widths, limits: {{params: {most}}}}}\n", f"{folder}/budgets/net.yaml")
    return project


PATHS = [f"{folder}/budgets" for folder in ("vision", "audio", "video")]


@pytest.mark.parametrize(
    ("paths", "workers"),
    [(PATHS, "-n0"), (PATHS, "-n1"), ([f"{path}/net.yaml" for path in PATHS], "-n0"), (["vision/budgets", "."], "-n0")],
    ids=str,
)
def test_p4_budgets_outside_of_rootdir_are_a_usage_error(monorepo: Project, paths: list[str], workers: str) -> None:
    """pytest would call each of them net.yaml::net; the way out is named."""
    result = monorepo.run("--rootdir=vision", workers, *paths)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*net.yaml lies outside of pytest's rootdir */vision, *: give --rootdir=."])


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_p4_the_way_out_leads_out(monorepo: Project, page: Path, workers: str) -> None:
    """With it every budget has rows of its own in JSON, JUnit, comment and annotations."""
    reports = (
        "--model-budget-report=json:out.json",
        "--model-budget-report=junit:j.xml",
        "--model-budget-report=comment:c.md",
    )
    result = monorepo.run("--rootdir=.", "-p", "no:pytest_github_actions_annotate_failures",
                          workers, *reports, *PATHS)  # fmt: skip
    assert result.ret == 1
    models = json.loads((monorepo.path / "out.json").read_text())["models"]
    outcomes = {model["id"]: (model["checks"][0]["limit"], model["checks"][0]["outcome"]) for model in models}
    assert outcomes == {
        "audio/budgets/net.yaml::net": (40, "over"),
        "video/budgets/net.yaml::net": (60, "within"),
        "vision/budgets/net.yaml::net": (50, "within"),
    }
    for name in ("j.xml", "c.md"):
        text = (monorepo.path / name).read_text(encoding="utf-8")
        assert all(f"{folder}/budgets/net" in text for folder in FOLDERS)
    commands = [line for line in result.outlines if line.startswith("::error")]
    assert [command.partition(",")[0] for command in commands] == ["::error file=audio/budgets/net.yaml"]


def test_p4_configured_paths_may_not_lead_out_either(monorepo: Project) -> None:
    """model_budget_paths with ../ in it."""
    monorepo.write("vision/pytest.ini", "[pytest]\nmodel_budget_paths = budgets ../audio/budgets ../video/budgets\n")
    result = monorepo.run("--rootdir=vision", "-c", "vision/pytest.ini")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*video/budgets/net.yaml lies outside of pytest's rootdir *: give --rootdir=."])


def test_p4_a_budget_in_rootdir_itself_has_a_bare_name_too(monorepo: Project) -> None:
    """Which one outside of it would share."""
    (monorepo.path / "vision" / "budgets" / "net.yaml").rename(monorepo.path / "vision" / "net.yaml")
    result = monorepo.run("--rootdir=vision", "vision", "audio/budgets")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*audio/budgets/net.yaml lies outside of *from */vision/net.yaml: give *"])


def test_p4_other_files_may_lie_outside(monorepo: Project) -> None:
    """Ordinary tests, and YAML files that are no budgets."""
    monorepo.write("other/test_a.py", "def test_a(): pass\n")
    monorepo.write("other/net.yaml", "models: {}\n")
    monorepo.write("other/ci.yml", "jobs: {}\n")
    monorepo.write("vision/conftest.py", (monorepo.path / "conftest.py").read_text())
    result = monorepo.run("--rootdir=vision", "vision/budgets", "other")
    assert result.parseoutcomes() == {"passed": 2}


def test_a_budget_outside_of_rootdir_is_said(monorepo: Project) -> None:
    """A configuration one folder down, or beside: the ids of its limits lack folders that they have elsewhere."""
    (monorepo.path / "conftest.py").rename(monorepo.path / "audio" / "conftest.py")
    result = monorepo.run("--rootdir=vision", "audio/budgets", "--model-budget-report=json:out.json")
    (model,) = json.loads((monorepo.path / "out.json").read_text())["models"]
    assert model["id"] == "net.yaml::net"
    said = "*audio/budgets/net.yaml lies outside of pytest's rootdir */vision, *other ids*: give --rootdir=."
    result.stdout.fnmatch_lines([said])
    assert "outside of" not in monorepo.run("--rootdir=.", "audio/budgets").stdout.str()


def test_a_project_without_the_folder_is_told_three_ways_out(project: Project) -> None:
    """A budget in a folder of another name is found where it is named."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    (project.path / "budgets").rename(project.path / "config")
    result = project.run()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    ways = "name another folder, set ini model_budget_paths, or write a budget, such as with"
    result.stdout.fnmatch_lines([f"*/budgets does not exist: {ways}"])
    assert project.run("config").ret == 0
