"""docs/budget-format.md says what the reader does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_modelbudget.budget.deployment_forms import LOWER_GRAMMAR, deployment_form, deployment_grammar
from pytest_modelbudget.budget.grammar import Field
from pytest_modelbudget.budget.hardware_file import (
    ARENA_GRAMMAR,
    ARRAY_GRAMMAR,
    DEVICE_GRAMMAR,
    HARDWARE_GRAMMAR,
    MEMORY_GRAMMAR,
    read_devices,
)
from pytest_modelbudget.budget.input_forms import DTYPES, SPEC
from pytest_modelbudget.budget.limit_forms import OPS_GRAMMAR, limit_grammar
from pytest_modelbudget.budget.read_budget import DEFAULTS_GRAMMAR, file_grammar, model_grammar
from pytest_modelbudget.budget.transform_forms import CLAIM_GRAMMAR, OUTPUT_GRAMMAR, settings_grammar, transform_grammar
from pytest_modelbudget.registry import tables
from tests.builders.texts import Problems

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "budget-format.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
EXAMPLES = [block for block in BLOCKS if not block.startswith("hardware: 1")]
(HARDWARE,) = (block for block in BLOCKS if block.startswith("hardware: 1"))


def test_there_are_examples() -> None:
    """The document shows budgets."""
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(problems: Problems, example: str) -> None:
    """Every budget in the document is one."""
    assert problems(example) == []


def test_hardware_file() -> None:
    """So is the file of devices: 2 MiB are 2,097,152 B."""
    memories = read_devices(HARDWARE, "hardware.yaml")["m55_board"].memories
    assert [(memory.name, memory.size) for memory in memories] == [("flash", 2 * 1024**2), ("sram", 2 * 1024**2)]


def test_every_key_is_named() -> None:
    """The document names every key of the reader's tables."""
    known = tables()
    transform = transform_grammar(known, Field("deployments", deployment_form(known), ""))
    settings = (settings_grammar(each, known.formats) for each in known.transforms.values())
    grammars = (
        file_grammar(known), DEFAULTS_GRAMMAR, model_grammar(known),
        limit_grammar("macs", "MAC"), OPS_GRAMMAR, SPEC, transform, CLAIM_GRAMMAR, OUTPUT_GRAMMAR,
        *settings, deployment_grammar(known), LOWER_GRAMMAR, HARDWARE_GRAMMAR, DEVICE_GRAMMAR, MEMORY_GRAMMAR,
        ARENA_GRAMMAR, ARRAY_GRAMMAR,
    )  # fmt: skip
    keys = {key for table in grammars for key in table.keys}
    named = set(re.findall(r"\w+", TEXT))
    assert sorted(keys - named - {"level"}) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_named(dtype: str) -> None:
    """The document names every element type."""
    assert f"`{dtype}`" in TEXT
