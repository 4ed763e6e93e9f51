"""Rows of a profile made small: the largest kept, keys said once; and with digits that scripts can read."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pytest_modelbudget.reports.show import Record

Item = TypeVar("Item")
LARGEST_EXACT = 2**53 - 1  # a larger whole number goes as text: JavaScript would round it


def largest(items: Sequence[Item], most: int, size: Callable[[Item], Any]) -> tuple[list[Item], list[Item]]:
    """The largest items, at most so many, and the others, both in their order; of equal ones the first are kept."""
    by_size = sorted(range(len(items)), key=lambda at: size(items[at]), reverse=True)
    kept, rest = (sorted(some) for some in (by_size[:most], by_size[most:]))
    return [items[at] for at in kept], [items[at] for at in rest]


def packed(rows: Sequence[Record]) -> Record:
    """Rows without their keys, which stand once above them: half the size."""
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[row[column] for column in columns] for row in rows]}


def readable_by_scripts(value: Any) -> Any:
    """The same with whole numbers as text where JavaScript would not know every digit."""
    if isinstance(value, dict):
        return {key: readable_by_scripts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [readable_by_scripts(inner) for inner in value]
    return str(value) if isinstance(value, int) and abs(value) > LARGEST_EXACT else value
