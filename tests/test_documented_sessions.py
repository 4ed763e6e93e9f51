"""What the documents show is run: budgets, tests, extensions and the text of a failure."""

from __future__ import annotations

import html
import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

# Imported here, because pytester forgets what runs import anew, and torch can be imported once.
import torchvision  # noqa: F401

import pytest_modelbudget.pytest_plugin.items  # noqa: F401
from pytest_modelbudget import measure
from pytest_modelbudget.cli.command import main
from tests.builders.documents import (
    GOING_ON,
    NOT_PLAYED,
    PAGES_OF_OTHERS,
    RECIPES,
    ROOT,
    blocks_of,
    from_root,
    play,
    run_apart,
)

pytestmark = pytest.mark.needs_torch

PICTURES = ROOT / "docs" / "pictures"
draw_pictures = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"))
NETS = """
import torch
from torch import nn

@torch.library.custom_op("lab::low_rank", mutates_args=())
def low_rank(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return x @ down @ up

@low_rank.register_fake
def _(x, down, up):
    return x.new_empty((*x.shape[:-1], up.shape[-1]))

class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Parameter(torch.zeros(64, 4)), nn.Parameter(torch.zeros(4, 32))
        self.head = nn.Linear(32, 22)

    def forward(self, x):
        return self.head(low_rank(x, self.down, self.up))
"""
# 64 x 4 + 4 x 32 through the middle, 32 x 22 in the head.
NARROW_MACS = 64 * 4 + 4 * 32 + 32 * 22


def blocks(document: str, language: str) -> list[str]:
    """Texts of fenced blocks in a language, in order."""
    return [block.text for block in blocks_of(ROOT / document, language)]


def files(document: str) -> list[tuple[str, str]]:
    """(name, text) of every block that says which file it is."""
    return [(block.file, block.text) for block in blocks_of(ROOT / document) if block.file]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty repository, whose modules are forgotten afterwards."""
    monkeypatch.setenv("COLUMNS", "80")
    pytester.syspathinsert()
    pytester.mkdir("budgets")
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", *args)


@pytest.fixture
def four_steps(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The README's model and the budget that its own command writes, held once, with every layer noted."""
    steps = [block for block in blocks("README.md", "bash") if block.startswith(("modelbudget", "pytest"))]
    init, gate = (shlex.split(line) for line in "".join(steps).splitlines()[:2])
    (project.path / "nets.py").write_text(dict(files("README.md"))["nets.py"])
    monkeypatch.syspath_prepend(project.path)
    assert main(init[1:]) == 0
    del sys.modules["nets"]
    run(project, *gate[1:]).assert_outcomes(passed=5)
    return project


def test_the_four_steps_lead_where_readme_and_pictures_say(four_steps: pytest.Pytester) -> None:
    """Budget and red gate are those of the tutorial; terminal, comment and page of the pictures are of such a run."""
    budget = (four_steps.path / "budgets" / "small.yaml").read_text()
    bare = [re.sub(" +#.*", "", line) for line in budget.splitlines() if not line.lstrip().startswith("#")]
    shown = [re.sub(" +#.*", "", line) for line in blocks("docs/tutorial.md", "yaml")[0].splitlines()]
    assert bare == shown
    green, red = (block.splitlines() for block in blocks("docs/tutorial.md", "text"))
    assert_shown(green, run(four_steps, "--model-budget").outlines)
    net = four_steps.path / "nets.py"
    net.write_text(net.read_text().replace("width=32", "width=48"))
    shutil.rmtree(four_steps.path / "__pycache__", ignore_errors=True)  # as old as the edit, to the second
    printed = run(four_steps, "--model-budget", "--model-budget-report=comment:comment.md").outlines
    assert_shown(red, printed)
    kept = draw_pictures["shortened"](printed)
    assert kept[0].strip("= ") == "FAILURES"
    svg = (PICTURES / "terminal.svg").read_text(encoding="utf-8")
    drawn = [html.unescape(re.sub("<[^>]*>", "", line)) for line in re.findall("<text .*</text>", svg)]
    drawn = [line.replace("\N{NO-BREAK SPACE}", " ") for line in drawn]
    assert drawn == ["$ pytest --model-budget", *kept]
    assert words_in(PICTURES / "comment.png") == (four_steps.path / "comment.md").read_text(encoding="utf-8")
    assert [row for row in kept if " > " in row] == [
        row for row in words_in(PICTURES / "page.png").splitlines() if " > " in row
    ]


def assert_shown(lines: list[str], printed: list[str]) -> None:
    """A session printed these lines, one after the other."""
    start = printed.index(lines[0])
    assert printed[start : start + len(lines)] == lines


def words_in(picture: Path) -> str:
    """What the text chunk of a PNG says, which the script that drew it has put there."""
    return picture.read_bytes().partition(b"iTXtwords\0\0\0\0\0")[2][:-16].decode()


def test_the_tutorial_is_the_readme_in_slow_motion() -> None:
    """The same model, commands and budget."""
    assert files("docs/tutorial.md") == files("README.md")
    slow = blocks("docs/tutorial.md", "bash")
    assert [block for block in blocks("README.md", "bash") if "-e " not in block and block not in slow] == []
    assert blocks("README.md", "yaml")[0] == blocks("docs/tutorial.md", "yaml")[0]


PAGES = [page for page in sorted(map(from_root, ROOT.glob(f"{RECIPES}*.md"))) if page not in NOT_PLAYED]


@pytest.mark.slow
@pytest.mark.parametrize("page", [*(page for page in PAGES if page not in PAGES_OF_OTHERS), *GOING_ON[2:]])
def test_a_how_to_leads_from_an_empty_folder_to_a_green_gate(
    page: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files, commands and budgets, from top to bottom, with nothing that it does not name."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(pytester.path)  # as "python -m" does

    def here(words: list[str], folder: Path) -> tuple[int, str]:
        if words[0] == "pytest":
            result = run(pytester, *words[1:])
            return result.ret, str(result.stdout) + str(result.stderr)
        if words[0] == "modelbudget":
            return main(words[1:]), "".join(capsys.readouterr())
        return run_apart(words, folder)

    assert play(page, pytester.path, here) == ""


def test_the_page_on_lock_files_shows_what_grew(project: pytest.Pytester) -> None:
    """The widened classifier of the page is told as the page tells it, line by line."""
    budget = blocks("docs/lock-files.md", "yaml")[0]
    path = project.path / "budgets" / "vision.yaml"
    path.write_text(budget)
    run(project, "--model-budget", "--model-budget-update=create")
    path.write_text(budget.replace("num_classes: 1000", "num_classes: 1175"))
    printed = run(project, "--model-budget").outlines
    assert_shown(blocks("docs/lock-files.md", "text")[0].splitlines(), printed)


def test_fit_is_as_documented(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's page shows what it prints, line by line, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    document = "docs/command-line.md"
    (command,) = (block for block in blocks(document, "bash") if block.startswith("modelbudget fit"))
    (shown,) = (block for block in blocks(document, "text") if " on cortex_m55_ethos_u55\n" in block)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == shown


def test_an_extension_is_as_documented(project: pytest.Pytester) -> None:
    """Rule, metric, budget and hooks work as one: two contractions, one of them the rule's."""
    (project.path / "nets.py").write_text(NETS)
    for name, text in files("docs/extensions.md"):
        with (project.path / name).open("a") as file:
            file.write(text)
    result = run(project, "--model-budget", "-s", "--model-budget-report=json:out.json")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*verified budgets/lab.yaml::narrow::rounded::equivalence within"])
    result.stdout.fnmatch_lines(["*judged budgets/lab.yaml::narrow::contractions within"])
    report = json.loads((project.path / "out.json").read_text())
    assert report["commit"] == "abc123"
    assert report["models"][0]["metrics"]["macs"]["value"] == NARROW_MACS


def test_an_entry_point_joins_an_extension(project: pytest.Pytester) -> None:
    """What an installed package declares under the documented group, ``measure()`` knows."""
    documented = dict(files("docs/extensions.md"))
    parts = [text for name, text in files("docs/extensions.md") if name == "lab_extension.py"]
    (project.path / "lab_extension.py").write_text("\n".join(parts))
    (project.path / "nets.py").write_text(NETS)
    group, entry = re.findall(r'points\."(.*)"\]\n(.*)\n', documented["pyproject.toml"])[0]
    installed = project.mkdir("lab-1.0.dist-info")
    (installed / "METADATA").write_text("Name: lab\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    numbers = measure("nets:Narrow", "float32 1x64")
    assert (numbers["contractions"].value, numbers["macs"].value) == (2, NARROW_MACS)


def test_the_source_distribution_holds_what_the_readme_links() -> None:
    """Whoever unpacks it can follow every link."""
    project_file = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    included = re.findall(r"sdist\]\ninclude = \[(.*)\]", project_file)[0]
    links = re.findall(r"\]\(([^):#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    for link in links:
        top = link.partition("/")[0]
        assert f'"{top}"' in included or ("/" not in link and '"*.md"' in included), link
