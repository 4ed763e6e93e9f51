"""What every layer of a module tree returns during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from pytest_modelbudget.frontends.torch_tracing import output_tensors

Layers = list[tuple[str, torch.Tensor]]  # (path, first tensor of what it returned), as they end


@contextmanager
def layer_outputs(model: nn.Module, seen: Layers) -> Iterator[None]:
    """Append the output of each layer below the model to ``seen``, while the context lasts."""
    paths = {id(module): path for path, module in model.named_modules() if path}

    def note(module: nn.Module, args: Any, result: Any) -> None:
        if id(module) in paths:
            tensors = (t for t in output_tensors(result) if t.is_floating_point())
            seen.extend((paths[id(module)], tensor.clone()) for tensor in list(tensors)[:1])

    hook = register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()
