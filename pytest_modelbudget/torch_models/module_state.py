"""Snapshots of modules: what a pass changes is put back, and named where a later call may cost more.

Tensors in ``functools.lru_cache`` go before a pass, which is then the first one, and after it.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from operator import is_, itemgetter
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.values import PLAIN_TENSORS
from pytest_modelbudget.torch_models.versions import buffers_of, is_traceable_wrapper_subclass, parameters_of
from pytest_modelbudget.torch_models.weights import ModuleTree, Spot, has_own_class, weights_of

DEEP = 3  # containers and objects within one another
CONTAINERS = frozenset({dict, OrderedDict, defaultdict, list, set, deque})
NUMBERS = frozenset({bool, int, float, str})
PLAIN = NUMBERS | {type(None)}
MODE = "training"
OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
WEIGHTS = frozenset({versions.PARAMETERS, versions.BUFFERS, versions.SUBMODULES})  # what the tree names already
Values = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # a tensor, its memory, and a copy of that


@contextmanager
def module_state_kept(modules: ModuleTree, *, with_values: bool = False) -> Iterator[ModuleState]:
    """Parameters, buffers, hooks, flags and attributes of every module are as before afterwards.

    So is the content of lists, dicts, sets and deques among the attributes, and the values of tensors there. Other
    objects, functions, arrays and generators are not looked into.
    with_values: buffers have the values and memory that they had, also where a run writes into them.
    """
    state = ModuleState(modules)
    if with_values:
        state.keep_buffers(modules)
    empty_lru_caches(modules)
    try:
        yield state
    finally:
        state.restore()
        empty_lru_caches(modules)


class ModuleState:
    """A snapshot of all modules.

    again are the spots in containers where weights are held once more. changed names numbers, flags, lists and buffers
    of modules that were otherwise when all was restored, by their paths.
    """

    def __init__(self, modules: ModuleTree) -> None:
        self.again: list[Spot] = []
        self.changed: dict[str, None] = {}
        weights = [*weights_of(modules)]
        self._known = {*map(id, weights)}  # with the containers and tensors that are kept
        self._weights = frozenset(self._known)
        self._modules = {id(module) for _, module in modules}
        self._contents: list[tuple[Any, Any, str, str | None]] = []  # container, copy, path of its module, name there
        self._empty: list[tuple[Any, str, str]] = []  # container, path of its module, its name there
        self._values: list[Values] = []
        self._scripts: list[tuple[str, Any, dict[str, Any], bool]] = []
        self._scripted_buffers: list[tuple[Any, str, torch.Tensor]] = []  # which are no Python attributes
        for path, module in modules:
            self._keep_module(vars(module), path)
            if isinstance(module, torch.jit.ScriptModule):
                self._keep_script(module, path, is_whole=module is modules[0][1])
        for weight in weights:
            if (marks := vars(weight)) and not is_traceable_wrapper_subclass(weight):  # whose attributes are its values
                self._keep(marks)
                for mark in filter(_has_tensors, marks.values()):  # as bitsandbytes' scales, which a pass may repack
                    self._keep(vars(mark))

    def _keep_module(self, attributes: dict[str, Any], path: str) -> None:
        self._contents.append((attributes, attributes.copy(), path, ""))
        for name, value in attributes.items():
            kind = type(value)
            if kind in CONTAINERS and not value:
                self._empty.append((value, path, name))  # most of what a module holds
            elif name in WEIGHTS:
                if kind in CONTAINERS:  # scripts have other ones
                    self._contents.append((value, value.copy(), path, name))
            elif kind not in PLAIN:
                self._visit(value, (attributes, name), path, name)

    def _keep(self, container: Any, path: str = "", name: str | None = None, depth: int = DEEP) -> None:
        if id(container) in self._known or not depth:
            return
        self._known.add(id(container))
        self._contents.append((container, container.copy(), path, name))
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            self._visit(value, (container, key), depth=depth - 1)

    def _visit(self, value: Any, spot: Spot, path: str = "", name: str | None = None, depth: int = DEEP) -> None:
        kind: Any = type(value)
        if kind in CONTAINERS:
            self._keep(value, path, name, depth)
        elif isinstance(value, tuple):
            for part in value:
                self._visit(part, spot, depth=depth)
        elif isinstance(value, torch.Tensor):
            self._keep_tensor(value, spot)
        elif isinstance(value, nn.Module) and id(value) not in self._modules:  # keras keeps layers in a list
            self._modules.add(id(value))
            self._keep(vars(value))

    def _keep_tensor(self, tensor: torch.Tensor, spot: Spot) -> None:
        if id(tensor) in self._weights:
            self.again += [spot] if not isinstance(spot[0], set) else []
        elif id(tensor) not in self._known and not isinstance(tensor, nn.Parameter) and can_be_written(tensor):
            self._known.add(id(tensor))
            self._values.append(values_of(tensor))

    def _keep_script(self, part: Any, path: str, *, is_whole: bool) -> None:
        """A script; where it is a part of a model, it is lent copies of tensors that are no weights of it."""
        attributes = _scripted_attributes(part)
        self._scripts.append((path, part, attributes, is_whole))
        weights = {*parameters_of(part).keys(), *buffers_of(part).keys()}
        for name in () if is_whole else attributes.keys() - weights:
            if isinstance(value := attributes[name], (torch.Tensor, list, tuple, dict)):
                setattr(part, name, copy.deepcopy(value))

    def keep_buffers(self, modules: ModuleTree) -> None:
        for _, module in modules:
            for name, buffer in (*buffers_of(module).items(), *_renormed(module)):
                if buffer is not None and can_be_written(buffer):
                    self._values.append(values_of(buffer))
                    if isinstance(module, torch.jit.ScriptModule):
                        self._scripted_buffers.append((module, name, buffer))

    def restore(self) -> None:
        """Put everything back, and note what was otherwise."""
        for container, path, its_name in filter(itemgetter(0), self._empty):
            self.changed.update(dict.fromkeys(_within(path, each) for each in _changes(container, (), its_name)))
            container.clear()
        for container, before, path, name in self._contents:
            if not _is_as_before(container, before):
                self.changed.update(dict.fromkeys(_within(path, each) for each in _changes(container, before, name)))
                container.clear()
                container.extend(before) if isinstance(container, (list, deque)) else container.update(before)
        for values in self._values:
            put_values_back(*values)
        for path, part, attributes, is_whole in self._scripts:
            now = _scripted_attributes(part)
            names = (name for name in sorted(attributes) if name != MODE and _differs(now.get(name), attributes[name]))
            self.changed.update(dict.fromkeys(_within(path, name) for name in names))
            for name, value in () if is_whole else attributes.items():  # a script itself is read anew for each pass
                setattr(part, name, value)
        for part, name, buffer in self._scripted_buffers:
            if buffers_of(part)[name] is not buffer:
                setattr(part, name, buffer)


def _has_tensors(mark: Any) -> bool:
    """Whether a plain object has tensors among its attributes."""
    if isinstance(mark, (torch.Tensor, nn.Module, type)) or not hasattr(mark, "__dict__"):
        return False
    return any(isinstance(each, torch.Tensor) for each in vars(mark).values())


def _scripted_attributes(part: Any) -> dict[str, Any]:
    """All that a scripted module holds itself, by name; lists and dicts as copies."""
    return {name: getattr(part, name) for name in versions.script_attributes(part)}


def _is_as_before(container: Any, before: Any) -> bool:
    """Whether the same objects are in it in the same order: compared without a step in Python."""
    if len(container) != len(before):
        return False
    is_same = all(map(is_, container, before))
    return is_same and (not isinstance(before, dict) or all(map(is_, container.values(), before.values())))


def _changes(now: Any, before: Any, name: str | None) -> list[str]:
    """Names with which a later call may take another way: attributes of a module (name ""), its buffers, its list."""
    if name == "":
        return [key for key in before if key not in OF_TORCH and _differs(now.get(key, before[key]), before[key])]
    if name == versions.BUFFERS:
        return [key for key in before if _has_another_shape(now.get(key), before[key])]
    return [name] if name and isinstance(now, (list, deque)) and len(now) != len(before) else []


def _differs(now: Any, before: Any) -> bool:
    """Whether a number is another one, a container has more or less in it, or a tensor another shape."""
    if type(now) is type(before) and type(before) in NUMBERS:
        return bool(now != before)
    if type(now) is type(before) and type(before) in CONTAINERS:
        return len(now) != len(before)
    return _has_another_shape(now, before)


def _has_another_shape(now: Any, before: Any) -> bool:
    return isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor) and now.shape != before.shape


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def values_of(tensor: torch.Tensor) -> Values:
    """A tensor, its memory as a plain tensor, and a copy of that."""
    with torch.DisableTorchFunctionSubclass(), torch.no_grad():
        memory = tensor.as_subclass(torch.Tensor).detach()
        return tensor, memory, memory.clone()


def put_values_back(tensor: torch.Tensor, memory: torch.Tensor, before: torch.Tensor) -> None:
    """Give a tensor its memory, and that its values, where a pass has changed either."""
    with torch.DisableTorchFunctionSubclass(), torch.inference_mode():  # where inference tensors may be written, too
        if not torch.equal(memory, before):
            memory.copy_(before)
        if (tensor.data_ptr(), tensor.shape, tensor.stride()) != (memory.data_ptr(), memory.shape, memory.stride()):
            tensor.data = memory  # given other memory through the same attribute


def can_be_written(tensor: torch.Tensor) -> bool:
    """Whether this is plain memory, each element on its own; torch writes into no expanded one."""
    is_plain = type(tensor) in PLAIN_TENSORS or has_own_class(type(tensor))
    if not is_plain or is_lazy(tensor) or tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return all(step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _renormed(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The table of an embedding with ``max_norm``, which shortens the rows that a run reads."""
    if not isinstance(module, torch.jit.ScriptModule) and getattr(module, "max_norm", None) is not None:
        yield from ((name, table.detach()) for name, table in parameters_of(module).items() if table is not None)


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
