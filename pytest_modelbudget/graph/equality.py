"""Graph equality: two lists of operations, walked in order with one renaming of memory.

``same`` holds of these two, under x = a, y = b::

    mul(x, 2) -> y; add(y, w) -> z        mul(a, 2) -> b; add(b, w) -> c
"""

from collections.abc import Callable, Iterable, Sequence

from pytest_modelbudget.errors import GraphError
from pytest_modelbudget.graph.graph import Fork, Graph, Op, Operand
from pytest_modelbudget.graph.tensor import Storage, Tensor

IsSameStored = Callable[[Tensor, Tensor], bool]  # of memory that no operation of either program has written


def same(first: Graph, second: Graph, is_same_stored: IsSameStored) -> bool:
    """Whether two programs compute the same: inputs are paired in their order, and results follow.

    Operators, attributes, shapes, layouts and wiring are equal, and so are the branches of their forks. Names and
    scopes say nothing. An activation that neither an input nor an operation gives is equal to none.
    """
    renaming = _Renaming(is_same_stored)
    return _all(renaming.bind_input, first.inputs, second.inputs) and renaming.same_program(first, second)


def in_context(around: Sequence[Op], inputs: Sequence[Tensor], body: Graph) -> Graph | None:
    """A branch behind the operations around it that lead to what it reads.

    None where memory that leads to it is written in place, or comes from elsewhere: when the branch reads it, a list
    without the rest of the program does not say.
    """
    wanted, ops = captured(body), []
    for op in reversed(around):
        if not (op.is_view and _keeps_bits(op)) and not wanted.isdisjoint(output.storage for output in op.outputs):
            ops.append(op)
            wanted.update(tensor.storage for tensor in op.tensors())
    if any(op.mutates for op in ops):
        return None
    try:
        return Graph((*reversed(ops), *body.ops), tuple(inputs), body.outputs, forks=body.forks)
    except GraphError:
        return None


def captured(body: Graph) -> set[Storage]:
    """Memory that a branch, or a branch inside of it, reads and has not written before."""
    own: set[Storage] = set()
    found: set[Storage] = set()
    for op in body.ops:
        found.update({tensor.storage for tensor in op.tensors()} - own)
        own.update(output.storage for output in op.outputs)
    inside = {tensor.storage for tensor in body.outputs}
    for fork in body.forks:
        inside.update([fork.condition.storage] if fork.condition else [])
        inside.update(*map(captured, fork.ways.values()))
    return found | (inside - own)


class _Renaming:
    """What memory of one program is in another one: one to one, so that writing in place is the same, too."""

    def __init__(self, is_same_stored: IsSameStored) -> None:
        self._is_same_stored = is_same_stored
        self._there: dict[Storage, Storage] = {}
        self._here: dict[Storage, Storage] = {}
        self._shifts: dict[Storage, int] = {}  # by which a view of an input begins later than its own

    def bind_input(self, mine: Tensor, its: Tensor) -> bool:
        """Pair two inputs, which may be other rows of a tensor."""
        self._shifts.setdefault(mine.storage, its.offset - mine.offset)
        return self.bind(mine, its)

    def bind(self, mine: Tensor, its: Tensor) -> bool:
        """Let one memory represent another, unless either represents other memory already."""
        first, second = mine.storage, its.storage
        is_one = self._there.setdefault(first, second) is second and self._here.setdefault(second, first) is first
        return is_one and its.offset - mine.offset == self._shifts.get(first, 0) and _form(mine) == _form(its)

    def same_program(self, mine: Graph, its: Graph) -> bool:
        """Whether two lists of operations, with their branches, do and give the same."""
        return (
            _all(self._same_op, mine.ops, its.ops)
            and _all(self._same_fork, mine.forks, its.forks)
            and _all(self._same_value, mine.outputs, its.outputs)
        )

    def _same_value(self, mine: Operand, its: Operand) -> bool:
        if isinstance(mine, Tensor) and isinstance(its, Tensor):
            first, second = mine.storage, its.storage
            is_new = first not in self._there and second not in self._here
            is_stored = not first.is_activation and not second.is_activation
            return (not is_new or (is_stored and self._is_same_stored(mine, its))) and self.bind(mine, its)
        if isinstance(mine, tuple) and isinstance(its, tuple):
            return _all(self._same_value, mine, its)
        return mine is its

    def _same_op(self, mine: Op, its: Op) -> bool:
        return (
            _does(mine) == _does(its)
            and _all(self._same_value, mine.operands, its.operands)
            and _all(self._same_value, mine.scales, its.scales)
            and _all(self.bind, mine.outputs, its.outputs)
        )

    def _same_fork(self, mine: Fork, its: Fork) -> bool:
        return (
            (mine.operator, mine.after, [*mine.ways]) == (its.operator, its.after, [*its.ways])
            and self._same_value(mine.condition, its.condition)
            and _all(self.same_program, mine.ways.values(), its.ways.values())
        )


def _all(claim: Callable[..., bool], first: Iterable[object], second: Iterable[object]) -> bool:
    """Whether two lists are of one length, and a claim holds of each pair."""
    mine, its = tuple(first), tuple(second)
    return len(mine) == len(its) and all(map(claim, mine, its))


def _does(op: Op) -> object:
    return op.name, sorted((name, repr(value)) for name, value in op.attributes.items()), op.times, op.mutates


def _keeps_bits(op: Op) -> bool:
    """Whether a view is known by its layout alone: one of complex numbers may be conjugated."""
    return not any(output.dtype.name.startswith("complex") for output in op.outputs)


def _form(tensor: Tensor) -> object:
    return tensor.dtype, tensor.shown_shape, tensor.strides
