"""Records as JSON: written, read and described by a JSON Schema, by ``msgspec`` and their types alone.

A whole number is one in JSON, a ratio a decimal string. A field with a plain default is written only where it differs
from it, one made by ``always`` in any case::

    class Share(Record, kw_only=True):
        scope: str
        value: Number
        why: str = ""

    from_json(Share, {"scope": "fc", "value": "1.5"})   # Share(scope="fc", value=Fraction(3, 2))
"""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from decimal import Context, Inexact
from fractions import Fraction
from functools import cache
from numbers import Rational
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import fields, replace

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.units import decimal_text

if TYPE_CHECKING:
    from pytest_modelbudget.units import Number as Number
else:
    Number = Rational  # a class that is handed to _read

EXTRA = "extra"  # the field of keys that others added
EXACT_DIGITS = 12  # significant ones up to which a ratio is written exactly
LONGEST = 400  # bits of a whole number, characters of a ratio and the largest exponent of ten: all that text can show
_RATIO = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]([+-]?\d{1,6}))?")
_DECIMAL = {"type": "string", "pattern": r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"}
_BEYOND_ASCII = re.compile(r"[^\n -~]")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON object with declared keys; one with a field ``extra`` keeps others there, and writes them last."""


R = TypeVar("R", bound=Record)


class OneOf:
    """A base of the records that may be at one place, distinguished by their required keys."""

    __slots__ = ()


def always(default: Any) -> Any:
    """A field that is written even where it has its default."""
    return msgspec.field(default_factory=lambda: default)  # msgspec leaves out plain defaults alone


class WrittenRatio(Fraction):
    """A ratio as JSON spells it: "1.180" is written as it was read, with its last zero."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "WrittenRatio":
        """The ratio that a decimal string means."""
        ratio = super().__new__(cls, text)
        ratio.text = text
        return ratio


def number_json(value: Number) -> int | str:
    """An int as it is; a ratio as a decimal string, exact where that is short."""
    if isinstance(value, (int, WrittenRatio)):
        return value if isinstance(value, int) else value.text
    context = Context(prec=EXACT_DIGITS)
    short = context.divide(value.numerator, value.denominator)
    return decimal_text(value) if context.flags[Inexact] else str(short)


def as_written(value: Any) -> Any:
    """A value as reading its JSON gives it: a ratio with the digits that are written, any other as it is."""
    is_ratio = type(value) is not int and isinstance(value, Fraction)  # which is slow to say of an int
    return WrittenRatio(str(number_json(value))) if is_ratio else value


def to_json(entry: Record) -> dict[str, Any]:
    """The JSON object of a record, its keys in the order of their declaration."""
    written: dict[str, Any] = json.loads(_encoded(entry))
    return written


def json_text(entry: Record) -> str:
    """``to_json`` as the text of a file: what ``json.dumps`` gives of it with ``indent=1``."""
    try:
        text = msgspec.json.format(_encoded(entry), indent=1).decode()
    except msgspec.DecodeError:  # a name that is no Unicode, which msgspec cannot read
        return json.dumps(to_json(entry), indent=1)
    return _BEYOND_ASCII.sub(lambda letter: json.dumps(letter[0])[1:-1], text)


def _encoded(entry: Record) -> bytes:
    """JSON in one line; ``json`` writes keys of others, which it checks, and names that are no Unicode."""
    if sys.version_info < (3, 11):  # which has many an empty tuple: msgspec leaves out the default one alone
        entry = msgspec.convert(msgspec.to_builtins(entry, enc_hook=_write), type(entry), dec_hook=_read)
    extra = getattr(entry, EXTRA, {})
    if not extra:
        with suppress(UnicodeEncodeError):
            return msgspec.json.encode(entry, enc_hook=_write)
    plain = msgspec.to_builtins(replace(entry, extra={}) if extra else entry, enc_hook=_write)
    return json.dumps({**plain, **extra}, allow_nan=False).encode()


def _write(value: Any) -> int | str:
    if isinstance(value, Fraction):
        return number_json(value)
    raise NotImplementedError(type(value))


def from_json(kind: type[R], value: Any) -> R:
    """The record that a JSON object means; raises InputError where it is none of that type."""
    names, others = kind.__struct_fields__, {}
    if EXTRA in names and isinstance(value, dict):
        others = {key: each for key, each in value.items() if key not in names or key == EXTRA}
        value = {key: each for key, each in value.items() if key not in others}
    try:
        entry = msgspec.convert(value, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise InputError(f"{kind.__name__}: {error}") from error
    return replace(entry, extra=others) if others else entry


def like(kind: type[R], source: object, /, **others: Any) -> R:
    """A record with the attributes of the same names of another object, at every depth, but for these."""
    names = [name for name in kind.__struct_fields__ if name not in others and hasattr(source, name)]
    known = {name: getattr(source, name) for name in names}
    return msgspec.convert({**known, **others}, kind, from_attributes=True, dec_hook=_read)


def _read(kind: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know; what is no JSON yet is read as it would be written."""
    if type(value) is int and value.bit_length() <= LONGEST:
        return value
    if issubclass(kind, OneOf):
        return msgspec.convert(value, _meant(kind, value), from_attributes=True, dec_hook=_read)
    if isinstance(value, Fraction):
        return as_written(value)
    match = _RATIO.fullmatch(value) if type(value) is str and len(value) <= LONGEST else None
    if match is None or abs(int(match[1] or 0)) > LONGEST:
        raise ValueError(f"Expected a number, got {repr(value)[:60]}")
    return WrittenRatio(value)


def _meant(kind: type[OneOf], value: Any) -> Any:
    """The first record of some whose keys are there."""
    if isinstance(value, kind):
        return type(value)
    records: list[Any] = kind.__subclasses__()
    for each in records:
        if isinstance(value, Mapping) and _required(each) <= value.keys():
            return each
    raise ValueError(f"Expected {' or '.join(each.__name__ for each in records)}")


@cache
def _required(kind: Any) -> frozenset[str]:
    return frozenset(each.encode_name for each in fields(kind) if each.required)


def schema_text(kind: type[Record], title: str) -> str:
    """The JSON Schema of all that ``to_json`` writes of a type, as the text of a file."""
    unions = [each for union in OneOf.__subclasses__() for each in union.__subclasses__()]
    (root, *_), definitions = msgspec.json.schema_components([kind, *unions], schema_hook=_described)
    for definition in definitions.values():
        definition.get("properties", {}).pop(EXTRA, None)
        definition["description"] = " ".join(definition.get("description", "").split())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **root, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


def _described(kind: Any) -> dict[str, Any]:
    if kind is Rational:
        return {"anyOf": [{"type": "integer"}, _DECIMAL]}
    return {"anyOf": [{"$ref": f"#/$defs/{each.__name__}"} for each in kind.__subclasses__()]}
