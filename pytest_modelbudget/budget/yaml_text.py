"""The tree of a YAML text: texts, lists and mappings, each with its place; nothing resolved.

``params: 11.7 M`` on line 3 drawn once::

    Block(((Text("params", True, 3:1), Text("11.7 M", True, 3:9)),), 3:1)

Refused here: duplicate keys, aliases, merge keys, tags, deep nesting, several documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Union

import yaml

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats import spellings


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a budget file must say differently, and where."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}:{self.place.column}: {self.message}"


class BudgetFileError(BudgetError):
    """A budget file with problems, in the order of the file; its text has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        in_order = sorted(problems, key=lambda problem: (problem.place.line, problem.place.column))
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(in_order))
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[BudgetFileError], tuple[tuple[Problem, ...]]]:
        return BudgetFileError, (self.problems,)


meant_by, shown, suggestion = spellings.meant_by, spellings.shown, spellings.suggestion
CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?:[ \r]|$)", re.MULTILINE)  # what git leaves in a file
_ALIGNED = re.compile(r"[}\]]*( {3,})(?=#)")  # the way from a scalar to a comment in a column of comments
# What to write where YAML's own words say it to those alone who know how it is parsed.
_HINTS = (
    ("but got '['", "a spec such as 'float32[1, 3]' needs quotes inside {…} and […]"),
    ("\\t", "write spaces in place of the tab"),
    ("cannot start any token", "put the value in quotes"),
    ("mapping values are not allowed", "put a value with a colon in quotes, or is one missing on the line above?"),
    ("could not find expected ':'", "is a colon missing on the line above?"),
    ("expected <block end>", "indent this line as those that it belongs to"),
)


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as it is spelled; plain means unquoted, and so possibly a number or a boolean."""

    text: str
    plain: bool
    place: Place
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """A sequence; span as of a text, and of one in block style to wherever the next thing begins."""

    items: tuple[Node, ...]
    place: Place
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """A mapping: entries in the order of the file, keys distinct; span as of a sequence."""

    entries: tuple[tuple[Text, Node], ...]
    place: Place
    span: tuple[int, int] = field(default=(0, 0), compare=False)


Node = Union[Text, Listing, Block]


def tree(text: str, file: str) -> Node:
    """The root node of a YAML text.

    Raises BudgetFileError where the text is no YAML, holds no document, or more than one, or what a budget has no use
    for.
    """
    problems: list[Problem] = []
    if (mark := CONFLICT.search(text)) is not None:
        message = "the marks of an unfinished merge: keep one side, and remove the lines <<<<<<<, ======= and >>>>>>>"
        raise BudgetFileError([Problem(Place(file, text.count("\n", 0, mark.start()) + 1), message)])
    try:
        root = _Composer(text, file, problems).get_single_node()
        node = _converted(root, file, problems) if root else None
    except yaml.MarkedYAMLError as error:
        raise BudgetFileError([*problems, _syntax_problem(error, file)]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(file, before.count("\n") + 1, error.position - before.rfind("\n"))
        message = f"the character {error.character!r} is not allowed in YAML: remove it"
        raise BudgetFileError([Problem(place, message)]) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # "\\U99999999", %YAML 9…9, [[[[…
        raise BudgetFileError([Problem(Place(file, 1), f"broken YAML: {error}")]) from error
    if node is None or problems:
        raise BudgetFileError(problems or [Problem(Place(file, 1), "the file is empty")])
    return node


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, without aliases and tags."""

    def __init__(self, text: str, file: str, problems: list[Problem]) -> None:
        super().__init__(text)
        self.file = file
        self.problems = problems

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it bare
        place = _place(event.start_mark, self.file)
        if isinstance(event, yaml.AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it bare
            self.problems.append(Problem(place, f"the alias *{event.anchor} is refused: write the value out"))
            return yaml.ScalarNode("", "", self.get_mark(), self.get_mark())
        if getattr(event, "tag", None) is not None:
            self.problems.append(Problem(place, f"the tag {shown(event.tag)} has no meaning in a budget: remove it"))
        return super().compose_node(parent, index)


def _converted(node: yaml.Node, file: str, problems: list[Problem]) -> Node:
    place = _place(node.start_mark, file)
    span = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= character <= "\udfff" for character in node.value):  # no report could be written with it
            problems.append(Problem(place, "half a character (a lone surrogate): remove it"))
        return Text(node.value, node.style is None, place, span)
    if isinstance(node, yaml.SequenceNode):
        return Listing(tuple(_converted(item, file, problems) for item in node.value), place, span)
    assert isinstance(node, yaml.MappingNode), "YAML has no fourth kind of node"
    return Block(_entries(node, file, problems), place, span)


def _entries(node: yaml.MappingNode, file: str, problems: list[Problem]) -> tuple[tuple[Text, Node], ...]:
    entries: dict[str, tuple[Text, Node]] = {}
    for key_node, value_node in node.value:
        key = _converted(key_node, file, problems)
        value = _converted(value_node, file, problems)
        if not isinstance(key, Text):
            problems.append(Problem(key.place, "a key must be one word, not a list or mapping"))
        elif key.text in entries:
            first = entries[key.text][0].place.line
            message = f"the key {shown(key.text)} is given twice, first on line {first}: keep one"
            problems.append(Problem(key.place, message))
        else:
            entries[key.text] = (key, value)
    return tuple(entries.values())


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    """A YAML error in one line, at its place, with the fix where the cause is well known."""
    mark, opened = error.problem_mark or error.context_mark, error.context_mark
    place = _place(mark, file) if mark else Place(file, 1)
    if "expected a single document" in str(error.context):
        return Problem(place, "a second document (---) begins here: one file is one budget")
    problem = error.problem or error.context or "broken"
    hint = next((f": {hint}" for words, hint in _HINTS if words in problem), "")
    since = f" {error.context} from line {opened.line + 1}" if opened and mark and opened.line < mark.line else ""
    return Problem(place, f"broken YAML: {problem}{since}{hint}")


def _place(mark: yaml.Mark, file: str) -> Place:
    return Place(file, mark.line + 1, mark.column + 1)


QUOTES = ("'", '"')


@dataclass(frozen=True, slots=True)
class Edit:
    """One scalar that is to hold another quantity: the keys that lead to it, and that quantity.

    None for a quantity removes the entry, whatever its value. subject is what the scalar limits, for people:
    "net::params".
    """

    keys: tuple[str, ...]
    quantity: str | None
    subject: str = ""


def entries_of(node: Node | None) -> tuple[tuple[Text, Node], ...]:
    """The entries of a mapping; anything else has none."""
    return node.entries if isinstance(node, Block) else ()


def node_at(root: Node, keys: tuple[str, ...]) -> Node | None:
    """The value under some keys, one below the other; None where nothing does."""
    node: Node | None = root
    for key in keys:
        node = next((value for name, value in entries_of(node) if name.text == key), None)
    return node


def scalar_at(root: Node, keys: tuple[str, ...]) -> Text | None:
    """The scalar that keys lead to; a last key "max" also means a limit that is a scalar itself."""
    limit = node_at(root, keys[:-1]) if keys[-1] == "max" else None
    node = limit if isinstance(limit, Text) else node_at(root, keys)
    return node if isinstance(node, Text) else None


def edited(text: str, file: str, edits: Iterable[Edit]) -> str:
    """The text of a budget file with these scalars replaced, in the quotes that they had; comments keep their column.

    Raises BudgetError where an edit leads to no scalar.
    """
    root = tree(text, file)
    splices: list[tuple[int, int, str]] = []
    for edit in edits:
        if edit.quantity is None:
            splices.append((*_entry_span(root, edit.keys, text), ""))
            continue
        scalar = scalar_at(root, edit.keys)
        old = text[slice(*scalar.span)] if scalar else ""
        if scalar is None or "\n" in old:
            raise BudgetError(f"{file}: {'.'.join(edit.keys)} is not one word: edit it by hand")
        quote = old[0] if old.startswith(QUOTES) else ""
        new = f"{quote}{edit.quantity}{quote}"
        splices.append((*scalar.span, new))
        if aligned := _ALIGNED.match(text, scalar.span[1]):
            splices.append((*aligned.span(1), " " * max(2, len(aligned[1]) + len(old) - len(new))))
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def with_entries(text: str, file: str, key: str, entries: str) -> str:
    """The text of a file with further entries, indented by two, at the end of the mapping of a top-level key.

    Raises BudgetError where that is no mapping in block style.
    """
    block, position = key_at(tree(text, file), (key,))
    known, lines = entries_of(block.entries[position][1]), text.splitlines(keepends=True)
    first = known[0][0].place if known else None
    if first is None or lines[first.line - 1][: first.column - 1].strip():
        raise BudgetError(f"{file}: {key} is not one entry a line: add to it by hand")
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    new = "".join(" " * (first.column - 1) + line[2:] + newline for line in entries.splitlines())
    behind = [name.place.line - 1 for name, _ in block.entries[position + 1 :]]
    at = min(behind, default=len(lines))
    before = "".join(lines[:at])
    return before + ("" if before.endswith("\n") else newline) + new + "".join(lines[at:])


def key_at(root: Node, keys: tuple[str, ...]) -> tuple[Block, int]:
    """The mapping that contains the last of some keys, and its position there; they must lead somewhere."""
    node = node_at(root, keys[:-1])
    assert isinstance(node, Block), "an entry that is removed was read before"
    return node, [name.text for name, _ in node.entries].index(keys[-1])


def _entry_span(root: Node, keys: tuple[str, ...], text: str) -> tuple[int, int]:
    """Where an entry of several begins and ends: its lines in block style, in a flow with the comma beside it."""
    block, position = key_at(root, keys)
    key, value = block.entries[position]
    start, end = key.span[0], _end(value, text)
    if text[block.span[0]] != "{":
        line_end = text.find("\n", end)
        return text.rfind("\n", 0, start) + 1, len(text) if line_end < 0 else line_end + 1
    if position:
        return _end(block.entries[position - 1][1], text), end
    return start, block.entries[1][0].span[0]


def _end(node: Node, text: str) -> int:
    """The position after the last character of a node; not where YAML's next token does."""
    if isinstance(node, Block) and text[node.span[0]] != "{":
        return _end(node.entries[-1][1], text)
    if isinstance(node, Listing) and text[node.span[0]] != "[":
        return _end(node.items[-1], text)
    return len(text[: node.span[1]].rstrip())
