"""docs/budget-format.md says what the reader does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_modelbudget.budget.hardware_file import HARDWARE_GRAMMAR, read_devices
from pytest_modelbudget.budget.read_budget import json_schema
from pytest_modelbudget.formats.spellings import DTYPES
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.registry import tables
from tests.builders.texts import Problems

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "budget-format.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
EXAMPLES = [block for block in BLOCKS if not block.startswith("hardware: 1")]
(HARDWARE,) = (block for block in BLOCKS if block.startswith("hardware: 1"))


def test_there_are_examples() -> None:
    """The document shows budgets."""
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(problems: Problems, example: str) -> None:
    """Every budget in the document is one."""
    assert problems(example) == []


def test_hardware_file() -> None:
    """So is the file of devices: 2 MiB are 2,097,152 B."""
    memories = read_devices(HARDWARE, "hardware.yaml")["m55_board"].memories
    assert [(memory.name, memory.size) for memory in memories] == [("flash", 2 * 1024**2), ("sram", 2 * 1024**2)]


def keys_of(schema: object) -> Iterator[str]:
    """The keys of every mapping that a schema knows."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from keys_of(part)


def test_every_key_is_named() -> None:
    """The documents name every key of the reader's tables."""
    keys = {*keys_of(json_schema(tables())), *keys_of(HARDWARE_GRAMMAR.schema)}
    assert len(keys) > 100
    pages = (page.read_text(encoding="utf-8") for page in DOCUMENT.parent.glob("*.md"))
    named = {word for page in pages for word in re.findall(r"\w+", page)}
    assert sorted(keys - named - metric_table().keys()) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_named(dtype: str) -> None:
    """The document names every element type."""
    assert f"`{dtype}`" in TEXT
