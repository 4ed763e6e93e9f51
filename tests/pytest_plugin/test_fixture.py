"""The fixture ``model_budget``: budgets written in a test."""

from __future__ import annotations

import pytest

from tests.builders.project import Project

HEAD = """
from pathlib import Path

NET = Path("budgets/net.widths")
"""


def ran(project: Project, body: str) -> pytest.RunResult:
    project.write("test_net.py", f"{HEAD}\ndef test_net(model_budget):\n    {body}\n")
    return project.run(switch=False)


def test_within_all_limits_passes(project: Project) -> None:
    """Maxima as strings or numbers, minima in a mapping; no switch needed."""
    body = "model_budget(NET, 'float32 1x4').within(params='48', macs=48, arithmetic_intensity={'min': '0.1 FLOP/B'})"
    ran(project, body).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param("ops={'max': {'linear': 2}, 'deny': ['lstm']}", id="ops"),
        pytest.param("params={'max': 47, 'level': 'warn'}", id="level"),
        pytest.param("params={'min': 48, 'max': '0.048 k'}", id="both ends"),
        pytest.param("params=1e3, peak_activation={'max': 1e6}", id="whole floats"),
    ],
)
def test_limits_are_those_of_a_budget_file(project: Project, limits: str) -> None:
    """Whatever stands below ``limits:`` in YAML can be said in Python: 2 layers, 48 parameters."""
    ran(project, f"model_budget(NET, 'float32 1x4').within({limits})").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "arguments", [(), ("-W", "error"), ("-n", "1", "-p", "xdist")], ids=["alone", "-W error", "xdist"]
)
def test_over_at_level_warn_passes_and_is_said(project: Project, arguments: tuple[str, ...]) -> None:
    """Among the warnings of the session, with the test as its place; a limit that is kept warns of nothing."""
    limits = "params={'max': 47, 'level': 'warn'}, macs={'max': 48, 'level': 'warn'}"
    body = f"model_budget(NET, 'float32 1x4').within({limits})"
    project.write("test_net.py", f"{HEAD}\ndef test_net(model_budget):\n    {body}\n")
    result = project.run(*arguments, switch=False)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*test_net.py:6: PytestWarning: params 48 > 47 (+2.1%)"])


def test_over_a_limit_fails_with_the_text_of_a_budget_file(project: Project) -> None:
    """All broken limits are told, with the test as their place."""
    result = ran(project, "model_budget(NET, 'float32 1x4').within(params='47', macs='1 MAC')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*params 48 > 47 (+2.1%)   test_net.py:6", "E*macs 48 MAC > 1 MAC*"])
    result.stdout.no_fnmatch_line("*pytest_items*")


def test_a_wrong_call_is_as_wide_as_the_terminal(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sentence goes on below itself, as that of a broken limit does."""
    monkeypatch.setenv("COLUMNS", "80")
    body = "model_budget('nowhere_at_all/models/of_another_folder/network.onnx').within(params=1)"
    pytester.makepyfile(test_call=f"def test_call(model_budget):\n    {body}\n")
    lines = pytester.runpytest("-q").stdout.lines
    at = next(at for at, line in enumerate(lines) if line.startswith("test_call.py:1: "))
    assert len(lines[at]) < 80
    assert lines[at + 1].startswith("  ")
    assert "network.onnx does not exist in " in " ".join(line.strip() for line in lines[at : at + 3])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(parms=1)", "*'parms'*did you mean 'params'?", id="metric"
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(weight_memory='26 mb')", "*weight_memory: *26 mb*26 MB*", id="unit"
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within()",
            "*no limits: a gate must hold something, such as params='11.7 M'",
            id="no limit",
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(ops=22)",
            "*limits on ops: a mapping such as {max: {convolution: 20}}, found one word",
            id="bare count of ops",
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(params={})",
            "*'params' has none of the keys max, min, grow: give one",
            id="no end",
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(params={'grow': '2%'})",
            "*params: 'grow' needs a lock file: write it in a budget",
            id="growth",
        ),
        pytest.param(
            "model_budget(NET, 'float32 1x4').within(params='auto')",
            "*params: 'auto' needs a lock file: write it in a budget",
            id="auto",
        ),
        pytest.param("model_budget(NET, 'float32 1x4').within(params=NET)", "*params: 'budgets*", id="no quantity"),
        pytest.param("model_budget(NET, 'flat32 1x4')", "*flat32*float32*", id="inputs"),
        pytest.param(
            "model_budget(NET, 'float32 1x4', dim={'n': 1})",
            "*takes no option 'dim': did you mean 'dims'?",
            id="option",
        ),
        pytest.param("model_budget(NET, 'float32 1x4', args=5)", "*model_budget() was given*", id="args"),
        pytest.param("model_budget('net.mlmodel')", "*is a Core ML file: give the torch module*", id="source"),
    ],
)
def test_what_cannot_be_read_fails_with_a_way_out(project: Project, body: str, text: str) -> None:
    """A wrong word in a test is said without a traceback through the plugin."""
    result = ran(project, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"test_net.py:6: {text}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling*")
    result.stdout.no_fnmatch_line("*.py:*: in *")
    result.stdout.no_fnmatch_line("*pytest_modelbudget*.py:*Error")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param("model_budget(NET, 'float32 1x4')", "a model", id="one"),
        pytest.param(
            "[model_budget(NET, f'float32 {n}x4') for n in (1, 2, 3)][0].within(params=48)",
            "2 models",
            id="two of three",
        ),
    ],
)
def test_a_model_that_is_not_held_fails(project: Project, body: str, text: str) -> None:
    """A call without .within(...) checks nothing, and must not look as if it did."""
    result = ran(project, body)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"test_net.py:6: model_budget() measured {text} and checked nothing*"])


@pytest.mark.parametrize(
    ("ending", "outcome"), [("assert 0", "failed"), ("pytest.skip()", "skipped"), ("pytest.xfail()", "xfailed")]
)
def test_a_test_that_ends_before_it_held_its_model_has_one_outcome(project: Project, ending: str, outcome: str) -> None:
    """What made it end is told, and nothing that follows from that."""
    result = ran(project, f"import pytest; model_budget(NET, 'float32 1x4'); {ending}")
    result.assert_outcomes(**{outcome: 1})


def test_a_failure_is_as_wide_as_the_terminal(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns hold each of its lines with what pytest writes before it, and no word is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    body = "model_budget(NET, 'float32 1x4').within(params=4, macs='1 MAC')"
    project.write("test_all_networks_of_the_camera.py", f"{HEAD}\ndef test_net(model_budget):\n    {body}\n")
    lines = [line for line in project.run(switch=False).outlines if line.startswith("E  ")]
    assert max(map(len, lines)) < 80
    words = " ".join(" ".join(line.removeprefix("E").split()) for line in lines)
    place = "test_all_networks_of_the_camera.py:6"
    assert f"(>+999%) {place}" in words
    assert f"fix: shrink what is largest above, or raise the limit at {place} macs 48 MAC > 1 MAC" in words
