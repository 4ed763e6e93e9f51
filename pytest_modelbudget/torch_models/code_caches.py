"""Tensors in ``functools.lru_cache``: emptied before a pass, which is then the first one, and after it."""

import gc
import sys
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import torch

from pytest_modelbudget.torch_models.weights import ModuleTree

LRU_CACHE = type(lru_cache(lambda: None))
FRAMEWORKS = sys.stdlib_module_names | {"torch", "numpy", "torchvision", "pytest_modelbudget"}


def empty_lru_caches(modules: ModuleTree) -> None:
    """Empty functions in the files of a model's classes, and in files that these import from, of tensors.

    A mask that a pass on meta tensors has cached (allenai/longformer) would be what the next run computes with.
    """
    own = _files({type(module).__module__ for _, module in modules})
    named = {_home(value) for file in own for value in tuple(vars(file).values())}
    for file in {*own, *_files(named)}:
        for value in tuple(vars(file).values()):
            for member in tuple(vars(value).values()) if isinstance(value, type) else (value,):
                _empty(member)


def _home(value: Any) -> str:
    """The name of the module that a value is, or that defines it; "" of a plain value."""
    if isinstance(value, ModuleType):
        return value.__name__
    return (value.__module__ or "") if isinstance(value, (FunctionType, LRU_CACHE, type)) else ""


def _files(names: set[str]) -> list[ModuleType]:
    found = (sys.modules.get(name) for name in names if name.partition(".")[0] not in FRAMEWORKS)
    return [file for file in found if isinstance(file, ModuleType)]


def _empty(member: Any) -> None:
    """Empty a cached function that holds tensors, or such a one that a decorator has wrapped."""
    function = getattr(member, "__func__", member) if isinstance(member, (staticmethod, classmethod)) else member
    held = [function]
    if isinstance(function, FunctionType):
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
    for cache in held:
        if isinstance(cache, LRU_CACHE) and _holds_tensors(cache):
            cache.cache_clear()


def _holds_tensors(cache: Any) -> bool:
    """Whether a key or result is a tensor, or has one in it; settings, say, are let be."""
    held = gc.get_referents(cache)
    held += [value for table in held if isinstance(table, dict) for value in table.values()]
    held += [part for group in held if isinstance(group, (tuple, list)) for part in group]
    return any(isinstance(each, torch.Tensor) for each in held)
