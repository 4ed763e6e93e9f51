"""Exit code 0: each way to end green without a verdict on every limit is red, or counted in a line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import sharded
from tests.builders.project import Project

KEPT = "  {name}: {{widths: net.widths, limits: {{params: 48}}}}\n"  # 4 * 8 + 8 * 2
BROKEN = "  {name}: {{widths: net.widths, limits: {{params: 47}}}}\n"
NOTHING, USAGE = pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR


def kept(project: Project) -> None:
    """Two models that keep their limits, and a test that passes."""
    project.budget(KEPT.format(name="one") + KEPT.format(name="two"))
    project.write("test_ok.py", "def test_ok(): pass\n")


def broken(project: Project) -> None:
    """One model that breaks its limit, one that keeps it, and a test that passes."""
    project.budget(BROKEN.format(name="one") + KEPT.format(name="two"))
    project.write("test_ok.py", "def test_ok(): pass\n")


def problems(project: Project, *args: str) -> tuple[int, list[str]]:
    """The exit code, and what the report says of broken files."""
    result, report = project.run_and_report(*args)
    return int(result.ret), [problem for file in report["broken"] for problem in file["problems"]]


@pytest.mark.parametrize("switch", ["--help", "--version", "--markers", "--collect-only"])
def test_what_shows_something_ends_with_its_own_code(project: Project, switch: str) -> None:
    """Nobody asked for a verdict, and none is missing."""
    kept(project)
    assert project.run(switch).ret == 0


# Not collected: rule 4 of the contract with a base.


def written(name: str, text: str) -> Callable[[Project], object]:
    return lambda project: project.write(name, text)


def in_ini(lines: str) -> Callable[[Project], object]:
    return written("pytest.ini", f"[pytest]\n{lines}\n")


def in_conftest(lines: str) -> Callable[[Project], object]:
    return lambda project: project.configure(f"\n{lines}\n")


IGNORES_FAR = (
    "def pytest_ignore_collect(collection_path):\n    return True if collection_path.name == 'far' else None\n"
)
DROPS_NODES = (
    "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_collect_file(file_path):\n    nodes = yield\n"
    "    return [] if file_path.name == 'b.yaml' else nodes\n"
)
LEAVES_OUT = {
    "norecursedirs": in_ini("norecursedirs = far"),
    "addopts": in_ini("addopts = --ignore=budgets/far"),
    "collect_ignore": in_conftest("collect_ignore = ['budgets/far']"),
    "a hook that ignores": in_conftest(IGNORES_FAR),
    "a hook that takes nodes away": in_conftest(DROPS_NODES),
    "a virtual environment": written("budgets/far/pyvenv.cfg", "home = /usr\n"),
}


@pytest.mark.parametrize("way", LEAVES_OUT)
def test_a_budget_that_settings_leave_out_is_red(project: Project, way: str) -> None:
    """Without any base; --ignore on the command line excuses it, and a path that does not name it."""
    kept(project)
    project.budget(KEPT.format(name="net"), name="budgets/far/b.yaml")
    project.write("budgets/far/net.widths", "4 8 2")
    LEAVES_OUT[way](project)
    code, (problem,) = problems(project)
    assert code == 1
    assert problem.startswith("budgets/far/b.yaml:1: pytest did not collect it: ")
    assert problem.endswith("or give --ignore on the command line")
    assert project.run("budgets/a.yaml").ret == 0
    result = project.run("--ignore", "budgets/far")
    assert result.ret == 0
    line = f"model budget: budgets{os.sep}far{os.sep}b.yaml is not checked: --ignore of the command line leaves it out"
    assert line in result.outlines


@pytest.mark.parametrize(("folder", "workers"), [(".far", "-n0"), ("build", "-n1")])
def test_a_budget_in_a_folder_that_pytest_skips_is_red(project: Project, folder: str, workers: str) -> None:
    """Its own norecursedirs has them; of a whole project that is a warning, since build/ may hold copies."""
    kept(project)
    project.budget(KEPT.format(name="net"), name=f"budgets/{folder}/b.yaml")
    assert project.run(workers).ret == 1
    result = project.run(workers, ".")
    assert result.ret == 0
    assert f"budgets{os.sep}{folder}{os.sep}b.yaml is not checked: pytest did not collect it" in result.stdout.str()


def test_the_only_budget_is_not_ignored_and_missing_at_once(project: Project) -> None:
    """The line says that --ignore leaves it out, and not that there is none."""
    kept(project)
    result = project.run("--ignore=budgets/a.yaml")
    assert result.ret == NOTHING
    result.stdout.fnmatch_lines(["*a.yaml is not checked: --ignore of*", "model budget: nothing measured"])
    result.stdout.no_fnmatch_line("no YAML file with the key*")


LIMITED = "defaults: {inputs: float32 1x4}\nmodels:\n  net: {widths: net.widths, limits: {params: 47}}\n"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 130\n"
MARK_IT = "no line begins with model_budget: 1: correct the key"
RED: dict[str, tuple[str | bytes, str]] = {
    "a hyphen": (f"model-budget: 1\n{LIMITED}", MARK_IT),
    "capitals": (f"Model_Budget: 1\n{LIMITED}", MARK_IT),
    "indented": (" model_budget: 1\n models: {}\n", MARK_IT),
    "no marker": (LIMITED, MARK_IT),
    "no marker, as JSON": ('{\n  "models": {"net": {"widths": "net.widths", "limits": {"params": 1}}}}\n', MARK_IT),
    "UTF-16": (f"model_budget: 1\n{LIMITED}".encode("utf-16"), "not UTF-8: save the file as UTF-8"),
    "UTF-16 without a mark": (f"model_budget: 1\n{LIMITED}".encode("utf-16-le"), "not UTF-8: save the file as UTF-8"),
    "Git LFS": (POINTER, "a pointer of Git LFS: fetch it with git lfs pull"),
    "nothing below models": ("model_budget: 1\nmodels: {}\n", ""),
    "no limits": ("model_budget: 1\nmodels:\n  net: {widths: net.widths, inputs: float32 1x4}\n", ""),
    "a key twice": (f"model_budget: 1\n{LIMITED}models: {{}}\n", ""),
    "no bound": (f"model_budget: 1\n{LIMITED.replace('47', '{max: .inf}')}", ""),
    "an unknown metric": (f"model_budget: 1\n{LIMITED.replace('params', 'parameters')}", ""),
}


@pytest.mark.parametrize(("content", "words"), RED.values(), ids=RED)
def test_a_file_that_was_meant_for_a_budget_is_broken(project: Project, content: str | bytes, words: str) -> None:
    """Its limits are checked by nothing, which every report says."""
    kept(project)
    project.write("budgets/b.yaml", "").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, (problem, *_) = problems(project)
    assert code == 1
    assert problem.startswith("budgets/b.yaml:")
    assert words in problem


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\n",
        "model budget:\n  image: python\n  script: [pytest]\n",  # a job of GitLab's
        "models: [{name: a}]\n",
        "".join(f"# {line}\n" for line in f"model_budget: 1\n{LIMITED}".splitlines()),
    ],
)
def test_other_yaml_is_not_for_the_gate(project: Project, text: str) -> None:
    """It gives no version, and limits no model."""
    kept(project)
    project.write("budgets/b.yaml", text)
    assert problems(project) == (0, [])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("b.YAML", "let its name end in .yaml", id="capitals"),
        pytest.param("b\n.yaml", "no terminal can show such a name: rename the file", id="a line break"),
        pytest.param("gone.yaml", "it is a link that leads nowhere", id="a link"),
    ],
)
def test_a_budget_whose_name_cannot_be_collected_is_red(project: Project, name: str, why: str) -> None:
    """Named itself it is a usage error of pytest's own."""
    kept(project)
    if name.startswith("gone"):
        (project.path / "budgets" / name).symlink_to("nowhere.yaml")
    else:
        project.budget(KEPT.format(name="net"), name=f"budgets/{name}")
    code, (problem,) = problems(project)
    assert code == 1
    assert problem.endswith(f":1: {why}")
    assert project.run(f"budgets/{name}").ret == USAGE


def test_behind_a_documents_start_there_is_a_budget(project: Project) -> None:
    """One line of YAML's flow style, whose limit is judged."""
    kept(project)
    flow = "{model_budget: 1, models: {net: {widths: net.widths, inputs: float32 1x4, limits: {params: 47}}}}"
    project.write("budgets/b.yaml", f"--- {flow}\n")
    assert "params 48 > 47 (+2.1%)" in project.run().stdout.str()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_budgets_blocks_nothing(project: Project) -> None:
    """Whoever reads a pipe waits for its writer."""
    kept(project)
    os.mkfifo(project.path / "budgets" / "pipe.yaml")
    project.pytester.runpytest_subprocess("--model-budget", timeout=60).assert_outcomes(passed=3)


# Nothing there.


@pytest.mark.parametrize(
    ("paths", "code"), [("", NOTHING), ("model_budget_paths =\n", USAGE), ("model_budget_paths = budgetz\n", USAGE)]
)
def test_no_budget_at_all_is_no_success(project: Project, paths: str, code: pytest.ExitCode) -> None:
    """Whatever else passes; a setting that names no paths, or missing ones, is a usage error."""
    kept(project)
    (project.path / "budgets" / "a.yaml").unlink()
    project.write("pytest.ini", f"[pytest]\n{paths}")
    assert project.run().ret == code
    assert project.run("test_ok.py").ret == NOTHING


def test_settings_behind_a_byte_order_mark_are_read(project: Project) -> None:
    """Pytest reads what Notepad saves as "UTF-8 with BOM", and so does the gate."""
    kept(project)
    settings = project.write("pytest.ini", "")
    for folder, code in (("budgets", 0), ("nowhere", USAGE)):
        settings.write_bytes(f"\ufeff[pytest]\nmodel_budget_paths = {folder}\n".encode())
        assert project.pytester.runpytest_inprocess("--model-budget").ret == code


@pytest.mark.parametrize("name", ["modelbudget", "modelbudget-gate", "modelbudget-shard"])
def test_without_the_plugin_or_a_part_of_it_is_a_usage_error(project: Project, name: str) -> None:
    """Pytest takes the name of any plugin: the tests would be left, and none of the limits."""
    broken(project)
    project.write("pytest.ini", f"[pytest]\naddopts = -p no:{name}\n")
    assert project.run_apart("--model-budget-shard=1/1", "--model-budget-report=json:out.json").ret == USAGE


# Not measured, or called passed.

WRAPS = "\nimport pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_runtest_makereport(item, call):\n"
MARKS = "\nimport pytest\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
SWALLOWS = "    report = yield\n    report.outcome = 'passed'\n    report.longrepr = None\n"
HOOKS = {
    "skips": f"{MARKS}        item.add_marker(pytest.mark.skip)\n",
    "expects failures": f"{MARKS}        item.add_marker(pytest.mark.xfail)\n",
    "calls failures passed": f"{WRAPS}{SWALLOWS}    return report\n",
    "drops their words": f"{WRAPS}{SWALLOWS}    vars(report).pop('model_budget_statement', None)\n    return report\n",
    "answers, and empties the report": (
        "\ndef pytest_model_budget_judged(item, verdict):\n    return 'within'\n"
        "def pytest_model_budget_report(config, report):\n    report['models'].clear()\n"
    ),
}


@pytest.mark.parametrize("body", HOOKS.values(), ids=HOOKS)
def test_hooks_of_a_conftest_are_no_verdict(project: Project, body: str) -> None:
    """The verdicts decide, not what became of their test reports; a limit without one is unanswered."""
    broken(project)
    project.configure(body)
    assert project.run().ret == 1


@pytest.mark.parametrize("arg", ["-x", "--maxfail=1", "--setup-only", "--setup-plan"])
def test_a_session_that_stops_early_is_red(project: Project, arg: str) -> None:
    """Limits that never came to their turn are not green."""
    broken(project)
    assert project.run(arg).ret == 1


def test_a_worker_that_dies_is_red(project: Project) -> None:
    """Under xdist the limits of a worker that ended itself are failures."""
    kept(project)
    project.configure("\nimport os\ndef pytest_model_budget_judged(item, verdict):\n    os._exit(0)\n")
    assert project.run_apart("-n1", "--max-worker-restart=0").ret == 1


ENDS = {
    "configure": "def pytest_configure(): pytest.exit('no GPU', returncode=0)",
    "main": "def pytest_cmdline_main(): return 0",
    "configured": "def pytest_configure(config): config.option.model_budget = False",
    "collected": "def pytest_collection_finish(): pytest.exit('no GPU', returncode=0)",
    "setup": "def pytest_runtest_setup(): pytest.exit('no GPU', returncode=0)",
}


@pytest.mark.parametrize("hook", ENDS.values(), ids=ENDS)
def test_a_session_that_a_hook_ends_early_is_red(project: Project, hook: str) -> None:
    """Pytest takes the code of whoever ends it, or switches the gate off."""
    kept(project)
    project.configure(f"\nimport pytest\n{hook}\n")
    result = project.run_apart()
    assert result.ret == 1
    assert "not measured" in result.stdout.str() or "ERROR: nothing measured: something ended" in result.stderr.str()


def test_a_conftest_that_exits_while_it_is_imported_is_red(project: Project) -> None:
    """Pytest imports it before there is a session; without the switch it ends as it says."""
    kept(project)
    project.configure("\nimport sys; sys.exit(0)\n")
    result = project.run_apart()
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["ERROR: nothing measured: something ended the session before its end*"])
    assert project.pytester.runpytest_subprocess().ret == 0


def test_no_report_of_an_earlier_run_is_left(project: Project) -> None:
    """A run that ends before its reports leaves none that could be taken for its own."""
    kept(project)
    project.write("out.json", "{}")
    project.configure("\nimport pytest\ndef pytest_collection_finish():\n    pytest.exit('enough', 3)\n")
    assert project.run("--model-budget-report=json:out.json").ret == 3
    assert not (project.path / "out.json").exists()


def test_measured_runs_that_are_not_asked_for_are_counted(project: Project) -> None:
    """A budget of nothing else has measured nothing: 5; among other limits a line counts what was skipped."""
    project.budget("  net: {widths: net.widths, runtime: {latency: 1 us}}\n")
    assert project.run().ret == NOTHING
    project.budget("  net: {widths: net.widths, limits: {params: 48}, runtime: {latency: 1 us}}\n")
    result = project.run()
    assert result.ret == 0
    assert "1 limit on timed runs skipped: give --model-budget-runtime" in result.stdout.str()


def test_an_exception_is_said_and_ends(project: Project) -> None:
    """A limit of 47 that 48 parameters break passes through one day, and not a day longer."""
    waiver = "{to: 48, reason: for a while, until: 2027-01-31}"
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {{max: 47, waiver: {waiver}}}}}}}\n")
    last = project.run("--model-budget-date=2027-01-31")
    assert last.ret == 0
    assert "accepted to 48 until 2027-01-31: for a while" in last.stdout.str()
    assert project.run("--model-budget-date=2027-02-01").ret == 1


# Shards.


def test_a_shard_says_that_it_is_one(project: Project) -> None:
    """The one that does not have the broken limit is green for its own, which it counts."""
    broken(project)
    assert [code for code, _ in sharded.run_shards(project, 2)] == [1, 0]
    line = "model budget: shard 2/2: 1 of 2 limits, and modelbudget merge judges the whole"
    assert line in project.run("--model-budget-shard=2/2").outlines


def test_a_lost_shard_is_red(project: Project) -> None:
    """Whether or not the merge is told to go on without it."""
    kept(project)
    parts: list[Any] = [part for _, part in sharded.run_shards(project, 2)]
    codes = [
        sharded.merge(project.path, *args)[0]
        for args in ([parts], [parts[:1]], [parts[:1], "--allow-missing"], [[*parts, parts[0]]])
    ]
    assert codes == [0, 2, 1, 2]


def test_locks_are_checked_by_the_merge(project: Project) -> None:
    """A shard knows too few numbers, and one that writes no part cannot be merged."""
    kept(project)
    assert project.run("--model-budget-shard=1/2", "--model-budget-lock=check").ret == USAGE
    runs = sharded.run_shards(project, 2, "--model-budget-lock=check")
    assert [code for code, _ in runs] == [0, 0]
    assert sharded.merge(project.path, [part for _, part in runs])[0] == 1


def test_the_threat_model_names_this_file() -> None:
    """Its list of accidents is tried here."""
    text = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert f"`tests/pytest_plugin/{Path(__file__).name}`" in text
