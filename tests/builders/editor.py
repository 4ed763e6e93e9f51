"""An editor that knows the schema of budgets, and nothing else of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft7Validator

from pytest_modelbudget.budget.read_budget import json_schema
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, tree
from pytest_modelbudget.formats.spellings import scalar
from pytest_modelbudget.registry import tables


@cache
def validator() -> Draft7Validator:
    return Draft7Validator(json_schema(tables()))


def plain(node: Node) -> Any:
    """A tree as JSON has it: what an editor that follows YAML 1.2 hands to the schema."""
    if isinstance(node, Block):
        return {key.text: plain(value) for key, value in node.entries}
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    assert isinstance(node, Text)
    return scalar(node.text) if node.plain else node.text


def accepts(text: str) -> bool:
    return validator().is_valid(plain(tree(text, "b.yaml")))
