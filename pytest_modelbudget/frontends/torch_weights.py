"""The stored tensors of a module, and tensors without memory in their place during a trace."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.frontends.torch_values import TorchValues
from pytest_modelbudget.ir.graph import Weight
from pytest_modelbudget.ir.tensor import StorageKind, Tensor

GRID = "of_grid_"  # in names of the buffers that hold a quantised weight's scales, zero points
ModuleTree = tuple[tuple[str, nn.Module], ...]

CONTAINERS = (dict, list, set)
CONTENTLESS = frozenset({bool, int, float, str, type(None), tuple})  # the commonest


@dataclass(frozen=True, slots=True)
class NamedWeight:
    """A parameter or buffer under its full name; tied ones appear under each of theirs."""

    name: str
    tensor: torch.Tensor
    is_parameter: bool
    persistent: bool


def module_tree(model: nn.Module) -> ModuleTree:
    """Every module of a model and its path, each once, outer ones first."""
    return tuple(model.named_modules())


def named_weights(modules: ModuleTree) -> Iterator[NamedWeight]:
    """Every parameter and buffer of every module, in module order.

    Raises TraceError for a lazy module's parameter, which has no shape yet.
    """
    for path, module in modules:
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if is_lazy(parameter):
                raise TraceError(
                    f"{prefix}{name} has no shape yet (a lazy module): run the model once "
                    "inside the factory"
                )
            yield NamedWeight(prefix + name, parameter, True, True)
        buffers = module._buffers.items()
        transient: set[str] = getattr(module, "_non_persistent_buffers_set", set())
        for name, buffer in buffers:
            if buffer is not None:
                yield NamedWeight(prefix + name, buffer, False, name not in transient)


def registered(
    weights: tuple[NamedWeight, ...],
    values: TorchValues,
    twins: Mapping[int, torch.Tensor],
    stored_from_rank: int,
) -> tuple[Weight, ...]:
    """Weights of the graph, on the memory of their twins where they have one.

    Memory that a parameter and a buffer share is a parameter's, whichever comes first. A file
    stores tensors from rank 1 on; its scalars are immediates.
    """

    def value(weight: NamedWeight) -> Tensor:
        kind = StorageKind.PARAMETER if weight.is_parameter else StorageKind.BUFFER
        if not weight.is_parameter and f"_{GRID}" in weight.name:
            kind = StorageKind.QUANTISER
        tensor = twins.get(id(weight.tensor), weight.tensor)
        return values.value(tensor, kind, lambda: weight.name)

    for weight in weights:
        if weight.is_parameter:
            value(weight)
    return tuple(
        Weight(
            value(weight),
            trainable=weight.is_parameter and weight.tensor.requires_grad,
            persistent=weight.persistent and weight.tensor.dim() >= stored_from_rank,
        )
        for weight in weights
    )


def memoryless(
    weights: tuple[NamedWeight, ...], dtype: torch.dtype | None, device: str
) -> dict[int, torch.Tensor]:
    """A tensor without memory for each weight, by the weight's id; shared storages stay shared.

    device is "meta", or "cpu" inside a fake mode. ``dtype`` converts floating ones, as
    ``module.to(dtype)`` would.
    """
    distinct = {id(weight.tensor): weight.tensor for weight in weights}
    owners = Counter(tensor.untyped_storage()._cdata for tensor in distinct.values())
    bases: dict[int, torch.Tensor] = {}
    twins: dict[int, torch.Tensor] = {}
    for key, tensor in distinct.items():
        target = dtype if dtype and tensor.is_floating_point() else tensor.dtype
        address = tensor.untyped_storage()._cdata
        if owners[address] == 1:
            twins[key] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=target, device=device
            )
            continue
        if address not in bases:
            elements = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
            bases[address] = torch.empty(elements, dtype=target, device=device)
        base = bases[address]
        if base.dtype != target:
            base = base.view(target)
        twins[key] = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return twins


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, in which tensors that were computed are values of their own.

    ``weight_norm`` and ``prune`` leave such tensors as attributes, and torch copies none with a
    history.
    """
    tables = (
        table
        for module in model.modules()
        for table in (vars(module), module._buffers)
        if not isinstance(module, torch.jit.ScriptModule)
    )
    computed = {
        id(value): value.detach().clone()
        for table in tables
        for value in table.values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, computed)


@contextmanager
def module_state_kept(modules: ModuleTree) -> Iterator[None]:
    """Attributes, flags, parameters, buffers and hooks of every module are as before afterwards.

    A forward pass may set any of them: a cache, a counter, a weight that a hook computes. Tensors
    that are mere attributes are lent as copies, because it may also write into them.
    """
    kept = []
    for _, module in modules:
        attributes = vars(module)
        filled, empty = containers(attributes)
        kept.append((attributes, attributes.copy(), [(e, e.copy()) for e in filled], empty))
        for name, value in attributes.items():
            if type(value) not in CONTENTLESS and isinstance(value, torch.Tensor):
                attributes[name] = value.clone()
    try:
        yield
    finally:
        for attributes, before, content, empty in kept:
            for container in empty:
                if container:
                    container.clear()
            for container, items in content:
                _restore(container, items)
            _restore(attributes, before)


@contextmanager
def buffer_values_kept(modules: ModuleTree) -> Iterator[None]:
    """Buffers have the values and memory that they had, also where a run writes into them.

    Which tensors a module holds is left to ``module_state_kept``, but for TorchScript, whose
    buffers are no Python attributes.
    """
    kept = [
        (module, name, buffer, buffer.detach(), buffer.clone())
        for _, module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and _can_be_written(buffer)
    ]
    try:
        yield
    finally:
        with torch.inference_mode():  # where inference tensors may be written, too
            for module, name, buffer, memory, before in kept:
                if not torch.equal(memory, before):
                    memory.copy_(before)
                if buffer.data_ptr() != memory.data_ptr() or buffer.shape != memory.shape:
                    buffer.data = memory  # given other memory through the same attribute
                is_script = isinstance(module, torch.jit.ScriptModule)
                if is_script and module._buffers[name] is not buffer:
                    setattr(module, name, buffer)


def _can_be_written(buffer: torch.Tensor) -> bool:
    """Whether this is plain memory, each element on its own; torch writes into no expanded one."""
    if type(buffer) is not torch.Tensor or buffer.layout is not torch.strided:
        return False
    return all(step or size < 2 for size, step in zip(buffer.shape, buffer.stride(), strict=True))


def containers(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Filled and empty dicts, lists and sets among these values, nested ones too, each once."""
    filled: dict[int, Any] = {}
    empty: list[Any] = []
    waiting: list[Any] = [attributes]
    while waiting:
        within = waiting.pop()
        for value in within.values() if isinstance(within, dict) else within:
            if type(value) in CONTENTLESS or not isinstance(value, CONTAINERS):
                continue
            if not value:
                empty.append(value)
            elif id(value) not in filled:
                filled[id(value)] = value
                waiting.append(value)
    return list(filled.values()), empty


def _restore(container: Any, items: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(items)


def replace(modules: ModuleTree, twins: Mapping[int, torch.Tensor]) -> None:
    """Put each weight's twin in its place; ``module_state_kept`` puts it back."""
    if not twins:
        return
    for _, module in modules:
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = twins[id(tensor)]  # type: ignore[assignment]  # no Parameter
