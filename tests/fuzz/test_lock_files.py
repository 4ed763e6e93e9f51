"""Damaged lock files: refused in a sentence, or read as exactly the numbers that their text says."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.budget.base_inventory import Baselines
from pytest_modelbudget.budget.lock_file import Lock, LockError, lock_path, lock_text, read_lock
from tests.builders.locks import LOCKS
from tests.builders.marks import TIMES

ODD = (None, True, False, 0, -1, 1.0, 0.5, 1e400, 10**30, 10**40, "", "1", "1.50", "-1", "nan", "MAC", "\ud800", [], {},
       [1, 2], [1, 0], [3, 2], [[]], {"a": "b"}, ["fc", None, 3, None], [["fc", "w", 3, [3, 1]]])  # fmt: skip
KEYS = ("value", "unit", "exact", "with", "parts", "cut", "schema", "models", "", "params", "Value", "cut ")
PIECES = (b"", b"0", b"9", b"-", b".", b"e9", b",", b"\xff", b"\x00", b"\xef\xbb\xbf", b"\\ud800", b"\\u0031", b"\n",
          b"null", b"NaN", b"Infinity", b"[" * 5000, b"{", b"}", b"]", b'"', b'"value": 1, ', b'"cut": 1, ', b"//",
          "\u0663".encode(), "\u2028".encode(), b"1" * 5000, b"true")  # fmt: skip
TRIES = settings(max_examples=75 * TIMES)


def said(text: str) -> dict[str, Any]:
    """What a lock's text says, as JSON alone has it; defaults that may be left out are left out."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a key that stands there twice says two things"
        return dict(pairs)

    record: dict[str, Any] = json.loads(text, object_pairs_hook=distinct)
    for model in record["models"].values():
        for number in model.values():
            if isinstance(number["value"], str):  # a decimal, of which 1.50 and 1.5 are the same
                number["value"] = str(Fraction(number["value"]))
            for key, nothing in (("cut", 0), ("parts", []), ("exact", None)):
                if key in number and number[key] == nothing and number[key] is not False:
                    del number[key]
            for part in number.get("parts", ()):
                part.extend([None] * (4 - len(part)))
    return record


def read(text: str) -> tuple[Lock | None, str]:
    """The lock of a text; or None, and why."""
    try:
        return read_lock(text, "a.lock.json"), ""
    except LockError as error:
        return None, str(error)


def must_be_what_it_says(text: str) -> None:
    """Refused, or read as what it says: what is written of the numbers that were read says the same again."""
    lock, problem = read(text)
    if lock is None:
        assert "a.lock.json" in problem
        assert len(problem.splitlines()) == 1
        return
    # Words, not values: of true and 1, and of 1 and 1.0, JSON's values are equal.
    assert json.dumps(said(lock_text(lock)), sort_keys=True) == json.dumps(said(text), sort_keys=True)
    lock_text(lock).encode()  # a lock that was read can be written


@st.composite
def damaged_records(draw: st.DrawFn) -> str:
    """A lock with up to three of its values replaced, taken away, moved or doubled."""
    record = json.loads(lock_text(draw(LOCKS)))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = record
        for _ in range(draw(st.integers(0, 5))):
            inner = [value for value in (holder.values() if isinstance(holder, dict) else holder) if value]
            inner = [value for value in inner if isinstance(value, dict | list)]
            if not inner:
                break
            holder = draw(st.sampled_from(inner))
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        way = draw(st.sampled_from(("replace", "remove", "add", "copy"))) if keys else "add"
        value = deepcopy(draw(st.sampled_from(ODD)))
        if way == "remove":
            del holder[draw(st.sampled_from(keys))]
        elif way == "replace":
            holder[draw(st.sampled_from(keys))] = value
        else:
            value = deepcopy(holder[draw(st.sampled_from(keys))]) if way == "copy" else value
            if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS))] = value
            else:
                holder.insert(draw(st.integers(0, len(holder))), value)
    return json.dumps(record)


@TRIES
@given(damaged_records())
def test_a_damaged_record_is_refused_or_says_what_is_read(text: str) -> None:
    """No value is silently dropped, made another, or taken for one of another kind."""
    must_be_what_it_says(text)


@TRIES
@given(LOCKS, st.data())
def test_a_damaged_text_is_refused_or_says_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, lock: Lock, data: st.DataObject
) -> None:
    """The bytes of a file: cut, doubled, or with others in between; no error but a problem comes out."""
    content = lock_text(lock).encode()
    start = data.draw(st.integers(0, len(content)))
    end = min(len(content), start + data.draw(st.sampled_from((0, 1, 2, 8, 64))))
    middle = data.draw(st.sampled_from(PIECES) | st.just(content[start:end] * 2) | st.binary(max_size=3))
    content = content[:start] + middle + content[end:]
    budget = tmp_path_factory.getbasetemp() / "b.yaml"
    lock_path(budget).write_bytes(content)
    found = Baselines(budget.parent).in_working_tree(budget)
    assert found.is_there
    if found.lock is None:
        assert "b.lock.json" in found.problem
    else:
        must_be_what_it_says(content.decode("utf-8-sig"))
