"""Frozen dataclasses as JSON: written, read and described by a JSON Schema, from their types alone.

A field without a default must be there to be read; one made by ``rare`` is written only where it
says something; any other is always written. Keys that nobody declared are kept, and written last::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Share(Entry):
        scope: str
        value: Number          # a whole number is one in JSON, a ratio a decimal string
        why: str = rare("")

    from_json(Share, {"scope": "fc", "value": "1.5"})   # Share(scope="fc", value=Fraction(3, 2))
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from decimal import Context, Inexact
from enum import Enum
from fractions import Fraction
from functools import cache
from operator import eq
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.units import Number, decimal_text

EMPTY: Mapping[str, Any] = MappingProxyType({})
EXACT_DIGITS = 12  # significant ones up to which a ratio is written exactly
RARE = "rare"

Schema = dict[str, Any]
E = TypeVar("E", bound="Entry")


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


def json_text(entry: Entry) -> str:
    """``to_json`` as the text of a file: what ``json.dumps`` gives of it with ``indent=1``."""
    return _codec(type(entry)).text(entry, "\n")


def from_json(entry_type: type[E], value: Any) -> E:
    """The entry that a JSON object means; raises InputError where it is none of that type."""
    entry: E = _read(_codec(entry_type), value, entry_type.__name__)
    return entry


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
    context = Context(prec=EXACT_DIGITS)
    short = context.divide(value.numerator, value.denominator)
    return decimal_text(value) if context.flags[Inexact] else str(short)


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
        return _block(
            "{}", [f"{_leaf(str(key))}: {document_text(each, inner)}" for key, each in value.items()], newline
        )
    return _block("[]", [document_text(each, inner) for each in value], newline)


def _block(ends: str, lines: Sequence[str], newline: str) -> str:
    """An object or an array, whose lines are indented behind that newline."""
    inner = newline + " "
    return f"{ends[0]}{inner}{f',{inner}'.join(lines)}{newline}{ends[1]}" if lines else ends


_leaf = json.JSONEncoder(allow_nan=False).encode
_leaves = json.JSONEncoder(separators=("\n", "")).encode  # of strings and numbers, whose text has no end of line


class Columns(Sequence[E], Generic[E]):
    """Entries with the same keys as JSON has them, a column for each key: ``{"scope": ["fc"], "value": [42]}``.

    An entry is made where somebody looks at it: thousands of them take little memory, and are written all at once.
    """

    __slots__ = ("_columns", "_entry_type")

    def __init__(self, entry_type: type[E], **columns: Sequence[Any]) -> None:
        self._entry_type = entry_type
        self._columns = {name: _packed(column) for name, column in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, position: Any) -> Any:
        """The entry there; of a slice a tuple."""
        if isinstance(position, slice):
            return tuple(self)[position]
        return self._entry({name: column[position] for name, column in self._columns.items()})

    def __iter__(self) -> Iterator[E]:
        yield from map(self._entry, self.rows())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list's, and unlike a tuple's

    def _entry(self, row: dict[str, Any]) -> E:
        entry: E = _codec(self._entry_type).read(row)
        return entry

    def rows(self) -> Iterator[dict[str, Any]]:
        """The entries as JSON has them."""
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))

    def text(self, newline: str) -> str:
        """The same as ``document_text`` of all rows."""
        keys = [f"{_leaf(name)}: %s" for name in self._columns]
        cells = (
            map(str, column) if isinstance(column, array) else _leaves(column)[1:-1].split("\n")
            for column in self._columns.values()
        )
        row = _block("{}", keys, newline + " ")
        return _block("[]", [row % each for each in zip(*cells, strict=True)], newline)


def _packed(values: Sequence[Any]) -> Sequence[Any]:
    """A column that holds whole numbers as machines do, if all of them are such."""
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return [*values]


@dataclass(frozen=True, slots=True)
class Codec:
    """One type in JSON: which values may be it, how they are read, written and described.

    accepts looks no deeper than it takes to tell a type from the others of a union. describe adds
    what its schema refers to to the definitions. text gives what ``document_text`` makes of what is written.
    """

    accepts: Callable[[Any], bool]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    describe: Callable[[dict[str, Schema]], Schema]
    text: Callable[[Any, str], str] = lambda value, newline: document_text(value, newline)


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
    Fraction: Codec(
        _is_ratio, WrittenRatio, number_json, lambda _: _DECIMAL, lambda ratio, _: f'"{number_json(ratio)}"'
    ),
    Any: Codec(lambda value: True, _same, _same, lambda _: {}),
}


def _codec(hint: Any) -> Codec:
    """The codec of a declared type, made once."""
    return _made_codec(hint)


@cache
def _made_codec(hint: Hashable) -> Codec:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    inner = [_codec(argument) for argument in arguments if argument is not ...]
    if origin in (Union, UnionType):
        return _union(list(zip(arguments, inner, strict=True)))
    if origin is tuple:
        return _listing(inner[0], None if arguments[-1] is ... else len(inner))  # its items are of one type
    if origin is Sequence:
        return _columns(arguments[0], inner[0])
    if origin is Mapping:
        return _mapping(inner[1])
    assert isinstance(hint, type)  # no other kind of annotation is declared
    return _choice(hint) if issubclass(hint, Enum) else _object(hint)


def _union(options: list[tuple[Any, Codec]]) -> Codec:
    """The first type that accepts a value of JSON is the one that is meant."""
    codecs = [codec for _, codec in options]
    classes = [(get_origin(hint) or hint, codec) for hint, codec in options]

    def read(value: Any) -> Any:
        for codec in codecs:
            if codec.accepts(value):
                return codec.read(value)
        raise AssertionError("a value is accepted before it is read")

    def meant(value: Any) -> Codec:
        for cls, codec in classes:
            if isinstance(value, cls):
                return codec
        raise InputError(f"{repr(value)[:60]} is of no declared type")

    return Codec(
        lambda value: any(codec.accepts(value) for codec in codecs),
        read,
        lambda value: meant(value).write(value),
        lambda definitions: {"anyOf": [codec.describe(definitions) for codec in codecs]},
        lambda value, newline: meant(value).text(value, newline),
    )


def _listing(item: Codec, length: int | None) -> Codec:
    """A tuple as a list: of any length, or of exactly one."""
    bounds = {} if length is None else {"minItems": length, "maxItems": length}
    return Codec(
        lambda value: isinstance(value, list) and length in (None, len(value)),
        lambda value: tuple([_read(item, element, "an item") for element in value]),
        lambda value: [item.write(element) for element in value],
        lambda definitions: {"type": "array", "items": item.describe(definitions), **bounds},
        lambda value, newline: _block("[]", [item.text(element, newline + " ") for element in value], newline),
    )


def _columns(entry_type: type[E], item: Codec) -> Codec:
    """Entries as a list; where all have the declared keys, they are read as columns."""
    listing, hints = _listing(item, None), get_type_hints(entry_type)
    codecs = {known.name: _codec(hints[known.name]) for known in fields(entry_type) if known.name != "more"}

    def read(value: list[Any]) -> Any:
        if any(not isinstance(row, dict) or row.keys() != codecs.keys() for row in value):
            return listing.read(value)
        columns = {name: [row[name] for row in value] for name in codecs}
        if all(all(map(codec.accepts, columns[name])) for name, codec in codecs.items()):
            return Columns(entry_type, **columns)
        return listing.read(value)  # which says what cannot be

    return Codec(
        listing.accepts,
        read,
        lambda value: [*value.rows()] if isinstance(value, Columns) else listing.write(value),
        listing.describe,
        lambda value, newline: value.text(newline) if isinstance(value, Columns) else listing.text(value, newline),
    )


def _mapping(item: Codec) -> Codec:
    return Codec(
        lambda value: isinstance(value, dict),
        lambda value: {key: _read(item, inner, key) for key, inner in value.items()},
        lambda value: {key: item.write(inner) for key, inner in value.items()},
        lambda definitions: {"type": "object", "additionalProperties": item.describe(definitions)},
        lambda value, newline: _block(
            "{}", [f"{_leaf(key)}: {item.text(inner, newline + ' ')}" for key, inner in value.items()], newline
        ),
    )


def _choice(words: type[Enum]) -> Codec:
    values = [word.value for word in words]
    return Codec(
        lambda value: isinstance(value, str) and value in values,
        words,
        lambda word: word.value,
        lambda _: {"enum": values},
        lambda word, _: _leaf(word.value),
    )


def _object(cls: Any) -> Codec:
    """An entry as an object; any object with its required keys may be one."""
    hints = get_type_hints(cls)
    declared = [known for known in fields(cls) if known.name != "more"]
    codecs = {known.name: _codec(hints[known.name]) for known in declared}
    required = [known.name for known in declared if known.default is known.default_factory is MISSING]
    rares = {known.name: known.metadata[RARE] for known in declared if RARE in known.metadata}

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
        return cls(**arguments, more=more or EMPTY)

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

    def accepts(value: Any) -> bool:
        return isinstance(value, dict) and all(key in value for key in required)

    write, text = _object_writers(codecs, rares)
    return Codec(accepts, read, write, describe, text)


def _object_writers(
    codecs: Mapping[str, Codec], rares: Mapping[str, Any]
) -> tuple[Callable[[Any], dict[str, Any]], Callable[[Any, str], str]]:
    """How entries with such fields are written, and as what text."""
    declared = [(name, codec, name in rares, rares.get(name)) for name, codec in codecs.items()]

    def said(entry: Any) -> Iterator[tuple[str, Codec, Any]]:
        for name, codec, is_rare, default in declared:
            value = getattr(entry, name)
            if not (is_rare and value == default):
                yield name, codec, value

    def write(entry: Any) -> dict[str, Any]:
        written = {name: codec.write(value) for name, codec, value in said(entry)}
        return {**written, **entry.more} if entry.more else written

    def text(entry: Any, newline: str) -> str:
        inner = newline + " "
        lines = [f'"{name}": {codec.text(value, inner)}' for name, codec, value in said(entry)]
        lines += [f"{_leaf(str(key))}: {document_text(value, inner)}" for key, value in entry.more.items()]
        return _block("{}", lines, newline)

    return write, text
