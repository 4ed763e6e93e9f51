"""The state of scripted parts of a model: as before after a pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_modelbudget.torch_models.contents import MODE, differs
from pytest_modelbudget.torch_models.weights import ModuleTree


@contextmanager
def scripted_parts_kept(modules: ModuleTree, changed: dict[str, None]) -> Iterator[None]:
    """Parameters, buffers and attributes of scripted parts are as before afterwards; what was otherwise is in changed.

    Tensors that are mere attributes are lent as copies, because a pass may also write into them. A model that is a
    script itself is read anew for each pass.
    """
    scripts: list[tuple[str, Any]] = [
        (path, part) for path, part in modules if isinstance(part, torch.jit.ScriptModule)
    ]
    kept = [(path, part, _scripted_attributes(part)) for path, part in scripts]
    is_script = isinstance(modules[0][1], torch.jit.ScriptModule)
    for _, part, attributes in () if is_script else kept:
        weights = {*part._parameters.keys(), *part._buffers.keys()}
        for name, value in attributes.items():
            if name not in weights and (lent := _with_copies(value)) is not value:
                part._c.setattr(name, lent)
    try:
        yield
    finally:
        for path, part, attributes in kept:
            now = _scripted_attributes(part)
            names = sorted(each for each, value in attributes.items() if each != MODE and differs(now.get(each), value))
            changed.update(dict.fromkeys(f"{path}.{name}" if path else name for name in names))
            for name, value in () if is_script else attributes.items():
                part._c.setattr(name, value)


def _scripted_attributes(part: Any) -> dict[str, Any]:
    """All that a scripted module holds itself, by name; lists and dicts as copies."""
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(part._c._type())  # which a frozen one lacks itself
    return {name: part._c.getattr(name) for name in kind.get_attributes()}


def _with_copies(value: Any) -> Any:
    """What TorchScript holds, with copies of all tensors in it; itself where there are none."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        parts = [_with_copies(part) for part in value.values()]
        changed = {key: part for (key, before), part in zip(value.items(), parts, strict=True) if part is not before}
        return {**value, **changed} if changed else value
    if isinstance(value, (list, tuple)):
        parts = [_with_copies(part) for part in value]
        if all(part is before for part, before in zip(parts, value, strict=True)):
            return value
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return value
