"""Units, and how readers see exact numbers of them: rounded for eyes, never to compare.

The only file that knows 1000 from 1024, and the only one that rounds so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Union

Number = Union[int, Fraction]

SI = MappingProxyType({"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4})
IEC = MappingProxyType({"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3})
NO_PREFIXES: Mapping[str, int] = MappingProxyType({})
LEAST_ROOM, MOST_ROOM = Fraction(1, 1000), Fraction(10)  # where percentages end to tell much


@dataclass(frozen=True, slots=True)
class Unit:
    """What one metric is counted in.

    whole: only whole ones exist (bytes, parameters). spellings: further ways to write it, with
    their worth. bare: whether a number alone means it. shown: how readers see it after a number.
    """

    symbol: str
    whole: bool = True
    prefixes: Mapping[str, int] = field(default_factory=lambda: SI)
    spellings: Mapping[str, Fraction] = field(default_factory=dict)
    bare: bool = True
    shown: str = ""

    def suffixes(self) -> dict[str, Fraction]:
        """Everything that may follow a number, and what one of it is worth."""
        worth = {"": Fraction(1)} if self.bare else {}
        if not self.spellings:
            worth[self.symbol] = Fraction(1)
        for prefix, factor in self.prefixes.items():
            worth[prefix] = worth[prefix + self.symbol] = Fraction(factor)
        return worth | dict(self.spellings)

    def best_spelling(self, value: Number) -> str:
        """The largest further spelling of which there is at least one, else the smallest."""
        fitting = (spelling for spelling, worth in self.spellings.items() if value >= worth)
        return next(fitting, list(self.spellings)[-1])


_BINARY = MappingProxyType({**SI, **IEC})
_SECONDS = {"s": Fraction(1), "ms": Fraction(1, 1000), "us": Fraction(1, 1000**2)}
_UNITS = (
    Unit("B", prefixes=_BINARY, shown="B"),
    Unit("param"),
    Unit("MAC", shown="MAC"),
    Unit("FLOP", shown="FLOP"),
    Unit("op"),
    Unit("FLOP/B", whole=False, shown="FLOP/B"),
    Unit("s", whole=False, prefixes=NO_PREFIXES, spellings=_SECONDS, shown="s"),
    Unit("B/s", whole=False, prefixes=_BINARY, shown="B/s"),
    Unit("MAC/s", whole=False, shown="MAC/s"),
    Unit("%", False, NO_PREFIXES, {"%": Fraction(1, 100)}, bare=False, shown="%"),
)
UNITS: Mapping[str, Unit] = MappingProxyType({unit.symbol: unit for unit in _UNITS})


def unit_named(symbol: str) -> Unit:
    """The unit of that symbol; an extension's own unit takes SI prefixes and fractions."""
    return UNITS.get(symbol) or Unit(symbol, whole=False, shown=symbol)


def readable(value: Number, unit: str) -> str:
    """A number in three significant digits: "1.81 GMAC", "46.8 MB", "31.02 FLOP/B", "3.73 M"."""
    if value < 0:
        return f"-{readable(-value, unit)}"
    counted = unit_named(unit)
    if unit == "%":
        return percentage(Fraction(value))
    if counted.spellings:
        spelling = counted.best_spelling(value)
        return f"{_significant(value / counted.spellings[spelling])} {spelling}"
    if counted.whole and value < 1000 and Fraction(value).denominator == 1:
        return f"{value} {counted.shown}".rstrip()
    places = 0 if counted.whole else 2
    for prefix, factor in {"": 1, **SI}.items():
        text = _significant(Fraction(value) / factor, places=places)
        if Fraction(text) < 1000 or prefix not in {"", *list(SI)[:-1]}:
            break
    return f"{text} {prefix}{counted.shown}".rstrip()


def exact(value: Number, unit: str) -> str:
    """Every digit, thousands separated: "1,814,073,344 MAC"; a ratio without end as a fraction."""
    return f"{grouped(Fraction(value))} {unit_named(unit).shown}".rstrip()


def grouped(value: Fraction) -> str:
    """Every digit of a number, thousands of its whole part separated."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    whole, point, rest = ungrouped(value).partition(".")
    return f"{int(whole):,}{point}{rest}" if point else whole


def ungrouped(value: Fraction) -> str:
    """A number that is not negative as a decimal, or as a fraction where it never ends."""
    left, places = value.denominator, 0
    while left % 2 == 0 or left % 5 == 0:
        left = left // 10 if left % 10 == 0 else left // (2 if left % 2 == 0 else 5)
        places += 1
    return _fixed(value, places) if left == 1 else f"{value.numerator}/{value.denominator}"


def readable_pair(first: Number, second: Number, unit: str) -> tuple[str, str]:
    """Two numbers side by side: rounded, or exact where the rounded ones would look alike."""
    rounded = readable(first, unit), readable(second, unit)
    if first == second or rounded[0] != rounded[1]:
        return rounded
    return exact(first, unit), exact(second, unit)


def percentage(share: Fraction) -> str:
    """A share of one as a percentage: Fraction(62, 1000) is "6.2%"; at least two digits."""
    sign = "-" if share < 0 else ""
    return f"{sign}{_significant(abs(share) * 100, digits=2, places=1)}%"


def room(share: Fraction, *, signed: bool = False) -> str:
    """A distance as a share of a bound, for narrow columns: "6.2%", "<0.1%", ">-0.1%", ">999%".

    signed puts a plus before what is positive: "+6.2%", "<+0.1%".
    """
    plus = "+" if signed and share > 0 else ""
    if share and abs(share) < LEAST_ROOM:
        return f"<{plus}0.1%" if share > 0 else ">-0.1%"
    if abs(share) >= MOST_ROOM:
        return f">{plus}999%" if share > 0 else "<-999%"
    return plus + percentage(share)


def decimal_text(value: Number, *, digits: int = 4) -> str:
    """A ratio as a decimal string for records: "31.02"; an int as it is."""
    if isinstance(value, int):
        return str(value)
    sign = "-" if value < 0 else ""
    return sign + _significant(abs(value), digits=digits)


def _significant(value: Fraction, *, digits: int = 3, places: int = 0) -> str:
    """``value`` (not negative) rounded half up to that many digits, and at least those places."""
    if not value:
        return _fixed(value, places)
    after = digits - 1
    while value * 10**after < 10 ** (digits - 1):
        after += 1
    while after > places and len(_fixed(value, after).replace(".", "").lstrip("0")) > digits:
        after -= 1
    return _fixed(value, max(after, places))


def _fixed(value: Fraction, places: int) -> str:
    scaled = str((value * 10**places + Fraction(1, 2)).__floor__()).zfill(places + 1)
    return f"{scaled[:-places]}.{scaled[-places:]}" if places else scaled


def several(count: int, one: str, more: str = "") -> str:
    """A count and its noun: "1 limit", "3 limits"; more is a plural that takes no bare s."""
    return f"{count} {one if count == 1 else more or one + 's'}"
