"""A red run has one block a model: what changed in its layers, all limits that are over for it, and one command."""

from __future__ import annotations

import json

import pytest

from tests.builders.project import CONFTEST, Project

LIMITS = {"params": "48", "macs": "48 MAC", "weight_memory": "192 B", "bops": "49.2 kBOP", "total_activation": "1 kB"}
BLOCK = [
    "*__ model budget: net / params __*",
    "net: 4 of 5 limits over, growth since the base   budgets/a.yaml:4",
    "  layer0   4→8 becomes 4→12",
    "  layer1   8→2 becomes 12→2",
    "  params 72 > 48 (+50.0%), macs 72 MAC > 48 MAC (+50.0%),",
    "  weight_memory 288 B > 192 B (+50.0%), bops 73.73 kBOP > 49.20 kBOP (+50.0%)",
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
    """Eight lines for four limits; the other items point to it, and their summary has the figure."""
    result = widened.run("-rf")
    result.assert_outcomes(failed=4, passed=1)
    result.stdout.fnmatch_lines([*BLOCK, "*__ model budget: net / macs __*", "see net"], consecutive=True)
    assert result.outlines.count("see net") == 3
    result.stdout.fnmatch_lines(["FAILED budgets/a.yaml::net::macs - macs 72 MAC > 48 MAC*"])


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
    assert result.outlines.count("see net") == others
    result.stdout.fnmatch_lines(["net: 2 of 2 limits over*" if others else "macs 72 MAC > 48 MAC*budgets/a.yaml:8"])


def test_workers_agree_on_who_has_the_block(widened: Project) -> None:
    """Each judges all limits of the model, and names the same one."""
    result = widened.run("-n2")
    assert result.outlines.count("see net") == 3
    result.stdout.fnmatch_lines(BLOCK[1:])


def test_every_report_has_the_same_sentences(widened: Project) -> None:
    """The comment and the summary have the block as the terminal has it."""
    widened.run("--model-budget-report=comment:c.md", "--model-budget-report=summary:s.md")
    for name in ("c.md", "s.md"):
        text = (widened.path / name).read_text(encoding="utf-8")
        start = text.index("<pre>net: 4 of 5 limits over")
        assert [line.removeprefix("<pre>") for line in text[start:].splitlines()][:5] == BLOCK[1:6]


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
