"""A red run has one block a model: what changed in its layers, all limits that are over for it, and one command."""

from __future__ import annotations

import json

import pytest

from tests.builders.project import CONFTEST, Project

LIMITS = {"params": "48", "macs": "48 MAC", "weight_memory": "192 B", "bops": "49.2 kBOP", "total_activation": "1 kB"}
BLOCK = [
    "*__ model budget: net / params __*",
    "net: 4 of 5 limits over   budgets/a.yaml:4",
    "  layer0   4→8 becomes 4→12",
    "  layer1   8→2 becomes 12→2",
    "  params 72 > 48 (+50.0% vs base), macs 72 MAC > 48 MAC (+50.0% vs base),",
    "  weight_memory 288 B > 192 B (+50.0% vs base),",
    "  bops 73.73 kBOP > 49.20 kBOP (+50.0% vs base)",
    "fix: shrink the layers above, or accept all 4:*",
    "  pytest --model-budget --model-budget-update=fix budgets/a.yaml::net",
]


@pytest.fixture
def widened(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A model of 48 parameters with five limits and a lock, four of which its second width, 12, breaks."""
    monkeypatch.setenv("COLUMNS", "80")
    limits = "".join(f"      {metric}: {most}\n" for metric, most in LIMITS.items())
    project.budget(f"  net:\n    widths: net.widths\n    limits:\n{limits}")
    project.run("--model-budget-update=create").assert_outcomes(passed=5)
    project.write("budgets/net.widths", "4 12 2")
    return project


def test_one_cause_is_one_block(widened: Project) -> None:
    """Nine lines for four limits: the run has each figure once, and the other items point to the block."""
    result = widened.run()
    result.assert_outcomes(failed=4, passed=1)
    result.stdout.fnmatch_lines([*BLOCK, "*= model budget =*"], consecutive=True)
    said = "\n".join(result.outlines)
    figures = ("params 72", "72 MAC", "288 B", "73.73 kBOP", "+50.0%")
    assert [said.count(figure) for figure in figures] == [1, 1, 1, 1, 4]
    summary = [line.partition("net::")[2] for line in result.outlines if line.startswith("FAILED")]
    assert summary[0].startswith("params - net: 4 of 5 limits over")
    assert summary[1:] == ["macs - see net", "weight_memory - see net", "bops - see net"]


@pytest.mark.parametrize("option", ["--tb=no", "--tb=line", "--no-summary", "-v"])
def test_figures_are_in_the_table_where_no_block_is_shown(widened: Project, option: str) -> None:
    """With -v as well, which lists all limits; pytest counts all that fails."""
    result = widened.run(option)
    result.assert_outcomes(failed=4, passed=1)
    result.stdout.fnmatch_lines(["over *macs *72 MAC *48 MAC *+50.0%*"])


def test_junit_files_have_every_figure(widened: Project) -> None:
    """Ours and pytest's own, whose readers see one limit at a time."""
    widened.run("--junit-xml=pytest.xml", "--model-budget-report=junit:ours.xml")
    for name in ("pytest.xml", "ours.xml"):
        assert "macs 72 MAC &gt; 48 MAC (+50.0% vs base)" in (widened.path / name).read_text(encoding="utf-8")


def test_the_command_accepts_all_of_them(widened: Project) -> None:
    """The session that accepts them ends green, and the next one too."""
    result = widened.run("--model-budget-update=fix", "budgets/a.yaml::net")
    assert result.ret == 0
    assert result.outlines[-2].startswith("4 limits accepted in budgets/a.yaml: review and commit")
    widened.run().assert_outcomes(passed=5)


@pytest.mark.parametrize(("selected", "others"), [("macs", 0), ("macs or bops", 1)])
def test_the_block_is_about_what_was_selected(widened: Project, selected: str, others: int) -> None:
    """The first selected limit has it; one limit alone has its own text."""
    result = widened.run("-k", selected)
    assert sum(line.endswith(" - see net") for line in result.outlines) == others
    result.stdout.fnmatch_lines(["net: 2 of 2 limits over*" if others else "macs 72 MAC > 48 MAC*budgets/a.yaml:8"])


def test_workers_agree_on_who_has_the_block(widened: Project) -> None:
    """Each judges all limits of the model, and names the same one."""
    result = widened.run("-n2")
    assert sum(line.endswith(" - see net") for line in result.outlines) == 3
    result.stdout.fnmatch_lines(BLOCK[1:])


def test_every_report_has_the_same_sentences(widened: Project) -> None:
    """The comment and the summary have the block as the terminal has it."""
    widened.run("--model-budget-report=comment:c.md", "--model-budget-report=summary:s.md")
    for name in ("c.md", "s.md"):
        text = (widened.path / name).read_text(encoding="utf-8")
        start = text.index("<pre>net: 4 of 5 limits over")
        assert [line.removeprefix("<pre>") for line in text[start:].splitlines()][:5] == BLOCK[1:6]


# What cannot be measured.


def test_an_unread_file_says_why_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits have one failure, and the comment says it once."""
    monkeypatch.setenv("COLUMNS", "80")
    project.write("budgets/bad.widths", "raise")
    project.budget("  bad: {widths: bad.widths, limits: {params: 1, macs: 1 MAC, bops: 1 BOP}}\n")
    result = project.run("--model-budget-report=comment:c.md")
    result.assert_outcomes(failed=3)
    said = " ".join(line.strip() for line in result.outlines if not line.startswith("FAILED"))
    assert said.count("reading bad.widths raised ValueError: first") == 1
    assert "bad: 3 limits unknown: reading bad.widths raised" in said
    summary = [line.partition("bad::")[2] for line in result.outlines if line.startswith("FAILED")]
    assert summary[1:] == ["macs - see bad", "bops - see bad"]
    comment = (project.path / "c.md").read_text(encoding="utf-8")
    assert comment.count("reading bad.widths raised") == 1


# Another framework.


@pytest.fixture
def renewed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A lock of an older numpy, which the format now needs, that counted half of the MACs and activations."""
    monkeypatch.setenv("COLUMNS", "80")
    project.write("conftest.py", CONFTEST.replace('"widths_format",', '"widths_format", extra="numpy",'))
    project.budget(
        "  net:\n    widths: net.widths\n    limits:\n"
        "      params: 48\n      macs: {grow: 0%}\n      total_activation: {grow: 0%}\n"
    )
    project.run("--model-budget-update=create").assert_outcomes(passed=3)
    path = project.path / "budgets" / "a.lock.json"
    lock = json.loads(path.read_text(encoding="utf-8"))
    for name, number in lock["models"]["net"].items():
        number["with"]["numpy"] = "1.0"
        if name != "params":
            number["value"] //= 2
            number["parts"] = [[scope, tensor, value // 2, shape] for scope, tensor, value, shape in number["parts"]]
    path.write_text(json.dumps(lock), encoding="utf-8")
    return project


@pytest.mark.parametrize("selected", ["net", "macs"])
def test_a_changed_framework_is_not_blamed_on_the_model(renewed: Project, selected: str) -> None:
    """The line below the figures says that it changed, and the command renews the lock."""
    result = renewed.run("-k", selected)
    said = " ".join(result.stdout.str().split())
    assert "the same parameters and shapes as locked, but numpy 1.0 → " in said
    assert "executes it otherwise" in said
    assert "shrink" not in said
    assert "fix: renew the lock with pytest --model-budget --model-budget-update=fix budgets/a.yaml::net" in said
    assert renewed.run("--model-budget-update=fix").ret == 0
    assert renewed.run().ret == 0


def test_a_model_that_changed_with_its_framework_is_to_blame(renewed: Project) -> None:
    """Other parameters than locked: the layers are named."""
    renewed.write("budgets/net.widths", "4 9 2")
    said = " ".join(renewed.run().outlines)
    assert "executes it otherwise" not in said
    assert "shrink the layers above" in said
