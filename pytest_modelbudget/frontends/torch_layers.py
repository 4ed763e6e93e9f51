"""What every layer of a module tree returns during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from pytest_modelbudget.frontends.torch_tracing import output_tensors


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The first floating tensor that a layer returned.

    reads_last tells whether the layer was fed the very tensor that the one before it returned.
    """

    path: str
    value: torch.Tensor
    reads_last: bool


Layers = list[LayerOutput]  # as they end


@contextmanager
def layer_outputs(model: nn.Module, seen: Layers) -> Iterator[None]:
    """Append the output of each layer below the model to ``seen``, while the context lasts."""
    paths = {id(module): path for path, module in model.named_modules() if path}

    last: list[torch.Tensor] = []  # of the layer before, kept alive: another may not take its id

    def note(module: nn.Module, args: Any, result: Any) -> None:
        if id(module) not in paths:
            return
        reads_last = any(given is mine for given in output_tensors(args) for mine in last)
        last[:] = [tensor for tensor in output_tensors(result) if tensor.is_floating_point()]
        # A copy: an in-place operation that follows would change what was returned.
        for tensor in last[:1]:
            seen.append(LayerOutput(paths[id(module)], tensor.clone(), reads_last))

    hook = register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()
