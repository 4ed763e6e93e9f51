"""Caches in the code of a model's classes: nothing that a pass makes stays in them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial, partialmethod
from itertools import chain
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.torch_models.classes import (
    DEEP,
    FRAMEWORKS,
    IS_PLAIN,
    LRU_CACHE,
    AskedOfFile,
    in_dict,
    unwrapped,
)
from pytest_modelbudget.torch_models.contents import (
    CONTAINERS,
    CONTENTLESS,
    content_of,
    copied_content,
    held_by,
    is_as_before,
    is_filled,
    put_back,
)
from pytest_modelbudget.torch_models.weights import ModuleTree

CALLED_BY: Mapping[type, str] = {  # what wraps a function, and where it has it
    LRU_CACHE: "__wrapped__",
    **dict.fromkeys((staticmethod, classmethod), "__func__"),
    **dict.fromkeys((partial, partialmethod, cached_property), "func"),
    property: "fget",
}


@contextmanager
def caches_kept(modules: ModuleTree) -> Iterator[None]:
    """What is made in this context is kept by no cache in the code of a model's classes.

    ``functools.lru_cache`` and ``cache`` that were added to are emptied. Variables and containers
    at the top of a file and in its classes have back what they held in place of new tensors.
    """
    names = {type(module).__module__ for _, module in modules}
    hooks = [hook for _, module in modules for hook in _hooks_of(module) if type(hook) is FunctionType]
    names |= {hook.__module__ for hook in hooks}
    files = _own_files(names)
    misses = {id(cache): cache.cache_info().misses for cache in _lru_caches(files)}
    kept = [(owner, dict(in_dict(owner)), _containers(owner)) for owner in (*_owners(files), *hooks)]
    try:
        yield
    finally:
        for cache in _lru_caches(_own_files(names)):
            if cache.cache_info().misses != misses.get(id(cache), 0):
                cache.cache_clear()
        for owner, before, contents in kept:
            for container, content in contents:
                if not is_as_before(container, content) and _holds_new_tensor(container, content):
                    put_back(container, content)
            _restore_variables(owner, before)


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    """What stands around a module's pass; it may keep what it sees in its own file, or in what it closes over."""
    return chain(module._forward_hooks.values(), module._forward_pre_hooks.values())


Files = list[ModuleType]
_packages: dict[str, tuple[int, tuple[Any, ...]]] = {}  # caches, with the count of modules loaded then


def _own_files(names: set[str]) -> Files:
    """Python modules of these names that are no framework's."""
    return [sys.modules[name] for name in names if not _is_framework(name) and name in sys.modules]


def _lru_caches(files: Files) -> Iterator[Any]:
    """Cached functions of these files, of their packages and of what they import, each file's own and its classes'."""
    beside = {
        id(value): value
        for file in files
        for value in tuple(vars(file).values())
        if isinstance(value, ModuleType) and not _is_framework(value.__name__)
    }
    for file in (*files, *beside.values()):
        yield from CACHES[file]
    for package in {file.__name__.partition(".")[0] for file in files if "." in file.__name__}:
        yield from _caches_of_package(package)


def _caches_of_package(package: str) -> tuple[Any, ...]:
    """Those of all loaded modules of a package; looked for again where more modules are loaded."""
    count, caches = _packages.get(package, (0, ()))
    if count != len(sys.modules):
        inside = f"{package}."
        files = [
            file
            for name, file in tuple(sys.modules.items())
            if (name == package or name.startswith(inside)) and isinstance(file, ModuleType)
        ]
        caches = tuple(cache for file in files for cache in CACHES[file])
        _packages[package] = len(sys.modules), caches
    return caches


def _is_framework(name: str) -> bool:
    return name.partition(".")[0] in FRAMEWORKS


def _owners(files: Files) -> Iterator[Any]:
    """The model's own files, the classes that they define, and the objects and functions that they hold."""
    for file in files:
        yield file
        for value in tuple(vars(file).values()):
            if isinstance(value, type):
                if value.__module__ == file.__name__:
                    yield value
            elif type(value) not in CONTENTLESS and IS_PLAIN[type(value)]:
                yield value
        yield from FUNCTIONS[file]


def _functions_of(file: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that a file defines."""
    for value in tuple(vars(file).values()):
        if isinstance(value, type) and value.__module__ == file.__name__:
            members = (unwrapped(member) for member in tuple(vars(value).values()))
            yield from (member for member in members if type(member) is FunctionType)
        elif type(value) is FunctionType and value.__module__ == file.__name__:
            yield value


FUNCTIONS = AskedOfFile(lambda file: tuple(_functions_of(file)))


def _caches_of(file: ModuleType) -> Iterator[Any]:
    """Cached functions that a file names, and those in classes that it defines."""
    for value in tuple(vars(file).values()):
        is_own_class = isinstance(value, type) and value.__module__ == file.__name__
        for member in tuple(vars(value).values()) if is_own_class else (value,):
            yield from _caches_behind(member)


CACHES = AskedOfFile(lambda file: tuple(_caches_of(file)))


def _caches_behind(value: Any, depth: int = DEEP) -> Iterator[Any]:
    """A cached function itself, and those that decorators, methods and partial calls around it call."""
    if type(value) is LRU_CACHE:
        yield value
    if type(value) in CALLED_BY:
        yield from _caches_behind(getattr(value, CALLED_BY[type(value)]), depth)
    elif type(value) is FunctionType and value.__closure__ and depth:
        for cell in filter(is_filled, value.__closure__):
            yield from _caches_behind(cell.cell_contents, depth - 1)


def _containers(owner: Any) -> list[tuple[Any, Any]]:
    """(container, its content) of every one that a file, class, object or function holds."""
    values = tuple(in_dict(owner).values())
    if type(owner) is FunctionType:
        values = (*values, *held_by(owner))
    return [(value, copied_content(value)) for value in values if isinstance(value, CONTAINERS)]


def _holds_new_tensor(container: Any, before: Any) -> bool:
    """Whether there is a tensor in it that was not in its content before."""
    known = set(map(id, content_of(before)))
    return any(_holds_tensor(v) for v in tuple(content_of(container)) if id(v) not in known)


def _holds_tensor(value: Any, depth: int = DEEP) -> bool:
    """Whether it is a tensor, or a container or object of some depth with one."""
    if isinstance(value, torch.Tensor):
        return True
    if not depth or isinstance(value, (str, bytes, int, float, type, ModuleType, type(None))):
        return False
    if isinstance(value, (dict, list, set, tuple)):
        return any(_holds_tensor(part, depth - 1) for part in tuple(content_of(value)))
    return any(_holds_tensor(part, depth - 1) for part in tuple(in_dict(value).values()))


def _restore_variables(owner: Any, before: Mapping[str, Any]) -> None:
    """Variables that were given a tensor have their values back."""
    now = in_dict(owner)
    if len(now) == len(before) and all(map(is_, now.values(), before.values())):
        return
    for name, value in tuple(now.items()):
        if value is before.get(name) or not _holds_tensor(value, 2):
            continue
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)
