"""The page as an option: asked for by name, the same for any number of workers, said if missing."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from pytest_modelbudget.reports import table as report_table
from tests.builders.project import Project
from tests.builders.repository import Repository

MODELS = "".join(
    f"  net{n}: {{widths: net.widths, inputs: float32 {n}x4, limits: {{params: {46 + n}}}}}\n" for n in (1, 2, 3)
)
TELLING = """

def pytest_model_budget_report(report):
    with open("profiled", "w") as file:
        print(*("profile" in model for model in report["models"]), file=file)
"""


def test_the_page_is_the_same_for_any_number_of_workers(project: Project) -> None:
    """-n0 and -n2 write the same bytes, profiles included."""
    project.budget(MODELS)
    pages = []
    for workers in ("-n0", "-n2"):
        result = project.run(workers, "--model-budget-report=html:page.html")
        assert result.ret == 1
        pages.append((project.path / "page.html").read_bytes())
    assert pages[0] == pages[1]
    assert b"net3" in pages[0]


def test_profiles_are_made_only_if_a_page_is_asked_for(project: Project) -> None:
    """Hooks see them in the record; the JSON file says the same with and without."""
    project.budget(MODELS)
    project.configure(TELLING)
    texts = []
    for page, profiled in (((), "False False False\n"), (("page.html",), "True True True\n")):
        options = [f"--model-budget-report=html:{path}" for path in page]
        project.run("--model-budget-report=json:out.json", *options)
        assert Path("profiled").read_text(encoding="utf-8") == profiled
        record = json.loads(Path("out.json").read_text(encoding="utf-8"))
        del record["timings"]
        texts.append(record)
    assert texts[0] == texts[1]


def test_a_missing_package_is_said_before_anything_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the way to install it, and exit code 4."""
    project.budget(MODELS)
    (page,) = (each for each in report_table.FILE_REPORTS if each.package == "jinja2")
    without = page._replace(package="a_package_that_nobody_has")
    monkeypatch.setattr(report_table, "FILE_REPORTS", (without,))
    result = project.run("--model-budget-report=html:page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0] == (
        "ERROR: --model-budget-report=html:page.html needs a_package_that_nobody_has, which is not "
        "installed: pip install 'pytest-modelbudget[html]'"
    )
    assert not (project.path / "budgets" / "loads").exists()


def test_a_page_without_the_switch_is_refused(project: Project) -> None:
    """It would be empty."""
    result = project.run("--model-budget-report=html:page.html", switch=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--model-budget-report=html:page.html needs --model-budget:*"])


def test_a_page_that_cannot_be_written_is_one_sentence(project: Project) -> None:
    """A folder in its place: said, and never green."""
    project.budget(MODELS)
    (project.path / "page.html").mkdir()
    result = project.run("--model-budget-report=html:page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["model budget: cannot write *page.html: Is a directory"])


def test_the_page_has_the_way_of_a_locked_number(project: Project) -> None:
    """Two commits locked 48 and 56; a line shows both, the JSON report says the same as without a page."""
    project.budget("  net: {widths: net.widths, limits: {params: 60, macs: 60}}\n")
    repository = Repository(project)
    repository.locked(message="<first>")
    repository.locked("4 8 3", message="wider")
    alone = project.report()
    page = project.path / "page.html"
    assert project.report(f"--model-budget-report=html:{page}") == alone
    (view,) = re.findall(r'<script type="application/gzip"[^>]*>([^<]+)</script>', page.read_text(encoding="utf-8"))
    opened = json.loads(gzip.decompress(base64.b64decode(view)))
    assert opened["profile"]["base"]["params"] == {"cut": 0, "layers": {"layer0": 32, "layer1": 24}}  # 4 * 8, 8 * 3
    markup = opened["markup"]
    charts = re.findall(r'<svg .*?role="img" aria-label="([^"]*)">(.*?)</svg>', markup, re.DOTALL)
    assert [label for label, _ in charts] == [
        "locked numbers of 2 commits, from 48 MAC to 56 MAC",
        "locked numbers of 2 commits, from 48 to 56",
    ]
    titles = re.findall(r"<title>(.*?)</title>", charts[1][1])
    assert [title.split(" ", 2)[2] for title in titles] == ["48: &lt;first&gt;", "56: wider"]
