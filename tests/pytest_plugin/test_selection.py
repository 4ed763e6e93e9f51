"""Which budgets a session measures, and what it says and returns when it measures none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.project import Project

NOTHING = pytest.ExitCode.NO_TESTS_COLLECTED
TWO_MODELS = (
    "  net: {widths: net.widths, limits: {params: 48, macs: 47 MAC}}\n"
    "  other: {widths: net.widths, inputs: float32 2x4, limits: {params: 48}}\n"
)


@pytest.fixture
def two_models(project: Project) -> Project:
    project.budget(TWO_MODELS)
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    return project


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line and " " not in line]


def test_without_the_switch_nothing_is_collected(two_models: Project) -> None:
    """Budgets are the business of whoever asks for them."""
    result = two_models.run("--co", "-q", switch=False)
    assert collected(result) == ["test_ordinary.py::test_ordinary"]


def test_budgets_run_beside_the_ordinary_tests(two_models: Project) -> None:
    """The switch alone adds the configured directory to what pytest runs anyway."""
    result = two_models.run()
    result.assert_outcomes(passed=3, failed=1)


@pytest.mark.parametrize(
    ("args", "passed", "failed", "remark"),
    [
        pytest.param(("-k", "params"), 2, 0, "2 of 3 limits measured, 1 skipped by -k", id="-k"),
        pytest.param(("-k", "net and macs"), 0, 1, "1 of 3 limits measured, 2*", id="-k and"),
        pytest.param(("-m", "model_budget"), 2, 1, "*", id="-m"),
        pytest.param(("-m", "not model_budget"), 1, 0, "0 of 3 limits measured, 3*", id="-m not"),
        pytest.param(("budgets/a.yaml::net::params",), 1, 0, "1 of 3 limits*by a node id", id="node id"),
        pytest.param(("budgets/a.yaml::other",), 1, 0, "1 of 3 limits*", id="model id"),
        pytest.param(("--deselect", "budgets/a.yaml::net"), 2, 0, "1 of 3 limits*by --deselect", id="--deselect"),
        pytest.param((), 2, 0, "2 of 3 limits measured, 1 skipped by -k", id="PYTEST_ADDOPTS"),
    ],
)
def test_selection_leaves_a_counted_line_and_pytests_own_exit_code(
    two_models: Project, args: tuple[str, ...], passed: int, failed: int, remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deselects is told what was left out, and is not failed for it."""
    if not args:
        monkeypatch.setenv("PYTEST_ADDOPTS", "-k params")
    result = two_models.run(*args)
    outcomes = result.parseoutcomes()
    assert (outcomes.get("passed", 0), outcomes.get("failed", 0)) == (passed, failed)
    assert result.ret == (1 if failed else 0)
    result.stdout.fnmatch_lines([f"model budget: {remark}"])
    assert two_models.report(*args)["selected"]


def test_deselected_broken_files_are_counted(two_models: Project) -> None:
    """Each of them may hold any number of limits, and counts as one."""
    two_models.budget("  net: {wdths: net.widths}\n", "budgets/b.yaml")
    two_models.budget("  net: []\n", "budgets/c.yaml")
    result = two_models.run("-k", "params")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["model budget: 2 of 5 limits measured, 3 skipped by -k"])


def test_last_failed_runs_again_what_failed(two_models: Project) -> None:
    """--lf selects single limits."""
    two_models.pytester.runpytest_inprocess("--model-budget", "-q")  # with pytest's cache
    result = two_models.pytester.runpytest_inprocess("--model-budget", "--lf", "-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["model budget: 1 of 3 limits measured, 2 skipped by --lf"])


def test_collect_only_measures_nothing_and_is_green(two_models: Project) -> None:
    """--co lists, writes no report and returns pytest's own code."""
    result = two_models.run("--co", "-q", "--model-budget-report=json:out.json")
    assert result.ret == 0
    assert len(collected(result)) == 4
    assert not (two_models.path / "out.json").exists()


@pytest.mark.parametrize("ini", ["testpaths = tests", "testpaths = tests budgets", ""])
@pytest.mark.parametrize("start", [".", "tests", "budgets"])
def test_budgets_are_found_from_everywhere(
    two_models: Project, monkeypatch: pytest.MonkeyPatch, ini: str, start: str
) -> None:
    """testpaths or a start in a sub-directory neither hide budgets nor run them twice."""
    two_models.write("pytest.ini", f"[pytest]\n{ini}\n")
    two_models.write("tests/test_more.py", "def test_more(): pass\n")
    monkeypatch.chdir(two_models.path / start)
    ids = collected(two_models.run("--co", "-q"))
    assert len(ids) == len(set(ids))
    assert [each for each in ids if each.startswith("budgets/")] == [
        "budgets/a.yaml::net::params",
        "budgets/a.yaml::net::macs",
        "budgets/a.yaml::other::params",
    ]
    assert ("tests/test_more.py::test_more" in ids) == (start != "budgets")


def test_paths_on_the_command_line_replace_the_default(two_models: Project) -> None:
    """A file or a directory names what is measured, and nothing else is."""
    two_models.budget("  net: {widths: ../budgets/net.widths, limits: {params: 48}}\n", "more/b.yml")
    two_models.run("more").assert_outcomes(passed=1)
    two_models.run("more/b.yml").assert_outcomes(passed=1)
    two_models.run("more", "budgets").assert_outcomes(passed=3, failed=1)


def test_the_configured_paths_are_taken_from_rootdir(two_models: Project) -> None:
    """model_budget_paths may name several directories and files."""
    two_models.budget("  net: {widths: ../budgets/net.widths, limits: {params: 48}}\n", "more/b.yml")
    two_models.write("pytest.ini", "[pytest]\nmodel_budget_paths = more budgets/a.yaml\n")
    assert len(collected(two_models.run("--co", "-q"))) == 5


def test_a_configured_path_that_does_not_exist_is_a_usage_error(two_models: Project) -> None:
    """One misspelt directory of two must not go unnoticed."""
    two_models.write("pytest.ini", "[pytest]\nmodel_budget_paths = budgets budgetz\n")
    result = two_models.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: model_budget_paths names *budgetz, which does not exist*"])


def test_only_marked_yaml_is_touched(two_models: Project) -> None:
    """A YAML without the key model_budget is left alone, unless it is named itself."""
    two_models.write("budgets/stray.yaml", "a: 1\n")
    two_models.run("budgets").assert_outcomes(passed=2, failed=1)
    result = two_models.run("budgets/stray.yaml")
    result.assert_outcomes(failed=1)


def test_no_budgets_directory_is_not_green(pytester: pytest.Pytester) -> None:
    """The switch without any budget says so, though all ordinary tests pass."""
    pytester.makepyfile("def test_ordinary(): pass")
    result = pytester.runpytest_inprocess("--model-budget")
    assert result.ret == NOTHING
    result.stdout.fnmatch_lines(["model budget: nothing measured", "*budgets does not exist*"])


def test_one_ordinary_test_by_its_id_is_green(two_models: Project) -> None:
    """A node id is a selection: who debugs one test is not failed for the budgets."""
    result = two_models.run("test_ordinary.py::test_ordinary")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["model budget: 0 of 0 limits measured*"])


def test_a_skipped_limit_is_not_green(two_models: Project) -> None:
    """A conftest that skips all it does not know leaves limits unmeasured, and says so."""
    two_models.configure(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.skip)\n"
    )
    result = two_models.run("-k", "params")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["model budget: 2 limits skipped or stopped, and so not measured"])
    assert two_models.run("--setup-plan").ret == 1


def test_report_options_need_the_switch(two_models: Project) -> None:
    """A report that would never be written is a usage error."""
    result = two_models.run("--model-budget-report=json:out.json", switch=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --model-budget-report=json:out.json needs --model-budget*"])


def test_a_report_that_cannot_be_written_is_a_usage_error(two_models: Project) -> None:
    """The verdicts are still shown, and every other report is written; of two that are not, both are named."""
    bad = (
        "--model-budget-report=json:test_ordinary.py/out.json",
        "--model-budget-report=sarif:test_ordinary.py/out.sarif",
    )
    result = two_models.run(
        "-k", "params", *bad, "--model-budget-report=junit:junit.xml", "--model-budget-report=comment:c.md"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines_random(["model budget: cannot write *out.json: *", "*: cannot write *out.sarif: *"])
    assert all((two_models.path / name).exists() for name in ("junit.xml", "c.md"))


def test_a_session_that_stops_early_says_what_it_left(two_models: Project) -> None:
    """After -x the report holds what ran, and is no whole one."""
    result = two_models.run("-x")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["model budget: 1 limit skipped or stopped, and so not measured"])
    assert two_models.report("-x")["selected"]


def test_a_usage_error_leaves_no_report(two_models: Project) -> None:
    """A path that does not exist measures nothing, and no file pretends otherwise."""
    result = two_models.run("no_such_path", "--model-budget-report=json:out.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not (two_models.path / "out.json").exists()


def test_a_file_that_cannot_be_read_ends_no_other_session(two_models: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the switch it is nobody's business here."""
    read = Path.read_bytes

    def locked(path: Path) -> bytes:
        if path.suffix == ".yaml":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", locked)
    assert two_models.run("budgets", switch=False).ret == NOTHING


def test_a_path_that_is_missing_is_said(two_models: Project) -> None:
    """Under pytest-xdist, whose controller says nothing of it."""
    result = two_models.run("-n1", "nonexistent")
    assert result.ret == NOTHING
    assert "no YAML file with the key model_budget under" in " ".join(result.stdout.str().split())


def test_a_folder_without_budgets_names_the_command_that_writes_one(two_models: Project) -> None:
    """Nothing is measured, and the line says what to do."""
    (two_models.path / "empty").mkdir()
    result = two_models.run("empty")
    assert result.ret == NOTHING
    said = " ".join(result.stdout.str().split())
    assert "empty: name another folder, or write one, such as with modelbudget init nets:Net --input" in said


TWICE = "\ndef pytest_collection_modifyitems(items):\n    items[:] = items + items\n"


@pytest.mark.parametrize(
    ("hook", "args"),
    [
        pytest.param(TWICE, (), id="a plugin that repeats"),
        pytest.param("", ("--keep-duplicates", "budgets", "budgets/a.yaml"), id="--keep-duplicates"),
        pytest.param("", ("--keep-duplicates", "budgets", "budgets/a.yaml", "--model-budget-shard=1/1"), id="a shard"),
    ],
)
def test_a_limit_that_runs_twice_is_one_limit(project: Project, hook: str, args: tuple[str, ...]) -> None:
    """Nothing is missing of it; what a plugin puts in another one's place is."""
    project.budget("  net: {widths: net.widths, limits: {params: 48, macs: 48 MAC}}\n")
    project.configure(hook)
    result = project.run(*args)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 4}
    assert "not measured" not in result.stdout.str()


def test_a_limit_that_runs_in_another_ones_place_is_one_limit(project: Project) -> None:
    """As many items as limits, and one limit without a verdict."""
    project.budget("  net: {widths: net.widths, limits: {params: 48, macs: 48 MAC}}\n")
    project.configure("\ndef pytest_collection_modifyitems(items):\n    items[:] = [items[0], items[0]]\n")
    project.run().stdout.fnmatch_lines(["*1 of 2 limits measured, 1 skipped by selection"])
