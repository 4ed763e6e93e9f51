"""A session on GitHub: annotations and the page of the run, in one process and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.project import Project

# The model net.widths has 4 * 8 + 8 * 2 = 48 parameters.
OVER = "  net: {widths: net.widths, limits: {params: 47}}\n"
WITHIN = "  net: {widths: net.widths, limits: {params: 48}}\n"
COMMAND = "::error file=budgets/a.yaml,line=4,title=net / params::params 48 > 47 "
ALONE = ("-p", "no:pytest_github_actions_annotate_failures")


def commands(result: pytest.RunResult) -> list[str]:
    """Workflow commands, which the runner reads from both streams."""
    return [line for line in (*result.outlines, *result.errlines) if line.startswith("::")]


def test_a_failure_is_annotated_once_and_is_on_the_page(project: Project, page: Path) -> None:
    """On the line of its limit, with the layers below."""
    project.budget(OVER)
    (command,) = commands(project.run(*ALONE))
    assert command == f"{COMMAND}(+2.1%25)%0A  largest layers by params%0A  32  layer0%0A  16  layer1"
    assert page.read_text(encoding="utf-8").startswith("## Model budget: 1 over (1 limit)\n")


def test_in_several_processes_everything_is_told_once(project: Project, page: Path) -> None:
    """By the process that reports, whichever one measured: annotation, page and file."""
    project.budget(OVER)
    result = project.run_apart(*ALONE, "-n2", "--model-budget-report=junit:junit.xml")
    (command,) = commands(result)
    assert command.startswith(COMMAND)
    assert page.read_text(encoding="utf-8").count("## Model budget") == 1
    assert (project.path / "junit.xml").read_text(encoding="utf-8").count("<testcase") == 1


@pytest.mark.parametrize("loaded", [(), (*ALONE, "-p", "pytest_github_actions_annotate_failures.plugin")])
def test_nothing_is_told_twice_beside_the_plugin_that_annotates_failures(
    project: Project, page: Path, loaded: tuple[str, ...]
) -> None:
    """It tells failures, of budgets and of tests; warnings are left to this one."""
    project.budget(
        "  net:\n    widths: net.widths\n    limits:\n      params: 47\n      macs: {max: 1 MAC, level: warn}\n"
    )
    project.write("test_own.py", "def test_own(): assert 0\n")
    told = commands(project.run_apart(*loaded, "budgets", "test_own.py"))
    assert len(told) == 3
    places = sorted(command.partition("::")[2].partition("::")[0][:38] for command in told)
    assert places == [
        "error file=budgets/a.yaml,line=7",
        "error file=test_own.py,line=1",
        "warning file=budgets/a.yaml,line=8,tit",
    ]


def test_twelve_failures_are_ten_annotations(project: Project, page: Path) -> None:
    """Nine and the rest, whatever the number of files and models."""
    for letter in "abcd":
        project.budget(
            "".join(f"  net{n}: {{widths: net.widths, limits: {{params: {n}}}}}\n" for n in range(3)),
            name=f"budgets/{letter}.yaml",
        )
    result = project.run(*ALONE)
    result.assert_outcomes(failed=12)
    told = commands(result)
    assert len(told) == 10
    assert "title=model budget%3A and 3 more::" in told[-1]


def test_a_hostile_name_is_escaped_from_yaml_to_command(project: Project, page: Path) -> None:
    """``a,b:c%`` in a budget is that on the page of GitHub."""
    project.budget('  "a,b:c%": {widths: net.widths, limits: {params: 47}}\n')
    (command,) = commands(project.run(*ALONE))
    assert command.startswith("::error file=budgets/a.yaml,line=4,title=a%2Cb%3Ac%25 / params::")


def test_a_project_below_the_top_of_the_checkout_is_found(
    project: Project, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Annotations name files as the checkout has them."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path.parent))
    project.budget(OVER)
    (command,) = commands(project.run(*ALONE))
    assert f"file={project.path.name}/budgets/a.yaml," in command


def test_the_page_is_added_to(project: Project, page: Path) -> None:
    """What earlier commands of a step wrote stays, and the sum stays within what GitHub takes."""
    page.write_text("x" * 999_900)
    project.budget("".join(f"  n{n}: {{widths: net.widths, limits: {{params: 48}}}}\n"
                           for n in range(20)))  # fmt: skip
    assert project.run().ret == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("xxx")
    assert "Model budget: 20 limits, all within" in text
    assert len(text.encode()) < 2**20


def test_a_file_for_the_summary_replaces_the_page(project: Project, page: Path) -> None:
    """Asked for by name, it goes there and nowhere else."""
    project.budget(WITHIN)
    project.run("--model-budget-report=summary:summary.md")
    assert (project.path / "summary.md").read_text(encoding="utf-8").startswith("## Model budget")
    assert not page.exists()


def test_a_page_that_cannot_be_written_is_not_green(
    project: Project, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary that nobody sees fails the session with a sentence."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path))
    project.budget(WITHIN)
    result = project.run("--model-budget-report=json:out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["model budget: cannot write *, the file GITHUB_STEP_SUMMARY: Is a directory"])
    assert (project.path / "out.json").exists()


def test_elsewhere_nothing_of_it_happens(project: Project, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of a page alone is not GitHub, and a session without the switch is none."""
    project.budget(OVER)
    assert commands(project.run(switch=False)) == []
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert commands(project.run()) == []
    assert not page.exists()
