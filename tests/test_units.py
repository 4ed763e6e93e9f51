"""What eyes see of exact numbers, rounded and side by side."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.units import (
    UNITS,
    decimal_text,
    exact,
    percentage,
    quantity,
    readable,
    readable_pair,
    room,
    several,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_814_073_344, "MAC", "1.81 GMAC"),
        (46_758_048, "B", "46.8 MB"),
        (Fraction(3_628_146_688, 116_950_592), "FLOP/B", "31.02 FLOP/B"),
        (Fraction(49_679, 100_000), "FLOP/B", "0.497 FLOP/B"),
        (3_729_047, "param", "3.73 M"),
        (999, "B", "999 B"),
        (1000, "B", "1.00 kB"),
        (9_995, "B", "10.0 kB"),
        (999_499, "B", "999 kB"),
        (999_500, "B", "1.00 MB"),
        (20, "op", "20"),
        (0, "B", "0 B"),
        (-1500, "B", "-1.50 kB"),
        (Fraction(3, 2000), "s", "1.50 ms"),
        (Fraction(2), "s", "2.00 s"),
        (Fraction(1, 50), "%", "2.0%"),
        (5 * 10**15, "B", "5000 TB"),
    ],
)
def test_readable(value: int | Fraction, unit: str, text: str) -> None:
    """Eyes see three significant digits with an SI prefix; small counts are shown whole."""
    assert readable(value, unit) == text


def test_exact() -> None:
    """Exact numbers show every digit; a ratio without end is a fraction."""
    assert exact(1_814_073_344, "MAC") == "1,814,073,344 MAC"
    assert exact(11_689_512, "param") == "11,689,512"
    assert exact(Fraction(5001, 2), "FLOP/B") == "2,500.5 FLOP/B"
    assert exact(Fraction(1, 3), "FLOP/B") == "1/3 FLOP/B"


def test_readable_pair() -> None:
    """Two numbers are rounded, unless that would make different ones look alike."""
    assert readable_pair(3_729_047, 3_510_000, "param") == ("3.73 M", "3.51 M")
    assert readable_pair(11_700_001, 11_700_000, "param") == ("11,700,001", "11,700,000")
    assert readable_pair(11_700_000, 11_700_000, "param") == ("11.7 M", "11.7 M")
    third = Fraction(1, 3)
    assert readable_pair(third, third + Fraction(1, 10**6), "FLOP/B")[0] == "1/3 FLOP/B"


@pytest.mark.parametrize(
    ("share", "plain", "signed"),
    [
        pytest.param(Fraction(62, 1000), "6.2%", "+6.2%", id="a share"),
        pytest.param(Fraction(-62, 1000), "-6.2%", "-6.2%", id="below"),
        pytest.param(Fraction(0), "0.0%", "0.0%", id="nothing"),
        pytest.param(Fraction(1, 1000), "0.10%", "+0.10%", id="just enough"),
        pytest.param(Fraction(1, 46_800_000), "<0.1%", "<+0.1%", id="tiny"),
        pytest.param(Fraction(-1, 46_800_000), ">-0.1%", ">-0.1%", id="tiny, below"),
        pytest.param(Fraction(10), ">999%", ">+999%", id="huge"),
        pytest.param(Fraction(-10), "<-999%", "<-999%", id="huge, below"),
    ],
)
def test_room_is_bounded_at_both_ends(share: Fraction, plain: str, signed: str) -> None:
    """Nobody counts the zeros of a percentage."""
    assert (room(share), room(share, signed=True)) == (plain, signed)


def test_percentage() -> None:
    """A share is shown with one decimal, and more where that would show nothing."""
    assert percentage(Fraction(219_047, 3_510_000)) == "6.2%"
    assert percentage(Fraction(1, 3_510_000)) == "0.000028%"
    assert percentage(Fraction(-1, 8)) == "-12.5%"


def test_decimal_text() -> None:
    """A ratio in a record is a short decimal string."""
    assert decimal_text(Fraction(3_628_146_688, 116_950_592)) == "31.02"
    assert decimal_text(Fraction(-1, 4)) == "-0.2500"
    assert decimal_text(7) == "7"


COUNTED = st.sampled_from([symbol for symbol, unit in UNITS.items() if unit.whole])


@given(st.integers(0, 10**17), COUNTED)
def test_readable_is_close(value: int, unit: str) -> None:
    """What eyes see is a quantity within half a unit of the third digit of the exact number."""
    read = quantity(readable(value, unit), unit)
    assert abs(read - value) * 200 <= max(value, 1)


@given(st.integers(0, 10**15), st.integers(0, 10**15), COUNTED)
def test_pairs_differ(first: int, second: int, unit: str) -> None:
    """Different numbers never look alike side by side."""
    left, right = readable_pair(first, second, unit)
    assert (left == right) == (first == second)


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("limit",), "0 limits"),
        (1, ("limit",), "1 limit"),
        (2, ("limit",), "2 limits"),
        (1, ("input family", "input families"), "1 input family"),
        (2, ("input family", "input families"), "2 input families"),
    ],
)
def test_counted_nouns(count: int, words: tuple[str, ...], text: str) -> None:
    """One has no plural, none and many have; a plural of its own is given with it."""
    assert several(count, *words) == text
