"""Caches in users' code: no tensor of a measurement stays in one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from pytest_modelbudget.torch_models.containers import content_of, copied_content, restore
from pytest_modelbudget.torch_models.weights import ModuleTree

LRU_CACHE = type(lru_cache(lambda: None))
FRAMEWORKS = frozenset({"torch", "numpy", "builtins"})  # whose caches hold no model's tensors
DEEP = 3  # containers within containers that are looked into


@contextmanager
def caches_kept(modules: ModuleTree) -> Iterator[None]:
    """What is made in this context is kept by no cache in the code of a model's classes.

    ``functools.lru_cache`` and ``cache`` that were added to are emptied. Variables and containers
    at the top of a file and in its classes have back what they held in place of new tensors.
    """
    names = {type(module).__module__ for _, module in modules}
    files = _files(names)
    misses = {id(cache): cache.cache_info().misses for cache in _lru_caches(files)}
    kept = [(owner, dict(vars(owner)), _containers(owner)) for owner in _owners(files)]
    try:
        yield
    finally:
        for cache in _lru_caches(_files(names)):
            if cache.cache_info().misses != misses.get(id(cache), 0):
                cache.cache_clear()
        for owner, before, contents in kept:
            for container, content in contents:
                if _holds_new_tensor(container, content):
                    restore(container, content)
            _restore_variables(owner, before)


def _files(names: set[str]) -> list[tuple[ModuleType, bool]]:
    """Python modules: those of these names (True), of their packages and what they import."""
    own = {name for name in names if not _is_framework(name)}
    packages = {name.partition(".")[0] for name in own if "." in name}
    found: dict[int, tuple[ModuleType, bool]] = {}
    for name, file in tuple(sys.modules.items()):
        if not isinstance(file, ModuleType):
            continue
        if name in own or name.partition(".")[0] in packages:
            found[id(file)] = (file, name in own)
    for file, is_own in tuple(found.values()):
        for value in tuple(vars(file).values()) if is_own else ():
            if isinstance(value, ModuleType) and not _is_framework(value.__name__):
                found.setdefault(id(value), (value, False))
    return list(found.values())


def _is_framework(name: str) -> bool:
    return name.partition(".")[0] in FRAMEWORKS


def _owners(files: list[tuple[ModuleType, bool]]) -> Iterator[Any]:
    """The model's own files, and the classes that they define."""
    for file, is_own in files:
        if is_own:
            yield file
            yield from (
                value
                for value in tuple(vars(file).values())
                if isinstance(value, type) and value.__module__ == file.__name__
            )


def _lru_caches(files: list[tuple[ModuleType, bool]]) -> Iterator[Any]:
    """Cached functions at the top of these files, and in the classes that they define."""
    for file, _ in files:
        for value in tuple(vars(file).values()):
            if type(value) is LRU_CACHE:
                yield value
            elif isinstance(value, type) and value.__module__ == file.__name__:
                for member in tuple(vars(value).values()):
                    function = getattr(member, "__func__", member)
                    if type(function) is LRU_CACHE:
                        yield function


def _containers(owner: Any) -> list[tuple[Any, Any]]:
    """(container, its content) of every one that a file or class holds."""
    values = tuple(vars(owner).values())
    return [(v, copied_content(v)) for v in values if isinstance(v, (dict, list, set))]


def _holds_new_tensor(container: Any, content: Any) -> bool:
    """Whether there is a tensor in it that was not in its content before."""
    before = {id(value) for value in content_of(content)}
    new = (value for value in tuple(content_of(container)) if id(value) not in before)
    return any(map(_holds_tensor, new))


def _holds_tensor(value: Any, depth: int = DEEP) -> bool:
    """Whether it is a tensor, or a container or object of some depth with one."""
    if isinstance(value, torch.Tensor):
        return True
    if not depth or isinstance(value, (str, bytes, int, float, type, ModuleType, type(None))):
        return False
    if isinstance(value, (dict, list, set, tuple)):
        return any(_holds_tensor(part, depth - 1) for part in tuple(content_of(value)))
    parts = tuple(getattr(value, "__dict__", {}).values())
    return any(_holds_tensor(part, depth - 1) for part in parts)


def _restore_variables(owner: Any, before: Mapping[str, Any]) -> None:
    """Variables that were given a tensor have their values back."""
    for name, value in tuple(vars(owner).items()):
        if value is before.get(name) or not _holds_tensor(value, 2):
            continue
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)
