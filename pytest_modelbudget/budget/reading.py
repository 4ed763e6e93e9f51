"""One pass over one budget file: the tables it is read by, and the problems found so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.grammar import Grammar
from pytest_modelbudget.budget.problem import Problem, shown, suggestion
from pytest_modelbudget.budget.yaml_nodes import Block, Listing, Node, Refused, Text
from pytest_modelbudget.frontends.frontend_table import FrontEnd
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.ops.op_table import OpTable
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.transforms.transform_table import transform_table

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
