"""What a conftest.py or another plugin can hear and add."""

from __future__ import annotations

import json

import pytest

from tests.builders.project import Project

LISTENER = """
def pytest_model_budget_measured(config, model_id, measurements):
    print("measured", model_id, measurements["params"].value)

def pytest_model_budget_judged(item, verdict):
    print("judged", item.nodeid, verdict.outcome.value)

def pytest_model_budget_report(config, report):
    report["commit"] = "abc123"
"""


def test_hooks_hear_of_models_verdicts_and_the_report(project: Project) -> None:
    """Each hook is called once for what it is about, and may add to the report."""
    project.configure(LISTENER)
    project.budget("  net: {widths: net.widths, limits: {params: 48, macs: 47 MAC}}\n")
    result = project.run("-s", "--model-budget-report=json:out.json")
    lines = [line.lstrip(".F") for line in result.outlines]
    heard = [line[line.index(word) :] for line in lines for word in ("measured ", "judged ")
             if f"{word}budgets" in line]  # fmt: skip
    assert heard == [
        "measured budgets/a.yaml::net 48",
        "judged budgets/a.yaml::net::params within",
        "judged budgets/a.yaml::net::macs over",
    ]
    assert json.loads((project.path / "out.json").read_text())["commit"] == "abc123"


def test_a_listener_that_raises_fails_the_item_in_one_line(project: Project) -> None:
    """The limit is then unknown, in the report too."""
    project.configure("def pytest_model_budget_judged(item, verdict):\n    raise KeyError('x')\n")
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["net / params unknown: KeyError: 'x' *budgets/a.yaml:4"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert project.report()["models"][0]["checks"][0]["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        pytest.param(
            "raise KeyError('commit')",
            "*no report: the hook pytest_model_budget_report raised KeyError: 'commit'*",
            id="raises",
        ),
        pytest.param(
            "report['tags'] = {'a', 'b'}",
            "*no report: rendering json to out.json raised TypeError: *set*",
            id="adds what JSON cannot hold",
        ),
    ],
)
def test_a_report_that_cannot_be_made_is_not_green(project: Project, body: str, remark: str) -> None:
    """The session fails with a sentence, below a table that shows what was measured."""
    project.configure(f"def pytest_model_budget_report(config, report):\n    {body}\n")
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    result = project.run("--model-budget-report=json:out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["within  net::params*", remark, "1 limit: 0 over, *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert not (project.path / "out.json").exists()


def test_the_table_shows_what_was_measured_whatever_a_hook_does(project: Project) -> None:
    """The record is the hook's to change; the verdicts are not."""
    project.configure("def pytest_model_budget_report(config, report):\n    report.clear()\n")
    project.budget("  net: {widths: net.widths, limits: {params: 47}}\n")
    result = project.run("-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["over    params*", "1 limit: 1 over, *"])


def test_a_broken_extension_fails_every_file_once(project: Project) -> None:
    """An extension that cannot be joined is said in place of the file's limits."""
    project.configure(
        "class Extension:\n"
        "    METRICS = ['params']\n\n"
        "def pytest_model_budget_extensions(config):\n"
        "    return Extension\n"
    )
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["broken budget: extension Extension: METRICS must be a tuple*"])


def test_an_extensions_hook_that_raises_does_not_end_the_session(project: Project) -> None:
    """Ordinary tests still run; the file says who raised what."""
    project.configure("def pytest_model_budget_extensions(config):\n    raise OSError('gone')\n")
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    result = project.run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*the hook pytest_model_budget_extensions raised OSError: gone*"])
