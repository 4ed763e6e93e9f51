"""What scripted parts of a module hold, which is no Python attribute: as before afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.torch_models.weights import ModuleTree


@contextmanager
def scripted_parts_kept(modules: ModuleTree) -> Iterator[None]:
    """Parameters, buffers and attributes of scripted parts are as before afterwards.

    Tensors that are mere attributes are lent as copies, because a pass may also write into them. A model that is a
    script itself is read anew for each pass.
    """
    is_script = isinstance(modules[0][1], torch.jit.ScriptModule)
    parts = [] if is_script else [part for _, part in modules if isinstance(part, torch.jit.ScriptModule)]
    kept = [(part._c, _attributes(part)) for part in parts]
    for part, (held, attributes) in zip(parts, kept, strict=True):
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) and name not in {**dict(part._parameters), **dict(part._buffers)}:
                held.setattr(name, value.clone())
    try:
        yield
    finally:
        for held, attributes in kept:
            for name, value in attributes.items():
                held.setattr(name, value)


def _attributes(part: Any) -> dict[str, Any]:
    """All that a scripted module holds itself, by name; lists and dicts as copies."""
    return {name: part._c.getattr(name) for name in part._concrete_type.get_attributes()}
