"""Branches that values choose and that no run has executed: whether they are the same in both models.

Outputs say nothing of a branch that no input takes. One that is equal in both models, with all that leads to what it
reads, needs no proof; of any other one nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from pytest_modelbudget.formats.model import Branch, Branches
from pytest_modelbudget.graph.equality import IsSameStored, captured, in_context, same
from pytest_modelbudget.graph.graph import Graph
from pytest_modelbudget.graph.tensor import Storage, Tensor
from pytest_modelbudget.units import some_of

MOST_NAMED = 2


def untaken(first: Branches | None, second: Branches | None) -> tuple[str, tuple[str, ...]]:
    """Why two models that agree in all runs are not known to be the same, "" if they are, and notes.

    The notes are about branches of which the runs do not tell whether any has executed them.
    """
    never, unseen = [*_apart(first, second, False)], [*_apart(first, second, None)]
    reason = f"no run took {_named(never)}: give 'inputs' that take it" if never else ""
    notes = (f"it is not seen whether a run took {_named(unseen)}",) if unseen else ()
    return reason, notes


def _apart(first: Branches | None, second: Branches | None, executed: bool | None) -> Iterator[Branch]:
    """Such branches of either model that are not the same in the other one: under one name, else in their order."""
    if first is None or second is None:
        alone = first or second
        yield from [] if alone is None else (each for each in alone.branches if each.executed is executed)
        return
    forth, back = _Pair(first, second, executed), _Pair(second, first, executed)
    if not any(each.executed is executed for each in (*first.branches, *second.branches)) or forth.is_same_program():
        return
    for branch, other in zip_longest(forth.without_twin(), back.without_twin()):
        if branch is None or other is None or not forth.is_same(branch, other):
            yield branch or other


@dataclass(slots=True)
class _Pair:
    """Two models, whose branches are compared of which runs say the same: that none executed them, or nothing.

    A stored tensor is the same by its name where that is compared by itself if no run has read it, else by its values.
    """

    first: Branches
    second: Branches
    executed: bool | None
    _digests: dict[Tensor, str] = field(default_factory=dict)

    def is_same_program(self) -> bool:
        """Whether the models are equal, down to the values of what they store."""
        return same(self.first.program, self.second.program, self._has_same_values)

    def without_twin(self) -> Iterator[Branch]:
        """Such branches that are not those of their names in the other model, whose change no run has shown."""
        for branch in self.first.branches:
            if branch.executed is self.executed:
                twins = [each for each in self.second.branches if _key(each) == _key(branch)]
                if not any(self.is_same(branch, twin) or self._ran_elsewhere(branch, twin) for twin in twins):
                    yield branch

    def is_same(self, mine: Branch, its: Branch) -> bool:
        """Whether two branches are equal, with all that leads to what they read."""
        return self._are_same(self._in_context(self.first, mine), self._in_context(self.second, its), mine.body)

    def _ran_elsewhere(self, mine: Branch, its: Branch) -> bool:
        """Whether both models executed one other branch that does what these two do, so that outputs have shown it.

        What enters here is the same in both.
        """
        entering = (
            self._in_context(model, each)
            and self._in_context(model, each._replace(body=Graph((), each.body.inputs, each.body.inputs)))
            for model, each in ((self.first, mine), (self.second, its))
        )
        elsewhere = {_key(each): each for each in self.second.branches if each.executed}
        return self._are_same(*entering) and any(
            same(each.body, mine.body, _is_one_stored(self.first, self.first))
            and same(elsewhere[_key(each)].body, its.body, _is_one_stored(self.second, self.second))
            for each in self.first.branches
            if each.executed and _key(each) in elsewhere
        )

    def _in_context(self, model: Branches, branch: Branch) -> Graph | None:
        return in_context(branch.around, model.program.inputs, branch.body)

    def _are_same(self, mine: Graph | None, its: Graph | None, body: Graph | None = None) -> bool:
        """Whether two programs are equal; by name, of what the body at their ends alone reads."""
        if mine is None or its is None:
            return False
        by_name, own = _is_one_stored(self.first, self.second), set[Storage]()
        if self.executed is False and body is not None:
            before = mine.ops[: len(mine.ops) - len(body.ops)]
            own = captured(body) - {tensor.storage for op in before for tensor in op.tensors()}

        def is_same_stored(one: Tensor, other: Tensor) -> bool:
            return (one.storage in own and by_name(one, other)) or self._has_same_values(one, other)

        return same(mine, its, is_same_stored)

    def _has_same_values(self, one: Tensor, other: Tensor) -> bool:
        for model, tensor in ((self.first, one), (self.second, other)):
            if tensor not in self._digests:
                self._digests[tensor] = model.digest_of(tensor)
        return self._digests[one] == self._digests[other] != ""


def _is_one_stored(first: Branches, second: Branches) -> IsSameStored:
    """Whether two stored tensors have one name, by which they are compared; or are one."""
    return lambda mine, its: mine.storage is its.storage or first.name_of(mine) == second.name_of(its) != ""


def _key(branch: Branch) -> tuple[str, str]:
    return branch.fork, branch.name


def _named(branches: list[Branch]) -> str:
    """Branches that differ, as the object of a sentence."""
    places = dict.fromkeys(f"{branch.name} of {branch.place}" for branch in branches)
    return f"{some_of(places, MOST_NAMED)}, which is not the same in both models"
