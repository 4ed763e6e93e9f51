"""The model that a transform gets a copy of: its weights are the same bits afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.frontends.torch_building import built, is_an_instance
from pytest_modelbudget.frontends.torch_tracing import Subject
from pytest_modelbudget.frontends.torch_weights import module_tree, named_weights


def original(source: ModelSource, subject: Subject) -> nn.Module:
    """The module of a source that a user's code can reach.

    A subject holds a copy of an instance; what a factory builds may be one that it keeps.
    """
    is_kept = source.format == "torch" and is_an_instance(source)
    return built(source) if is_kept else subject.model


@contextmanager
def weights_untouched(model: nn.Module) -> Iterator[None]:
    """Refuse a transform that writes into these parameters or buffers, or exchanges them.

    Raises TransformError with the first one: the copy, made before, would not show it.
    """
    before = checksums(model)
    yield
    after = checksums(model)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            raise TransformError(
                f"the transform changed {name!r} of the original model: change only the copy "
                "that it is given, and return that"
            )


def checksums(model: nn.Module) -> dict[str, int]:
    """The CRC-32 of the memory under each parameter and buffer, by its full name.

    Tensors without plain memory (sparse ones, wrappers around others) are left out.
    """
    of_memory: dict[int, int] = {}
    found: dict[str, int] = {}
    for weight in named_weights(module_tree(model)):
        tensor = weight.tensor
        if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
            continue
        memory = tensor.untyped_storage()
        if memory._cdata not in of_memory:
            of_memory[memory._cdata] = _checksum(memory)
        found[weight.name] = of_memory[memory._cdata]
    return found


def _checksum(memory: torch.UntypedStorage) -> int:
    here = memory.cpu()  # type: ignore[no-untyped-call]  # torch gives no types
    return zlib.crc32(torch.empty(0, dtype=torch.uint8).set_(here).numpy().data)
