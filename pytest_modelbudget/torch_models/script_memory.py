"""What a script writes into values after they were made: through views, lists and dicts that hold them, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import torch

NO_SCHEMA = "(no schema)"
Marks = Sequence["bool | None"]  # of operands or results, whether it is written into; None where it shares no memory


class Memories:
    """Which values of a graph may lie on one memory, and what nodes, in their order, have done to it.

    What is written into a list or a dict changes that, and no tensor that it holds. name_of says by which name a value
    is known: that of an attribute is one for all that read it before it is set.
    """

    def __init__(self, name_of: Callable[[Any], str]) -> None:
        self._name_of = name_of
        self._lies_with: dict[str, str] = {}  # a name, and one nearer to that by which its memory is known
        self._written: dict[tuple[str, bool], str] = {}  # by that, and whether tensors or what holds them

    def written(self, value: Any) -> tuple[str, ...]:
        """All that was written into the memory of a value, in a few letters."""
        memory = self._memory(self._name_of(value))
        return tuple(self._written.get((memory, each), "") for each in {True, is_tensor(value)})

    def follow(self, node: Any, does: str) -> None:
        """Note what a node writes into, and which of its values may be parts of one another."""
        held, written = _held_and_written(node)
        for value in held[1:]:
            self._join(self._memory(self._name_of(held[0])), self._memory(self._name_of(value)))
        for key in dict.fromkeys((self._memory(self._name_of(value)), is_tensor(value)) for value in written):
            self._written[key] = _digest(self._written.get(key, ""), does)

    def set(self, name: str, before: str, value: Any, does: str) -> None:
        """Note that an attribute is another value from here on, by which name, and by which it was known before."""
        kind = is_tensor(value)
        was = self._written.get((self._memory(before), kind), "")
        self._join(self._memory(name), self._memory(self._name_of(value)))
        key = self._memory(name), kind
        self._written[key] = _digest(self._written.get(key, ""), was, does)

    def put(self, owner: Any, value: Any, does: str) -> None:
        """Note that an object holds a value from here on."""
        self._join(self._memory(self._name_of(owner)), self._memory(self._name_of(value)))
        key = self._memory(self._name_of(owner)), is_tensor(owner)
        self._written[key] = _digest(self._written.get(key, ""), does)

    def _memory(self, name: str) -> str:
        while (nearer := self._lies_with.get(name, name)) != name:
            self._lies_with[name] = self._lies_with.get(nearer, nearer)
            name = nearer
        return name

    def _join(self, first: str, second: str) -> None:
        if first == second:
            return
        self._lies_with[second] = first
        for each in (True, False):
            parts = [self._written[at, each] for at in (first, second) if (at, each) in self._written]
            if parts:
                self._written[first, each] = _digest(*parts)


def is_tensor(value: Any) -> bool:
    """Whether a value of a script is a tensor."""
    return bool(value.type().isSubtypeOf(torch.TensorType.get()))


def _held_and_written(node: Any) -> tuple[list[Any], list[Any]]:
    """Operands and results that may share memory, and those operands that are written into.

    Of a node without a schema, as those that make lists and have blocks, all may.
    """
    operands, results = [*node.inputs()], [*node.outputs()]
    of_operands, of_results = _marks(node.schema())
    if (len(operands), len(results)) != (len(of_operands), len(of_results)):
        ends = (each for block in node.blocks() for each in (*block.inputs(), *block.outputs()))
        return [*operands, *results, *ends], []
    marked = [*zip(operands, of_operands, strict=True), *zip(results, of_results, strict=True)]
    return [value for value, mark in marked if mark is not None], [value for value, mark in marked if mark]


@cache
def _marks(schema: str) -> tuple[Marks, Marks]:
    if schema == NO_SCHEMA:
        return (), ()
    parsed = torch._C.parse_schema(schema)
    infos = ([each.alias_info for each in values] for values in (parsed.arguments, parsed.returns))
    first, second = ([None if info is None else bool(info.is_write) for info in each] for each in infos)
    return first, second


def _digest(*parts: str) -> str:
    return sha256(" ".join(parts).encode()).hexdigest()
