"""The state of a model's modules, and of the files that define them: as before afterwards."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial, partialmethod
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pytest_modelbudget.torch_models.classes import FRAMEWORKS, IS_PLAIN, AskedOnce
from pytest_modelbudget.torch_models.weights import CONTAINERS, CONTENTLESS, ModuleTree

EXACT = frozenset({dict, list, set, OrderedDict})  # the usual ones, asked without detours
LRU_CACHE = type(lru_cache(lambda: None))
CALLED_BY: Mapping[type, str] = {  # what wraps a function, and where it has it
    LRU_CACHE: "__wrapped__",
    **dict.fromkeys((staticmethod, classmethod), "__func__"),
    **dict.fromkeys((partial, partialmethod, cached_property), "func"),
    property: "fget",
}
DEEP = 3  # containers within containers that are looked into


@contextmanager
def module_state_kept(modules: ModuleTree) -> Iterator[None]:
    """Attributes, flags, parameters, buffers and hooks of every module are as before afterwards.

    A forward pass may set any of them: a cache, a counter, a weight that a hook computes. Tensors
    that are mere attributes are lent as copies, because it may also write into them.
    """
    held = Held()
    kept = [(attributes, _lent(attributes, held)) for attributes in (vars(module) for _, module in modules)]
    contents = [(e, e.copy() if type(e) in EXACT else copied_content(e)) for e in held.filled]
    misses = [cache.cache_info().misses for cache in held.caches]
    try:
        yield
    finally:
        for cache, before in zip(held.caches, misses, strict=True):
            if cache.cache_info().misses != before:
                cache.cache_clear()
        if any(held.empty):
            for container in held.empty:
                container.clear()
        for container, items in (*contents, *kept):
            restore(container, items)


@contextmanager
def scripted_parts_kept(modules: ModuleTree) -> Iterator[None]:
    """Parameters, buffers and attributes of scripted parts are as before afterwards.

    Tensors that are mere attributes are lent as copies, because a pass may also write into them. A model that is a
    script itself is read anew for each pass.
    """
    is_script = isinstance(modules[0][1], torch.jit.ScriptModule)
    parts = [] if is_script else [part for _, part in modules if isinstance(part, torch.jit.ScriptModule)]
    kept = [(part._c, _scripted_attributes(part)) for part in parts]
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


def _scripted_attributes(part: Any) -> dict[str, Any]:
    """All that a scripted module holds itself, by name; lists and dicts as copies."""
    kind: Any = torch._C.ConcreteModuleType.from_jit_type(part._c._type())  # which a frozen one lacks itself
    return {name: part._c.getattr(name) for name in kind.get_attributes()}


def _lent(attributes: dict[str, Any], held: "Held") -> dict[str, Any]:
    """A module's attributes as they were, before tensors among them became copies; what they hold is added to held."""
    before = attributes.copy()
    for name, value in before.items():
        if not OPENS[type(value)]:
            if IS_TENSOR[type(value)]:
                attributes[name] = value.clone()
        elif type(value) in EXACT and not value:
            held.empty.append(value)  # most of what a module holds
        else:
            held.add(value)
    return before


def _renormed(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The table of an embedding with ``max_norm``, which shortens the rows that a run reads."""
    if not isinstance(module, torch.jit.ScriptModule) and getattr(module, "max_norm", None) is not None:
        yield from ((name, table.detach()) for name, table in module._parameters.items() if table is not None)


@contextmanager
def buffer_values_kept(modules: ModuleTree) -> Iterator[None]:
    """Buffers have the values and memory that they had, also where a run writes into them.

    Which tensors a module holds is left to ``module_state_kept``, but for TorchScript, whose
    buffers are no Python attributes.
    """
    kept = [
        (module, name, buffer, buffer.detach(), buffer.clone())
        for _, module in modules
        for name, buffer in (*module._buffers.items(), *_renormed(module))
        if buffer is not None and _can_be_written(buffer)
    ]
    try:
        yield
    finally:
        with torch.inference_mode():  # where inference tensors may be written, too
            for module, name, buffer, memory, before in kept:
                if not torch.equal(memory, before):
                    memory.copy_(before)
                if buffer.data_ptr() != memory.data_ptr() or buffer.shape != memory.shape:
                    buffer.data = memory  # given other memory through the same attribute
                is_script = isinstance(module, torch.jit.ScriptModule)
                if is_script and module._buffers[name] is not buffer:
                    setattr(module, name, buffer)


def _can_be_written(buffer: torch.Tensor) -> bool:
    """Whether this is plain memory, each element on its own; torch writes into no expanded one."""
    if type(buffer) is not torch.Tensor or buffer.layout is not torch.strided:
        return False
    return all(step or size < 2 for size, step in zip(buffer.shape, buffer.stride(), strict=True))


class Held:
    """Dicts, lists, sets, attributes of objects and cached functions that modules hold, each once.

    empty are usual containers without anything in them.
    """

    def __init__(self) -> None:
        self.filled: list[Any] = []
        self.empty: list[Any] = []
        self.caches: list[Any] = []
        self._known: set[int] = set()

    def add(self, value: Any, depth: int = DEEP) -> None:
        """Add what a value is, and what is within it."""
        waiting = [(value, depth)]
        while waiting:
            value, depth = waiting.pop()
            if isinstance(value, CONTAINERS):
                within = self._contents(value)
            elif type(value) is LRU_CACHE:
                self.caches.append(value)
                continue
            elif depth:
                within, depth = self._contents(vars(value)), depth - 1
            else:
                continue
            waiting.extend([(part, depth) for part in within if OPENS[type(part)]])

    def _contents(self, container: Any) -> Iterable[Any]:
        """What is in a container that was not seen before; it is added."""
        if type(container) in EXACT and not container:
            self.empty.append(container)
            return ()
        if id(container) in self._known:
            return ()
        self._known.add(id(container))
        self.filled.append(container)
        return content_of(container)


def _opens(kind: type) -> bool:
    """Whether something may be within values of a class that can be as before afterwards."""
    return kind not in CONTENTLESS and (issubclass(kind, CONTAINERS) or kind is LRU_CACHE or IS_PLAIN[kind])


OPENS = AskedOnce(_opens)
IS_TENSOR = AskedOnce(lambda kind: issubclass(kind, torch.Tensor))


def plain_class(container: Any) -> Any:
    """The built-in class of a container, whose methods work whatever a subclass refuses."""
    if type(container) in EXACT:
        return type(container)
    return next(kind for kind in (OrderedDict, *CONTAINERS) if isinstance(container, kind))


def content_of(container: Any) -> Iterable[Any]:
    """Its values, or those of a tuple."""
    if isinstance(container, dict):
        return dict.values(container)
    return container if isinstance(container, tuple) else plain_class(container).__iter__(container)


def copied_content(container: Any) -> Any:
    """Its content in a plain container, in order."""
    plain = plain_class(container)
    if plain is OrderedDict:
        return OrderedDict(OrderedDict.items(container))
    return plain.copy(container)


def restore(container: Any, items: Any) -> None:
    """Give a container its content back; one that has it is left alone."""
    if _is_as_before(container, items):
        return
    plain = plain_class(container)
    plain.clear(container)
    if plain is OrderedDict:  # its update would call the subclass's own methods
        for key, value in items.items():
            OrderedDict.__setitem__(container, key, value)
    elif plain is list:
        list.extend(container, items)
    else:
        plain.update(container, items)


def _is_as_before(container: Any, items: Any) -> bool:
    """Whether the same objects are in it in the same order: compared without a step in Python."""
    plain = plain_class(container)
    if plain.__len__(container) != len(items):
        return False
    if isinstance(container, dict):
        values = map(is_, plain.values(container), items.values())
        return all(map(is_, plain.keys(container), items)) and all(values)
    return all(map(is_, plain.__iter__(container), items))


@contextmanager
def caches_kept(modules: ModuleTree) -> Iterator[None]:
    """What is made in this context is kept by no cache in the code of a model's classes.

    ``functools.lru_cache`` and ``cache`` that were added to are emptied. Variables and containers
    at the top of a file and in its classes have back what they held in place of new tensors.
    """
    names = {type(module).__module__ for _, module in modules}
    files = _own_files(names)
    misses = {id(cache): cache.cache_info().misses for cache in _lru_caches(files)}
    kept = [(owner, dict(vars(owner)), _containers(owner)) for owner in _owners(files)]
    try:
        yield
    finally:
        for cache in _lru_caches(_own_files(names)):
            if cache.cache_info().misses != misses.get(id(cache), 0):
                cache.cache_clear()
        for owner, before, contents in kept:
            for container, content in contents:
                if not _is_as_before(container, content) and _holds_new_tensor(container, content):
                    restore(container, content)
            _restore_variables(owner, before)


Files = list[ModuleType]
_packages: dict[str, tuple[int, tuple[Any, ...]]] = {}  # caches, with the count of modules loaded then
Counted = WeakKeyDictionary[ModuleType, tuple[int, tuple[Any, ...]]]  # of a file, with its count of names then
_caches: Counted = WeakKeyDictionary()
_functions: Counted = WeakKeyDictionary()


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
        yield from _caches_of(file)
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
        caches = tuple(cache for file in files for cache in _caches_of(file))
        _packages[package] = len(sys.modules), caches
    return caches


def _caches_of(file: ModuleType) -> tuple[Any, ...]:
    return _once_a_file(_caches, _lru_caches_of, file)


def _once_a_file(known: Counted, look: Callable[[ModuleType], Iterator[Any]], file: ModuleType) -> tuple[Any, ...]:
    """What is in a file; looked for again where it has more names."""
    count, there = known.get(file, (0, ()))
    if count != len(vars(file)):
        there = tuple(look(file))
        known[file] = len(vars(file)), there
    return there


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
        yield from _once_a_file(_functions, _functions_of, file)


def _functions_of(file: ModuleType) -> Iterator[FunctionType]:
    """Functions and methods that a file defines."""
    for value in tuple(vars(file).values()):
        if isinstance(value, type) and value.__module__ == file.__name__:
            members = (getattr(member, "__func__", member) for member in tuple(vars(value).values()))
            yield from (member for member in members if type(member) is FunctionType)
        elif type(value) is FunctionType and value.__module__ == file.__name__:
            yield value


def _lru_caches_of(file: ModuleType) -> Iterator[Any]:
    for value in tuple(vars(file).values()):
        is_own_class = isinstance(value, type) and value.__module__ == file.__name__
        for member in tuple(vars(value).values()) if is_own_class else (value,):
            yield from _caches_behind(member)


def _caches_behind(value: Any, depth: int = DEEP) -> Iterator[Any]:
    """A cached function itself, and those that decorators, methods and partial calls around it call."""
    if type(value) is LRU_CACHE:
        yield value
    if type(value) in CALLED_BY:
        yield from _caches_behind(getattr(value, CALLED_BY[type(value)]), depth)
    elif type(value) is FunctionType and value.__closure__ and depth:
        for cell in filter(_is_filled, value.__closure__):
            yield from _caches_behind(cell.cell_contents, depth - 1)


def _containers(owner: Any) -> list[tuple[Any, Any]]:
    """(container, its content) of every one that a file, class, object or function holds."""
    values = tuple(vars(owner).values())
    if type(owner) is FunctionType:
        cells = (cell.cell_contents for cell in owner.__closure__ or () if _is_filled(cell))
        values = (*values, *(owner.__defaults__ or ()), *(owner.__kwdefaults__ or {}).values(), *cells)
    return [(value, copied_content(value)) for value in values if isinstance(value, CONTAINERS)]


def _is_filled(cell: CellType) -> bool:
    return cell != CellType()


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
    parts = tuple(getattr(value, "__dict__", {}).values())
    return any(_holds_tensor(part, depth - 1) for part in parts)


def _restore_variables(owner: Any, before: Mapping[str, Any]) -> None:
    """Variables that were given a tensor have their values back."""
    if len(vars(owner)) == len(before) and all(map(is_, vars(owner).values(), before.values())):
        return
    for name, value in tuple(vars(owner).items()):
        if value is before.get(name) or not _holds_tensor(value, 2):
            continue
        if name in before:
            setattr(owner, name, before[name])
        else:
            delattr(owner, name)
