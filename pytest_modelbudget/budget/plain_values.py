"""Plain values of a budget (args, kwargs, sizes), typed as YAML 1.2's core schema types them.

PyYAML's own resolver follows YAML 1.1, where ``on`` is true, ``010`` is 8 and ``1e6`` a string.
"""

from __future__ import annotations

import re

from pytest_modelbudget.budget.problem import shown
from pytest_modelbudget.budget.reading import Reading
from pytest_modelbudget.budget.yaml_nodes import Block, Listing, Node, Refused, Text

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
