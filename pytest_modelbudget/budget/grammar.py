"""How a budget file is read and offered to editors: each key of a mapping is declared once, with the form of its value.

``level: warn`` of a limit drawn once::

    Field("level", one_word(["error", "warn"], "level"), "error fails…", default="error")

A ``Form`` reads a value, and has its JSON schema; a ``Grammar`` is the table of the keys of one kind of mapping, each
with its form. Reader, schema and writers walk these objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, SupportsIndex, TypeVar

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.yaml_text import (
    Block,
    BudgetFileError,
    Listing,
    Node,
    Problem,
    Text,
    meant_by,
    shown,
    suggestion,
    tree,
)
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import BudgetError, InputError, UnitError
from pytest_modelbudget.formats.source import Call
from pytest_modelbudget.formats.spellings import scalar
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import Number, quantity, quantity_pattern, some_of, unit_named

Schema = dict[str, Any]
Texts = dict[str, str]  # a value by name where it is a mapping, else under ""
ReadText = Callable[[Path, str], str]  # the text of a file, under the name that problems give it

SOME_TEXT: Schema = {"type": "string", "minLength": 1}
NOTHING: Mapping[str, Any] = MappingProxyType({})
Value = TypeVar("Value")
Made = TypeVar("Made")
AnyNode = TypeVar("AnyNode", Text, Listing, Block)


@dataclass(slots=True)
class Reading:
    """One pass over one file: the tables it is read by, and the problems met so far.

    A part that has a problem is read as None. devices are those of the hardware file, which read_text reads: None where
    they cannot be known.
    """

    folder: Path
    root: Path
    tables: Tables
    read_text: ReadText | None = None
    problems: list[Problem] = field(default_factory=list)
    devices: Mapping[str, Device] | None = field(default_factory=dict)

    def refuse(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))

    def node(self, kind: type[AnyNode], node: Node, expected: str, hint: str = "") -> AnyNode | None:
        """A node of a kind, and no empty word; expected says what else it should have been."""
        is_blank = isinstance(node, Text) and node.plain and not node.text.strip()
        if isinstance(node, kind) and not is_blank:
            return node
        kinds = {Listing: "a list", Block: "a mapping", Text: "nothing" if is_blank else "one word"}
        self.refuse(node.place, f"expected {expected}, found {kinds[type(node)]}{hint}")
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its key; of a list's item the key of the list."""

    key: Text
    value: Node

    @property
    def place(self) -> Place:
        return self.key.place


Read = Callable[[Entry, Reading], "Value | None"]

PLAIN_WORD = re.compile(r"[A-Za-z_./][\w./:+-]*")


def plain_value(node: Node) -> object:
    """A scalar, list or mapping as Python has it; a quoted scalar is always a str."""
    if isinstance(node, Text):
        return scalar(node.text) if node.plain else node.text
    if isinstance(node, Listing):
        return [plain_value(item) for item in node.items]
    return {key.text: plain_value(value) for key, value in node.entries}


def plain_text(value: object) -> str:
    """A plain value; 1, 1.0, true and "1" are four, and the order of keys is none of it."""
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value) and scalar(value) == value:
        return value
    # A read-only mapping is a dict there.
    return json.dumps(value, sort_keys=True, default=lambda odd: odd.spelled if isinstance(odd, Call) else dict(odd))


def plain_texts(value: object) -> Texts:
    """A plain value as a budget may spell it, by name where it is a mapping."""
    if isinstance(value, Mapping):
        return {name: plain_text(item) for name, item in value.items()}
    return {"": plain_text(value)}


def flow(texts: Texts) -> str:
    """The texts of a value in one line: "{width: 0.5}"."""
    named = (f"{plain_text(name)}: {text}" for name, text in texts.items())
    return texts[""] if "" in texts else f"{{{', '.join(named)}}}"


@dataclass(frozen=True, slots=True)
class Form(Generic[Value]):
    """One kind of value: how it is read, the schema that editors get, and how it is written."""

    read: Read[Value]
    schema: Schema
    name: str = ""
    texts: Callable[[Any], Texts] = plain_texts

    @property
    def reference(self) -> Schema:
        """The schema where it is used: a reference to the definition, if there is one."""
        return Reference(self) if self.name else self.schema

    def of(self, node: Node, reading: Reading) -> Value | None:
        """The value of a node without a key."""
        return self.read(Entry(Text("", False, node.place), node), reading)


class Reference(dict[str, Any]):
    """The schema that refers to a form's definition by its name."""

    def __init__(self, form: Form[Any]) -> None:
        super().__init__({"$ref": f"#/definitions/{form.name}"})
        self.form = form


def definitions(schema: object, known: dict[str, Schema]) -> dict[str, Schema]:
    """Add to the known ones the definition of each form that a schema refers to."""
    if isinstance(schema, Reference):
        if schema.form.name not in known:
            known[schema.form.name] = schema.form.schema
            definitions(schema.form.schema, known)
    elif isinstance(schema, (dict, list)):
        for part in schema.values() if isinstance(schema, dict) else schema:
            definitions(part, known)
    return known


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a mapping: the form of its value, and what it says (editors show that)."""

    key: str
    form: Form[Any]
    about: str
    required: bool = False
    default: object = None
    also: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """The key for editors; draft-07 ignores what stands beside a $ref, hence allOf."""
        return {"description": self.about, **({"allOf": [self.form.reference]} if self.form.name else self.form.schema)}


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a mapping's keys, with a default for every key that it does not give."""

    grammar: Grammar
    key: Text
    entries: Mapping[str, Entry]
    read: Mapping[str, object]

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def __getitem__(self, key: str) -> Any:
        value = self.read.get(key)
        if value is not None:
            return value
        return next(known.default for known in self.grammar.fields if known.key == key)

    def place(self, key: str) -> Place:
        return self.entries[key].place

    def written(self, key: str) -> str:
        """The word that the file has under a key; "" where there is none."""
        node = self.entries[key].value if key in self.entries else None
        return node.text.strip() if isinstance(node, Text) else ""

    @property
    def places(self) -> dict[str, Place]:
        return {key: entry.place for key, entry in self.entries.items()}


@dataclass(frozen=True, slots=True)
class Grammar:
    """The keys of one kind of mapping; ``what`` names it in messages ("a limit").

    At least one of needs, and exactly one of one_of, must be there. elsewhere are keys that are refused, each with the
    reason, such as where it belongs.
    """

    what: str
    fields: tuple[Field, ...]
    needs: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    expected: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(known.key for known in self.fields)

    def read(self, entry: Entry, reading: Reading) -> Values | None:
        """The values of a mapping; None of anything else. What it does not know is refused."""
        if self._is_too_far_left(entry):
            reading.refuse(
                entry.place, f"{shown(entry.key.text)} is a key of {self.what}: indent it below the name of one"
            )
            return None
        keys = f"a mapping of {some_of(self.keys, 12)}" if self.keys else "{}, since it has no keys"
        block = reading.node(Block, entry.value, self.expected or f"{self.what}: {keys}", self._unspaced(entry.value))
        if block is None:
            return None
        entries = {key.text: Entry(key, value) for key, value in block.entries}
        meant = set[str]()  # keys whose misspelling is refused, and that are not missing, too
        unknown = entries.keys() - set(self.keys)
        for key in unknown:
            meant.update(self._refuse(entries.pop(key), reading))
        for known in self.fields:
            if known.required and known.key not in {*entries, *meant}:
                reading.refuse(entry.value.place, f"{self.what} needs the key '{known.key}': {known.about}")
        self._must_be_decided(entry, entries, reading, is_read=not unknown)
        values = {
            known.key: known.form.read(entries[known.key], reading) for known in self.fields if known.key in entries
        }
        return Values(self, entry.key, entries, values)

    def _is_too_far_left(self, entry: Entry) -> bool:
        """Whether a key of such a mapping is at the place of a name, and is no name that is like a key."""
        entries = entry.value.entries if isinstance(entry.value, Block) else ()
        return entry.key.text in self.keys and not any(key.text in self.keys for key, _ in entries)

    def _unspaced(self, node: Node) -> str:
        """What to write for one of the keys and its value without a blank between them."""
        key, colon, value = node.text.partition(":") if isinstance(node, Text) else ("", "", "")
        is_meant = colon and key in self.keys
        return f": write '{key}: {value}', with a blank behind the colon" if is_meant else ""

    def _refuse(self, entry: Entry, reading: Reading) -> tuple[str, ...]:
        """Refuse a key that nothing knows; the keys that may be meant."""
        key, also = entry.key.text, {known.key: known.also for known in self.fields}
        if key in self.elsewhere:
            reading.refuse(entry.place, f"{shown(key)} is no key of {self.what}: {self.elsewhere[key]}")
            return ()
        if key[:1].isdigit() and isinstance(entry.value, Text) and not entry.value.text:
            reading.refuse(entry.place, f"{shown(key)} after a comma: write 1.5 for 1,5, and 1230 for 1,230")
            return ()
        reading.refuse(entry.place, f"unknown key {shown(key)} in {self.what}: {suggestion(key, self.keys, also)}")
        return meant_by(key, self.keys, also)

    def _must_be_decided(self, entry: Entry, entries: Mapping[str, Entry], reading: Reading, *, is_read: bool) -> None:
        """Refuse two exclusive keys and, where all were read, none of those of which it needs one."""
        for some in (self.one_of, self.needs) if is_read else ():
            if some and not {*some} & entries.keys():
                name = shown(entry.key.text)
                reading.refuse(entry.place, f"{name} has none of the keys {some_of(some, 8)}: give one")
        exclusive = [key for key in entries if key in self.one_of]
        for second in exclusive[1:]:
            message = f"'{second}' and '{exclusive[0]}' exclude each other: {self.what} has one of them"
            reading.refuse(entries[second].place, message)

    @property
    def schema(self) -> Schema:
        """A mapping of the keys."""
        required = [known.key for known in self.fields if known.required]
        some = {"anyOf": self.needs, "oneOf": self.one_of}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {known.key: known.schema for known in self.fields},
            **({"required": required} if required else {}),
            **{word: [{"required": [key]} for key in keys] for word, keys in some.items() if keys},
        }

    def form(self, make: Callable[[Values, Reading], Made | None], name: str = "") -> Form[Made]:
        """The form of such a mapping, of whose values something is made."""

        def read(entry: Entry, reading: Reading) -> Made | None:
            values = self.read(entry, reading)
            return None if values is None else make(values, reading)

        return Form(read, self.schema, name)

    def texts(self, made: object) -> Texts:
        """What is made of the values as a budget may spell it; nothing of a key without a value."""
        values = {key: getattr(made, key, None) for key in self.keys}
        return {key: plain_text(value) for key, value in values.items() if value not in (None, "", 0)}


def python_value(form: Form[Any], value: object, key: str, tables: Tables) -> tuple[Any, list[Problem]]:
    """A plain value of Python's under a key, read as a budget's: JSON is YAML, and what it cannot spell an odd word."""
    try:
        text = json.dumps(value, default=lambda odd: index(odd) if isinstance(odd, SupportsIndex) else
                          str(odd).removeprefix("torch."), ensure_ascii=False)  # fmt: skip
    except (TypeError, ValueError) as error:  # a key that is no word, a list within itself
        raise InputError(f"{key} cannot be read: {error}") from error
    try:
        node = tree(text, key)
    except BudgetFileError as error:
        return None, list(error.problems)
    reading = Reading(Path(), Path(), tables)
    read = form.read(Entry(Text(key, plain=True, place=node.place), node), reading)
    return read, reading.problems


# Forms of one word.


def spelled(
    expected: str, meaning: Callable[[Text, str, Reading], Value], schema: Schema, name: str = "", *, lead: str = ""
) -> Form[Value]:
    """One word, and its meaning under a key.

    meaning raises BudgetError or UnitError for a word without one; lead comes before its reason.
    Both lead and expected may name the {key}.
    """

    def read(entry: Entry, reading: Reading) -> Value | None:
        key = entry.key.text
        word = reading.node(Text, entry.value, expected.format(key=key))
        try:
            return None if word is None else meaning(word, key, reading)
        except (BudgetError, UnitError) as error:
            reading.refuse(entry.value.place, f"{lead.format(key=key)}{error}")
            return None

    return Form(read, schema, name)


def one_word(
    words: Iterable[str],
    what: str = "value of {key}",
    *,
    name: str = "",
    meaning: Callable[[str], Value] = str,  # type: ignore[assignment]  # words mean themselves
    also: Mapping[str, Iterable[str]] = NOTHING,
    short: Mapping[str, str] = NOTHING,
) -> Form[Value]:
    """One of some words; what names it in messages, and may name the {key}.

    short are other words that are taken for them, also those that people say for them and that are suggested alone.
    """
    known = tuple(words)

    def meant(word: Text, key: str, reading: Reading) -> Value:
        name = short.get(word.text, word.text)
        if name in known:
            return meaning(name)
        raise BudgetError(f"{shown(word.text)} is no {what.format(key=key)}: {suggestion(word.text, known, also)}")

    return spelled(f"{{key}}: {', '.join(known)}", meant, {"enum": [*known, *short]}, name)


def whole_number(least: float = -math.inf, most: float = math.inf, what: str = "{key}", name: str = "") -> Form[int]:
    """An integer, within bounds where there are any."""

    def meaning(word: Text, key: str, reading: Reading) -> int:
        number, thing = scalar(word.text) if word.plain else None, what.format(key=key)
        if type(number) is not int:
            raise BudgetError(f"expected {thing}: a whole number, found {shown(word.text)}")
        if not least <= number <= most:
            end = f"{least:,} or more" if most == math.inf else f"{least:,} to {most:,}"
            raise BudgetError(f"{thing} of {number}: it must be {end}")
        return number

    ends = {"minimum": least, "maximum": most}
    finite = {word: end for word, end in ends.items() if math.isfinite(end)}
    return spelled(f"{what}: a whole number", meaning, {"type": "integer", **finite}, name)


def amount_schema(unit: str) -> Schema:
    """Quantities of a unit, for editors."""
    alone: list[Schema] = [{"type": "integer", "minimum": 0}] if unit_named(unit).bare else []
    return {"anyOf": [*alone, {"type": "string", "pattern": quantity_pattern(unit)}]}


def amount(unit: str, example: str = "", of: str = "{key}") -> Form[Number]:
    """A quantity of a unit; with an example, one above zero. Problems name the key, or what it is of."""

    def meaning(word: Text, key: str, reading: Reading) -> Number:
        value = quantity(word.text, unit)
        if example and not value:
            raise BudgetError(f"{shown(word.text)} is nothing: write an amount such as {example}")
        return value

    such = f" such as {example}" if example else ""
    return spelled(f"{of}: a quantity of {unit}{such}", meaning, amount_schema(unit), lead=f"{of}: ")


def _truth(word: Text, key: str, reading: Reading) -> bool:
    value = scalar(word.text) if word.plain else None
    if isinstance(value, bool):
        return value
    raise BudgetError(f"expected true or false, found {shown(word.text)}")


FLAG = spelled("{key}: true or false", _truth, {"type": "boolean"}, "flag")
ANYTHING: Form[object] = Form(lambda entry, reading: plain_value(entry.value), {})


def text_form(expected: str) -> Form[str]:
    """Any text but none."""
    return spelled(expected, lambda word, key, reading: word.text, SOME_TEXT)


# Forms of several.


def listed(item: Form[Value], expected: str, *, may_be_empty: bool = False, name: str = "") -> Form[tuple[Value, ...]]:
    """A list of one form."""

    def read(entry: Entry, reading: Reading) -> tuple[Value, ...]:
        several = reading.node(Listing, entry.value, expected.format(key=entry.key.text))
        if several and not several.items and not may_be_empty:
            reading.refuse(several.place, f"{entry.key.text} is empty: name at least one")
        values = (item.read(Entry(entry.key, node), reading) for node in (several.items if several else ()))
        return tuple(value for value in values if value is not None)

    least = {} if may_be_empty else {"minItems": 1}
    return Form(read, {"type": "array", "items": item.reference, **least}, name)


def one_or_several(item: Form[Value]) -> Form[tuple[Value, ...]]:
    """One value, or a list of them."""
    several = listed(item, "")

    def read(entry: Entry, reading: Reading) -> tuple[Value, ...]:
        if isinstance(entry.value, Listing):
            return several.read(entry, reading) or ()
        value = item.read(entry, reading)
        return () if value is None else (value,)

    return Form(read, {"anyOf": [item.reference, several.schema]})


def words(what: str) -> Form[tuple[str, ...]]:
    """One text, or a list of them."""
    return one_or_several(text_form(what))


def shorthand(mapping: Form[Value], key: str, alone: Form[Any], name: str = "") -> Form[Value]:
    """A mapping, or the value of one of its keys alone."""

    def read(entry: Entry, reading: Reading) -> Value | None:
        value = entry.value
        if not isinstance(value, Block):
            value = Block(((Text(key, True, value.place), value),), value.place)
        return mapping.read(Entry(entry.key, value), reading)

    return Form(read, {"anyOf": [alone.reference, mapping.reference]}, name)


def named(item: Form[Value], expected: str, *, keys: Form[Any] | None = None, name: str = "") -> Form[dict[str, Value]]:
    """A mapping whose keys are of the user's choice, as a form reads them; at least one."""

    def read(entry: Entry, reading: Reading) -> dict[str, Value]:
        block = reading.node(Block, entry.value, expected)
        if block is not None and not block.entries:
            reading.refuse(block.place, f"expected {expected}, found an empty mapping")
        values: dict[str, Value] = {}
        for key, node in block.entries if block else ():
            if keys is not None:
                keys.of(key, reading)
            value = item.read(Entry(key, node), reading)
            if value is not None:
                values[key.text] = value
        return values

    names = {} if keys is None else {"propertyNames": keys.schema}
    return Form(read, {"type": "object", "minProperties": 1, "additionalProperties": item.reference, **names}, name)


def word_like(pattern: str, what: str, way_out: str, taken: Iterable[str] = ()) -> Form[str]:
    """A printable word of a pattern, such as a name of the user's choice, and none of those that are taken."""

    def meaning(word: Text, key: str, reading: Reading) -> str:
        if word.text in taken:
            raise BudgetError(f"{shown(word.text)} is no {what}: checks are called so, write another one")
        if not re.fullmatch(pattern, word.text) or not word.text.isprintable():
            raise BudgetError(f"{shown(word.text)} is no {what}: write {way_out}")
        return word.text

    schema: Schema = {"type": "string", "pattern": f"^{pattern}$"}
    if taken:
        schema = {"allOf": [schema, {"not": {"enum": sorted(taken)}}]}
    return spelled(f"a {what}", meaning, schema)


NAME = r"(?!.*(?:::|[\[@]))\S(?:.*\S)?"  # what a node id can hold


def by_name(what: str, item: Form[Any], taken: frozenset[str] = frozenset(), several: str = "") -> Form[Any]:
    """Models, variants or transforms by names of the user's choice, which no check has."""
    keys = word_like(NAME, f"name of a {what}", "visible characters without '::', '[' and '@'", taken)
    several = several or f"{what}s"
    return named(item, f"{several}: a mapping of names to {several}", keys=keys, name=several)
