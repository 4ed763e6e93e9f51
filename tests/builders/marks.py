"""Marks: those of a test module, read from its text, since it may not be importable; and of what needs an extra."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

REQUIRED = environ.get("MODELBUDGET_ZOO") == "required"
ALL_MODELS = environ.get("MODELBUDGET_MODELS") == "all"
TIMES = int(environ.get("MODELBUDGET_FUZZ", "1"))  # as many tries as usual, of what is drawn at random


def marks_of(path: Path) -> set[str]:
    """The names in its ``pytestmark``; a decorated test of it has none here."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    assigned = [each for each in statements if isinstance(each, ast.Assign)]
    values = [each.value for each in assigned if ast.unparse(each.targets[0]) == "pytestmark"]
    nodes = [node for value in values for node in ast.walk(value)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} - {"mark"}


def needs(package: str, extra: str = "zoo") -> pytest.MarkDecorator:
    """Skips a test where a package of the extra is not installed; in CI's leg the test fails instead."""
    missing = not REQUIRED and find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is in the extra '{extra}'")


def is_older_torch(than: str) -> bool:
    """Whether the installed torch is older."""
    return Version(version("torch")) < Version(than)


def since_torch(lowest: str, why: str) -> pytest.MarkDecorator:
    """Skips a test of what an older torch lacks."""
    return pytest.mark.skipif(is_older_torch(lowest), reason=f"needs torch {lowest}: {why}")


def by_turns(names: Sequence[str], types: Sequence[str], usual: Collection[str]) -> list[Any]:
    """Parameters: every name in every type on request, and usually some names, each in one type, all types in turn."""
    return [
        pytest.param(name, dtype, marks=one_of_many(dtype, [types[turn % len(types)]] if name in usual else []))
        for turn, name in enumerate(names)
        for dtype in types
    ]


def each_in_turn(cases: Sequence[tuple[Any, ...]], types: Sequence[str]) -> list[Any]:
    """Parameters: every case in every type on request, and usually each case in one type, all types in turn."""
    return [
        pytest.param(*case, dtype, marks=one_of_many(dtype, [types[(turn + turn // len(types)) % len(types)]]))
        for turn, case in enumerate(cases)
        for dtype in types
    ]


def usually(usual: str, names: Sequence[str]) -> list[Any]:
    """Parameters: each of these types, settings or names on request, and usually one."""
    return [pytest.param(name, marks=one_of_many(name, [usual])) for name in names]


def one_of_many(name: str, usual: Collection[str]) -> pytest.MarkDecorator:
    """Skips a model whose kind the usual ones show too; MODELBUDGET_MODELS=all runs every one."""
    reason = "one of many models, each seconds long: MODELBUDGET_MODELS=all runs them"
    return pytest.mark.skipif(not ALL_MODELS and name not in usual, reason=reason)
