"""Frozen dataclasses as JSON: written, read and described by a JSON Schema, from their types alone.

A field without a default must be there to be read; one made by ``rare`` is written only where it
says something; any other is always written. Keys that nobody declared are kept, and written last::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Share(Entry):
        scope: str
        value: Number          # a whole number is one in JSON, a ratio a decimal string
        why: str = rare("")

    from_json(Share, {"scope": "fc", "value": "1.5"})   # Share(scope="fc", value=Fraction(3, 2))

Dataclasses that are no entries are written for this project alone, and come back equal: exact ratios among them, and no
key that nobody declared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_modelbudget.errors import InputError, ModelBudgetError
from pytest_modelbudget.units import Number, decimal_text

EMPTY: Mapping[str, Any] = MappingProxyType({})
EXACT_DIGITS = 12  # significant ones up to which a ratio is written exactly
RARE = "rare"

Schema = dict[str, Any]
E = TypeVar("E", bound="Entry")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A JSON object with declared keys; more are keys that others added to it."""

    more: Mapping[str, Any] = field(default_factory=lambda: EMPTY, repr=False)


def rare(default: Any) -> Any:
    """A field that is written only where it differs from its default."""
    return field(default_factory=lambda: default, metadata={RARE: default})


def to_json(entry: Entry) -> dict[str, Any]:
    """The JSON object of an entry, its keys in the order of their declaration."""
    written: dict[str, Any] = _codec(type(entry)).write(entry)
    return written


def from_json(entry_type: type[E], value: Any) -> E:
    """The entry that a JSON object means; raises InputError where it is none of that type."""
    entry: E = _read(_codec(entry_type), value, entry_type.__name__)
    return entry


def exact_json(value: Any) -> dict[str, Any]:
    """The JSON object of a frozen dataclass of plain data, which ``from_exact_json`` makes the same of."""
    written: dict[str, Any] = _codec(type(value), exact=True).write(value)
    return written


def from_exact_json(cls: type[T], value: Any) -> T:
    """The dataclass that a JSON object means; raises InputError where it is none of that type."""
    made: T = _read(_codec(cls, exact=True), value, cls.__name__)
    return made


def json_schema(entry_type: type[Entry], title: str) -> Schema:
    """The JSON Schema (draft-07) of all that ``to_json`` writes of a type."""
    definitions: dict[str, Schema] = {}
    root = _codec(entry_type).describe(definitions)
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
    return {**head, **root, "definitions": dict(sorted(definitions.items()))}


class WrittenRatio(Fraction):
    """A ratio as JSON spells it: "1.180" is written as it was read, with its last zero."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenRatio:
        """The ratio that a decimal string means."""
        ratio = super().__new__(cls, text)
        ratio.text = text
        return ratio


def number_json(value: Number) -> int | str:
    """An int as it is; a ratio as a decimal string, exact where that is short."""
    if isinstance(value, (int, WrittenRatio)):
        return value if isinstance(value, int) else value.text
    short = Context(prec=EXACT_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(short) if Fraction(short) == value else decimal_text(value)


def as_written(value: Any) -> Any:
    """A value as reading its JSON gives it: a ratio with the digits that are written, any other as it is."""
    is_ratio = type(value) is not int and isinstance(value, Fraction)  # which is slow to say of an int
    return WrittenRatio(str(number_json(value))) if is_ratio else value


def document_text(value: Any, newline: str = "\n") -> str:
    """What ``json.dumps(value, indent=1, allow_nan=False)`` gives, in less than half the time; keys are text."""
    if type(value) is int:
        return str(value)
    if not value or not isinstance(value, (dict, list, tuple)):
        return _leaf(value)
    inner = newline + " "
    if isinstance(value, dict):
        lines = [f"{_leaf(str(key))}: {document_text(each, inner)}" for key, each in value.items()]
        return f"{{{inner}{f',{inner}'.join(lines)}{newline}}}"
    lines = [document_text(each, inner) for each in value]
    return f"[{inner}{f',{inner}'.join(lines)}{newline}]"


_leaf = json.JSONEncoder(allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Codec:
    """One type in JSON: which values may be it, how they are read, written and described.

    accepts looks no deeper than it takes to tell a type from the others of a union. describe adds
    what its schema refers to to the definitions.
    """

    accepts: Callable[[Any], bool]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    describe: Callable[[dict[str, Schema]], Schema]


def _read(codec: Codec, value: Any, where: str) -> Any:
    if not codec.accepts(value):
        raise InputError(f"{where} cannot be {repr(value)[:60]}")
    return codec.read(value)


def _same(value: Any) -> Any:
    return value


def _plain(accepted: type, schema: Schema) -> Codec:
    """A type that JSON has, too; True is no whole number."""
    return Codec(lambda value: type(value) is accepted, _same, _same, lambda _: schema)


LONGEST = 400  # bits of a whole number, characters of a ratio and the largest exponent of ten: all that text can show
_RATIO = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]([+-]?\d{1,6}))?")


def _is_ratio(value: Any) -> bool:
    """Whether it is a decimal string that can be worked with."""
    match = _RATIO.fullmatch(value) if type(value) is str and len(value) <= LONGEST else None
    return match is not None and abs(int(match[1] or 0)) <= LONGEST


_DECIMAL = {"type": "string", "pattern": r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"}
_PLAIN: Mapping[Any, Codec] = {
    str: _plain(str, {"type": "string"}),
    int: Codec(
        lambda value: type(value) is int and value.bit_length() <= LONGEST, _same, _same, lambda _: {"type": "integer"}
    ),
    bool: _plain(bool, {"type": "boolean"}),
    NoneType: _plain(NoneType, {"type": "null"}),
    Fraction: Codec(_is_ratio, WrittenRatio, number_json, lambda _: _DECIMAL),
    Any: Codec(lambda value: True, _same, _same, lambda _: {}),
}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value) and value[1] > 0


_EXACT: Mapping[Any, Codec] = {
    **_PLAIN,
    Fraction: Codec(_is_pair, lambda pair: Fraction(*pair), lambda ratio: list(ratio.as_integer_ratio()), lambda _: {}),
    float: _plain(float, {"type": "number"}),
    ModelBudgetError: Codec(lambda value: False, _same, _same, lambda _: {}),  # what failed is never written
}


def _codec(hint: Any, *, exact: bool = False) -> Codec:
    """The codec of a declared type, made once."""
    return _made_codec(hint, exact)


@cache
def _made_codec(hint: Hashable, exact: bool) -> Codec:
    """The codec of a declared type; an exact one writes ratios as they are, and is for this project alone."""
    plain = _EXACT if exact else _PLAIN
    if hint in plain:
        return plain[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    inner = [_codec(argument, exact=exact) for argument in arguments if argument is not ...]
    if origin in (Union, UnionType):
        return _union(list(zip(arguments, inner, strict=True)))
    if origin is tuple:
        return _row(inner) if len(set(inner)) > 1 else _listing(inner[0], None if arguments[-1] is ... else len(inner))
    if origin is Mapping:
        return _mapping(inner[1])
    assert isinstance(hint, type)  # no other kind of annotation is declared
    return _choice(hint) if issubclass(hint, Enum) else _object(hint, exact)


def _union(options: list[tuple[Any, Codec]]) -> Codec:
    """The first type that accepts a value of JSON is the one that is meant."""
    codecs = [codec for _, codec in options]
    classes = [(get_origin(hint) or hint, codec.write) for hint, codec in options]

    def read(value: Any) -> Any:
        for codec in codecs:
            if codec.accepts(value):
                return codec.read(value)
        raise AssertionError("a value is accepted before it is read")

    def write(value: Any) -> Any:
        for cls, write_option in classes:
            if isinstance(value, cls):
                return write_option(value)
        raise InputError(f"{repr(value)[:60]} is of no declared type")

    return Codec(
        lambda value: any(codec.accepts(value) for codec in codecs),
        read,
        write,
        lambda definitions: {"anyOf": [codec.describe(definitions) for codec in codecs]},
    )


def _listing(item: Codec, length: int | None) -> Codec:
    """A tuple as a list: of any length, or of exactly one."""
    bounds = {} if length is None else {"minItems": length, "maxItems": length}
    return Codec(
        lambda value: isinstance(value, list) and length in (None, len(value)),
        lambda value: tuple([_read(item, element, "an item") for element in value]),
        lambda value: [item.write(element) for element in value],
        lambda definitions: {"type": "array", "items": item.describe(definitions), **bounds},
    )


def _row(items: list[Codec]) -> Codec:
    """A tuple whose items are of several types as a list of as many."""
    return Codec(
        lambda value: isinstance(value, list) and len(value) == len(items),
        lambda value: tuple([_read(item, inner, "an item") for item, inner in zip(items, value, strict=True)]),
        lambda value: [item.write(inner) for item, inner in zip(items, value, strict=True)],
        lambda definitions: {"type": "array", "items": [item.describe(definitions) for item in items]},
    )


def _mapping(item: Codec) -> Codec:
    return Codec(
        lambda value: isinstance(value, dict),
        lambda value: {key: _read(item, inner, key) for key, inner in value.items()},
        lambda value: {key: item.write(inner) for key, inner in value.items()},
        lambda definitions: {"type": "object", "additionalProperties": item.describe(definitions)},
    )


def _choice(words: type[Enum]) -> Codec:
    values = [word.value for word in words]
    return Codec(
        lambda value: isinstance(value, str) and value in values,
        words,
        lambda word: word.value,
        lambda _: {"enum": values},
    )


def _others(cls: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that nobody declared, as an entry takes them; any other type has none."""
    if issubclass(cls, Entry):
        return {"more": more or EMPTY}
    if more:
        raise InputError(f"{cls.__name__} has no {next(iter(more))}")
    return {}


def _object(cls: Any, exact: bool) -> Codec:
    """An entry as an object; any object with its required keys may be one. A field may say that it is not written."""
    hints = get_type_hints(cls)
    declared = [known for known in fields(cls) if known.name != "more" and known.metadata.get("written", True)]
    codecs = {known.name: _codec(hints[known.name], exact=exact) for known in declared}
    required = [known.name for known in declared if known.default is known.default_factory is MISSING]
    rares = {known.name: known.metadata[RARE] for known in declared if RARE in known.metadata}
    plain = [(name, codec.write, name in rares, rares.get(name)) for name, codec in codecs.items()]

    def read(value: Any) -> Any:
        arguments, more = {}, {}
        for key, inner in value.items():
            codec = codecs.get(key)
            if codec is None:
                more[key] = inner
            elif codec.accepts(inner):
                arguments[key] = codec.read(inner)
            else:
                raise InputError(f"{cls.__name__}.{key} cannot be {repr(inner)[:60]}")
        return cls(**arguments, **_others(cls, more))

    def write(entry: Any) -> dict[str, Any]:
        written = {}
        for name, write_field, is_rare, default in plain:
            value = getattr(entry, name)
            if not (is_rare and value == default):
                written[name] = write_field(value)
        more = getattr(entry, "more", None)
        return {**written, **more} if more else written

    def describe(definitions: dict[str, Schema]) -> Schema:
        if cls.__name__ not in definitions:
            definitions[cls.__name__] = {}  # before its fields, which may refer to it
            definitions[cls.__name__] = {
                "description": " ".join((cls.__doc__ or "").split()),
                "type": "object",
                "properties": {name: codecs[name].describe(definitions) for name in codecs},
                "required": [name for name in codecs if name not in rares],
            }
        return {"$ref": f"#/definitions/{cls.__name__}"}

    return Codec(lambda value: isinstance(value, dict) and all(key in value for key in required), read, write, describe)
