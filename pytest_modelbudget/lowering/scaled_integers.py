"""Stored integers of 8 bits that a model casts and scales itself for a weight, in arithmetic of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_modelbudget.graph.graph import Op, Weight
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.lowering.groups import is_floating
from pytest_modelbudget.ops.rule import OpRule, contracted, read_in_roles
from pytest_modelbudget.ops.table import OpTable

STORED = frozenset({StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.QUANTISER, StorageKind.CONSTANT})
NARROW = frozenset({"int8", "uint8"})  # wider integers are places and counts
NOTHING: frozenset[Storage] = frozenset()


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the values of some memory come from: stored integers, and the zero points and scales that they met."""

    integers: frozenset[Storage]
    elements: int
    constants: frozenset[Storage] = NOTHING
    is_picked: bool = False  # by rows, which are then no matrix that is multiplied

    def with_constants(self, others: frozenset[Storage]) -> Grid:
        return replace(self, constants=self.constants | others)


def scaled_integers(
    ops: Iterable[Op], weights: Iterable[Weight], rules: OpTable
) -> tuple[frozenset[Storage], frozenset[Storage]]:
    """(integers, their zero points and scales) of matrices that a program casts, scales and multiplies.

    The scale may come before the product, w.to(x.dtype) * s, or behind it, (x @ w) * s; of rows that are picked it
    is enough. It is a stored tensor, as a mask or a fixed filter that is cast has none, of fewer elements than there
    are integers: of as many it is the weight, and they are its mask. What a product with floats casts itself is cast,
    zero points may be taken off before, and numbers and more scales come anywhere. What the program writes into is no
    weight.
    """
    followed = _Followed(ops, weights, rules)
    found = [grid for grid in followed.weights if followed.written.isdisjoint(grid.integers)]
    return (
        frozenset().union(*(grid.integers for grid in found)),
        frozenset().union(*(grid.constants for grid in found)),
    )


class _Followed:
    """Goes through a program in order, from what it stores to what it multiplies."""

    def __init__(self, ops: Iterable[Op], weights: Iterable[Weight], rules: OpTable) -> None:
        self._rules = rules
        tensors = [weight.tensor for weight in weights if weight.kind in STORED]
        self._sizes = {t.storage: t.elements for t in tensors if not t.is_immediate}  # a literal is no stored scale
        self._held = {storage: frozenset({storage}) for storage in self._sizes}  # handed on as they are
        self._integers = {t.storage: Grid(frozenset({t.storage}), t.elements) for t in tensors if _is_matrix(t)}
        self._cast: dict[Storage, Grid] = {}  # floating, and not yet scaled
        self._scaled: dict[Storage, Grid] = {}
        self._products: dict[Storage, Grid] = {}  # of inputs with what is not yet scaled, or cast
        self.weights: list[Grid] = []
        self.written: set[Storage] = set()  # stored memory that the program changes, such as a cache
        for op in ops if self._integers else ():
            rule = rules.get(op.name)
            if rule is not None and op.outputs:
                self._follow(op, rule)

    def _follow(self, op: Op, rule: OpRule) -> None:
        out = op.outputs[0]
        handed_on = [(role, tensor) for role, tensor in read_in_roles(op, rule) if role.carried or role.picked]
        for role, tensor in handed_on:
            self._hand_on(tensor.storage, out, is_picked=role.picked)
        views = {tensor.storage for _, tensor in handed_on}
        self.written.update(made.storage for made in op.outputs if made.storage not in views)
        if rule.kind == "sub":
            self._subtract(op, out)
        elif rule.kind == "mul":
            self._scale(op, out)
        for weight in contracted(op, rule):
            if weight.storage in self._scaled:
                self.weights.append(self._scaled[weight.storage])
            elif grid := self._unscaled(weight):
                self._products[out.storage] = grid

    def _hand_on(self, memory: Storage, out: Tensor, *, is_picked: bool) -> None:
        if memory in self._held:
            self._held.setdefault(out.storage, self._held[memory])
        if memory in self._integers:
            grid = self._integers[memory]
            now = self._cast if is_floating(out) else self._integers
            now[out.storage] = replace(grid, is_picked=is_picked or grid.is_picked)
        for grids in (self._cast, self._scaled, self._products):
            if memory in grids:
                grids[out.storage] = grids[memory]

    def _subtract(self, op: Op, out: Tensor) -> None:
        """A zero point, of integers or of what is cast."""
        operands = [operand for operand in op.operands if isinstance(operand, Tensor)]
        zeros = [self._held.get(other.storage, NOTHING) for other in operands[1:]]
        grid = self._unscaled(operands[0]) if operands and all(zeros) else None
        if grid:
            now = self._cast if is_floating(out) else self._integers
            now[out.storage] = grid.with_constants(NOTHING.union(*zeros))

    def _scale(self, op: Op, out: Tensor) -> None:
        """A stored scale, of integers or what is cast or scaled, or of its product; a number leaves it as it is."""
        operands = [operand for operand in op.operands if isinstance(operand, Tensor) and not operand.is_immediate]
        if len(operands) == 1 and is_floating(out):
            self._hand_on(operands[0].storage, out, is_picked=False)
        for one, other in (operands, operands[::-1]) if len(operands) == 2 else ():
            scales = self._held.get(other.storage, NOTHING)
            if not scales or not is_floating(other):
                continue
            size = min(other.elements, sum(self._sizes[scale] for scale in scales))
            product = self._products.get(one.storage)
            grid = self._scaled.get(one.storage) or self._unscaled(one)
            if product and size < product.elements:
                self.weights.append(product.with_constants(scales))
            elif grid and size < grid.elements:
                self._scaled[out.storage] = scaled = grid.with_constants(scales)
                self.weights += [scaled] if grid.is_picked else []

    def _unscaled(self, tensor: Tensor) -> Grid | None:
        """The integers that it is, or is cast of."""
        return self._cast.get(tensor.storage) or self._integers.get(tensor.storage)


def _is_matrix(tensor: Tensor) -> bool:
    """Whether these are integers of 8 bits with rows and columns."""
    return tensor.dtype.name in NARROW and sum(size > 1 for size in tensor.shape) > 1
