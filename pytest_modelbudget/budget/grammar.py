"""How a budget file is read, offered to editors and written back: one form for each kind of value.

``level: warn`` of a limit drawn once::

    Field("level", Form(read=one of two words, schema={"enum": ["error", "warn"]}), "error fails…")

A ``Form`` reads a value, is its JSON schema, and writes it; a ``Grammar`` is the table of the keys
of one kind of mapping, each with its form. Reader, schema and writers walk these objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, SupportsIndex, TypeVar

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.yaml_text import (
    Block,
    Listing,
    Node,
    Problem,
    Refused,
    Text,
    meant_by,
    shown,
    suggestion,
    tree,
)
from pytest_modelbudget.deployment.device import Device
from pytest_modelbudget.errors import BudgetError, InputError, UnitError
from pytest_modelbudget.formats.source import Call, names_attribute
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import some_of

Schema = dict[str, Any]

SOME_TEXT: Schema = {"type": "string", "minLength": 1}
Value = TypeVar("Value")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over one file: the tables it is read by, and the problems met so far.

    A part that has a problem is read as None. devices are those that the file knows beside shipped ones, None where
    that cannot be said.
    """

    folder: Path
    root: Path
    tables: Tables
    problems: list[Problem] = field(default_factory=list)
    devices: Mapping[str, Device] | None = None

    def refuse(self, place: Place, message: str) -> None:
        """Note one more problem."""
        self.problems.append(Problem(place, message))

    def text(self, node: Node, expected: str) -> Text | None:
        """The scalar that ``node`` is; ``expected`` says what else it should have been."""
        if isinstance(node, Text) and (node.text.strip() or not node.plain):
            return node
        self._unexpected(node, expected)
        return None

    def block(self, node: Node, expected: str, way_out: Callable[[Text], str] | None = None) -> Block | None:
        """The mapping that ``node`` is; the way out is of a word that stands there."""
        if isinstance(node, Block):
            return node
        self._unexpected(node, expected, (way_out or _blank_meant)(node) if isinstance(node, Text) else "")
        return None

    def items(self, node: Node, expected: str) -> tuple[Node, ...]:
        """The items of the list that ``node`` is; none where it is no list."""
        if isinstance(node, Listing):
            return node.items
        self._unexpected(node, expected)
        return ()

    def _unexpected(self, node: Node, expected: str, way_out: str = "") -> None:
        kinds = {Listing: "a list", Block: "a mapping", Text: "one word"}
        if not isinstance(node, Refused):
            empty = isinstance(node, Text) and not node.text.strip()
            kind = "nothing" if empty else kinds[type(node)]
            self.refuse(node.place, f"expected {expected}, found {kind}{way_out}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, and the key that it stands under; of a list's item the key of the list."""

    key: Text
    value: Node

    @property
    def place(self) -> Place:
        """The place of the key."""
        return self.key.place


Read = Callable[[Entry, Reading], "Value | None"]
Texts = dict[str, str]  # a value by name where it is a mapping, else under ""

MOST_DIGITS = 100
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGERS = ((re.compile(r"[-+]?[0-9]+"), 10), (re.compile(r"0o[0-7]+"), 8), (re.compile(r"0x[0-9a-fA-F]+"), 16))
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NO_BLANK = re.compile(r"([A-Za-z_]\w*):([^\s:].*)")  # a key and its value, as people write them who do not know YAML
PLAIN_WORD = re.compile(r"[A-Za-z_./][\w./:+-]*")


def _blank_meant(word: Text, keys: tuple[str, ...] = ()) -> str:
    """What to write for a key and its value without a blank between them; keys are those that may stand there."""
    colon = _NO_BLANK.fullmatch(word.text) if word.plain else None
    if colon is None or (keys and not meant_by(colon[1], keys, {})):
        return ""
    return f": write '{colon[1]}: {colon[2]}', with a blank behind the colon"


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


def plain_value(node: Node, reading: Reading) -> object:
    """A scalar, list or mapping as Python has it; a quoted scalar is always a str."""
    if isinstance(node, Text):
        patterns = (*(pattern for pattern, _ in _INTEGERS), _FLOAT)
        if len(node.text) > MOST_DIGITS and any(pattern.fullmatch(node.text) for pattern in patterns):
            reading.refuse(node.place, f"a number of {len(node.text)} digits: write at most 100")
            return None
        return scalar(node.text) if node.plain else node.text
    if isinstance(node, Listing):
        return [plain_value(item, reading) for item in node.items]
    if isinstance(node, Block):
        return {key.text: plain_value(value, reading) for key, value in node.entries}
    assert isinstance(node, Refused), "a tree has four kinds of node"
    return None


def plain_text(value: object) -> str:
    """A plain value; 1, 1.0, true and "1" are four, and the order of keys is none of it."""
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value) and scalar(value) == value:
        return value
    # A read-only mapping is a dict there.
    return json.dumps(value, sort_keys=True, default=lambda odd: odd.spelled if isinstance(odd, Call) else dict(odd))


@dataclass(frozen=True, slots=True)
class Form(Generic[Value]):
    """One kind of value: how it is read, the schema that editors get, and how it is written.

    The schema of a form with a name is a definition that others refer to by it. texts writes the parts of a value by
    name, where it is another mapping than one of plain values. uses are the forms that the schema refers to.
    """

    read: Read[Value]
    schema: Schema
    name: str = ""
    text: Callable[[Any], str] = plain_text
    texts: Callable[[Any], Texts] | None = None
    uses: tuple[Form[Any], ...] = ()

    @property
    def reference(self) -> Schema:
        """The schema where it is used: a reference to the definition, if there is one."""
        return {"$ref": f"#/definitions/{self.name}"} if self.name else self.schema

    def definitions(self) -> Iterator[tuple[str, Schema]]:
        """Its own definition and those of all forms below it, by their names."""
        if self.name:
            yield self.name, self.schema
        for form in self.uses:
            yield from form.definitions()

    def of(self, node: Node, reading: Reading) -> Value | None:
        """The value of a node that stands under no key."""
        return self.read(Entry(Text("", False, node.place), node), reading)

    def written(self, value: Any) -> Texts:
        """The value as a budget may spell it, by name where it is a mapping."""
        if self.texts:
            return self.texts(value)
        if isinstance(value, Mapping):
            return {name: plain_text(item) for name, item in value.items()}
        return {"": self.text(value)}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a mapping: the form of its value, and what it says (editors show that).

    One that is not offered is read, and refused with a reason: editors do not know it. also are words that people
    write for the key, which it is suggested for.
    """

    key: str
    form: Form[Any]
    about: str
    required: bool = False
    default: object = None
    offered: bool = True
    also: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """The key for editors; draft-07 ignores what stands beside a $ref, hence allOf."""
        return {"description": self.about, **({"allOf": [self.form.reference]} if self.form.name else self.form.schema)}


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a mapping's keys, with a default for every key that it does not give.

    meant are keys that it may have misspelt, which was refused.
    """

    grammar: Grammar
    key: Text
    entries: Mapping[str, Entry]
    read: Mapping[str, object]
    meant: frozenset[str] = frozenset()

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def __getitem__(self, key: str) -> Any:
        value = self.read.get(key)
        if value is not None:
            return value
        return next(known.default for known in self.grammar.fields if known.key == key)

    def place(self, key: str) -> Place:
        """The place of a key that is there."""
        return self.entries[key].place

    @property
    def places(self) -> dict[str, Place]:
        """The place of each key that is there."""
        return {key: entry.place for key, entry in self.entries.items()}


@dataclass(frozen=True, slots=True)
class Grammar:
    """The keys of one kind of mapping; what names it in messages ("a limit").

    needs are keys of which one at least must be there; lacking says so of one that has none, by
    its {name}. more is what else its schema says. empty is what is wrong with a mapping of no keys.
    """

    what: str
    fields: tuple[Field, ...]
    needs: tuple[str, ...] = ()
    lacking: str = ""
    expected: str = ""
    more: Schema = field(default_factory=dict)
    empty: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it knows."""
        return tuple(known.key for known in self.fields)

    def read(self, entry: Entry, reading: Reading) -> Values | None:
        """The values of a mapping; None of anything else. What it does not know is refused."""
        offered = [known.key for known in self.fields if known.offered]
        keys = f"a mapping of {some_of(offered, 12)}" if offered else "{}, since it has no keys"
        expected = self.expected or f"{self.what}: {keys}"
        if self._is_too_far_left(entry):
            name = shown(entry.key.text)
            reading.refuse(entry.place, f"{name} is a key of {self.what}: indent it below the name of one")
            return None
        block = reading.block(entry.value, expected, lambda word: self._meant_by_word(word, reading))
        if block is None:
            return None
        if self.empty and not block.entries:
            reading.refuse(block.place, self.empty)
        entries = {key.text: Entry(key, value) for key, value in block.entries}
        meant: set[str] = set()  # keys whose misspelling is told, and that are not told as missing, too
        for unknown in entries.keys() - set(self.keys):
            meant.update(self._refuse(entries.pop(unknown), reading))
        for known in self.fields:
            if known.required and known.key not in {*entries, *meant}:
                reading.refuse(block.place, f"{self.what} needs the key '{known.key}': {known.about}")
        if self.needs and not set(self.needs) & {*entries, *meant}:
            reading.refuse(entry.place, self.lacking.format(name=shown(entry.key.text)))
        values = {
            known.key: known.form.read(entries[known.key], reading) for known in self.fields if known.key in entries
        }
        return Values(self, entry.key, entries, values, frozenset(meant))

    def _is_too_far_left(self, entry: Entry) -> bool:
        """Whether a key of such a mapping stands where its name belongs, in the place of another one."""
        value = entry.value
        if isinstance(value, Block) and any(key.text in self.keys for key, _ in value.entries):
            return False  # one that is called like a key
        return entry.key.text in self.keys and not isinstance(value, Refused)

    def _meant_by_word(self, word: Text, reading: Reading) -> str:
        """What to write in place of a word: a key of it whose blank is missing, or the source of a model."""
        for format in reading.tables.formats.values():
            is_one = names_attribute(word.text) if format.key == "torch" else word.text.endswith(format.suffixes)
            if is_one and format.key in self.keys and word.text.partition(":")[0] not in self.keys:
                return f": write '{format.key}: {word.text}' below it"
        return _blank_meant(word, self.keys)

    def _refuse(self, entry: Entry, reading: Reading) -> tuple[str, ...]:
        """Refuse a key that nothing knows; the keys that may be meant."""
        key, value = entry.key.text, entry.value
        if key[:1].isdigit() and isinstance(value, Text) and not value.text:
            reading.refuse(entry.place, f"{shown(key)} after a comma: write 1.5 for 1,5, and 1230 for 1,230")
            return ()
        hidden = [known.key for known in self.fields if not known.offered]
        also = {known.key: known.also for known in self.fields}
        guess = suggestion(key, self.keys, also, hidden)
        reading.refuse(entry.place, f"unknown key {shown(key)} in {self.what}: {guess}")
        return meant_by(key, self.keys, also, hidden)

    @property
    def uses(self) -> tuple[Form[Any], ...]:
        """The forms of the keys that are offered."""
        return tuple(known.form for known in self.fields if known.offered)

    @property
    def schema(self) -> Schema:
        """A mapping of the keys that are offered."""
        offered = [known for known in self.fields if known.offered]
        required = [known.key for known in offered if known.required]
        needs = [{"required": [known.key]} for known in offered if known.key in self.needs]
        return {
            "type": "object",
            "additionalProperties": False,
            **({"minProperties": 1} if self.empty else {}),
            "properties": {known.key: known.schema for known in offered},
            **({"required": required} if required else {}),
            **self.more,
            **({"anyOf": needs} if needs else {}),
        }

    def form(self, make: Callable[[Values, Reading], Made | None], name: str = "") -> Form[Made]:
        """The form of such a mapping, of whose values something is made."""

        def read(entry: Entry, reading: Reading) -> Made | None:
            values = self.read(entry, reading)
            return None if values is None else make(values, reading)

        return Form(read, self.schema, name, uses=self.uses)


def _as_yaml(odd: object) -> object:
    """What stands for a value that JSON has no word for: a whole number of another package, or its own words."""
    return index(odd) if isinstance(odd, SupportsIndex) else str(odd).removeprefix("torch.")


def python_value(form: Form[Any], value: object, key: str, tables: Tables) -> tuple[Any, list[Problem]]:
    """A plain value of Python's under a key, read as a budget's: JSON is YAML, and what it cannot spell an odd word."""
    try:
        text = json.dumps(value, default=_as_yaml, ensure_ascii=False)
    except (TypeError, ValueError) as error:  # a key that is no word, a list within itself
        raise InputError(f"{key} cannot be read: {error}") from error
    node, problems = tree(text, key)
    reading = Reading(Path(), Path(), tables, problems)
    read = form.read(Entry(Text(key, plain=True, place=node.place), node), reading)
    return read, reading.problems


def spelled(
    expected: str, meaning: Callable[[Text, str, Reading], Value], schema: Schema, name: str = "", *, lead: str = ""
) -> Form[Value]:
    """One word, and its meaning where it stands under a key.

    meaning raises BudgetError or UnitError for a word without one; lead comes before its reason.
    Both lead and expected may name the {key}.
    """

    def read(entry: Entry, reading: Reading) -> Value | None:
        key = entry.key.text
        word = reading.text(entry.value, expected.format(key=key))
        try:
            return None if word is None else meaning(word, key, reading)
        except (BudgetError, UnitError) as error:
            reading.refuse(entry.value.place, f"{lead.format(key=key)}{error}")
            return None

    return Form(read, schema, name)


def one_word(
    words: Iterable[str],
    expected: str,
    refusal: str,
    *,
    name: str = "",
    meaning: Callable[[str], Value] = str,  # type: ignore[assignment]  # words mean themselves
    also: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Form[Value]:
    """One of some words. The refusal may name the {word}, the {key} and a {guess}; also is what people say instead."""
    known = tuple(words)

    def meant(word: Text, key: str, reading: Reading) -> Value:
        if word.text in known:
            return meaning(word.text)
        raise BudgetError(refusal.format(word=shown(word.text), key=key, guess=suggestion(word.text, known, also)))

    return spelled(expected, meant, {"enum": list(known)}, name)


def whole_number(
    expected: str = "{key}: a whole number",
    *,
    schema: Schema | None = None,
    least: float = -math.inf,
    most: float = math.inf,
    refusal: str = "",
    name: str = "",
) -> Form[int]:
    """An integer, within bounds where there are any. The refusal may name its {number} and key."""

    def meaning(word: Text, key: str, reading: Reading) -> int:
        number = scalar(word.text) if word.plain and len(word.text) <= MOST_DIGITS else None
        if type(number) is not int:
            raise BudgetError(f"expected {expected.format(key=key)}, found {shown(word.text)}")
        if not least <= number <= most:
            raise BudgetError(refusal.format(number=number, key=key))
        return number

    return spelled(expected, meaning, schema or {"type": "integer"}, name)


def _truth(word: Text, key: str, reading: Reading) -> bool:
    value = scalar(word.text) if word.plain else None
    if isinstance(value, bool):
        return value
    raise BudgetError(f"expected true or false, found {shown(word.text)}")


FLAG = spelled("{key}: true or false", _truth, {"type": "boolean"}, "flag")


def refused(key: str, message: str, also: tuple[str, ...] = ()) -> Field:
    """A key that may not stand there, whatever its value, with the reason; editors do not offer it."""
    form: Form[None] = Form(lambda entry, reading: reading.refuse(entry.place, message), {})
    return Field(key, form, "", offered=False, also=also)


def listed(item: Form[Value], expected: str, *, empty: str = "", name: str = "") -> Form[tuple[Value, ...]]:
    """A list of one form; empty is what is wrong with none."""

    def read(entry: Entry, reading: Reading) -> tuple[Value, ...]:
        items = reading.items(entry.value, expected.format(key=entry.key.text))
        if empty and isinstance(entry.value, Listing) and not items:
            reading.refuse(entry.value.place, empty.format(key=entry.key.text))
        values = (item.read(Entry(entry.key, node), reading) for node in items)
        return tuple(value for value in values if value is not None)

    least = {"minItems": 1} if empty else {}
    return Form(read, {"type": "array", "items": item.reference, **least}, name, uses=(item,))


def one_or_several(expected: str, *, empty: str) -> Form[tuple[str, ...]]:
    """A text, or a list of them; empty is what is wrong with none."""

    def read(entry: Entry, reading: Reading) -> tuple[str, ...]:
        node = entry.value
        items: tuple[Node, ...] = node.items if isinstance(node, Listing) else (node,)
        if not items:
            reading.refuse(node.place, empty.format(key=entry.key.text))
        texts = [reading.text(item, expected) for item in items]
        return tuple(text.text for text in texts if text is not None)

    return Form(read, {"anyOf": [SOME_TEXT, {"type": "array", "items": SOME_TEXT, "minItems": 1}]})


def named(
    item: Form[Value],
    expected: str,
    *,
    names: Schema | None = None,
    check: Callable[[Text, Reading], object] = lambda key, reading: None,
    name: str = "",
) -> Form[dict[str, Value]]:
    """A mapping whose keys are of the user's choice; at least one. check refuses wrong ones."""

    def read(entry: Entry, reading: Reading) -> dict[str, Value]:
        block = reading.block(entry.value, expected)
        if block is not None and not block.entries:
            reading.refuse(block.place, f"expected {expected}, found an empty mapping")
        values: dict[str, Value] = {}
        for key, node in block.entries if block else ():
            check(key, reading)
            value = item.read(Entry(key, node), reading)
            if value is not None:
                values[key.text] = value
        return values

    schema = {"type": "object", "minProperties": 1, **({} if names is None else {"propertyNames": names})}
    return Form(read, {**schema, "additionalProperties": item.reference}, name, uses=(item,))


_FORBIDDEN = re.compile(r"::|[\[@\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


def _must_be_a_name(what: str, taken: frozenset[str], name: Text, reading: Reading) -> None:
    """Refuse names that a node id could not hold, and those that checks have."""
    text = name.text
    if not text.strip() or text != text.strip() or not text.isprintable():
        reading.refuse(name.place, f"{shown(text)} is no name of a {what}: write visible characters on one line")
    elif _FORBIDDEN.search(text):
        reading.refuse(name.place, f"the {what} name {shown(text)} may not hold '::', '[', '@' or line breaks")
    if text in taken:
        reading.refuse(name.place, f"a {what} may not be called {shown(text)}: checks are called so")


def by_name(what: str, item: Form[Any], taken: frozenset[str] = frozenset()) -> Form[Any]:
    """Models, variants or transforms by names of the user's choice, which no check has."""
    pattern: Schema = {"type": "string", "pattern": r"^(?!.*(::|[\[@\r\n]))\S(.*\S)?$"}
    names = {"allOf": [pattern, {"not": {"enum": sorted(taken)}}]} if taken else pattern
    expected = f"{what}s: a mapping of names" + (f" to {what}s" if what != "transform" else "")
    return named(item, expected, names=names, check=partial(_must_be_a_name, what, taken), name=f"{what}s")
