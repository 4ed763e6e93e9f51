"""What counts as loosened in a lock file, number by number; what is not in the table is nothing."""

from __future__ import annotations

import pytest

from pytest_modelbudget.budget.changes import lock_loosenings
from pytest_modelbudget.budget.lock_file import Lock, LockedValue
from pytest_modelbudget.metrics.table import metric_table
from tests.builders.texts import Read, limits

GROW, MIN = "{params: {grow: 2%}}", "{params: {min: 10}}"
REMOVED, GONE = "params baseline removed, was 48", "a.lock.json is gone, or cannot be read, with 1 baseline"
KEY = ("net", "params")


def number(value: int, unit: str = "param") -> LockedValue:
    return LockedValue(value, unit)


def lock(value: LockedValue | None, model: str = "net") -> Lock:
    return Lock({model: {"params": value}} if value else {})


@pytest.mark.parametrize(
    ("text", "now", "measured", "expected"),
    [
        pytest.param(GROW, lock(number(48)), 48, [], id="as it was"),
        pytest.param(GROW, lock(number(40)), 48, [], id="lowered"),
        pytest.param(GROW, lock(number(500)), 48, ["+941.7 %: params baseline raised 48 -> 500 (48 measured)"],
                     id="raised"),  # 500 / 48 - 1
        pytest.param(GROW, lock(number(54)), 54, [], id="what is measured"),
        pytest.param(GROW, lock(number(50)), 54, [], id="between the base and what is measured"),
        pytest.param(GROW, lock(number(50)), 42, ["+4.2 %: params baseline raised 48 -> 50 (42 measured)"],
                     id="above both, of a model that shrank"),
        pytest.param(GROW, lock(number(50)), None, ["+4.2 %: params baseline raised 48 -> 50 (not measured here)"],
                     id="not measured"),
        pytest.param(MIN, lock(number(500)), 48, [], id="a minimum's, raised"),
        pytest.param(MIN, lock(number(5)), 48, ["-89.6 %: params baseline lowered 48 -> 5 (48 measured)"],
                     id="a minimum's, lowered"),  # 5 / 48 - 1
        pytest.param(GROW, lock(None), 48, [REMOVED], id="emptied"),
        pytest.param(GROW, lock(number(48), "other"), 48, [REMOVED], id="of another model"),
        pytest.param(GROW, lock(number(48, "MAC")), 48, [REMOVED], id="in another unit"),
        pytest.param(GROW, None, 48, [GONE], id="no lock"),
    ],
)  # fmt: skip
def test_a_lock_that_lets_a_model_grow_further_is_loosened(
    read: Read, text: str, now: Lock | None, measured: int | None, expected: list[str]
) -> None:
    """48 parameters were locked at the base."""
    found = lock_loosenings(
        read(limits(text)), now, "a.lock.json", at_base=lambda *key: number(48) if key == KEY else None,
        measured={} if measured is None else {KEY: number(measured)}, metrics=metric_table(),
    )  # fmt: skip
    assert [each.text.removeprefix("budget loosened").lstrip(": ") for each in found] == expected


def test_what_is_measured_and_merely_accepted_is_no_lock(read: Read) -> None:
    """A locked number that says so lets the model grow for good."""
    found = lock_loosenings(
        read(limits(GROW)), lock(number(54)), "a.lock.json", at_base=lambda *key: number(48),
        measured={KEY: number(54)}, metrics=metric_table(), accepted=(KEY,),
    )  # fmt: skip
    assert [each.what for each in found] == ["baseline raised"]
