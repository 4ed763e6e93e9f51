"""The lock file: the same text for the same numbers, one a line, read back exactly."""

from __future__ import annotations

import json
import subprocess
from fractions import Fraction
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given

from pytest_modelbudget.budget.lock_file import (
    Lock,
    LockedModel,
    LockedValue,
    LockError,
    lock_path,
    lock_text,
    locked_value,
    read_lock,
    read_value,
    value_record,
)
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement, UnmeasuredOp
from tests.builders.locks import LOCKS


def number(value: int) -> LockedValue:
    return LockedValue(value, "param", (Part("fc", value, "weight", (value, 1)),))


@given(LOCKS)
def test_what_is_written_is_read(lock: Lock) -> None:
    """Every number comes back exact, ratios as the pair that they were made from."""
    assert read_lock(lock_text(lock), "a.lock.json") == lock


@given(LOCKS)
def test_a_number_travels_without_a_file(lock: Lock) -> None:
    """What an item hands on in the same process is read as what a worker sends as JSON."""
    for model in lock.models.values():
        assert {name: read_value(value_record(value)) for name, value in model.items()} == model


@given(LOCKS)
def test_order_changes_nothing(lock: Lock) -> None:
    """The order in which models were measured is not in the text."""
    backwards: dict[str, LockedModel] = {
        path: dict(reversed(model.items())) for path, model in reversed(lock.models.items())
    }
    assert lock_text(Lock(backwards)) == lock_text(lock)


def test_one_number_a_line() -> None:
    """It is JSON, sorted, and a changed number is one changed line."""
    lock = Lock({"b": {"params": number(2), "macs": number(3)}, "a": {"params": number(1)}})
    text = lock_text(lock)
    assert list(json.loads(text)["models"]) == ["a", "b"]
    assert list(json.loads(text)["models"]["b"]) == ["macs", "params"]
    changed = lock_text(Lock({**lock.models, "b": {"params": number(9), "macs": number(3)}}))
    pairs = zip(text.splitlines(), changed.splitlines(), strict=True)
    assert sum(old != new for old, new in pairs) == 1


def test_changes_to_two_models_merge(tmp_path: Path) -> None:
    """git merges a change to one model with a change to another, and with a new one."""
    base = {"a": {"params": number(1)}, "b": {"params": number(2)}, "c": {"params": number(3)}}
    ours = {**base, "a": {"params": number(10)}}
    theirs = {**base, "b": {"params": number(2), "macs": number(5)}, "d": {"params": number(4)}}
    merged = {**theirs, "a": {"params": number(10)}}
    for name, models in (("base", base), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_text(lock_text(Lock(models)))
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert read_lock(run.stdout, "merged") == Lock(merged)


def test_only_the_largest_parts_are_kept() -> None:
    """1,001 parts: the smallest is counted and left out."""
    parts = [Part(f"layer{n}", 2000 - n) for n in range(1001)]
    total = sum(part.value for part in parts)
    value = locked_value(Measurement(total, "MAC"), parts, {})
    assert value is not None
    assert (len(value.parts), value.cut, value.value) == (1000, 1, total)
    lock = Lock({"a": {"macs": value}})
    assert read_lock(lock_text(lock), "a").value("a", "macs") == value


def test_a_lower_bound_is_not_locked() -> None:
    """A number with unmeasured ops says nothing about growth."""
    unmeasured = (UnmeasuredOp("aten::foo", 1, "", "no rule"),)
    assert locked_value(Measurement(5, "MAC", unmeasured=unmeasured), [], {}) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("{\n<<<<<<< HEAD\n", "the marks of an unfinished merge: take", id="merge"),
        pytest.param('{\n "schema": \n', "a.lock.json:3: no JSON", id="cut off"),
        pytest.param("[]", "no lock file of this version: Expected `object`", id="a list"),
        pytest.param('{"schema": "model-budget-lock/1"}', "no lock file", id="no models"),
        pytest.param('{"schema": "model-budget-lock/2", "models": {}}', "lock/2", id="newer"),
        pytest.param(
            '{"schema": "model-budget-lock/0", "models": {}}',
            "reads model-budget-lock/1: update pytest-modelbudget, or restore it from git, or delete it and run",
            id="older",
        ),
        pytest.param(
            '{"schema": "model-budget-lock/1", "models": {"a": {"macs": {"value": 1.5, "unit": "MAC", "with": {}}}}}',
            "no lock file",
            id="a float",
        ),
        pytest.param(
            '{"schema": "model-budget-lock/1", "models": {"a": {"macs": {"value": true, "unit": "MAC", "with": {}}}}}',
            "no lock file",
            id="a boolean",
        ),
        pytest.param(
            '{"schema": "model-budget-lock/1", "models": {"a": {"x": {"value": "1", "exact": '
            '[1, 0], "unit": "x", "with": {}}}}}',
            "no lock file",
            id="over zero",
        ),
        pytest.param("[" * 100_000, "no lock file", id="deep"),
    ],
)
def test_a_broken_lock_is_refused_in_a_sentence(text: str, told: str) -> None:
    """Place, cause and way out; never a number that is none."""
    with pytest.raises(LockError) as refusal:
        read_lock(text, "a.lock.json")
    assert str(refusal.value).startswith("a.lock.json")
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("budget", "lock"),
    [("b/vision.yaml", "b/vision.lock.json"), ("vision.yml", "vision.yml.lock.json"),
     ("v1.2.yaml", "v1.2.lock.json")],
)  # fmt: skip
def test_no_two_budgets_share_a_lock(budget: str, lock: str) -> None:
    """a.yaml and a.yml in one folder have locks of their own."""
    assert lock_path(PurePosixPath(budget)) == PurePosixPath(lock)


def lock_of(number: str, *, name: str = "macs", model: str = "net") -> str:
    """The text of a lock with one number, as its JSON."""
    return f'{{"schema": "model-budget-lock/1", "models": {{"{model}": {{"{name}": {number}}}}}}}'


GOOD = '"unit": "MAC", "with": {}'
RATIO = '"unit": "FLOP/B", "with": {}'


@pytest.mark.parametrize(
    ("number", "told"),
    [
        pytest.param(f'{{"value": "0.5", {GOOD}}}', "the value '0.5' is no whole number", id="a fraction"),
        pytest.param(f'{{"value": "5", {GOOD}}}', "the value '5' is no whole number", id="a whole one in quotes"),
        pytest.param(f'{{"value": 5e3, {GOOD}}}', "got `float` - at `$.value`", id="an exponent"),
        pytest.param(f'{{"value": -5, {GOOD}}}', "Expected `int` >= 0 - at `$.value`", id="negative"),
        pytest.param(f'{{"value": true, {GOOD}}}', "got `bool` - at `$.value`", id="a boolean"),
        pytest.param(f'{{"value": null, {GOOD}}}', "got `null` - at `$.value`", id="nothing"),
        pytest.param(f'{{"value": NaN, {GOOD}}}', "got `float` - at `$.value`", id="NaN"),
        pytest.param(f'{{"value": [5], {GOOD}}}', "got `array` - at `$.value`", id="a list"),
        pytest.param('{"unit": "MAC", "with": {}}', "missing required field `value`", id="no value"),
        pytest.param('{"value": 5, "unit": 5, "with": {}}', "got `int` - at `$.unit`", id="a unit that is none"),
        pytest.param(f'{{"value": 5, "vlaue": 6, {GOOD}}}', "unknown field `vlaue`", id="unknown key"),
        pytest.param(f'{{"value": 5, "value": 6, {GOOD}}}', "'value' is there twice", id="a key twice"),
        pytest.param(f'{{"value": 5, "cut": -1, {GOOD}}}', "Expected `int` >= 0 - at `$.cut`", id="negative cut"),
        pytest.param(f'{{"value": 5, "parts": [["a", null, -1, null]], {GOOD}}}', "at `$.parts[0][2]`", id="part"),
        pytest.param(f'{{"value": 5, "parts": [["a"]], {GOOD}}}', "length 4, got 1 - at `$.parts[0]`", id="short part"),
        pytest.param(f'{{"value": 5, "parts": "", {GOOD}}}', "got `str` - at `$.parts`", id="parts that are no list"),
        pytest.param(f'{{"value": 5, "parts": [["a", "w", 5, "ab"]], {GOOD}}}', "at `$.parts[0][3]`", id="no shape"),
        pytest.param(f'{{"value": "5", "exact": [5, 1], {GOOD}}}', "no whole number", id="a pair of a count"),
        pytest.param(f'{{"value": "1e9999", {RATIO}}}', "matching regex", id="R1"),
        pytest.param(f'{{"value": "-1.5", {RATIO}}}', "matching regex", id="negative ratio"),
        pytest.param(f'{{"value": "9.0", "exact": [3, 2], {RATIO}}}', "not what its exact pair", id="two values"),
        pytest.param(f'{{"value": "1.5", "exact": [-3, -2], {RATIO}}}', "at `$.exact[0]`", id="-3/-2"),
        pytest.param("null", "Expected `object`, got `null`", id="null"),
    ],
)
def test_n14_r1_an_odd_number_breaks_the_lock_by_file_and_key(number: str, told: str) -> None:
    """A count is a whole number from 0, only ratios have fractions, and a key stands there once."""
    with pytest.raises(LockError) as refusal:
        read_lock(lock_of(number), "a.lock.json")
    text = str(refusal.value)
    assert text.startswith("a.lock.json is no lock file of this version: ")
    assert told in text
    assert text.endswith("restore it from git, or delete it and run pytest --model-budget --model-budget-update=create")
    assert "\n" not in text
    if "twice" not in told:
        assert "'net', 'macs': " in text


def test_n14_a_name_that_stands_there_twice_breaks_the_lock() -> None:
    """A badly resolved conflict leaves two numbers, and nobody knows which one is meant."""
    text = lock_of('{"value": 5, "unit": "MAC", "with": {}}')
    twice = text.replace('"net": ', '"net": {}, "net": ')
    with pytest.raises(LockError, match="the key 'net' is there twice"):
        read_lock(twice, "a.lock.json")


@pytest.mark.parametrize("mark", ["<<<<<<< HEAD", "=======", ">>>>>>> change", "||||||| base"])
def test_n14_every_mark_of_a_merge_is_known(mark: str) -> None:
    """Also the one that is left of three."""
    with pytest.raises(LockError, match="the marks of an unfinished merge: take either side"):
        read_lock(f"{{\n{mark}\n}}", "a.lock.json")


@pytest.mark.parametrize(
    "odd", [Measurement(-5, "MAC"), Measurement(Fraction(1, 2), "MAC"), Measurement(10**40, "MAC"),
            Measurement(Fraction(-1, 2), "FLOP/B")],
)  # fmt: skip
def test_n14_what_could_not_be_read_back_is_not_locked(odd: Measurement) -> None:
    """An extension's number below 0, or half a count, would break the lock that holds it."""
    assert locked_value(odd, [], {}) is None


def test_n14_half_of_a_character_is_in_no_lock() -> None:
    """JSON may write one, and no file can hold it."""
    with pytest.raises(LockError, match="no lock file of this version"):
        read_lock('{"schema": "model-budget-lock/1", "models": {"\\ud800": {}}}', "a.lock.json")
