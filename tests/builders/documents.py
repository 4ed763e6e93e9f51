"""The fenced blocks of the documents: where each stands, its language, and the commands in it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
FENCE = re.compile(r"^( *)(?:<!-- file: (\S+) -->\n)?^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAMS, SHELLS = ("modelbudget ", "pytest "), ("bash", "yaml", "groovy")
RECIPES = "docs/recipes/"
# Packages that a recipe needs beyond those of the tests: tests/zoo plays these.
OTHERS = {
    "torchvision": (), "timm": ("timm",), "hugging-face": ("transformers",), "lora": ("transformers", "peft"),
    "large-models": ("transformers",), "keras": ("keras",), "mmengine": ("mmengine",),
}  # fmt: skip
PAGES_OF_OTHERS = {f"{RECIPES}{name}.md": needed for name, needed in OTHERS.items()}
# Pages that go on where the README's quick start ends.
GOING_ON = (f"{RECIPES}upgrading-torch.md", f"{RECIPES}pre-commit.md", "docs/html-report.md", "docs/many-models.md")
# Recipes that no test plays, and why.
NOT_PLAYED = {
    f"{RECIPES}index.md": "a list",
    f"{RECIPES}tflite.md": "a file of yours",
    f"{RECIPES}pte.md": "a file of yours",
    f"{RECIPES}board.md": "a runner and a file of yours",
    f"{RECIPES}accuracy.md": "labelled data of yours",
    f"{RECIPES}paddle.md": "needs Paddle, and a file of yours",
}


@dataclass(frozen=True)
class Block:
    """One fenced block; ``file`` is empty unless the line above it says which file it is."""

    document: str
    line: int
    language: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path, *languages: str) -> Iterator[Block]:
    """Blocks in any of these languages (of all, where none is named), in order."""
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        _, file, language, body = found.groups(default="")
        if not languages or language in languages:
            yield Block(from_root(path), text.count("\n", 0, found.start(4)), language, file, textwrap.dedent(body))


def blocks(*languages: str) -> list[Block]:
    """The same of all documents."""
    return [block for path in DOCUMENTS for block in blocks_of(path, *languages)]


def workflows() -> list[Block]:
    """The workflows that documents give to copy, each as one block."""
    paths = sorted(ROOT.glob("examples/ci/*.yml"))
    return [Block(from_root(path), 1, "yaml", path.name, path.read_text(encoding="utf-8")) for path in paths]


def is_played(block: Block) -> bool:
    """Whether a recipe has it that is done from top to bottom."""
    return block.document.startswith(RECIPES) and block.document not in NOT_PLAYED


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each of our commands that a block runs, in a shell or as a step of a CI."""
    texts = _strings(yaml.safe_load(block.text)) if block.language == "yaml" else [block.text]
    for line in "\n".join(texts).replace("\\\n", "").replace("&&", "\n").splitlines():
        if line.lstrip().startswith(PROGRAMS):
            yield shlex.split(line, comments=True)


Step = tuple[str, list[str]]


def steps(page: str) -> Iterator[Step]:
    """What a reader of a how-to does in an empty folder, from top to bottom: ("write", [file, text]) or ("run", words).

    A budget without a name is budgets/PAGE.yaml, and Python without one a script.
    """
    if page in GOING_ON:
        yield from _quick_start()
    for block in blocks_of(ROOT / page):
        name = block.file or (f"budgets/{Path(page).stem}.yaml" if block.text.startswith("model_budget: 1") else "")
        if not name and block.language == "python":
            name = "script.py"
        if name:
            yield "write", [name, block.text]
        if name == "script.py":
            yield "run", ["python", name]
        if block.language == "bash":
            lines = (shlex.split(line) for line in block.text.splitlines())
            yield from (("run", words) for words in lines if words[0] in ("modelbudget", "pytest", "python"))


def _quick_start() -> Iterator[Step]:
    """The README's, up to its first gate."""
    found = list(steps("README.md"))
    end = next(at for at, (_, words) in enumerate(found) if words[0] == "pytest")
    yield from found[:end]


Run = Callable[[list[str], Path], tuple[int, str]]


def play(page: str, folder: Path, run: Run) -> str:
    """Do the steps of a page in an empty folder, and run the gate where it has a budget; the output that went wrong."""
    gate: list[Step] = [("run", ["pytest", "--model-budget"])]
    for kind, words in [*steps(page), *gate]:
        if kind == "write":
            path = folder / words[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(words[1], encoding="utf-8")
            continue
        code, printed = run(words, folder)
        if code and (words != gate[0][1] or any(folder.rglob("budgets/*.yaml"))):
            return f"$ {shlex.join(words)}\n{printed}"
    return ""


def run_apart(words: list[str], folder: Path) -> tuple[int, str]:
    """A command in a process of its own: its exit code, and what it prints."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    modules = {"pytest": ["-m", "pytest"], "modelbudget": ["-m", "pytest_modelbudget.cli"], "python": []}
    command = [sys.executable, *modules[words[0]], *words[1:]]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def _strings(value: Any) -> Iterator[str]:
    """All texts within what YAML reads."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
