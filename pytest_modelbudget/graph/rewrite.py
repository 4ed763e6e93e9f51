"""A graph with tensors or storages replaced: for passes that give memory another kind, name, type or place.

relu in place of its own result, and then in the memory of x::

    with_storages(graph, {y.storage: x.storage})     # relu(x) → y   becomes   relu_(x) → x

Branches of conditionals are rewritten with the graph around them. An original stays as it is: tensors are copied, each
once, so that operations still share them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pytest_modelbudget.graph.graph import Graph, Op, Operand
from pytest_modelbudget.graph.tensor import DType, Storage, Tensor

NewTensor = Callable[[Tensor], Tensor]
SAME_TYPES: Mapping[Storage, DType] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StorageMap:
    """Return a tensor on the storage that replaces its own, and with that one's new type; others as they are.

    copies holds what was returned for each tensor. renames: a tensor is named after its new storage where its name
    contains that of the old one ("constant_3_1" is a part of "constant_3").
    """

    storages: Mapping[Storage, Storage]
    types: Mapping[Storage, DType] = field(default_factory=lambda: SAME_TYPES)
    renames: bool = False
    copies: dict[Tensor, Tensor] = field(default_factory=dict)

    def __call__(self, tensor: Tensor) -> Tensor:
        old = tensor.storage
        if old not in self.storages:
            return tensor
        if tensor not in self.copies:
            new, dtype = self.storages[old], self.types.get(old, tensor.dtype)
            name = tensor.name.replace(old.name, new.name) if self.renames else tensor.name
            sweeps = tensor.sweeps and self(tensor.sweeps)
            self.copies[tensor] = replace(tensor, name=name, storage=new, dtype=dtype, sweeps=sweeps)
        return self.copies[tensor]


def with_storages(graph: Graph, storages: Mapping[Storage, Storage], *, renames: bool = False) -> Graph:
    """The graph in which other storages replace these; itself where there are none."""
    return with_tensors(graph, StorageMap(storages, renames=renames)) if storages else graph


def with_tensors(graph: Graph, new: NewTensor) -> Graph:
    """The graph over the tensor that new returns for each one."""
    return _over(graph, new, {})


def _over(graph: Graph, new: NewTensor, copies: dict[Op, Op]) -> Graph:
    """The same, where copies holds each operation so far: one of a branch stands in the graph around it too."""
    graph = with_ways(graph, lambda way: _over(way, new, copies))
    copies.update((op, op_over(op, new)) for op in graph.ops if op not in copies)
    return replace(
        graph,
        ops=tuple([copies[op] for op in graph.ops]),
        inputs=tuple(map(new, graph.inputs)),
        outputs=tuple(map(new, graph.outputs)),
        weights=tuple([replace(weight, tensor=new(weight.tensor)) for weight in graph.weights]),
        states=tuple(map(new, graph.states)),
    )


def with_ways(graph: Graph, rewrite: Callable[[Graph], Graph]) -> Graph:
    """The graph with every way of its forks rewritten; itself where each stays as it is."""
    forks = tuple(replace(fork, ways={name: rewrite(each) for name, each in fork.ways.items()}) for fork in graph.forks)
    pairs = zip(graph.forks, forks, strict=True)
    is_same = all(each is now.ways[name] for fork, now in pairs for name, each in fork.ways.items())
    return graph if is_same else replace(graph, forks=forks)


def op_over(op: Op, new: NewTensor) -> Op:
    """The operation over the tensor that new returns for each one; itself where all of them stay."""
    operands = tuple([operand_over(operand, new) for operand in op.operands])
    outputs, scales = (tuple(map(new, part)) for part in (op.outputs, op.scales))
    if (operands, outputs, scales) == (op.operands, op.outputs, op.scales):
        return op
    return as_written(op, replace(op, operands=operands, outputs=outputs, scales=scales))


def operand_over(operand: Operand, new: NewTensor) -> Operand:
    """An operand, or a list of them, over the tensors that new returns."""
    if isinstance(operand, tuple):
        return tuple([part and new(part) for part in operand])
    return operand and new(operand)


def as_written(op: Op, now: Op) -> Op:
    """The replacement of an operation, in place where it would else be read as a view.

    Its result was allocated, and lies in the memory of an operand now. So does that of an operation which reads one
    slice of a stacked result and writes another.
    """
    return replace(now, mutates=True) if op.fresh_outputs and now.is_view else now
