"""One item per limit: its id, its outcome, and what a broken one says."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from tests.builders.hardware import BOARD
from tests.builders.project import HEAD, Project

# The model net.widths has 4 * 8 + 8 * 2 = 48 parameters.
PARAMS = 4 * 8 + 8 * 2
PYTESTS_OWN = ("_", "=", "-")  # headings, and the line on its JUnit file


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        pytest.param(PARAMS - 1, "over", id="limit-1"),
        pytest.param(PARAMS, "within", id="limit"),
        pytest.param(PARAMS + 1, "within", id="limit+1"),
    ],
)
def test_at_the_limit_is_within(project: Project, limit: int, outcome: str) -> None:
    """A limit is inclusive, to the unit."""
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {limit}}}}}\n")
    report = project.report()
    (check,) = report["models"][0]["checks"]
    assert (check["outcome"], check["limit"], check["actual"]) == (outcome, limit, PARAMS)


def test_ids_name_file_model_variant_and_limit(project: Project) -> None:
    """Models, variants and scopes each have their part of an id."""
    project.budget(
        "  net:\n"
        "    widths: net.widths\n"
        "    limits: {params: 48, macs: 48 MAC, ops: {deny: [lstm]}}\n"
        "    scopes: {layer1.*: {params: 16}, 'layer[01]': {params: 48}}\n"
        "    variants: {batch8: {inputs: float32 8x4, limits: {macs: 384 MAC}}}\n"
    )
    result = project.run("--co", "-q")
    assert result.ret == 0
    assert [line for line in result.outlines if "::" in line] == [
        "budgets/a.yaml::net::params",
        "budgets/a.yaml::net::macs",
        "budgets/a.yaml::net::ops",
        "budgets/a.yaml::net::params@layer1.*",
        "budgets/a.yaml::net::params@layer[01]",
        "budgets/a.yaml::net::batch8::macs",
    ]
    result = project.run("budgets/a.yaml::net::params@layer[01]", "budgets/a.yaml::net::batch8")
    result.assert_outcomes(passed=2)


def test_one_measurement_serves_all_limits(project: Project) -> None:
    """However many limits and files ask, a source is loaded once; other inputs are another."""
    limits = "{params: 48, macs: 48 MAC, weight_memory: 192 B}"
    project.budget(f"  net: {{widths: net.widths, limits: {limits}}}\n")
    project.budget(
        f"  again: {{widths: net.widths, limits: {limits}}}\n"
        f"  larger: {{widths: net.widths, inputs: float32 2x4, limits: {{params: 48}}}}\n",
        name="budgets/b.yaml",
    )
    project.run().assert_outcomes(passed=7)
    assert project.loads == ["net.widths", "net.widths"]


def test_a_failure_names_numbers_place_and_way_out(project: Project) -> None:
    """The block reads: what is over by how much, who it is made of, how to mend it."""
    project.budget("  net:\n    widths: net.widths\n    limits:\n      params: 47\n")
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*__ model budget: net / params __*",
            "params 48 > 47 (+2.1%)   budgets/a.yaml:7",
            "  largest layers by params",
            "  32  layer0",
            "  16  layer1",
            "fix: shrink what is largest above, or accept: pytest --model-budget "
            "--model-budget-update=fix budgets/a.yaml::net::params",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_items.py*")


@pytest.mark.parametrize("style", ["auto", "long", "short", "native", "line"])
def test_every_traceback_style_shows_the_limit_not_our_code(project: Project, style: str) -> None:
    """``--tb`` changes how much is shown, never whose code."""
    project.budget("  net:\n    widths: net.widths\n    limits:\n      params: 47\n")
    result = project.run(f"--tb={style}")
    result.stdout.fnmatch_lines(["*params 48 > 47*"])
    result.stdout.no_fnmatch_line("*pytest_items*")
    if style == "line":
        result.stdout.fnmatch_lines(["budgets/a.yaml:7: params 48 > 47*"])


def test_the_ci_summary_is_one_line_with_the_number_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI set pytest cuts nothing, so the message must be short by itself."""
    monkeypatch.setenv("CI", "true")
    project.budget("  net:\n    widths: net.widths\n    limits:\n      params: 47\n")
    lines = project.run("-rf").outlines
    (index,) = (i for i, line in enumerate(lines) if line.startswith("FAILED budgets"))
    assert lines[index].startswith("FAILED budgets/a.yaml::net::params - params 48 > 47 (+2.1%)")
    assert lines[index + 1].startswith("=")


def test_exact_integers_where_rounded_ones_look_alike(project: Project) -> None:
    """1000 x 1000 against 999,999 is not "1 M > 1 M"."""
    project.write("budgets/wide.widths", "1000 1000")
    project.budget("  wide: {widths: wide.widths, inputs: float32 1x1000, limits: {params: 999999}}\n")
    result = project.run("-v")
    result.stdout.fnmatch_lines(["params 1,000,000 > 999,999*", "over*params *1,000,000*999,999*"])


def test_a_model_that_cannot_be_loaded_fails_and_the_others_run(project: Project) -> None:
    """A user's exception is one line with type, text and place; its limits are unknown."""
    project.write("budgets/bad.widths", "raise")
    project.budget(
        "  bad: {widths: bad.widths, limits: {params: 1, macs: {max: 1 MAC, level: warn}}}\n"
        "  net: {widths: net.widths, limits: {params: 48}}\n"
    )
    result = project.run()
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["bad: 2 limits unknown: reading bad.widths raised ValueError: first*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    model = project.report()["models"][0]
    assert model["error"].startswith("reading bad.widths raised ValueError: first line")
    assert [check["outcome"] for check in model["checks"]] == ["unknown", "unknown"]


def test_an_unmeasured_op_is_never_green(project: Project) -> None:
    """No rule means unknown, at level warn too."""
    project.write("budgets/odd.widths", "4 8 ?")
    project.budget("  odd: {widths: odd.widths, limits: {macs: {max: 1 GMAC, level: warn}}}\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test::mystery in layer0*", "1 limit: 0 over, 0 warn, 0 within, 1 unknown"])


def test_a_broken_budget_is_one_item_with_all_its_problems(project: Project) -> None:
    """Every problem has its file, line and column, and other files still run."""
    project.budget("  net: {widths: net.widths, limits: {parms: 3, macs: 26 mb}}\n", name="budgets/bad.yaml")
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    result = project.run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "broken budget: 2 problems",
            "budgets/bad.yaml:4:38: *did you mean 'params'*",
            "budgets/bad.yaml:4:*: *26 mb*",
            "broken  budgets/bad.yaml: 2 problems",
        ]
    )
    report = project.report()
    assert report["broken"][0]["id"] == "budgets/bad.yaml::budget"
    assert len(report["broken"][0]["problems"]) == 2


def test_a_single_problem_is_said_once(project: Project) -> None:
    """The sentence, then its place with the column; the summary has the sentence alone."""
    project.budget("  net: {widths: net.widths, limits: {parms: 3}}\n", name="bad.yaml")
    shown = project.run("bad.yaml").stdout.str()
    said = "broken budget: unknown key 'parms' in limits: did you mean 'params'?"
    summary, line = "FAILED bad.yaml::budget - broken budget: ", f"{said}   bad.yaml:4:38"
    assert [each for each in shown.splitlines() if "parms" in each and not each.startswith(summary)] == [line]
    assert ":4:38" not in next(each for each in shown.splitlines() if each.startswith(summary))


@pytest.mark.parametrize("text", ["model_budget: 1\n  x: [", "model_budget: 1\n\x00", "model_budget: 2\n"])
def test_no_yaml_ends_a_session(project: Project, text: str) -> None:
    """Broken syntax, control characters and a newer version fail as items."""
    project.write("budgets/bad.yaml", text)
    result = project.run()
    assert result.ret == 1
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*INTERNAL*")


def test_over_at_level_warn_passes_and_is_said(project: Project) -> None:
    """A warning is counted and shown, and is no Python warning, which -W error would raise."""
    project.budget("  net: {widths: net.widths, limits: {params: {max: 40, level: warn}}}\n")
    result = project.run()
    result.assert_outcomes(passed=1, warnings=0)
    result.stdout.fnmatch_lines(
        ["warn    net::params * 48 * 40 *20.0% over", "1 limit: 0 over, 1 warn, 0 within, 0 unknown"]
    )


def test_verbosity_adds_limits_and_then_layers(project: Project) -> None:
    """The tightest limit of a model by default, all with -v, the largest shares with -vv."""
    project.budget("  net: {widths: net.widths, limits: {params: 100, macs: 50 MAC}}\n")
    texts = [project.run(*args).stdout.str() for args in ((), ("-v",), ("-vv",))]
    assert ["within  params" in text for text in texts] == [False, True, True]
    assert ["within  net::macs" in text for text in texts] == [True, False, False]
    assert ["\nnet\n" in text for text in texts] == [False, True, True]
    assert ["66.7%  layer0" in text for text in texts] == [False, False, True]


def test_junit_carries_the_figures(project: Project) -> None:
    """pytest's own --junitxml has one property, a JSON string, on every case."""
    project.budget("  net: {widths: net.widths, limits: {params: 47}}\n")
    project.run("--junitxml", "junit.xml")
    case = next(ElementTree.parse(project.path / "junit.xml").getroot().iter("testcase"))
    (prop,) = case.iter("property")
    assert prop.get("name") == "model_budget"
    assert json.loads(prop.get("value", ""))["actual"] == PARAMS
    (failure,) = case.iter("failure")
    assert failure.get("message", "").startswith("params 48 > 47")
    assert "\n" not in failure.get("message", "")


@pytest.mark.parametrize(("columns", "workers"), [(80, "0"), (120, "0"), (80, "1")])
def test_a_failure_is_as_wide_as_the_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch, columns: int, workers: str
) -> None:
    """But its command, which stands on one line; pytest's own JUnit file has every line as it was written."""
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "a_model_with_a_name_of_some_length"
    project.budget(f"  {name}: {{widths: net.widths, limits: {{params: {{max: 8, grow: 2%}}, macs: 8 MAC}}}}\n")
    result = project.run("-n", workers, "-p", "no:cacheprovider", "--junitxml=junit.xml")
    begin = next(at for at, line in enumerate(result.outlines) if " FAILURES " in line)
    end = next(at for at, line in enumerate(result.outlines) if "short test summary" in line)
    told = result.outlines[begin:end]
    accept = f"pytest --model-budget --model-budget-update=fix budgets/a.yaml::{name}"
    wide = [line for line in told if len(line) >= columns and not line.startswith(PYTESTS_OWN)]
    assert (f"  {accept}" in wide) == (columns == 80)
    assert [line for line in wide if not line.startswith("  pytest --model-budget ")] == []
    fix = f"fix: shrink the layers above, or accept all 2: {accept}"
    assert fix in " ".join(" ".join(told).split())
    failures = {case.text for case in ElementTree.parse(project.path / "junit.xml").iter("failure")}
    assert any(fix in (text or "").splitlines() for text in failures)


# As flaky runs an item again, which reports the last run alone, and as pytest-retry does, which resets fixtures before.
RERUNS = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_a_plugin_that_runs_items_again_loses_no_numbers(project: Project, workers: tuple[str, ...]) -> None:
    """The report is the same to the letter, though a run of each limit was never told."""
    project.write("budgets/hardware.yaml", BOARD.format(flash=8, sram=99))
    board = "{board: {device: board, fits: true}}"
    models = f"  net: {{widths: net.widths, limits: {{params: 47, macs: 48 MAC}}, deployments: {board}}}\n"
    project.write("budgets/a.yaml", HEAD.replace("models:", "hardware: hardware.yaml\nmodels:") + models)
    project.write("budgets/c.yaml", "model_budget: 1\nmodls: {}\n")
    once = project.report(*workers)
    project.configure(RERUNS)
    result, again = project.run_and_report(*workers)
    result.assert_outcomes(failed=3, passed=1)
    assert again == once


def test_a_dashboard_can_tell_a_broken_limit_from_an_error(project: Project) -> None:
    """Allure calls a test failed whose exception is an AssertionError, and broken where it is any other."""
    project.configure(
        "def pytest_exception_interact(node, call):\n"
        "    print('raised', node.name, isinstance(call.excinfo.value, AssertionError))\n"
    )
    project.write("budgets/odd.widths", "4 8 ?")
    project.write("budgets/c.yaml", "model_budget: 1\nmodls: {}\n")
    project.budget(
        "  net: {widths: net.widths, limits: {params: 47}}\n  odd: {widths: odd.widths, limits: {macs: 60 MAC}}\n"
    )
    lines = [line.partition("raised ")[2] for line in project.run("-s").outlines if "raised " in line]
    assert lines == ["params True", "macs False", "budget False"]
