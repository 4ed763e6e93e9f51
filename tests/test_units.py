"""Units: exact numbers read from their spellings, and rounded for eyes."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.errors import UnitError
from pytest_modelbudget.units import (
    SI,
    UNITS,
    decimal_text,
    exact,
    percentage,
    quantity,
    quantity_pattern,
    readable,
    readable_pair,
    room,
    several,
    snug_quantity,
    ungrouped,
    with_article,
)

WHOLE = st.sampled_from([symbol for symbol, unit in UNITS.items() if unit.whole])
READ = [
    ("11.7 M", "param", 117 * 10**5),
    ("11.7M", "param", 117 * 10**5),
    ("11.7 Mparam", "param", 117 * 10**5),
    ("11689512", "param", 11_689_512),
    ("11_689_512", "param", 11_689_512),
    ("0", "param", 0),
    ("1e6", "param", 10**6),
    ("1.5e3", "param", 1500),
    ("010", "param", 10),
    ("46.8 MB", "B", 468 * 10**5),
    ("12 MiB", "B", 12 * 1024 * 1024),
    ("12 Mi", "B", 12 * 1024 * 1024),
    ("1.5 KiB", "B", 3 * 512),
    ("1 GiB", "B", 1024**3),
    ("1 k", "B", 1000),
    ("1 TB", "B", 10**12),
    ("512 B", "B", 512),
    ("1.8 GMAC", "MAC", 18 * 10**8),
    ("1.814073344 GMAC", "MAC", 1_814_073_344),
    ("3.6 GFLOP", "FLOP", 36 * 10**8),
    ("20", "op", 20),
    ("20 op", "op", 20),
    ("31.02 FLOP/B", "FLOP/B", Fraction(3102, 100)),
    ("31", "FLOP/B", Fraction(31)),
    ("1.5 s", "s", Fraction(3, 2)),
    ("1.5 ms", "s", Fraction(3, 2000)),
    ("15 us", "s", Fraction(15, 10**6)),
    ("1.2 GB/s", "B/s", Fraction(12 * 10**8)),
    ("480 M", "MAC/s", Fraction(480 * 10**6)),
    ("2%", "%", Fraction(2, 100)),
    ("2.5 %", "%", Fraction(25, 1000)),
]


@pytest.mark.parametrize(("text", "unit", "value"), READ)
def test_quantity(text: str, unit: str, value: int | Fraction) -> None:
    """A quantity is an exact number of its metric's unit, and never a float."""
    read = quantity(text, unit)
    assert read == value
    assert type(read) is (int if UNITS[unit].whole else Fraction)
    assert re.fullmatch(quantity_pattern(unit), text)


@pytest.mark.parametrize(
    ("text", "unit", "named"),
    [
        ("26 mb", "B", ["26 MB (26,000,000 B)", "26 MiB (27,262,976 B)", "26 Mbit (3,250,000 B)"]),
        ("26 Mb", "B", ["26 MB", "26 MiB", "26 Mbit"]),
        ("5 Mbit", "B", ["'5 Mbit' counts bits, 625,000 B, but this key counts B: write '625000 B'"]),
        ("5 kbit", "B", ["'5 kbit' counts bits, 625 B, but this key counts B: write '625 B'"]),
        ("26 KB", "B", ["26 kB (26,000 B)", "26 KiB (26,624 B)"]),
        ("1 MIB", "B", ["1 MiB"]),
        ("1,5 MB", "B", ["'1.5 MB'", "'15 MB'"]),
        ("61,100,840", "param", ["'61100840'", "'61_100_840'"]),
        ("2%", "B", ["2% of a baseline", "2 B"]),
        ("2", "%", ["2%", "2 times", "write '2%' or '200%'"]),
        ("0.05", "%", ["0.05%", "0.05 times", "write '0.05%' or '5%'"]),
        ("1.5", "param", ["1.5 param", "1.5 Mparam"]),
        ("1.5", "s", ["1.5 s", "1.5 ms"]),
        ("31.02", "FLOP/B", ["31.02 FLOP/B"]),
        ("11 m", "param", ["11 M (11,000,000 param)", "milli"]),
        ("1.8 GFLOP", "MAC", ["FLOP", "MAC"]),
        ("1.8 GFLOPS", "FLOP", ["'1.8 GFLOP'"]),
        ("1.8 GFLOPs", "MAC", ["'1.8 GFLOPs' counts FLOP, but this key counts MAC"]),
        ("1.8 GMACs", "FLOP", ["'1.8 GMACs' counts MAC, but this key counts FLOP"]),
        ("1.8 GMACs", "MAC", ["did you mean '1.8 GMAC'?"]),
        ("5 Ms", "B", ["has no unit of B in 'Ms'"]),
        ("12 MiB", "param", ["B", "param"]),
        ("1.8 G MAC", "MAC", ["'1.8 GMAC'"]),
        ("12 params", "param", ["'12 param'"]),
        ("26 MBfoo", "B", ["'26 MB'"]),
        ("1 TiB", "B", ["'1 TB'"]),
        ("0.3 B", "B", ["'0 B'", "'1 B'"]),
        ("1.0005 k", "B", ["1000.5 B", "'1000 B'", "'1001 B'"]),
        ("nan", "B", ["no number"]),
        (".inf", "B", ["no number"]),
        ("-3 MB", "B", ["sign"]),
        ("+3 MB", "B", ["sign"]),
        ("", "B", ["number and a unit"]),
        ("1\n2 MB", "B", ["number and a unit"]),
        ("MB", "B", ["no quantity"]),
        ("1.5.2 MB", "B", ["no quantity"]),
        ("1_0 MB", "B", ["no quantity"]),
        ("1e999 MB", "B", ["'e999 MB'"]),
        ("1.230,5 M", "param", ["has a comma: write '1230.5 M'"]),
        ("1,230,500.25 k", "param", ["has a comma: write '1230500.25 k'"]),
        ("1,230", "param", ["could mean '1.230' or '1230'"]),
        ("9" * 61, "B", ["number and a unit"]),
        ("٣ MB", "B", ["no quantity"]),
    ],
)
def test_refused_quantity(text: str, unit: str, named: list[str]) -> None:
    """What could be read in two ways, or in none, is refused with every reading named."""
    with pytest.raises(UnitError) as refusal:
        quantity(text, unit)
    assert [reading for reading in named if reading not in str(refusal.value)] == []
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "unit", "problem"),
    [
        ("3 gmac", "MAC", "'3 gmac' could mean 3 GMAC (3,000,000,000 MAC): write '3 GMAC'"),
        ("3 KiB/S", "B/s", "'3 KiB/S' could mean 3 KiB/s (3,072 B/s): write '3 KiB/s'"),
        ("3 KB/s", "B/s", "'3 KB/s' could mean 3 kB/s (3,000 B/s) or 3 KiB/s (3,072 B/s): write '3 kB/s' or '3 KiB/s'"),
    ],
)
def test_a_wrongly_cased_suffix_has_these_readings_and_no_others(text: str, unit: str, problem: str) -> None:
    """Thousandths are meant by a small m alone, and 1024 only where an i may have been forgotten."""
    with pytest.raises(UnitError) as refusal:
        quantity(text, unit)
    assert str(refusal.value) == problem


@pytest.mark.parametrize("unit", ["FLOP/B", "B/s", "MAC/s"])
def test_rates_are_not_counted_whole(unit: str) -> None:
    """Half of one in a second exists, as half of a byte does not."""
    assert quantity(f"1.5 {unit}", unit) == Fraction(3, 2)


def test_the_digits_of_a_fraction_do_not_go_through_a_float() -> None:
    """10**30 and 7 * 5**30 are no floats: 5**-30 is 2**30 of 10**30, and a seventh of it never ends."""
    assert ungrouped(Fraction(1, 10**30)) == "0." + "0" * 29 + "1"
    assert ungrouped(Fraction(1, 5**30)) == "0." + str(2**30).zfill(30)
    assert ungrouped(Fraction(1, 7 * 5**30)) == f"1/{7 * 5**30}"


def test_between_two_bytes() -> None:
    """6.2 MiB is 6,501,171.2 B: a maximum of 6,501,171 and a minimum of 6,501,172 whole bytes."""
    assert 62 * 1024**2 // 10 == 6_501_171
    assert quantity("6.2 MiB", "B") == 6_501_171
    assert quantity("6.2 MiB", "B", round_up=True) == 6_501_172


@given(st.integers(0, 10**40), WHOLE)
def test_round_trip(value: int, unit: str) -> None:
    """Every whole number can be written with its unit and is read back unchanged."""
    assert quantity(f"{value} {unit}", unit) == value
    assert quantity(f"{value:_}", unit) == value


@given(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(SI)))
def test_prefixes_are_exact(number: object, prefix: str) -> None:
    """A decimal and a prefix are multiplied exactly: never through a float."""
    value = Fraction(str(number)) * SI[prefix]
    assert quantity(f"{number} {prefix}", "B") == value


@given(st.text(max_size=70), st.sampled_from(sorted(UNITS)))
def test_only_unit_errors(text: str, unit: str) -> None:
    """Whatever is written, it is a quantity or refused in words."""
    with suppress(UnitError):
        assert quantity(text, unit) >= 0


# Quantities that hold a measured number.


@pytest.mark.parametrize(
    ("value", "unit", "like", "up", "down"),
    [
        pytest.param(3_504_872, "param", "3.4 M", "3.51 M", "3.5 M", id="prefix"),
        pytest.param(3_504_872, "param", "3_400_000", "3_510_000", "3_500_000", id="grouped"),
        pytest.param(3_504_872, "param", "1e6", "3510000", "3500000", id="exponent"),
        pytest.param(3_504_872, "param", "", "3.51 M", "3.5 M", id="of its own"),
        pytest.param(46_759_648, "B", "46MB", "46.8MB", "46.7MB", id="no space"),
        pytest.param(6_501_171, "B", "6.1 MiB", "6.2 MiB", "6.19 MiB", id="IEC"),
        pytest.param(7, "B", "6.1 MB", "0.000007 MB", "0.000007 MB", id="tiny"),
        pytest.param(999_999, "B", "", "1 MB", "999 kB", id="next prefix"),
        pytest.param(0, "MAC", "", "0 MAC", "0 MAC", id="zero"),
        pytest.param(Fraction(9951, 100), "FLOP/B", "", "99.6 FLOP/B", "99.5 FLOP/B", id="just below three digits"),
        pytest.param(Fraction(3102, 100), "FLOP/B", "30", "31.1 FLOP/B", "31", id="ratio"),
        pytest.param(Fraction(1, 8), "%", "2%", "12.5%", "12.5%", id="percentage"),
        pytest.param(Fraction(1, 3), "s", "", "334 ms", "333 ms", id="seconds"),
    ],
)
def test_snug_quantity(value: int | Fraction, unit: str, like: str, up: str, down: str) -> None:
    """Three significant digits, never on the wrong side, spelled as its neighbour."""
    assert snug_quantity(value, unit, like=like) == up
    assert snug_quantity(value, unit, like=like, down=True) == down


@given(
    st.integers(0, 10**16), st.sampled_from(["", "1", "1_000", "3 k", "3k", "2.5 MB", "7 MiB", "1 GiB", "1e3", "4 TB"])
)
def test_a_snug_quantity_holds_its_number_tightly(value: int, like: str) -> None:
    """Read again it is no less than the number, and less than one percent more; and downwards."""
    most = quantity(snug_quantity(value, "B", like=like), "B")
    least = quantity(snug_quantity(value, "B", like=like, down=True), "B", round_up=True)
    assert least <= value <= most
    assert most - value <= value / Fraction(100)
    assert value - least <= value / Fraction(100)


# For eyes: rounded, and side by side.


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


@pytest.mark.parametrize(
    ("first", "second", "unit", "shown"),
    [
        pytest.param(Fraction(1, 3), Fraction(1_000_003, 3_000_000), "FLOP/B", ("0.333333", "0.333334"), id="thirds"),
        pytest.param(Fraction(18_900, 7), Fraction(18_901, 7), "FLOP/B", ("2.7000 k", "2.7001 k"), id="thousands"),
        pytest.param(Fraction(8_191, 8_192), Fraction(8_190, 8_192), "FLOP/B", ("0.9999", "0.9998"), id="halves"),
        pytest.param(Fraction(9_999, 10_001), Fraction(9_998, 10_001), "%", ("99.98", "99.97"), id="shares"),
        pytest.param(Fraction(1, 7_000), Fraction(1_001, 7_000_000), "s", ("142.9 ", "143.0 "), id="a spelling"),
    ],
)
def test_ratios_that_differ_have_as_many_digits_as_it_takes(
    first: Fraction, second: Fraction, unit: str, shown: tuple[str, str]
) -> None:
    """And no fraction, nor all digits of a half of a half: 18,901 / 7 is 2,700.14."""
    for text, expected in zip(readable_pair(first, second, unit), shown, strict=True):
        assert text.startswith(expected)
        assert len(text) < 20


@pytest.mark.parametrize(
    ("share", "plain", "signed"),
    [
        pytest.param(Fraction(62, 1000), "6.2%", "+6.2%", id="a share"),
        pytest.param(Fraction(-62, 1000), "-6.2%", "-6.2%", id="below"),
        pytest.param(Fraction(0), "0.0%", "0.0%", id="nothing"),
        pytest.param(Fraction(1, 1000), "0.10%", "+0.10%", id="just enough"),
        pytest.param(Fraction(1, 46_800_000), "<0.1%", "<+0.1%", id="tiny"),
        pytest.param(Fraction(-1, 46_800_000), ">-0.1%", ">-0.1%", id="tiny, below"),
        pytest.param(Fraction(99_963, 100_000), ">99.9%", "+100.0%", id="nearly all"),
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


@given(st.integers(0, 10**17), WHOLE)
def test_readable_is_close(value: int, unit: str) -> None:
    """What eyes see is a quantity within half a unit of the third digit of the exact number."""
    read = quantity(readable(value, unit), unit)
    assert abs(read - value) * 200 <= max(value, 1)


@given(st.integers(0, 10**15), st.integers(0, 10**15), WHOLE)
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


@pytest.mark.parametrize("words", ["an int", "an Opaque", "an exported", "a UNet", "a uint8", "a str", "a _Slot"])
def test_nouns_with_their_articles(words: str) -> None:
    """Before a vowel another one than before a consonant, or a u that is spoken as one."""
    assert with_article(words.split()[1]) == words


@pytest.mark.parametrize("text", ["0.1b", "0.25b", "0.0001kA"])
def test_no_refusal_proposes_a_part_of_a_byte(text: str) -> None:
    """What a message says to write can be written."""
    with pytest.raises(UnitError, match=r"write an amount such as '1\.8 GB'"):
        quantity(text, "B")


@pytest.mark.parametrize(
    ("text", "written"), [("0.05", "write '0.05%' or '5%'"), ("1e60", "write '1e60%'")], ids=["short", "too long"]
)
def test_a_number_alone_for_a_share_is_proposed_as_both_where_both_are_read(text: str, written: str) -> None:
    """A hundred times 1e60 has 63 characters written out, and a quantity 60 at most."""
    with pytest.raises(UnitError) as raised:
        quantity(text, "%")
    assert str(raised.value).endswith(f"times the whole: {written}")
