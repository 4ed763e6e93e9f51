"""The JSON Schema of lock files: it takes what is written, and refuses what the reader refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from pytest_modelbudget.budget.lock_file import Lock, LockError, lock_schema_text, lock_text, read_lock
from pytest_modelbudget.cli import main
from tests.builders.locks import LOCKS

SCHEMA = Draft202012Validator(json.loads(lock_schema_text()))
ROOT = Path(__file__).parents[2]
OURS = [*ROOT.glob("budgets/*.lock.json"), *ROOT.glob("examples/*/budgets/*.lock.json")]
UNLOCKED = {"hardware", "zoo"}  # no budget, and one whose packages are no extra of ours
PARAMS = {
    "value": 42, "unit": "param", "with": {"torch": "2.15.0"}, "parts": [["fc", "weight", 40, [4, 10]]], "cut": 1,
}  # fmt: skip
LOCK = {"schema": "model-budget-lock/1", "models": {"net": {"params": PARAMS}}}


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """``modelbudget schema lock``."""
    assert main(["schema", "lock"]) == 0
    assert capsys.readouterr().out == lock_schema_text()


@given(LOCKS)
def test_what_is_written_is_valid(lock: Lock) -> None:
    """Counts, ratios with their pairs, parts with and without shapes."""
    SCHEMA.validate(json.loads(lock_text(lock)))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_the_projects_own_locks_are_valid(path: Path) -> None:
    """Files that sessions wrote, one for each budget of the project and of its examples."""
    SCHEMA.validate(json.loads(path.read_text(encoding="utf-8")))


def test_each_budget_of_the_project_has_a_lock() -> None:
    """As a user has who commits what a local run adds; without one, a run in CI says so."""
    budgets = {path.stem for folder in (".", "examples/*") for path in ROOT.glob(f"{folder}/budgets/*.yaml")}
    assert {path.name.partition(".")[0] for path in OURS} == budgets - UNLOCKED


def put(*keys: str | int, value: object) -> Callable[[Any], None]:
    """A change of one value of a lock."""

    def change(lock: Any) -> None:
        for key in keys[:-1]:
            lock = lock[key]
        lock[keys[-1]] = value

    return change


NUMBER = ("models", "net", "params")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(put("schema", value="model-budget-lock/2"), id="another version"),
        pytest.param(put("owner", value="me"), id="an unknown key"),
        pytest.param(put("models", value=[]), id="no models"),
        pytest.param(put(*NUMBER, "by", value="me"), id="an unknown key of a number"),
        pytest.param(put(*NUMBER, "value", value=-1), id="below 0"),
        pytest.param(put(*NUMBER, "value", value=4.5), id="a float"),
        pytest.param(put(*NUMBER, "value", value="1e9"), id="no decimal"),
        pytest.param(put(*NUMBER, "unit", value=3), id="no unit"),
        pytest.param(put(*NUMBER, "with", value={"torch": 2}), id="no version"),
        pytest.param(put(*NUMBER, "parts", value={}), id="no list"),
        pytest.param(put(*NUMBER, "parts", 0, 2, value=-40), id="a part below 0"),
        pytest.param(put(*NUMBER, "parts", 0, 3, value=[4, "10"]), id="no shape"),
        pytest.param(put(*NUMBER, "parts", 0, value=["fc", "weight", 40]), id="three of four"),
        pytest.param(put(*NUMBER, "cut", value="1"), id="no count"),
    ],
)
def test_reader_and_schema_refuse_the_same(change: Callable[[Any], None]) -> None:
    """As it is, both take it; with one value changed, neither does."""
    assert SCHEMA.is_valid(LOCK)
    assert read_lock(json.dumps(LOCK), "a.lock.json").models["net"]["params"].value == 42
    changed = copy.deepcopy(LOCK)
    change(changed)
    assert not SCHEMA.is_valid(changed)
    with pytest.raises(LockError):
        read_lock(json.dumps(changed), "a.lock.json")
