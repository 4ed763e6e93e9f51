"""What changed between two graphs, operation by operation: added, removed, reshaped, retyped.

Operations are aligned by scope and kind, and what is the same on both sides is left out::

    reshaped  classifier.1  linear  float32 1x1000 -> 1x1175, weights 1000x1280 -> 1175x1280
    added     classifier.2  relu    float32 1x1175
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest

from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports.record import ExecutedOps

Specs = tuple[str, ...]
Signature = tuple[Specs, Specs]  # of an operation: its results, and the weights that it reads


class ChangeKind(str, Enum):
    """What became of an operation."""

    ADDED = "added"
    REMOVED = "removed"
    RESHAPED = "reshaped"
    RETYPED = "retyped"


@dataclass(frozen=True, slots=True)
class OperationChange:
    """Operations of one kind in one scope that are not as they were; before (after) is None of what is new (gone)."""

    scope: str
    kind: str
    before: Signature | None
    after: Signature | None
    count: int = 1

    @property
    def changes(self) -> tuple[ChangeKind, ...]:
        """What became of it: one word, or two where shape and type are others."""
        if self.before is None or self.after is None:
            return (ChangeKind.ADDED if self.before is None else ChangeKind.REMOVED,)
        (before, after), (types_before, types_after) = (
            [[part(spec) for side in signature for spec in side] for signature in (self.before, self.after)]
            for part in (_shape, _dtype)
        )
        reshaped = (ChangeKind.RESHAPED,) if before != after else ()
        return reshaped + ((ChangeKind.RETYPED,) if types_before != types_after else ())

    @property
    def word(self) -> str:
        """The same as one word: "reshaped, retyped"."""
        return ", ".join(change.value for change in self.changes)

    @property
    def text(self) -> str:
        """Results and weights, then and now."""
        results, weights = (
            _from_to(self.before and self.before[side], self.after and self.after[side]) for side in (0, 1)
        )
        times = f"{self.count:,} of " if self.count > 1 else ""
        return f"{times}{results}{f', weights {weights}' if weights else ''}"


def operation_changes(before: Iterable[ExecutedOps], after: Iterable[ExecutedOps]) -> tuple[OperationChange, ...]:
    """Every operation that is not the same in both, in the order of the later graph, what is gone last."""
    then, now = _by_place(before), _by_place(after)
    changes: list[OperationChange] = []
    for place in {**now, **then}:
        old, new = then.get(place, Counter()), now.get(place, Counter())
        changes += _paired(*place, list((old - new).elements()), list((new - old).elements()))
    return tuple(changes)


def _by_place(operations: Iterable[ExecutedOps]) -> dict[tuple[str, str], Counter[Signature]]:
    places: dict[tuple[str, str], Counter[Signature]] = {}
    for each in operations:
        places.setdefault((each.scope, each.kind), Counter())[each.outputs, each.weights] += each.count
    return places


def _paired(scope: str, kind: str, old: Sequence[Signature], new: Sequence[Signature]) -> Iterator[OperationChange]:
    """What is left of both sides of one place, one by one in their order; alike ones counted."""
    for (before, after), count in Counter(zip_longest(old, new)).items():
        yield OperationChange(scope, kind, before, after, count)


def operation_rows(changes: Iterable[OperationChange]) -> Iterator[tuple[str, str, str, str]]:
    """(what, where, kind, then and now) of each change."""
    yield from ((change.word, scope_text(change.scope), change.kind, change.text) for change in changes)


def counted_changes(changes: Iterable[OperationChange]) -> str:
    """How many operations changed in which way: "1 added, 2 reshaped"."""
    counts: Counter[ChangeKind] = Counter()
    for change in changes:
        counts.update(dict.fromkeys(change.changes, change.count))
    return ", ".join(f"{counts[word]:,} {word.value}" for word in ChangeKind if counts[word])


def _from_to(before: Specs | None, after: Specs | None) -> str:
    """Specs then and now; the type is named once where it is the same."""
    if before is None or after is None or before == after:
        return ", ".join((before if after is None else after) or ())
    pairs = zip_longest(before, after, fillvalue="")
    return ", ".join(old if old == new else _one(old, new) for old, new in pairs)


def _one(old: str, new: str) -> str:
    if not (old and new):
        return f"{old or 'none'} -> {new or 'none'}"
    is_same_type = _dtype(old) == _dtype(new)
    return f"{old} -> {_shape(new) if is_same_type else new}"


def _dtype(spec: str) -> str:
    return spec.partition(" ")[0]


def _shape(spec: str) -> str:
    return spec.partition(" ")[2]
