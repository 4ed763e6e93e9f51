"""Files that a session writes for dashboards and reviewers, and what it says while it runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.builders.project import Project

OVER = "  net: {widths: net.widths, limits: {params: 47, macs: 48 MAC}}\n"


def test_the_junit_file_is_as_red_as_the_session(project: Project) -> None:
    """Two limits, one of them over, and a broken file."""
    project.budget(OVER)
    project.write("budgets/b.yaml", "model_budget: 1\nmodls: {}\n")
    assert project.run("--model-budget-report=junit:junit.xml").ret == 1
    root = ElementTree.parse(project.path / "junit.xml").getroot()
    assert {key: root.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    places = {
        (case.get("classname"), case.get("name")): (case.get("file"), case.get("line"))
        for case in root.iter("testcase")
    }
    assert places == {
        ("budgets.a.net", "net / params"): ("budgets/a.yaml", "4"),
        ("budgets.a.net", "net / macs"): ("budgets/a.yaml", "4"),
        ("budgets.b", "budget"): ("budgets/b.yaml", "2"),
    }


def test_a_skipped_limit_is_red_in_every_file(project: Project) -> None:
    """The session fails, so no dashboard and no comment may be green."""
    project.budget(OVER.replace("47", "48"))
    project.configure(
        "import pytest\ndef pytest_collection_modifyitems(items):\n    items[0].add_marker(pytest.mark.skip)\n"
    )
    result = project.run("--model-budget-report=junit:j.xml", "--model-budget-report=comment:c.md")
    assert result.ret == 1
    assert ElementTree.parse(project.path / "j.xml").getroot().get("errors") == "1"
    assert "1 not measured" in (project.path / "c.md").read_text(encoding="utf-8")


def test_a_comment_is_written_where_it_is_asked_for(project: Project) -> None:
    """For a job that may write on pull requests to post."""
    project.budget(OVER)
    project.run("--model-budget-report=comment:out/comment.md")
    text = (project.path / "out" / "comment.md").read_text(encoding="utf-8")
    assert text.startswith("<!-- model-budget -->\n## Model budget: 1 over (2 limits)\n")


@pytest.mark.parametrize("args", [(), ("-v",), ("-vv",), ("-q",), ("--color=yes",)])
def test_80_columns_hold_the_table(project: Project, args: tuple[str, ...]) -> None:
    """At every level of detail, and without a sign that a plain terminal cannot show."""
    project.budget(OVER.replace("net:", f"{'long_' * 20}:", 1))
    text = re.sub(r"\x1b\[\d+m", "", project.run(*args).stdout.str())
    table = text.partition("= model budget =")[2].partition("\n=")[0].splitlines()[1:]
    assert table
    assert all(line.isascii() and len(line) < 80 for line in table)


def test_bars_show_how_much_of_a_limit_is_used(project: Project) -> None:
    """With -v, ten signs for a maximum: 48 of 50 are nine, 48 of 47 are too many."""
    project.budget("  net: {widths: net.widths, limits: {params: 47, macs: 50 MAC}}\n")
    result = project.run("-v")
    result.stdout.fnmatch_lines(["within *4.0% left [[]#########.]", "over  *2.1% over [[]#########+]"])


def test_no_colour_where_none_is_wanted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR is pytest's to honour, and the table goes through pytest's writer."""
    project.budget(OVER)
    assert "\x1b[31mover" in project.run("--color=yes", "-v").stdout.str()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in project.run().stdout.str()


def test_the_last_line_counts_the_verdicts(project: Project) -> None:
    """Behind every remark, and with each of the four, so that a zero is said."""
    project.budget("  net: {widths: net.widths, limits: {params: 48, macs: 48 MAC}}\n")
    lines = project.run("-k", "params").outlines
    assert lines[-2] == "1 limit: 0 over, 0 warn, 1 within, 0 unknown"
    assert lines[-3].startswith("model budget: 1 of 2 limits measured")


def test_r13_a_report_is_whole_or_not_there(project: Project) -> None:
    """A run that is killed while it writes leaves no cut file, and none of an earlier run."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    project.write("out.json", "of an earlier run")
    killed = "lambda old, new: os._exit(9) if str(new).endswith('out.json') else replace(old, new)"
    project.configure(f"\nimport os\nreplace = os.replace\nos.replace = {killed}\n")
    assert project.run_apart("--model-budget-report=json:out.json").ret == 9
    assert not (project.path / "out.json").exists()


def test_r13_what_is_no_plain_file_is_written_into(project: Project) -> None:
    """A device, or a pipe, stays what it is."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    assert project.run("--model-budget-report=json:/dev/null").ret == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("a\n::error::b.yaml", ()),
        ("a\x1b[2K.yaml", ()),
        ("a\u202eb.yaml", ()),
        ("a\udcff.yaml", ()),
        ("a\n::error::b.yaml", ("-n1",)),
        ("a\udcff.yaml", ("-n1",)),  # which no protocol of text carries
    ],
)
def test_r7_a_budget_whose_name_is_a_command_is_refused(project: Project, name: str, workers: tuple[str, ...]) -> None:
    """The session fails, names the file in letters, and goes on with the others."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n", name=f"budgets/{name}")
    result = project.run(*workers)
    text = result.stdout.str()
    assert result.ret == 1
    assert "is not checked: no terminal can show such a name" in text
    assert "\x1b[2K" not in text
    assert "within  net::params" in text
    assert not [line for line in text.splitlines() if line.startswith("::error")]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param("jsn:out.json", "'jsn' is no type of report: did you mean 'json'?", id="a slip"),
        pytest.param("json:", "'json:' names no file: write json:model_budget.json, or json alone", id="no file"),
    ],
)
def test_a_report_of_no_type_or_file_is_a_usage_error(project: Project, asked: str, words: str) -> None:
    """Before anything is measured."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    result = project.run(f"--model-budget-report={asked}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"argument --model-budget-report: {words}" in result.stderr.str()


def test_reports_without_a_file_have_names_of_their_own(project: Project) -> None:
    """One type may be asked for twice, too."""
    project.budget("  net: {widths: net.widths, limits: {params: 48}}\n")
    reports = ("json", "junit", "json:other.json")
    assert project.run(*(f"--model-budget-report={report}" for report in reports)).ret == 0
    assert (project.path / "model_budget.json").read_text() == (project.path / "other.json").read_text()
    assert (project.path / "model_budget.xml").exists()


def test_the_help_shows_few_options(project: Project) -> None:
    """The others are in a group of their own."""
    before, _, after = project.run("--help", switch=False).stdout.str().partition("\nmodel budget (advanced):")
    advanced, _, rest = after.partition("\n\n")
    assert advanced.count("\n  --model-budget-") == 5
    assert sum("model-budget" in line for line in (before + rest).splitlines()) <= 12


@pytest.mark.parametrize("limit", [48, 47])
def test_modelbudget_check_is_the_gate(project: Project, limit: int) -> None:
    """With any option of pytest, its exit code, and no warning."""
    project.budget(f"  net: {{widths: net.widths, limits: {{params: {limit}, macs: 1 MAC}}}}\n")
    words = ("check", "budgets", "-Werror", "-k", "params")
    result = project.pytester.run(sys.executable, "-m", "pytest_modelbudget.cli", *words)
    result.assert_outcomes(passed=limit == 48, failed=limit == 47, deselected=1)
    assert result.ret == (limit == 47)
