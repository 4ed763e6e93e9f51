"""Element types and sizes of inputs, plain values and numbers, as people spell them; and words that are meant."""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("int8", "int16", "int32", "int64", "uint8")
SHORT = {
    "fp16": "float16", "half": "float16", "bf16": "bfloat16",
    "fp32": "float32", "fp64": "float64", "double": "float64",
}  # fmt: skip
# What torch says for them; numpy means other types by some of these words, so they are suggested and not taken.
ALSO_CALLED = {
    "float32": ("float",), "int64": ("long",), "int32": ("int",), "int16": ("short",), "uint8": ("byte",),
    "float16": ("half",), "float64": ("double",),
}  # fmt: skip
DTYPES = (*FLOATING, *INTEGER, "bool", "complex64", "complex128")
EXAMPLE = "float32 1x3x224x224"

_LIST = r"[0-9]+(?:\s*,\s*[0-9]+)*"
# dtype, then sizes: "1x3x224x224", "1,3,224,224", "(1, 3, 224, 224)", "[1, 3, 224, 224]", or a scalar's "()" or "[]".
SPEC_PATTERN = (
    rf"([A-Za-z][A-Za-z0-9]*)(\s+(?:[0-9]+(?:x[0-9]+)*|{_LIST})"
    rf"|\s*\[\s*(?:{_LIST})?\s*\]|\s*\(\s*(?:{_LIST}\s*,?)?\s*\))"
)
# Sizes without a type are of float32; one alone would be a plain number.
SIZES_ALONE = rf"[0-9]+(?:x[0-9]+)+|[0-9]+(?:\s*,\s*[0-9]+)+|\(\s*{_LIST}\s*,?\s*\)|\[\s*{_LIST}\s*\]"


def dtype_and_sizes(spec: str) -> tuple[str, str] | None:
    """("float32", "1x3") of one tensor in words; None of what is none."""
    match = re.fullmatch(f"{SPEC_PATTERN}|{SIZES_ALONE}", spec)
    return (match[1] or "float32", "x".join(re.findall("[0-9]+", match[2] or spec))) if match else None


def odd_size(spec: str) -> str:
    """The first size that is no number, such as an open batch of -1 or N, behind a type; else ""."""
    dtype, sizes = re.fullmatch(r"([a-z]*[0-9]*)(.*)", spec).groups()  # type: ignore[union-attr]  # it matches all
    parts = re.split(r"\s*[x×*,]\s*", sizes.strip("[]() ")) if dtype in DTYPES else []
    are_sizes = len(parts) > 1 and all(re.fullmatch(r"-?\w+", part) for part in parts)
    return next((part for part in parts if not part.isdecimal()), "") if are_sizes else ""


def other_spelling(spec: str) -> str:
    """The spec that a text is but for signs between sizes, or an order, that others use; else ""."""
    words = re.fullmatch(r"(?:torch\.)?([a-z]+[0-9]*)[\s:=,\[(]+(.+)|(.+?)\s+(?:torch\.)?([a-z]+[0-9]*)", spec)
    dtype, sizes = (words[1] or words[4], words[2] or words[3]) if words else ("float32", spec)
    dtype = SHORT.get(dtype, dtype)
    is_shape = re.fullmatch(r"[\[(\s]*[0-9]+(?:\s*[xX×*,]\s*[0-9]+)*\s*,?[\])\s]*", sizes)
    is_number = words is None and spec.isdecimal()  # a plain value, more likely than a size alone
    return f"{dtype} {'x'.join(re.findall('[0-9]+', sizes))}" if dtype in DTYPES and is_shape and not is_number else ""


def why_no_input(spec: str) -> str:
    """What is wrong with a text that is no spec, and what to write."""
    if spec in {*DTYPES, *SHORT}:
        return f"has no shape: write {spec} 1x3x224x224, or {spec} () for a scalar"
    if meant := other_spelling(spec):
        return f"is no input: did you mean {meant}?"
    if odd := odd_size(spec):
        return f"is no input: '{odd}' is no size: write a real one"
    return f"is no input: write one such as {EXAMPLE}" + f", or {{plain: {spec}}} for a text" * spec.isalpha()


# Plain values, and numbers.

_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGERS = (  # what has more digits is no number that anybody counts to
    (re.compile(r"[-+]?[0-9]{1,100}"), 10), (re.compile(r"0o[0-7]{1,100}"), 8),
    (re.compile(r"0x[0-9a-fA-F]{1,100}"), 16),
)  # fmt: skip
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def scalar(text: str) -> object:
    """The meaning of an unquoted word: None, a bool, an int, a float, or the word itself."""
    if text in _WORDS:
        return _WORDS[text]
    for pattern, base in _INTEGERS:
        if pattern.fullmatch(text):
            return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def exact_number(written: str) -> Fraction | None:
    """A decimal number, or a percentage, exactly; None where it is neither."""
    digits = written.strip()
    try:
        number = Decimal(digits.removesuffix("%"))
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > 300:
        return None
    return Fraction(number) / (100 if digits.endswith("%") else 1)


class Numbers(NamedTuple):
    """A kind of number: the words for what may be written, and which numbers it has."""

    wanted: str
    fits: Callable[[Fraction], bool]


ANY_NUMBER = Numbers("a number such as 0.5", lambda number: True)
AMOUNT = Numbers("a number such as 1e-3", lambda number: number >= 0)
DECIBELS = Numbers("a number of dB without the unit, such as 30", lambda number: number >= 0)
SHARE = Numbers("a number from 0 to 1, or a share such as 5%", lambda number: 0 <= number <= 1)
WHOLE = Numbers("a whole number such as 0", lambda number: number >= 0 and number.denominator == 1)


# Words that nothing knows.


def shown(word: str, longest: int = 60) -> str:
    """A word of the file in quotes, on one line and not too long for a message."""
    text = word if len(word) <= longest else word[: longest - 1] + "…"
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return f"'{text}'"


def suggestion(word: str, known: Iterable[str], also: Mapping[str, Iterable[str]] = MappingProxyType({})) -> str:
    """A "did you mean" for a word that nothing knows, or the words that are known.

    also are words that people say for known ones, in any case and with any dashes: {"memory": ("ram", "size")}.
    """
    words = list(known)
    if meant := meant_by(word, words, also):
        return f"did you mean {' or '.join(f'{one!r}' for one in meant)}?"
    return f"known are {', '.join(words)}" if 0 < len(words) <= 20 else "nothing like it is known"


def meant_by(word: str, known: Iterable[str], also: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The known words that one which nothing knows begins, if it is one, or is close to: peak is peak_activation."""
    said = dict[str, list[str]]()
    for one in known:
        for spelling in (one, *also.get(one, ())):
            said.setdefault(_bare(spelling), []).append(one)
    bare = _bare(word)
    begun = {one for spelling, ones in said.items() if spelling.startswith(bare) for one in ones}
    if len(bare) > 3 and len(begun) == 1:
        return tuple(begun)
    close = get_close_matches(bare, said, n=1, cutoff=0.6)
    return tuple(dict.fromkeys(said[close[0]])) if close else ()


def _bare(word: str) -> str:
    """A word without what people spell as they like: Peak-Memory is peak_memory."""
    return re.sub(r"[\W_]", "", word).casefold() or word
