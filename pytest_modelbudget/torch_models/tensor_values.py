"""Values that tensors hold: kept before a pass, and given back after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.torch_models.values import PLAIN_TENSORS
from pytest_modelbudget.torch_models.weights import HAS_OWN_CLASS, ModuleTree

Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # a tensor, its memory, and a copy of that


def values_of(tensor: torch.Tensor) -> Values:
    """A tensor, its memory as a plain tensor, and a copy of that."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        memory = tensor.as_subclass(torch.Tensor).detach()
        return tensor, memory, memory.clone()


def put_values_back(tensor: torch.Tensor, memory: torch.Tensor, before: torch.Tensor) -> None:
    """Give a tensor its memory, and that its values, where a pass has changed either."""
    with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode():  # where inference tensors may be written, too
        if not torch.equal(memory, before):
            memory.copy_(before)
        if (tensor.data_ptr(), tensor.shape, tensor.stride()) != (memory.data_ptr(), memory.shape, memory.stride()):
            tensor.data = memory  # given other memory through the same attribute


def _renormed(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The table of an embedding with ``max_norm``, which shortens the rows that a run reads."""
    if not isinstance(module, torch.jit.ScriptModule) and getattr(module, "max_norm", None) is not None:
        yield from ((name, table.detach()) for name, table in module._parameters.items() if table is not None)


@contextmanager
def buffer_values_kept(modules: ModuleTree) -> Iterator[None]:
    """Buffers have the values and memory that they had, also where a run writes into them.

    Which tensors a module holds is left to ``module_state_kept``, but for TorchScript, whose
    buffers are no Python attributes.
    """
    kept = [
        (module, name, values_of(buffer))
        for _, module in modules
        for name, buffer in (*module._buffers.items(), *_renormed(module))
        if buffer is not None and can_be_written(buffer)
    ]
    try:
        yield
    finally:
        for module, name, values in kept:
            put_values_back(*values)
            if isinstance(module, torch.jit.ScriptModule) and module._buffers[name] is not values[0]:
                setattr(module, name, values[0])


def is_in_parts(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no one memory: a sparse or quantised one, or a wrapper."""
    return tensor.layout is not torch.strided or tensor.is_quantized or is_traceable_wrapper_subclass(tensor)


def can_be_written(tensor: torch.Tensor) -> bool:
    """Whether this is plain memory, each element on its own; torch writes into no expanded one."""
    kind = type(tensor)
    if not (kind in PLAIN_TENSORS or HAS_OWN_CLASS[kind]) or tensor.is_meta or is_in_parts(tensor):
        return False
    return all(step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
