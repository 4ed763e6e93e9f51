"""Figures of the record as the page's text: rounded or exact, with a sign where they change."""

from __future__ import annotations

from fractions import Fraction

from pytest_modelbudget.units import exact, readable

ABSENT = "–"


def parsed(value: int | str) -> int | Fraction:
    """The exact number that a record means; a ratio is a decimal string there."""
    return value if isinstance(value, int) else Fraction(value)


def number(value: int | str | None, unit: str) -> str:
    """A figure of the record, rounded for eyes."""
    return ABSENT if value is None else readable(parsed(value), unit)


def exact_number(value: int | str | None, unit: str) -> str:
    """A figure of the record, every digit of it."""
    return ABSENT if value is None else exact(parsed(value), unit)


def signed(change: int | Fraction, unit: str) -> str:
    """A change with its sign: every digit of a count, a ratio rounded."""
    amount = change if change > 0 else -change
    text = exact(amount, unit) if isinstance(amount, int) else readable(amount, unit)
    return f"+{text}" if change > 0 else f"−{text}" if change < 0 else text
