"""xdist changes who measures, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.marks import ALL_MODELS
from tests.builders.project import Project

MODELS = "".join(
    f"  net{n}: {{widths: net.widths, inputs: float32 {n}x4, "
    f"limits: {{params: {46 + n}, macs: {{max: 90 MAC, level: warn}}}}}}\n"
    for n in (1, 2, 3)
)


def ran(project: Project, monkeypatch: pytest.MonkeyPatch, seed: str, *args: str) -> tuple[object, ...]:
    """Exit code, sorted (outcome, id) lines and report of a run in processes of its own."""
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    file = Path("out.json")
    result = project.run_apart("-rA", "--model-budget-lock=keep", f"--model-budget-report=json:{file}", *args)
    lines = sorted(line.partition(" - ")[0] for line in result.outlines if line.startswith(("PASSED ", "FAILED ")))
    text = (project.path / file).read_text(encoding="utf-8")
    assert json.loads(text)["timings"].keys() == {f"budgets/a.yaml::net{n}" for n in (1, 2, 3)}
    return int(result.ret), lines, text.partition('"timings"')[0]


@pytest.mark.slow
def test_workers_change_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """-n0, -n2 and, at night, -n4 --dist loadscope give the same ids, outcomes and JSON bytes."""
    project.budget(MODELS)
    project.write("budgets/b.yaml", "model_budget: 1\nmodls: {}\n")
    alone = ran(project, monkeypatch, "0", "-n0")
    assert len(alone[1]) == 7  # type: ignore[arg-type]
    assert alone[0] == 1
    assert ran(project, monkeypatch, "1", "-n2") == alone
    if ALL_MODELS:
        assert ran(project, monkeypatch, "2", "-n4", "--dist", "loadscope") == alone


def test_a_models_limits_stay_on_one_worker(project: Project) -> None:
    """--dist loadscope measures each model once."""
    project.budget(MODELS)
    project.run("-n2", "--dist", "loadscope")
    assert len(project.loads) == 3


def test_selection_is_counted_across_workers(project: Project) -> None:
    """The controller collects nothing, and knows all the same what was left out."""
    project.budget(MODELS)
    result = project.run("-n2", "-k", "net2", "--model-budget-report=json:out.json")
    result.stdout.fnmatch_lines(["model budget: 2 of 6 limits measured, 4 skipped by -k"])
    assert json.loads((project.path / "out.json").read_text())["selected"]


def test_nothing_measured_is_said_once(project: Project) -> None:
    """Exit code 5 and one line, from the controller."""
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    result = project.run("-n2")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert result.outlines.count("model budget: nothing measured") == 1


def test_a_crashed_worker_leaves_an_unknown_limit(project: Project) -> None:
    """A model that kills its process fails, and the report says so."""
    project.write("budgets/exit.widths", "exit")
    project.budget(
        "  bad: {widths: exit.widths, limits: {params: 1}}\n  net: {widths: net.widths, limits: {params: 48}}\n"
    )
    result = project.run_apart("-n2", "--model-budget-report=json:out.json")
    assert result.ret == 1
    models = json.loads((project.path / "out.json").read_text())["models"]
    outcomes = {check["id"]: check["outcome"] for model in models for check in model["checks"]}
    assert outcomes == {"budgets/a.yaml::bad::params": "unknown", "budgets/a.yaml::net::params": "within"}
