"""The lock file: the same text for the same numbers, one a line, read back exactly."""

from __future__ import annotations

import json
import subprocess
from fractions import Fraction
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.budget.lock_file import (
    Lock,
    LockedModel,
    LockedValue,
    LockError,
    lock_path,
    lock_text,
    locked_value,
    read_lock,
)
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.metrics.measurement import Measurement, UnmeasuredOp

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: "<<<<<<<" not in text
)
COUNTS = st.integers(min_value=0, max_value=2**70)
SHAPES = st.none() | st.lists(COUNTS, max_size=4).map(tuple)
PARTS = st.builds(Part, NAMES, COUNTS, st.none() | NAMES, SHAPES)
WHOLE = st.builds(
    LockedValue,
    COUNTS,
    NAMES,
    st.lists(PARTS, max_size=3).map(tuple),
    st.integers(0, 5),
    versions=st.dictionaries(NAMES, NAMES, max_size=2),
)
RATIOS = st.tuples(COUNTS, st.integers(1, 2**70)).map(
    lambda pair: LockedValue(Fraction(*pair), "FLOP/B", unreduced=pair)
)
LOCKS = st.builds(Lock, st.dictionaries(NAMES, st.dictionaries(NAMES, WHOLE | RATIOS, max_size=3), max_size=3))


def number(value: int) -> LockedValue:
    return LockedValue(value, "param", (Part("fc", value, "weight", (value, 1)),))


@given(LOCKS)
def test_what_is_written_is_read(lock: Lock) -> None:
    """Every number comes back exact, ratios as the pair that they were made from."""
    assert read_lock(lock_text(lock), "a.lock.json") == lock


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
        pytest.param("[]", "no lock file of this version: delete it", id="a list"),
        pytest.param('{"schema": "model-budget-lock/1"}', "no lock file", id="no models"),
        pytest.param('{"schema": "model-budget-lock/2", "models": {}}', "lock/2", id="newer"),
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
