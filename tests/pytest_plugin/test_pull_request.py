"""What a reviewer and a dashboard are told of a pull request, from git to every report."""

from __future__ import annotations

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.builders.project import Project
from tests.builders.repository import BUDGET, Repository

BASE = "--model-budget-base=main"
ALONE = ("-p", "no:pytest_github_actions_annotate_failures")
LIMIT = "  net:\n    widths: net.widths\n    limits:\n      params: {max: 3.5 M, level: error}\n"
LOOSENED = "budget loosened +14.3 %: params 3.5 M -> 4.0 M"


def junit(project: Project) -> ElementTree.Element:
    return ElementTree.parse(project.path / "junit.xml").getroot()


def html_words(project: Project) -> str:
    """What the page says before any script has run, without its tags."""
    text = (project.path / "page.html").read_text(encoding="utf-8").partition("</main>")[0]
    words = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(words).split())


def run(project: Project, *args: str) -> tuple[int, list[str]]:
    """Exit code and workflow commands of a session that compares with main."""
    files = ("--model-budget-report=junit:junit.xml", "--model-budget-report=html:page.html")
    result = project.run(BASE, *ALONE, *files, *args)
    return int(result.ret), [line for line in result.outlines if line.startswith("::")]


def test_a_widened_layer_is_named_everywhere(project: Project, page: Path) -> None:
    """8 -> 9: layer0 gains 4 weights; terminal, annotation, both pages and dashboard say so."""
    project.budget(BUDGET)
    repository = Repository(project)
    repository.locked()
    repository.branch("change")
    repository.write("budgets/net.widths", "4 9 2")
    page.unlink()
    growth, sentence = "+4  layer0.weight   [8, 4] -> [9, 4]", "layer0   4→8 becomes 4→9"
    code, (command,) = run(project)
    assert code == 1
    assert command.startswith("::error file=budgets/a.yaml,line=7,title=net / params::params 54")
    assert sentence in command
    assert sentence in page.read_text(encoding="utf-8")
    failure = junit(project).find(".//failure")
    assert failure is not None
    assert growth in (failure.text or "")
    assert "✕ over net params budgets/a.yaml:7 54 48 +12.5% vs base" in html_words(project)
    assert "layer0 4→8 becomes 4→9 layer1 8→2 becomes 9→2 fix: shrink the layer above" in html_words(project)
    table = project.run(BASE, *ALONE, "-vv").stdout.str().partition("= model budget =")[2]
    assert growth in table


@pytest.mark.parametrize(("forbidden", "kind"), [(False, "warning"), (True, "error")])
def test_a_loosened_limit_is_told_on_its_line_and_page(
    project: Project, page: Path, forbidden: bool, kind: str
) -> None:
    """Where it is forbidden, every report is as red as the exit code."""
    path = project.budget(LIMIT)
    head = "loosen: forbid\n" if forbidden else ""
    path.write_text(path.read_text().replace("models:\n", f"{head}models:\n"))
    repository = Repository(project)
    repository.commit()
    repository.branch("change")
    path.write_text(path.read_text().replace("3.5 M", "4.0 M"))
    code, (command,) = run(project)
    line = 7 + forbidden
    assert code == forbidden
    said, *ban = command.split("%0A")
    assert said == (
        f"::{kind} file=budgets/a.yaml,line={line},title=net / params / loosened::" + LOOSENED.replace("%", "%25")
    )
    assert [text.partition("  ")[0] for text in ban[:1]] == ["forbidden by loosen: forbid"] * forbidden
    assert LOOSENED in page.read_text(encoding="utf-8")
    assert junit(project).get("failures") == str(int(forbidden))
    told = f"budgets/a.yaml:{line} net::params {LOOSENED}{' ✕ forbidden' if forbidden else ''}"
    assert told in html_words(project)


def test_a_lock_that_fails_is_red_everywhere(project: Project, page: Path) -> None:
    """--model-budget-lock=check fails the session, and so a dashboard must not be green."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    repository = Repository(project)
    repository.locked()
    repository.write("budgets/net.widths", "4 9 2")
    code, commands = run(project)
    assert (code, commands, junit(project).get("failures")) == (0, [], "0")
    code, (command,) = run(project, "--model-budget-lock=check")
    assert code == 1
    assert command.startswith("::error file=budgets/a.lock.json,line=1,title=lock file::")
    assert junit(project).get("failures") == "1"
    assert "Lock files ✕ fails lock stale: " in html_words(project)
    assert "### Lock files\n\n- ❌ " in page.read_text(encoding="utf-8")
