"""Units, and how readers see exact numbers of them: rounded for eyes, never to compare.

The only file that knows 1000 from 1024, and the only one that rounds so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from math import ceil, floor
from types import MappingProxyType
from typing import Union

from pytest_modelbudget.errors import UnitError

Number = Union[int, Fraction]

SI = MappingProxyType({"k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4})
LARGEST = max(SI, key=SI.__getitem__)
IEC = MappingProxyType({"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3})
LARGEST_IEC = max(IEC, key=IEC.__getitem__)
NO_PREFIXES: Mapping[str, int] = MappingProxyType({})
LEAST_ROOM, MOST_ROOM = Fraction(1, 1000), Fraction(10)  # where percentages end to tell much


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit that a metric is counted in.

    whole: only whole ones exist (bytes, parameters). spellings: further ways to write it, with
    their worth. bare: whether a number alone means it. shown: how readers see it after a number.
    adds: whether parts of one add up to it though they are no whole ones, as of a time and not of a ratio.
    """

    symbol: str
    whole: bool = True
    prefixes: Mapping[str, int] = field(default_factory=lambda: SI)
    spellings: Mapping[str, Fraction] = field(default_factory=dict)
    bare: bool = True
    shown: str = ""
    adds: bool = False

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
_JOULES = {f"{prefix}J": Fraction(1, 1000**at) for at, prefix in enumerate(("", "m", "u", "n", "p"))}
_UNITS = (
    Unit("B", prefixes=_BINARY, shown="B"),
    Unit("param"),
    Unit("MAC", shown="MAC"),
    Unit("FLOP", shown="FLOP"),
    Unit("BOP", shown="BOP"),
    Unit("op"),
    Unit("channel"),
    Unit("token", shown="token"),
    Unit("FLOP/B", whole=False, shown="FLOP/B"),
    Unit("s", whole=False, prefixes=NO_PREFIXES, spellings=_SECONDS, shown="s", adds=True),
    Unit("J", whole=False, prefixes=NO_PREFIXES, spellings=_JOULES, shown="J", adds=True),
    Unit("B/s", whole=False, prefixes=_BINARY, shown="B/s"),
    Unit("MAC/s", whole=False, shown="MAC/s"),
    Unit("cycle", shown="cycle"),
    Unit("Hz", whole=False, shown="Hz"),
    Unit("%", False, NO_PREFIXES, {"%": Fraction(1, 100)}, bare=False, shown="%"),
)
UNITS: Mapping[str, Unit] = MappingProxyType({unit.symbol: unit for unit in _UNITS})


def unit_named(symbol: str) -> Unit:
    """The unit of that symbol; an extension's own unit takes SI prefixes and fractions."""
    return UNITS.get(symbol) or Unit(symbol, whole=False, shown=symbol)


def readable(value: Number, unit: str, *, digits: int = 3, binary: bool = False) -> str:
    """A number in so many significant digits, of three "1.81 GMAC", "46.8 MB", binary "44.6 MiB", "31.02 FLOP/B"."""
    if value < 0:
        return f"-{readable(-value, unit, digits=digits, binary=binary)}"
    counted = unit_named(unit)
    if unit == "%":
        return percentage(Fraction(value), digits=digits - 1)
    if counted.spellings:
        spelling = counted.best_spelling(value)
        return f"{_significant(value / counted.spellings[spelling], digits=digits)} {spelling}"
    if counted.whole and value < 1000 and Fraction(value).denominator == 1:
        return f"{value} {counted.shown}".rstrip()
    places = 0 if counted.whole else 2
    prefixes, largest = (IEC, LARGEST_IEC) if binary else (SI, LARGEST)
    for prefix, factor in {"": 1, **prefixes}.items():
        if value >= 1000 * factor and prefix != largest:
            continue
        text = _significant(Fraction(value, factor), digits=digits, places=places)
        if prefix == largest or len(text.partition(".")[0]) <= 3:  # rounding may have made it 1000
            break
    return f"{text} {prefix}{counted.shown}".rstrip()


def exact(value: Number, unit: str) -> str:
    """Every digit, thousands separated: "1,814,073,344 MAC", "2.5 %"; a ratio without end as a fraction."""
    return f"{grouped(Fraction(value * 100 if unit == '%' else value))} {unit_named(unit).shown}".rstrip()


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


def readable_pair(first: Number, second: Number, unit: str, *, binary: bool = False) -> tuple[str, str]:
    """Two numbers side by side: rounded, or where the rounded ones would look alike in all digits that it takes.

    Those are all of what is counted in wholes, and of ratios as many as tell them apart.
    """
    digits = 3
    rounded = readable(first, unit, binary=binary), readable(second, unit, binary=binary)
    while first != second and rounded[0] == rounded[1]:
        if unit_named(unit).whole:
            return exact(first, unit), exact(second, unit)
        digits += 1
        rounded = readable(first, unit, digits=digits), readable(second, unit, digits=digits)
    return rounded


SAME_SCALE = 1000  # times as much as the other may a number of a row be, to be shown on one scale


def in_a_row(first: Number, second: Number, unit: str, *, binary: bool = False) -> tuple[str, str]:
    """Two numbers of a row on the scale of the larger one: in four digits, or in more where they look alike."""
    low, high = sorted((first, second))
    if unit == "%" or low <= 0 or high > SAME_SCALE * low or _is_plain(high, unit):
        return readable_pair(first, second, unit, binary=binary)
    factor, name = _scale(high, unit, IEC if binary else SI)
    places = 0 if unit_named(unit).whole else 2
    digits = 4
    while True:
        texts = [
            f"{_significant(Fraction(each) / factor, digits=digits, places=places)} {name}".rstrip()
            for each in (first, second)
        ]
        if first == second or texts[0] != texts[1]:
            return texts[0], texts[1]
        if unit_named(unit).whole:
            return exact(first, unit), exact(second, unit)
        digits += 1


def _is_plain(value: Number, unit: str) -> bool:
    """Whether it is shown as the whole number that it is."""
    return unit_named(unit).whole and value < 1000 and not unit_named(unit).spellings


def _scale(value: Number, unit: str, prefixes: Mapping[str, int]) -> tuple[Fraction, str]:
    """What a number is divided by to be shown in four digits, and the unit's name then."""
    counted = unit_named(unit)
    if counted.spellings:
        spelling = counted.best_spelling(value)
        return Fraction(counted.spellings[spelling]), spelling
    for prefix, factor in {"": 1, **prefixes}.items():
        is_shown = (
            value < 1000 * factor and len(_significant(Fraction(value) / factor, digits=4).partition(".")[0]) <= 3
        )
        if is_shown or prefix in (LARGEST, LARGEST_IEC):
            break
    return Fraction(factor), f"{prefix}{counted.shown}"


def percentage(share: Fraction, *, digits: int = 2) -> str:
    """A share of one as a percentage: Fraction(62, 1000) is "6.2%"; at least two digits."""
    sign = "-" if share < 0 else ""
    return f"{sign}{_significant(abs(share) * 100, digits=digits, places=1)}%"


def room(share: Fraction, *, signed: bool = False) -> str:
    """A distance as a share of a bound, for narrow columns: "6.2%", "<0.1%", ">-0.1%", ">999%".

    signed puts a plus before what is positive: "+6.2%", "<+0.1%".
    """
    plus = "+" if signed and share > 0 else ""
    if share and abs(share) < LEAST_ROOM:
        return f"<{plus}0.1%" if share > 0 else ">-0.1%"
    if abs(share) >= MOST_ROOM:
        return f">{plus}999%" if share > 0 else "<-999%"
    return ">99.9%" if Fraction(9995, 10000) <= share < 1 and not signed else plus + percentage(share)


def decimal_text(value: Number, *, digits: int = 4) -> str:
    """A ratio as a decimal string for records: "31.02"; an int as it is."""
    if isinstance(value, int):
        return str(value)
    return ("-" if value < 0 else "") + _significant(abs(value), digits=digits)


def _significant(value: Fraction, *, digits: int = 3, places: int = 0) -> str:
    """``value`` (not negative) rounded half up to that many digits, and at least those places."""
    if not value:
        return _fixed(value, places)
    after = max(digits - len(str(value.numerator // value.denominator)), 0)
    while value.numerator * 10**after < value.denominator * 10 ** (digits - 1):
        after += 1
    while after > places and len(_fixed(value, after).replace(".", "").lstrip("0")) > digits:
        after -= 1
    return _fixed(value, max(after, places))


def _fixed(value: Fraction, places: int) -> str:
    scaled = str((2 * value.numerator * 10**places + value.denominator) // (2 * value.denominator)).zfill(places + 1)
    return f"{scaled[:-places]}.{scaled[-places:]}" if places else scaled


def several(count: int, one: str, more: str = "") -> str:
    """A count and its noun: "1 limit", "3 limits"; more is a plural that takes no bare s."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def with_article(noun: str) -> str:
    """A noun with its article: "an int", "a UNet"; before a u an a, as in most names of types."""
    return f"{'an' if noun[:1] in {*'aeioAEIO'} else 'a'} {noun}"


def some_of(words: Iterable[str], most: int = 3) -> str:
    """The first few words, and how many more there are: "a, b, c and 2 more"."""
    words = list(words)
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


LONGEST = 60  # characters of a quantity; keeps a hostile exponent or digit string cheap

_BOTH = re.compile(r"([0-9]+(?:,[0-9]+)+(?=\.)|[0-9]+(?:\.[0-9]+)+(?=,))[.,]([0-9]+)(?![0-9.,])")
_DIGITS = r"(?:[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)"
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,2})"
_NUMBER = rf"{_DIGITS}(?:\.[0-9]+)?{_EXPONENT}?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})(?![0-9_.])\s*(.*?)\s*", re.DOTALL)


def quantity(text: str, unit: str, *, round_up: bool = False) -> Number:
    """The exact number of ``unit`` that ``text`` means: "11.7 M" of "param" is 11,700,000.

    An int where only whole ones exist. An IEC amount may fall between two whole bytes: it is
    rounded down, as x <= 6.2 MiB (6,501,171.2 B) says x <= 6,501,171; for a minimum round_up.

    Raises:
        UnitError: where there is nothing to read, or two ways to read it.
    """
    counted = unit_named(unit)
    number, suffix = _split(text, counted)
    worth = counted.suffixes()
    if suffix not in worth:
        raise UnitError(_misread(text.strip(), number, suffix, counted))
    if not suffix and "." in number and "e" not in number.lower():
        other = f"M{unit}" if counted.prefixes else "ms"
        raise UnitError(f"'{number}' has no unit and could mean {number} {unit} or {number} {other}: add the unit")
    amount = Fraction(number) * worth[suffix]
    if not counted.whole:
        return amount
    if amount.denominator == 1:
        return int(amount)
    if not suffix.startswith(tuple(IEC)):
        raise UnitError(
            f"'{text.strip()}' is {ungrouped(amount)} {unit}, and {unit} are counted whole: "
            f"write '{amount.__floor__()} {unit}' or '{amount.__ceil__()} {unit}'"
        )
    return amount.__ceil__() if round_up else amount.__floor__()


def snug_quantity(value: Number, unit: str, *, like: str = "", down: bool = False) -> str:
    """The least quantity of three significant digits that is no less than ``value``.

    ``down`` gives the largest that is no more. It is spelled ``like`` another quantity of the unit: 3,504,872 like
    "3.4 M" is "3.51 M", like "3_400_000" it is "3_510_000"; else under the largest SI prefix of at least one.
    """
    counted = unit_named(unit)
    if counted.whole:
        value = floor(value) if down else ceil(value)
    match, spelling = _QUANTITY.fullmatch(like), like.strip()
    if match:
        number, gap, suffix = match[1], spelling[len(match[1]) : len(spelling) - len(match[2])], match[2]
    else:
        number, gap, suffix = "", " ", _best_suffix(_snug(Fraction(value), down=down), counted)
    amount = Fraction(value) / counted.suffixes()[suffix]
    text = ungrouped(_snug(amount, down=down))
    if "_" in number and "." not in text:
        text = f"{int(text):_}"
    if not suffix and "." in text:  # a fraction needs its unit
        gap, suffix = " ", counted.symbol
    return f"{text}{gap}{suffix}".rstrip()


def _best_suffix(value: Number, unit: Unit) -> str:
    if unit.spellings:
        return unit.best_spelling(value)
    fitting = [prefix for prefix, factor in SI.items() if prefix in unit.prefixes and value >= factor]
    return (fitting[-1] if fitting else "") + (unit.shown or "")


def _snug(amount: Fraction, *, down: bool) -> Fraction:
    """A number that is not negative, up (or down) to three significant digits."""
    if not amount:
        return amount
    step = Fraction(1)
    while amount >= 1000 * step:
        step *= 10
    while amount < 100 * step:
        step /= 10
    return step * ((amount / step).__floor__() if down else (amount / step).__ceil__())


def quantity_pattern(unit: str) -> str:
    """Regular expression of quantities of ``unit``, for editors: a bare number is a whole one."""
    suffixes = sorted(unit_named(unit).suffixes(), key=lambda suffix: (-len(suffix), suffix))
    written = "|".join(re.escape(suffix).replace("\\%", "%") for suffix in suffixes if suffix)
    bare = rf"|{_DIGITS}|{_DIGITS}(?:\.[0-9]+)?{_EXPONENT}" if unit_named(unit).bare else ""
    return rf"^\s*({_NUMBER}\s*({written}){bare})\s*$"


def _split(text: str, unit: Unit) -> tuple[str, str]:
    """Number and suffix of a quantity, as written but for underscores."""
    stripped = text.strip()
    if any(character.isspace() and not character.isascii() for character in stripped):
        written = " ".join(stripped.split())
        raise UnitError(f"'{written}' has a blank of another kind than the space bar's: type it again")
    if not stripped or len(stripped) > LONGEST or not stripped.isprintable():
        raise UnitError(f"a quantity is a number and a unit, such as '{_example(unit)}'")
    if stripped.startswith(("-", "+", "\N{MINUS SIGN}")):
        raise UnitError(f"'{stripped}' has a sign: a quantity is zero or more, written without one")
    if stripped.lstrip(".").casefold() in {"nan", "inf", "infinity"}:
        raise UnitError(f"'{stripped}' is no number: write one, such as '{_example(unit)}'")
    if (both := _BOTH.match(stripped)) is not None:  # the last of them separates decimals, wherever that is
        written = re.sub(r"[.,]", "", both[1]) + "." + both[2] + stripped[both.end() :]
        raise UnitError(f"'{stripped}' has a comma: write '{written}'")
    if "," in stripped:  # it separates thousands here and decimals there
        decimal, thousands = stripped.replace(",", "."), stripped.replace(",", "")
        if stripped.count(",") == 1:
            raise UnitError(f"'{stripped}' could mean '{decimal}' or '{thousands}': write one of them, no comma")
        raise UnitError(f"'{stripped}' has commas: write '{thousands}' or '{stripped.replace(',', '_')}'")
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise UnitError(f"'{stripped}' is no quantity: write one such as '{_example(unit)}'")
    return match[1].replace("_", ""), match[2]


def _example(unit: Unit) -> str:
    if unit.symbol == "%":
        return "2%"
    if not unit.shown:
        return "11.7 M"
    return f"12 {unit.symbol}" if not unit.prefixes else f"1.8 G{unit.symbol}"


def _misread(text: str, number: str, suffix: str, unit: Unit) -> str:
    """Say why a suffix does not fit, with every reading that it could have."""
    if suffix == "" and unit.symbol == "%":  # a number alone for a percentage
        ways = f"{number}% or {number} times the whole"
        return f"'{text}' could mean {ways}: {_one_of([f'{number}%', f'{ungrouped(Fraction(number) * 100)}%'], unit)}"
    if suffix in ("", "%"):  # a percentage for an amount
        ways = f"{number}% of a baseline or an amount of {number} {unit.symbol}"
        return f"'{text}' could mean {ways}: here an amount is meant, such as '{_example(unit)}'"
    readings = _readings(number, suffix, unit)
    if readings and suffix.casefold().endswith("bit"):
        nbytes = f"{ungrouped(Fraction(number) * SI[suffix[0].upper().replace('K', 'k')] / 8)} B"
        way_out = f"write '{nbytes}'" if _is_read(nbytes, unit) else _way(unit)
        return f"'{text}' counts bits, {readings[-1].partition(' (')[2].rstrip(')')}, but this key counts B: {way_out}"
    if readings:
        spelled = (way.partition(" (")[0] for way in readings if "bit" not in way and "milli" not in way)
        return f"'{text}' could mean {' or '.join(readings)}: {_one_of(spelled, unit)}"
    one = suffix[:-1] if suffix.endswith(("s", "S")) else suffix  # GFLOPs are counted in GFLOP
    for other in UNITS.values():
        is_counted = suffix in other.suffixes() or (one.endswith(other.symbol) and one in other.suffixes())
        if is_counted and other.symbol != unit.symbol:
            return f"'{text}' counts {other.symbol}, but this key counts {unit.symbol}: {_way(unit)}"
    close = get_close_matches(suffix, [spelling for spelling in unit.suffixes() if spelling], n=1, cutoff=0.5)
    guess = f"did you mean '{number} {close[0]}'?" if close and _is_read(f"{number} {close[0]}", unit) else _way(unit)
    return f"'{text}' has no unit of {unit.symbol} in '{suffix}': {guess}"


def _one_of(amounts: Iterable[str], unit: Unit) -> str:
    """To write one of these, those that are quantities of the unit; an example where none is."""
    fitting = [f"'{amount}'" for amount in amounts if _is_read(amount, unit)]
    return f"write {' or '.join(fitting)}" if fitting else _way(unit)


def _is_read(text: str, unit: Unit) -> bool:
    """Whether a proposal is a quantity: no tenth of a byte is one."""
    try:
        quantity(text, unit.symbol)
    except UnitError:
        return False
    return True


def _way(unit: Unit) -> str:
    return f"write an amount such as '{_example(unit)}'"


def _readings(number: str, suffix: str, unit: Unit) -> list[str]:
    """The readings of a wrongly cased or abbreviated suffix, dearest guess first."""
    folded = suffix.casefold()
    prefix = folded[:1].upper().replace("K", "k")
    binary = prefix.upper() + "i"
    symbol = unit.symbol
    if prefix in unit.prefixes and folded in {f"{prefix}b".casefold(), f"{prefix}bit".casefold()}:
        if symbol == "B":
            readings = [_explained(number, prefix + symbol, unit)]
            if binary in unit.prefixes:
                readings.append(_explained(number, binary + symbol, unit))
            return [*readings, f"{number} {prefix}bit ({grouped(Fraction(number) * SI[prefix] / 8)} B)"]
        return []
    same = [known for known in unit.suffixes() if known.casefold() == folded]
    readings = [_explained(number, known, unit) for known in same]
    if suffix.startswith("m") and readings and not same[0].startswith("Mi"):
        readings.append(f"{number} milli-{symbol}")
    if suffix.startswith("K") and readings and binary in unit.prefixes and suffix[1:2] != "i":
        readings.append(_explained(number, binary + suffix[1:], unit))
    return readings


def _explained(number: str, suffix: str, unit: Unit) -> str:
    return f"{number} {suffix} ({grouped(Fraction(number) * unit.suffixes()[suffix])} {unit.symbol})"
