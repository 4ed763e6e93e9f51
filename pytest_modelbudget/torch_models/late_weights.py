"""Weights that only the recorded pass shows: layers that it makes, parts of constants, constants of frozen scripts."""

import dataclasses
from collections.abc import Collection, Container, Iterable, Iterator, Mapping

import torch

from pytest_modelbudget.graph.graph import Fork, Graph, Op, Reader, Weight
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.values import TorchValues
from pytest_modelbudget.torch_models.weights import ModuleTree, NamedWeight, named_weights

# How the recorder names memory that nothing stored before the pass.
PROVISIONAL = frozenset({StorageKind.ACTIVATION, StorageKind.CONSTANT})
PARAMETER, BUFFER, QUANTISER = StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.QUANTISER
Kinds = dict[Storage, tuple[str, StorageKind]]  # a name and kind in place of a memory's own


def with_made_layers(
    graph: Graph, made: Mapping[Storage, torch.Tensor], values: TorchValues, before: ModuleTree, after: ModuleTree
) -> Graph:
    """The graph with parameters that its pass has made as weights, as every later pass has them.

    What fills them is left out, as it is of any other weight. A parameter that is computed from
    inputs or weights is an activation, whatever its class; one that nothing reads and no module
    holds afterwards was thrown away.
    """
    derived, read = _derived(graph), _read(graph, made)
    stored = {
        storage: weight
        for storage, weight in _named(made, read, values, before, after).items()
        if storage.kind in PROVISIONAL and storage not in derived
    }
    weights = (Weight(values.value(w.tensor), w.is_trainable, w.persistent) for w in stored.values())
    kept = (weight for weight in graph.weights if weight.tensor.storage not in stored)
    kinds = {storage: (weight.name, PARAMETER if weight.is_parameter else BUFFER) for storage, weight in stored.items()}
    moved = with_storages(dataclasses.replace(graph, weights=(*kept, *weights)), _of_kinds(kinds), renames=True)
    ops = (op for was, op in zip(graph.ops, moved.ops, strict=True) if not _only_fills(was, {*made, *stored} - derived))
    return dataclasses.replace(moved, ops=tuple(ops))


def _named(
    made: Mapping[Storage, torch.Tensor], read: set[Storage], values: TorchValues, before: ModuleTree, after: ModuleTree
) -> dict[Storage, NamedWeight]:
    """Made parameters, and buffers of made layers, under their names; "made.0" without a module."""
    named = {
        storage: NamedWeight(f"made.{number}", tensor, True, True)
        for number, (storage, tensor) in enumerate(made.items())
        if storage in read
    }
    known = {id(module) for _, module in before}
    for path, module in after:
        for weight in named_weights(((path, module),)):
            value = values.known(weight.tensor)
            if value is not None and (value.storage in made or id(module) not in known):
                named[value.storage] = weight
    return named


def _derived(graph: Graph) -> set[Storage]:
    """Memory whose values come from inputs or weights."""
    derived = {tensor.storage for tensor in graph.inputs}
    weights = (weight.tensor.storage for weight in graph.weights)
    derived.update(storage for storage in weights if storage.kind not in PROVISIONAL)
    for op in graph.ops:
        if any(tensor.storage in derived for tensor in op.tensors()):
            derived.update(output.storage for output in op.outputs)
    return derived


def _read(graph: Graph, made: Iterable[Storage]) -> set[Storage]:
    """Memory that some operation reads for something else than to fill it."""
    filled = set(made)
    readers = (op for op in graph.ops if not _only_fills(op, filled))
    return {tensor.storage for op in readers for tensor in op.tensors()} | {out.storage for out in graph.outputs}


def _only_fills(op: Op, stored: Container[Storage]) -> bool:
    """Whether an operation makes, fills or views such memory and nothing else."""
    touched = [tensor.storage for tensor in (*op.tensors(), *op.outputs)]
    return bool(op.outputs) and all(storage in stored for storage in touched)


def further_parts(
    constants: Collection[Tensor], ops: Iterable[Op], outputs: Iterable[Tensor], forks: Iterable[Fork]
) -> Iterator[Tensor]:
    """What is read of the memory of constants beside what each was met as, and was made by no operation.

    Two weights of a frozen recurrent layer are two views of one memory, which no operation has made.
    """
    if not constants:
        return
    parts = _Parts(constants)
    yield from parts.read_by(ops)
    yield from parts.read_in(forks)
    yield from parts.new(outputs)


class _Parts:
    """The places in the memory of constants that are known: as it was met, and what operations make of it."""

    def __init__(self, constants: Iterable[Tensor]) -> None:
        self._known = {_place(tensor) for tensor in constants}
        self._times = {tensor.storage: 0 for tensor in constants}

    def read_in(self, forks: Iterable[Fork]) -> Iterator[Tensor]:
        """Parts that ways of forks read or give."""
        for way in (way for fork in forks for way in fork.ways.values()):
            yield from self.read_by(way.ops)
            yield from self.read_in(way.forks)
            yield from self.new(way.outputs)

    def read_by(self, ops: Iterable[Op]) -> Iterator[Tensor]:
        """Parts that operations read before any has made them."""
        for op in ops:
            yield from self.new(op.tensors())
            self._known.update(_place(out) for out in op.outputs if out.storage in self._times)

    def new(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Those of them that were not known, under names of their own."""
        for tensor in tensors:
            if tensor.storage in self._times and _place(tensor) not in self._known:
                self._known.add(_place(tensor))
                self._times[tensor.storage] += 1
                yield dataclasses.replace(tensor, name=f"{tensor.storage.name}_{self._times[tensor.storage]}")


def _place(tensor: Tensor) -> tuple[Storage, int, tuple[int, ...], tuple[int, ...]]:
    return tensor.storage, tensor.offset, tensor.shape, tensor.strides


def with_frozen_weights(graph: Graph, rules: OpTable, parts: Iterable[str]) -> Graph:
    """The graph of a model with frozen scripts at these paths, whose constants from rank 1 on are what reads them as.

    Freezing turns every weight into a constant, as ONNX files have them: what an operation's rule
    calls a weight is a parameter, also behind what hands it on as it is. A constant that an
    operation without a rule reads may be one, so that the model's weights are a lower bound.
    """
    stored = _stored_in(graph, parts)
    origin = {storage: storage for storage in stored}
    kinds: Kinds = {}
    readers: dict[Storage, Reader] = {}
    for op in graph.ops:
        for role, tensor in read_in_roles(op, rules.get(op.name)):
            constant = origin.get(tensor.storage)
            if constant is None:
                continue
            if role.carried or (role.picked and not _is_floating(tensor)):
                origin.update({out.storage: constant for out in op.outputs})
            kind = _read_as(role, tensor)
            if kind is PARAMETER or (kind is not None and constant not in kinds):
                kinds[constant] = (constant.name.replace("constant", kind.value), kind)
            elif not role.declared and _is_floating(tensor):
                readers.setdefault(constant, Reader(op.name, role.word))
    weights = tuple(
        dataclasses.replace(weight, unknown_reader=readers[weight.tensor.storage])
        if weight.tensor.storage in readers and weight.tensor.storage not in kinds
        else weight
        for weight in graph.weights
    )
    weights = tuple(dataclasses.replace(w, persistent=w.persistent or w.tensor.storage in stored) for w in weights)
    return with_storages(dataclasses.replace(graph, weights=weights), _of_kinds(kinds), renames=True)


def _stored_in(graph: Graph, parts: Iterable[str]) -> tuple[Storage, ...]:
    """Constants from rank 1 on that operations of these modules read: a file of theirs stores them."""
    read = {tensor.storage for op in graph.ops if _is_within(op.scope, parts) for tensor in op.tensors()}
    constants = (weight.tensor for weight in graph.weights if weight.kind is StorageKind.CONSTANT)
    return tuple(tensor.storage for tensor in constants if tensor.shape and tensor.storage in read)


def _is_within(scope: str, parts: Iterable[str]) -> bool:
    """Whether a module is one at these paths, or in one; "" is the whole model."""
    return any(part in {"", scope} or scope.startswith(f"{part}.") for part in parts)


def _read_as(role: Role, tensor: Tensor) -> StorageKind | None:
    """The kind of a stored tensor that is read in this role; None where that tells nothing."""
    if role.weight or (role.learnt and _is_floating(tensor)):
        return PARAMETER
    if role.statistic or (role.dequantised and not _is_floating(tensor)):  # of which where its floats go decides
        return BUFFER
    return QUANTISER if role.quantises else None


def _is_floating(tensor: Tensor) -> bool:
    return "float" in tensor.dtype.name or "complex" in tensor.dtype.name


def _of_kinds(kinds: Kinds) -> dict[Storage, Storage]:
    return {storage: Storage(name, storage.nbytes, kind) for storage, (name, kind) in kinds.items()}
