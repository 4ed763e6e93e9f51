"""``modelbudget lint``: every problem in its place, and no model imported."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from pytest_modelbudget.cli.command import COMMANDS, main

GOOD = "model_budget: 1\nmodels:\n  net: {torch: 'no_such_module:net', inputs: float32 1x4, limits: {params: 3}}\n"
BAD = """model_budget: 1
models:
  net:
    torch: no_such_module:net
    inputs: float32 1x4
    limits:
      peak_memory: 3 MB
      parms: 1
"""
FORGOTTEN = GOOD.partition("\n")[2]
MARK_IT = "no line begins with model_budget: 1: correct the key, or keep a file that is no budget elsewhere"
HARDWARE = "devices: {}\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("files", "words", "code", "lines"),
    [
        pytest.param({"budgets/a.yaml": GOOD}, [], 0, ["1 budget read, 0 problems"], id="good"),
        pytest.param(
            {"budgets/a.yaml": GOOD, "budgets/in/b.yml": BAD},
            [],
            1,
            [
                "budgets/in/b.yml:7:7: unknown key 'peak_memory' in limits: did you mean 'peak_activation'?",
                "budgets/in/b.yml:8:7: unknown key 'parms' in limits: did you mean 'params'?",
                "2 budgets read, 2 problems",
            ],
            id="bad",
        ),
        pytest.param(
            {"a.yaml": FORGOTTEN}, ["a.yaml"], 1, [f"a.yaml:1:1: {MARK_IT}", "1 budget read, 1 problem"], id="forgotten"
        ),
        pytest.param(
            {"a.yaml": f"# ours\n\nmodel-budget: 1\n{FORGOTTEN}"},
            ["a.yaml"],
            1,
            [f"a.yaml:1:1: {MARK_IT}", "1 budget read, 1 problem"],
            id="misspelt",
        ),
        pytest.param(
            {"ci.yaml": "model budget:\n  script: [pytest]\n"},
            ["ci.yaml"],
            0,
            ["0 budgets read, 0 problems, 1 other file skipped"],
            id="a key of that name without a version",
        ),
        pytest.param(
            {
                "pytest.ini": "[pytest]\nmodel_budget_paths = a/sizes 'b c.yaml'\n",
                "a/sizes/a.yaml": BAD,
                "b c.yaml": GOOD,
                "budgets/left.yaml": BAD,
            },
            [],
            1,
            ["a/sizes/a.yaml:8:7: unknown key 'parms' in limits: did you mean 'params'?", "2 budgets read, 2 problems"],
            id="where pytest looks",
        ),
        pytest.param(
            {"a.yaml": HARDWARE, "b.yaml": GOOD},
            ["a.yaml", "b.yaml"],
            0,
            ["1 budget read, 0 problems, 1 other file skipped"],
            id="other files",
        ),
        *(
            pytest.param(
                {"sizes/b.YAML": GOOD, "sizes/c.Yml": "x: 1"},
                [named],
                1,
                [f"sizes{os.sep}b.YAML:1:1: let its name end in .yaml", f"1 budget read, 1 problem{others}"],
                id=f"capitals, {id_}",
            )
            for named, others, id_ in (
                ("sizes/b.YAML", "", "named"),
                ("sizes", ", 1 other file skipped", "in a folder"),
            )
        ),
        pytest.param({"a.yaml": "model_budget: 1\n\tx"}, ["a.yaml"], 1, ["1 budget read, 1 problem"], id="no YAML"),
    ],
)
def test_problems_are_told_in_their_places(
    files: dict[str, str], words: list[str], code: int, lines: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As file:line:column, which editors read; the model behind it need not exist."""
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["lint", *words]) == code
    told = capsys.readouterr().out.splitlines()
    assert told[-len(lines) :] == lines
    assert "no_such_module" not in sys.modules


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing.yaml"], "nothing.yaml does not exist: name budgets, or a folder with them"),
        (["net.py"], "no YAML file in net.py"),
        ([], "budgets does not exist: name budgets, or a folder with them"),
    ],
)
def test_what_cannot_be_checked_is_no_success(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip in a path is exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").touch()
    assert main(["lint", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_hooks_for_pre_commit_are_commands() -> None:
    """The one that is given files takes budgets alone, the other none."""
    check, gate = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert check["entry"] in {f"modelbudget {command.name}" for command in COMMANDS}
    assert [bool(re.search(check["files"], name)) for name in ("budgets/a.yaml", "x/budgets/b/a.yml", "ci.yaml")] == [
        True,
        True,
        False,
    ]
    assert (gate["entry"], gate["pass_filenames"]) == ("pytest --model-budget", False)


def test_what_cannot_be_a_budget_any_more_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link that leads nowhere, as in the gate; a folder of such a name is none."""
    (tmp_path / "budgets" / "folder.yaml").mkdir(parents=True)
    (tmp_path / "budgets" / "link.yaml").symlink_to("nowhere.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["lint"]) == 1
    place = os.path.join("budgets", "link.yaml")
    assert f"{place}:1:1: it is a link that leads nowhere" in capsys.readouterr().out


def test_what_was_not_checked_out_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pointer of Git LFS, as in the gate."""
    (tmp_path / "budgets").mkdir()
    (tmp_path / "budgets" / "a.yaml").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    monkeypatch.chdir(tmp_path)
    assert main(["lint"]) == 1
    assert f"{os.path.join('budgets', 'a.yaml')}:1:1: a pointer of Git LFS" in capsys.readouterr().out
