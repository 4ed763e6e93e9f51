"""Weights of frozen scripts, which are constants of the program."""

from collections.abc import Iterable
from dataclasses import replace

from pytest_modelbudget.graph.graph import Graph, Reader
from pytest_modelbudget.graph.rewrite import with_storages
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.ops.role import Role
from pytest_modelbudget.ops.rule import read_in_roles
from pytest_modelbudget.ops.table import OpTable

PARAMETER, BUFFER, QUANTISER = StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.QUANTISER


def with_frozen_weights(graph: Graph, rules: OpTable, parts: Iterable[str]) -> Graph:
    """The graph of a model with frozen scripts at these paths, whose constants from rank 1 on are what reads them as.

    Freezing turns every weight into a constant, as ONNX files have them: what an operation's rule
    calls a weight is a parameter, also behind what hands it on as it is. A constant that an
    operation without a rule reads may be one, so that the model's weights are a lower bound.
    """
    stored = _stored_in(graph, parts)
    origin = {storage: storage for storage in stored}
    kinds: dict[Storage, StorageKind] = {}
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
                kinds[constant] = kind
            elif not role.declared and _is_floating(tensor):
                readers.setdefault(constant, Reader(op.name, role.word))
    unknown = {storage: reader for storage, reader in readers.items() if storage not in kinds}
    weights = (
        replace(
            weight,
            persistent=weight.persistent or weight.tensor.storage in stored,
            unknown_reader=unknown.get(weight.tensor.storage, weight.unknown_reader),
        )
        for weight in graph.weights
    )
    named = {old: replace(old, name=old.name.replace("constant", kind.value), kind=kind) for old, kind in kinds.items()}
    return with_storages(replace(graph, weights=tuple(weights)), named, renames=True)


def _stored_in(graph: Graph, parts: Iterable[str]) -> tuple[Storage, ...]:
    """Constants from rank 1 on that operations of these modules read: a file of theirs stores them."""
    read = {tensor.storage for op in graph.ops if _is_within(op.scope, parts) for tensor in op.tensors()}
    constants = (weight.tensor for weight in graph.weights if weight.kind is StorageKind.CONSTANT)
    return tuple(tensor.storage for tensor in constants if tensor.shape and tensor.storage in read)


def _is_within(scope: str, parts: Iterable[str]) -> bool:
    """Return whether a module is one at these paths, or in one; "" is the whole model."""
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
