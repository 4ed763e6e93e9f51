"""A graph while passes rewrite it: its operations by position, who reads what, and what each pass did and left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Graph, Op, Operand
from pytest_modelbudget.graph.rewrite import SAME_TYPES, StorageMap, op_over
from pytest_modelbudget.graph.tensor import DType, Storage, Tensor
from pytest_modelbudget.ops.rule import OpRule
from pytest_modelbudget.ops.table import OpTable


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that was lowered, or was left as it is; why says the reason.

    stays names floating types that it keeps where another one was asked for.
    """

    op: str
    scope: str
    why: str
    stays: str = ""


class Program:
    """A graph that is being rewritten. Operations that vanished are None, so that positions stay."""

    def __init__(self, graph: Graph, rules: OpTable) -> None:
        self._graph, self.rules = graph, rules
        self.ops: list[Op | None] = list(graph.ops)
        self.weights = list(graph.weights)
        self.inputs, self.outputs, self.states = graph.inputs, graph.outputs, graph.states
        self.done: list[Step] = []
        self.left: list[Step] = []
        self.replaced: dict[Tensor, Tensor] = {}

    def rule(self, op: Op) -> OpRule | None:
        return self.rules.get(op.name)

    def kind(self, op: Op) -> str:
        rule = self.rule(op)
        return rule.kind if rule else ""

    def operands(self, op: Op) -> Mapping[str, Operand]:
        """Operands by role; none where the operation does not fit its rule."""
        rule = self.rule(op)
        try:
            return rule.bind(op) if rule else {}
        except UnmeasurableError:
            return {}

    def running(self) -> Iterator[tuple[int, Op]]:
        """Operations that run on the device, by position: not those that work out shapes before."""
        for position, op in enumerate(self.ops):
            if op is not None and not op.is_shape_computation:
                yield position, op

    def readers(self) -> Mapping[Storage, list[int]]:
        """Positions of what reads each memory."""
        readers: dict[Storage, list[int]] = defaultdict(list)
        for position, op in self.running():
            for storage in dict.fromkeys(tensor.storage for tensor in op.tensors()):
                readers[storage].append(position)
        return readers

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, as often as it is named."""
        for op in self.ops:
            if op is not None:
                yield from (*op.tensors(), *op.outputs)
        yield from (*self.inputs, *self.outputs, *self.states, *(weight.tensor for weight in self.weights))

    def drop_unread(self, tensors: Iterable[Tensor]) -> None:
        """Take stored tensors out that nothing reads any more; to view one is not to read it."""
        read = {tensor.storage for _, op in self.running() if not op.is_view for tensor in op.tensors()}
        read.update(output.storage for output in self.outputs)
        gone = {tensor.storage for tensor in tensors} - read
        self.weights = [weight for weight in self.weights if weight.tensor.storage not in gone]

    def relocate(self, memories: Mapping[Storage, Storage], types: Mapping[Storage, DType] = SAME_TYPES) -> None:
        """Put tensors into other memory, by the memory that they are in, and into another type."""
        relocated = StorageMap(memories, types)

        def new(tensor: Tensor) -> Tensor:
            return relocated(self._current(tensor))

        for position, op in enumerate(self.ops):
            if op is not None:
                self.ops[position] = op_over(op, new)
        self.inputs, self.outputs, self.states = (
            tuple(map(new, part)) for part in (self.inputs, self.outputs, self.states)
        )
        self.weights = [replace(weight, tensor=new(weight.tensor)) for weight in self.weights]
        self.replaced.update(relocated.copies)

    def became(self) -> Mapping[Tensor, Tensor]:
        return {tensor: self._current(tensor) for tensor in self.replaced}

    def graph(self) -> Graph:
        """The graph so far."""
        ops = tuple(op_over(op, self._current) for op in self.ops if op is not None)
        weights, states = tuple(self.weights), tuple(map(self._current, self.states))
        return replace(self._graph, ops=ops, inputs=self.inputs, outputs=self.outputs, weights=weights, states=states)

    def _current(self, tensor: Tensor) -> Tensor:
        while tensor in self.replaced:
            tensor = self.replaced[tensor]
        return tensor
