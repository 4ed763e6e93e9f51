"""Tensors in ``functools.lru_cache``: emptied after a pass, before they meet another one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from pytest_modelbudget.torch_models.weights import ModuleTree

LRU_CACHE = type(lru_cache(lambda: None))
FRAMEWORKS = sys.stdlib_module_names | {"torch", "numpy", "torchvision", "pytest_modelbudget"}


@contextmanager
def lru_caches_emptied(modules: ModuleTree) -> Iterator[None]:
    """Cached functions in the files of a model's classes, and in files that these import from, are empty afterwards.

    A mask that a pass on meta tensors has cached (allenai/longformer) would be what the next run computes with.
    """
    try:
        yield
    finally:
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
    """Empty a cached function, or one that a decorator has wrapped."""
    function = getattr(member, "__func__", member) if isinstance(member, (staticmethod, classmethod)) else member
    if isinstance(function, LRU_CACHE):
        function.cache_clear()
    elif isinstance(function, FunctionType) and function.__closure__:
        for cell in function.__closure__:
            if cell != type(cell)() and isinstance(cell.cell_contents, LRU_CACHE):
                cell.cell_contents.cache_clear()
