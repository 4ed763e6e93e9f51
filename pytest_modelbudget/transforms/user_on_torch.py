"""``apply: package.module:callable`` on torch models: the user's own transform, module → module."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.errors import TransformError, user_code
from pytest_modelbudget.formats.model import Change
from pytest_modelbudget.formats.source import transform_named
from pytest_modelbudget.torch_models.running import TorchModel
from pytest_modelbudget.torch_models.weights import leaves
from pytest_modelbudget.transforms.on_torch import change_module
from pytest_modelbudget.transforms.transform import Changed, Settings


def apply(model: TorchModel, settings: Settings) -> Changed:
    """What the user's callable makes of a copy of the model."""
    target = str(settings["apply"])
    call = transform_named(target)

    def changer(module: nn.Module) -> nn.Module:
        with user_code(f"calling {target}", TransformError):
            return call(module)  # type: ignore[no-any-return]  # checked by who called

    return change_module(model, changer, layer_changes)


def layer_changes(before: nn.Module, after: nn.Module) -> tuple[Change, ...]:
    """Every layer of the original, and what stands in its place: by path and type."""
    return tuple(_changes(before, after))


def _changes(before: nn.Module, after: nn.Module) -> Iterator[Change]:
    there = dict(_uncompiled(after))
    for path, module in _uncompiled(before):
        if module._modules:
            continue
        kind, other = type(module).__name__, there.get(path)
        now = type(other).__name__ if other is not None else "nothing of that name"
        if now != kind:
            yield Change(path, kind, now)
        elif _same_weights(module, other):
            yield Change(path, kind, why="as it was")
        else:
            yield Change(path, kind, f"{kind} with other weights")


COMPILED = "_orig_mod"  # under which torch.compile's module keeps the one that was given


def _uncompiled(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its path, without the layers that ``torch.compile`` puts around it."""
    for path, module in model.named_modules():
        if COMPILED not in module._modules:
            yield ".".join(name for name in path.split(".") if name != COMPILED), module


def _same_weights(module: nn.Module, other: Any) -> bool:
    """Whether two layers store tensors of the same names, types and values."""
    mine, theirs = module.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(_same(value, theirs[name]) for name, value in mine.items())


def _same(value: Any, other: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(value) is type(other)
    if type(value) is not type(other) or value.dtype != other.dtype or value.shape != other.shape:
        return False
    if is_traceable_wrapper_subclass(value):
        parts = zip(leaves(value), leaves(other), strict=False)
        return all(name == its and _same(part, of_other) for (name, part), (its, of_other) in parts)
    return torch.equal(value, other)
