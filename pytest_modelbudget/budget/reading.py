"""One pass over one budget file: the tables it is read by, and the problems found so far."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.grammar import Grammar
from pytest_modelbudget.budget.yaml_text import (
    Block,
    Listing,
    Node,
    Problem,
    Refused,
    Text,
    shown,
    suggestion,
)
from pytest_modelbudget.formats.table import FrontEnd
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform

NOT_YET = "is not available in this version"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping, and its value."""

    key: Text
    value: Node


@dataclass(frozen=True, slots=True)
class Reading:
    """What every reader of a part needs. problems grows; a part that has one is read as None."""

    folder: Path
    root: Path
    metrics: Mapping[str, Metric]
    front_ends: Mapping[str, FrontEnd]
    ops: OpTable
    transforms: Mapping[str, Transform] = field(default_factory=transform_table)
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, place: Place, message: str) -> None:
        """Note one more problem."""
        self.problems.append(Problem(place, message))

    def text(self, node: Node, expected: str) -> Text | None:
        """The scalar that ``node`` is; ``expected`` says what else it should have been."""
        if isinstance(node, Text) and (node.text.strip() or not node.plain):
            return node
        self._unexpected(node, expected)
        return None

    def block(self, node: Node, expected: str) -> Block | None:
        """The mapping that ``node`` is."""
        if isinstance(node, Block):
            return node
        self._unexpected(node, expected)
        return None

    def items(self, node: Node, expected: str) -> tuple[Node, ...]:
        """The items of the list that ``node`` is; none where it is no list."""
        if isinstance(node, Listing):
            return node.items
        self._unexpected(node, expected)
        return ()

    def _unexpected(self, node: Node, expected: str) -> None:
        found = {Listing: "a list", Block: "a mapping", Text: "one word"}
        if not isinstance(node, Refused):
            empty = isinstance(node, Text) and not node.text.strip()
            got = "nothing" if empty else found[type(node)]
            self.refuse(node.place, f"expected {expected}, found {got}")

    def fields(self, node: Node, grammar: Grammar) -> dict[str, Entry]:
        """The entries of a mapping whose keys the grammar knows; the others are refused."""
        known = grammar.keys()
        block = self.block(node, f"{grammar.what}: a mapping of {', '.join(known[:12])}")
        if block is None:
            return {}
        found: dict[str, Entry] = {}
        for key, value in block.entries:
            if key.text in known:
                found[key.text] = Entry(key, value)
            elif key.text in grammar.reserved:
                self.refuse(key.place, f"'{key.text}' {NOT_YET}: remove it")
            elif key.text[:1].isdigit() and isinstance(value, Text) and not value.text:
                message = f"{shown(key.text)} after a comma: write decimals with a point, as in 1.5"
                self.refuse(key.place, message)
            else:
                guess = suggestion(key.text, known)
                self.refuse(key.place, f"unknown key {shown(key.text)} in {grammar.what}: {guess}")
        for each in grammar.fields:
            if each.required and not any(key.text == each.key for key, _ in block.entries):
                self.refuse(block.place, f"{grammar.what} needs the key '{each.key}'")
        return found

    def named(self, node: Node, expected: str) -> Iterator[Entry]:
        """The entries of a mapping whose keys are of the user's choice; at least one."""
        block = self.block(node, expected)
        if block is not None and not block.entries:
            self.refuse(block.place, f"expected {expected}, found an empty mapping")
        for key, value in block.entries if block else ():
            yield Entry(key, value)


MOST_DIGITS = 100
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGERS = ((re.compile(r"[-+]?[0-9]+"), 10), (re.compile(r"0o[0-7]+"), 8),
             (re.compile(r"0x[0-9a-fA-F]+"), 16))  # fmt: skip
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain_value(node: Node, reading: Reading) -> object:
    """A scalar, list or mapping as Python has it; a quoted scalar is always a str."""
    if isinstance(node, Text):
        if len(node.text) > MOST_DIGITS and _is_number(node.text):
            reading.refuse(node.place, f"a number of {len(node.text)} digits: write at most 100")
            return None
        return scalar(node.text) if node.plain else node.text
    if isinstance(node, Listing):
        return [plain_value(item, reading) for item in node.items]
    if isinstance(node, Block):
        return {key.text: plain_value(value, reading) for key, value in node.entries}
    assert isinstance(node, Refused), "a tree has four kinds of node"
    return None


def scalar(text: str) -> object:
    """What an unquoted word means: None, a bool, an int, a float, or the word itself."""
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


def _is_number(text: str) -> bool:
    """Whether an unquoted word is a number, however long; converts nothing."""
    patterns = (*(pattern for pattern, _ in _INTEGERS), _FLOAT)
    return any(pattern.fullmatch(text) for pattern in patterns)


def integer(node: Node, expected: str, reading: Reading) -> int | None:
    """The whole number that ``node`` is."""
    text = reading.text(node, expected)
    if text is None:
        return None
    value = scalar(text.text) if text.plain and len(text.text) <= MOST_DIGITS else None
    if type(value) is int:
        return value
    reading.refuse(text.place, f"expected {expected}, found {shown(text.text)}")
    return None


def flag(node: Node, key: str, reading: Reading) -> bool | None:
    """The truth value that ``node`` is."""
    text = reading.text(node, f"{key}: true or false")
    if text is None:
        return None
    value = scalar(text.text) if text.plain else None
    if isinstance(value, bool):
        return value
    reading.refuse(text.place, f"expected true or false, found {shown(text.text)}")
    return None
