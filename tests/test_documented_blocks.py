"""Every block of the documents is run, or stands in a table with the reason why it is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch.export  # noqa: F401
import torchvision  # noqa: F401  # pytester forgets what runs import anew, and torch can be imported once

from pytest_modelbudget.budget.read_budget import is_budget
from pytest_modelbudget.cli.command import parser
from tests.builders.documents import ROOT, SHELLS, Block, blocks, commands, is_played, workflows
from tests.builders.project import LEAN
from tests.builders.readers_files import write_readers_files

pytestmark = pytest.mark.needs_torch

# Pages whose blocks belong together: the test of tests/test_documented_sessions.py that plays them in order.
PLAYED = {
    "README.md": "test_the_four_steps_lead_where_readme_and_pictures_say",
    "docs/tutorial.md": "test_the_tutorial_is_the_readme_in_slow_motion",
    "docs/extensions.md": "test_an_extension_is_as_documented",
    "docs/lock-files.md": "test_the_page_on_lock_files_shows_what_grew",
}
HARDWARE = "budgets/hardware.yaml"
# What runs elsewhere alone, by its first line. The commands in it are parsed below.
NOT_RUN = {
    "name: Model budget": "GitHub's runners",
    "- run: pytest --model-budget --model-budget-report=sarif:model-budget.sarif": "GitHub's runners",
    "- run: pytest --model-budget --model-budget-report=openmetrics:metrics.txt": "GitHub's runners",
    "model budget:": "GitLab's runners",
    "steps:": "Azure's runners",
    "repos:": "pre-commit, which sets up an environment of its own",
}
# Parts of an entry, by their first line: the lines above them, of which the last is as deep.
PARTS = {
    "equivalence:": """model_budget: 1
models:
  net:
    torch: nets:small
    inputs: float32 1x3x8x8
    transforms:
      by_hand:
        compare: {torch: "nets:small_by_hand"}
""",
    "deployments:": """model_budget: 1
models:
  net:
    torch: torchvision.models:mobilenet_v2
    inputs: float32 1x3x224x224
""",
}


def budget(block: Block) -> str:
    """The budget that a block is, or is a part of; empty where it is none."""
    if above := PARTS.get(block.first_line):
        *_, last = above.splitlines()
        return above + textwrap.indent(block.text, " " * (len(last) - len(last.lstrip())))
    return block.text if is_budget(block.text) else ""


def file_of(block: Block) -> str:
    """Which file a block is in the project below; empty where it is none."""
    name = f"{Path(block.document).stem.replace('-', '_')}_{block.line}"
    if block.text.startswith("hardware: 1"):
        return HARDWARE
    if "\ndef test_" in block.text:
        return f"test_{name}.py"
    return f"budgets/{name}.yaml" if budget(block) else ""


# Labelled data that a trained net answers are the reader's: tests/evaluation runs such a budget.
ELSEWHERE = {"docs/recipes/accuracy.md"}
BLOCKS = [
    block
    for block in blocks("python", "yaml")
    if block.document not in PLAYED.keys() | ELSEWHERE and not is_played(block)
]
FILES = {file: budget(block) or block.text for block in BLOCKS if (file := file_of(block))}
SCRIPTS = [block for block in BLOCKS if block.language == "python" and not file_of(block)]


def test_every_block_is_run_or_has_its_reason() -> None:
    """And no reason is left of a block that is gone."""
    left = [block for block in BLOCKS if not file_of(block) and block not in SCRIPTS]
    assert [str(block) for block in left if block.first_line not in NOT_RUN] == []
    assert NOT_RUN.keys() | PARTS.keys() <= {block.first_line for block in blocks("yaml")}
    assert PLAYED.keys() <= {block.document for block in blocks("python", "yaml")}
    sessions = Path(__file__).with_name("test_documented_sessions.py").read_text(encoding="utf-8")
    assert [name for name in PLAYED.values() if f"def {name}(" not in sessions] == []


@pytest.mark.slow
def test_every_budget_and_test_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one project, beside the reader's own files: green, but for the limit that its page shows as red."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join((*LEAN, "-p", "no:cacheprovider")))
    pytester.makeini(f"[pytest]\npythonpath = . {ROOT}")
    write_readers_files(pytester.path)
    for name, text in FILES.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    # Exports take seconds, and tests/transforms makes many.
    run = pytester.runpytest_inprocess(
        "--model-budget", "--model-budget-date=2026-11-22", "--model-budget-update=create", "-k", "not exported",
        ".", "budgets",
    )  # fmt: skip
    passed, skipped, failed = run.reprec.listoutcomes()
    assert {report.nodeid.partition("::")[0] for report in (*passed, *skipped)} == FILES.keys() - {HARDWARE}
    assert {report.nodeid.partition("::")[2] for report in skipped} == {"mnist::latency@cpu", "mnist::peak_memory@cpu"}
    (red,) = failed
    (shown,) = (block for block in blocks("text") if block.first_line.startswith("int8_scale@relus"))
    assert shown.text.replace("budgets/lab.yaml", red.nodeid.partition("::")[0]) in red.longreprtext + "\n"


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_scripts_run(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Their own assertions hold."""
    exec(compile(block.text, str(block), "exec"), {})
    assert "assert " in block.text


def test_commands_parse(pytestconfig: pytest.Config) -> None:
    """Each line of ours is one that the command, or pytest with the plugin, takes, in shells and in CI alike."""
    found = [words for block in (*blocks(*SHELLS), *workflows()) for words in commands(block)]
    assert {words[0] for words in found} == {"modelbudget", "pytest"}
    for program, *words in found:
        if program == "modelbudget":
            assert parser().parse_args(words)
        else:
            _, unknown = pytestconfig._parser.parse_known_and_unknown_args(words)
            assert unknown == [], words
