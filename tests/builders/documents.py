"""The fenced blocks of the documents: where each stands, its language, and the commands in it."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
FENCE = re.compile(r"^( *)(?:<!-- file: (\S+) -->\n)?^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAMS, SHELLS = ("modelbudget ", "pytest "), ("bash", "yaml", "groovy")
OTHERS = ("torchvision", "timm", "hugging-face", "lora", "large-models")
PAGES_OF_OTHERS = frozenset(f"docs/recipes/{name}.md" for name in OTHERS)


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


def of_other_packages(block: Block) -> bool:
    """Whether tests/zoo runs it: packages that are not installed everywhere, or take seconds to import."""
    return block.document in PAGES_OF_OTHERS or "transformers:" in block.text


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each of our commands that a block runs, in a shell or as a step of a CI."""
    texts = _strings(yaml.safe_load(block.text)) if block.language == "yaml" else [block.text]
    for line in "\n".join(texts).replace("\\\n", "").replace("&&", "\n").splitlines():
        if line.lstrip().startswith(PROGRAMS):
            yield shlex.split(line, comments=True)


def _strings(value: Any) -> Iterator[str]:
    """All texts within what YAML reads."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
