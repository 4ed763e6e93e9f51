"""Single scalars of a budget file replaced in place; every other byte stays as it is.

A round trip through a YAML library keeps comments, but not the author's indentation or alignment.
So a new quantity is spliced in between the very marks that the reader found the old one at, and
the result is read again before anything is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_modelbudget.budget.yaml_nodes import Block, Node, Text, tree
from pytest_modelbudget.errors import BudgetError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
QUOTES = ("'", '"')


@dataclass(frozen=True, slots=True)
class Edit:
    """One scalar that is to hold another quantity: the keys that lead to it, and that quantity.

    subject is what the scalar limits, for people: "net::params".
    """

    keys: tuple[str, ...]
    quantity: str
    subject: str = ""


def scalar_at(root: Node, keys: tuple[str, ...]) -> Text | None:
    """The scalar that keys lead to; a last key "max" also means a limit that is a scalar itself."""
    node: Node | None = root
    for position, key in enumerate(keys):
        if isinstance(node, Text) and key == "max" and position == len(keys) - 1:
            return node
        entries = node.entries if isinstance(node, Block) else ()
        node = next((value for each, value in entries if each.text == key), None)
    return node if isinstance(node, Text) else None


def edited(text: str, file: str, edits: Iterable[Edit]) -> str:
    """The text of a budget file with these scalars replaced, in the quotes that they had.

    Raises BudgetError where an edit leads to no scalar.
    """
    root, _ = tree(text, file)
    splices: list[tuple[int, int, str]] = []
    for edit in edits:
        scalar = scalar_at(root, edit.keys)
        old = text[slice(*scalar.span)] if scalar else ""
        if scalar is None or "\n" in old:
            raise BudgetError(f"{file}: {'.'.join(edit.keys)} is not one word: edit it by hand")
        quote = old[0] if old.startswith(QUOTES) else ""
        splices.append((*scalar.span, f"{quote}{edit.quantity}{quote}"))
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def replace_file(path: Path, text: str) -> None:
    """Put a text in a file's place, whole or not at all; OSError where it cannot be written."""
    path = Path(os.path.realpath(path))  # a link stays a link
    now = path.read_bytes() if path.exists() else None
    mark = BYTE_ORDER_MARK if now and now.startswith(BYTE_ORDER_MARK) else b""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(mark + text.encode("utf-8"))
        if now is not None:
            temporary.chmod(path.stat().st_mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
