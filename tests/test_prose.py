"""README, docs, docstrings and messages keep the house's English: its words, its sentences, its lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.documents import ROOT, from_root

SOURCES = sorted(ROOT.glob("pytest_modelbudget/**/*.py"))
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LONGEST_SENTENCE, WIDEST_LINE = 25, 100
# Words of the glossary's left column, and what to write instead.
AVOIDED = {
    r"[Ww]ays? out": "fix",
    r"[Bb]eside": "next to, compared with",
    r"(stands?|stood)\b(?! for)": "is",
    r"anew": "again",
    r"passed (by|over)|left out": "skipped, not collected",
    r"[Nn]obody|[Ss]omebody": "the actor, or the passive",
    r"in (its|their) place": "instead",
    r"held to|holds? (a|the|every|all|each) (model|limit)s?": "check, apply to",
    r"as a whole|in parts": "in one piece, by part",
    r"([Tt]old|said) (aloud|of)": "reported",
}


def prose(path: Path) -> Iterator[str]:
    """Paragraphs and items of lists, without code, tables and headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(\||#|\?\?\?|<!--|!\[|:::).*$", "", text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        yield " ".join(re.sub(r"\]\([^)]*\)|[*\[\]]|^ *(-|\d+\.) ", " ", re.sub(r"`[^`]*`", "CODE", part)).split())


@pytest.mark.parametrize("path", PAGES, ids=from_root)
def test_prose_is_plain(path: Path) -> None:
    """Sentences of at most 25 words, and no word that the glossary replaces."""
    parts = list(prose(path))
    sentences = [sentence for part in parts for sentence in re.split(r"[.:;?!·]\)? |[.:;]$", part)]
    assert [sentence for sentence in sentences if len(sentence.split()) > LONGEST_SENTENCE] == []
    found = {
        f"{word}: write {AVOIDED[word]}" for part in parts for word in AVOIDED if re.search(rf"\b({word})\b", part)
    }
    assert found == set()


@pytest.mark.parametrize("path", PAGES, ids=from_root)
def test_lines_wrap(path: Path) -> None:
    """At 100 columns, but tables, code, pictures, and words without a blank."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r" *(\||<!--|!\[)", line)]
    assert [line for line in lines if len(line) > WIDEST_LINE and " " in line.strip(" -")] == []


# Docstrings' first sentences and messages have these, too: docs say "told" nowhere else.
AVOIDED_IN_CODE = {**AVOIDED, r"[Tt]old": "reported, known", r"held": "checked, compared with, stored"}


def texts_of(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether of a docstring): first sentences of docstrings, and texts with a blank: messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = (each.body[0] for each in ast.walk(tree) if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef))
    docstrings = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            text = re.sub(r"``?[^`]*``?", "CODE", " ".join(node.value.split()))
            is_docstring = id(node) in docstrings
            yield node.lineno, re.split(r"[.:;] ", text)[0] if is_docstring else text, is_docstring


@pytest.mark.parametrize("path", SOURCES, ids=from_root)
def test_docstrings_and_messages_are_plain(path: Path) -> None:
    """No word that the glossary replaces, and first sentences of at most 25 words."""
    for line, text, is_docstring in texts_of(path):
        found = {word for word in AVOIDED_IN_CODE if re.search(rf"\b({word})\b", text)}
        assert {word: AVOIDED_IN_CODE[word] for word in found} == {}, f"{from_root(path)}:{line}: {text}"
        assert not is_docstring or len(text.split()) <= LONGEST_SENTENCE, f"{from_root(path)}:{line}: {text}"
