"""Layers that a forward pass makes: what the model stores once it has run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from pytest_modelbudget.graph.graph import Graph, Op, Operand, Weight
from pytest_modelbudget.graph.tensor import Storage, StorageKind, Tensor
from pytest_modelbudget.torch_models.values import TorchValues
from pytest_modelbudget.torch_models.weights import ModuleTree, NamedWeight, named_weights

# How the recorder names memory that nothing stored before the pass.
PROVISIONAL = frozenset({StorageKind.ACTIVATION, StorageKind.CONSTANT})


def with_made_layers(
    graph: Graph,
    made: Mapping[Storage, torch.Tensor],
    values: TorchValues,
    before: ModuleTree,
    after: ModuleTree,
) -> Graph:
    """The graph with parameters that its pass has made as weights, as every later pass has them.

    What fills them is left out, as it is of any other weight. A parameter that is computed from
    inputs or weights is an activation, whatever its class.
    """
    derived = _derived(graph)
    stored = {
        storage: weight
        for storage, weight in _named(made, values, before, after).items()
        if storage.kind in PROVISIONAL and storage not in derived
    }
    if not stored:
        return graph
    moved = _Moved(stored)
    weights = (
        Weight(
            moved.tensor(values.value(weight.tensor)),
            trainable=weight.is_parameter and weight.tensor.requires_grad,
            persistent=weight.persistent,
        )
        for weight in stored.values()
    )
    return Graph(
        tuple(moved.op(op) for op in graph.ops if not _only_fills(op, stored)),
        graph.inputs,
        tuple(map(moved.tensor, graph.outputs)),
        (*(w for w in graph.weights if w.tensor.storage not in stored), *weights),
    )


def _named(
    made: Mapping[Storage, torch.Tensor], values: TorchValues, before: ModuleTree, after: ModuleTree
) -> dict[Storage, NamedWeight]:
    """Made parameters, and buffers of made layers, under their names; "made.0" without a module."""
    named = {
        storage: NamedWeight(f"made.{number}", tensor, True, True)
        for number, (storage, tensor) in enumerate(made.items())
    }
    known = {id(module) for _, module in before}
    for path, module in after:
        for weight in named_weights(((path, module),)):
            value = values.known(weight.tensor)
            if value is not None and (value.storage in named or id(module) not in known):
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


def _only_fills(op: Op, stored: Mapping[Storage, NamedWeight]) -> bool:
    """Whether an operation makes, fills or views such memory and nothing else."""
    touched = [tensor.storage for tensor in (*op.tensors(), *op.outputs)]
    return bool(op.outputs) and all(storage in stored for storage in touched)


class _Moved:
    """The graph's values on weights in place of the activations that they were recorded as."""

    def __init__(self, stored: Mapping[Storage, NamedWeight]) -> None:
        self._storages = {
            storage: Storage(
                weight.name,
                storage.nbytes,
                StorageKind.PARAMETER if weight.is_parameter else StorageKind.BUFFER,
            )
            for storage, weight in stored.items()
        }
        self._tensors: dict[Tensor, Tensor] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """This value, on its new memory where that is a weight's."""
        storage = self._storages.get(tensor.storage)
        if storage is None:
            return tensor
        if tensor not in self._tensors:
            self._tensors[tensor] = dataclasses.replace(tensor, name=storage.name, storage=storage)
        return self._tensors[tensor]

    def op(self, op: Op) -> Op:
        """This operation over the values as they are now."""
        if all(tensor.storage not in self._storages for tensor in (*op.tensors(), *op.outputs)):
            return op
        return dataclasses.replace(
            op,
            operands=tuple(map(self._operand, op.operands)),
            outputs=tuple(map(self.tensor, op.outputs)),
        )

    def _operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Tensor):
            return self.tensor(operand)
        if operand is None:
            return None
        return tuple(None if part is None else self.tensor(part) for part in operand)
