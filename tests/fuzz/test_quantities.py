"""Random numbers and how they are written: read back, in the same order, whoever rounds them."""

from __future__ import annotations

import re
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_modelbudget.errors import UnitError
from pytest_modelbudget.units import UNITS, exact, quantity, quantity_pattern, readable, snug_quantity, unit_named
from tests.builders.marks import TIMES

ANY = st.sampled_from(sorted(UNITS))
WHOLE = st.sampled_from([symbol for symbol, unit in UNITS.items() if unit.whole])
NEAR_PREFIXES = st.builds(lambda digits, power: digits * 10**power, st.integers(0, 2000), st.integers(0, 6))
COUNTS = st.integers(0, 10**17) | NEAR_PREFIXES
SHARES = st.fractions(0, 10**13, max_denominator=10**6)
TRIES = settings(max_examples=100 * TIMES)
DIGITS = r"[0-9]{1,4}([_.][0-9]{1,4})?(e[0-9]{1,2})?"
WRITTEN = st.from_regex(DIGITS + "[ ]{0,2}(K|k|M|m|G|T|P|Ki|Mi|u)?[A-Za-z/%]{0,5}", fullmatch=True)


def amount(text: str, unit: str) -> Fraction:
    return Fraction(quantity(text, unit))


def refusal(text: str, unit: str) -> str:
    """Why a text is no quantity of a unit; "" where it is one."""
    try:
        quantity(text, unit)
    except UnitError as error:
        return str(error)
    return ""


@TRIES
@given(COUNTS, COUNTS, WHOLE)
def test_what_eyes_see_keeps_the_order_of_counts(first: int, second: int, unit: str) -> None:
    """Rounding may make two numbers alike, and never the smaller one the larger."""
    least, most = sorted((first, second))
    assert amount(readable(least, unit), unit) <= amount(readable(most, unit), unit)


@TRIES
@given(SHARES, SHARES, ANY)
def test_what_eyes_see_keeps_the_order_of_ratios(first: Fraction, second: Fraction, unit: str) -> None:
    """The same of numbers that are not whole, where such exist."""
    if unit_named(unit).whole:
        first, second = Fraction(int(first)), Fraction(int(second))
    least, most = sorted((first, second))
    assert amount(readable(least, unit), unit) <= amount(readable(most, unit), unit)


@TRIES
@given(COUNTS, st.integers(0, 6), st.sampled_from(sorted({*UNITS} - {"%"})))  # which is exact as a share of one
def test_every_digit_is_read_back(value: int, places: int, unit: str) -> None:
    """The exact text without the commas that separate thousands is the number itself."""
    number = Fraction(value) if unit_named(unit).whole else Fraction(value, 10**places)
    text = exact(number, unit).replace(",", "")
    assert amount(text if " " in text else f"{text} {unit}", unit) == number


@TRIES
@given(COUNTS, COUNTS, ANY, st.booleans())
def test_snug_quantities_keep_the_order_and_are_snug_themselves(first: int, second: int, unit: str, down: bool) -> None:
    """The bound of the larger number is no less; and the bound of a bound is that bound."""
    least, most = (amount(snug_quantity(value, unit, down=down), unit) for value in sorted((first, second)))
    assert least <= most
    assert amount(snug_quantity(most, unit, down=down), unit) == most


@TRIES
@given(WRITTEN, ANY)
def test_an_editor_and_the_reader_take_the_same_quantities(text: str, unit: str) -> None:
    """What is read fits the pattern of the schema; what fits and is refused lies between two whole ones."""
    fits, problem = re.search(quantity_pattern(unit), text) is not None, refusal(text, unit)
    assert fits or problem
    assert not (fits and problem) or "counted whole" in problem


@TRIES
@given(WRITTEN, ANY)
def test_what_a_refusal_proposes_is_read(text: str, unit: str) -> None:
    """Every spelling that a message tells to write is a quantity of that unit."""
    for proposal in re.findall(r"'([^']*)'", refusal(text, unit).rpartition(": ")[2]):
        assert quantity(proposal, unit) >= 0
