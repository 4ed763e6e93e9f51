"""docs/budget-format.md says what the reader does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import CLAIM, OUTPUT, settings_grammar, transform_grammar
from pytest_modelbudget.formats.table import frontend_table
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.transforms.table import transform_table
from tests.builders.texts import Problems

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "budget-format.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def test_there_are_examples() -> None:
    """The document shows budgets."""
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(problems: Problems, example: str) -> None:
    """Every budget in the document is one."""
    assert problems(example) == []


def test_every_key_is_named() -> None:
    """The document names every key of the reader's tables, and every reserved one."""
    model = grammar.model_grammar(frontend_table())
    limits = grammar.limits_grammar(metric_table())
    transform = transform_grammar(transform_table())
    settings = (settings_grammar(each) for each in transform_table().values())
    tables = (
        grammar.FILE, grammar.DEFAULTS, model, grammar.LIMIT, grammar.OPS_LIMIT, grammar.SPEC,
        transform, CLAIM, OUTPUT, *settings,
    )  # fmt: skip
    keys = {key for table in tables for key in (*table.keys(), *table.reserved)}
    named = set(re.findall(r"\w+", TEXT))
    assert sorted(keys - named - {"level"}) == []
    assert sorted(set(limits.reserved) - named) == []


@pytest.mark.parametrize("dtype", grammar.DTYPES)
def test_every_dtype_is_named(dtype: str) -> None:
    """The document names every element type."""
    assert f"`{dtype}`" in TEXT
