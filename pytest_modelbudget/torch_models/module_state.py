"""The state of a model's modules: as before after a pass, whatever it sets and writes into."""

from collections import deque
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any, Union

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.torch_models.classes import IS_PLAIN, AskedOnce
from pytest_modelbudget.torch_models.contents import (
    CONTAINERS,
    CONTENTLESS,
    EXACT,
    copied_content,
    is_as_before,
    plain_class,
    put_back,
)
from pytest_modelbudget.torch_models.generators import STATES
from pytest_modelbudget.torch_models.weights import ModuleTree, Spot

PARAMETERS, BUFFERS = TABLES = ("_parameters", "_buffers")  # where modules have their weights
LRU_CACHE = type(lru_cache(lambda: None))
DEEP = 3  # objects within objects that are looked into
PARTLESS = CONTENTLESS - {tuple}
LISTS = frozenset({list, deque})
Where = Union[tuple[str, str], None]  # a module's path, and the attribute; "" of all that it has itself
MODE = "training"
NUMBERS = frozenset({bool, int, float, str})
OF_TORCH = frozenset(vars(nn.Module()))  # what every module has, such as its mode


@contextmanager
def module_state_kept(modules: ModuleTree) -> Iterator["Held"]:
    """Attributes, flags, parameters, buffers and hooks of every module, and marks on weights, are as before afterwards.

    A forward pass may set any of them: a cache, a counter, a weight that a hook computes. Tensors that are no weights
    are lent as copies, because it may also write into them.
    """
    weights = [*chain.from_iterable(_weights_of(module) for _, module in modules)]
    held = Held({id(weight) for weight in weights})
    for path, module in modules:
        held.add(vars(module), path)
    for weight in weights:
        if (marks := vars(weight)) and not is_traceable_wrapper_subclass(weight):  # whose attributes are its values
            held.add(marks)
    try:
        yield held
    finally:
        held.restore()


def _weights_of(module: nn.Module) -> Iterator[torch.Tensor]:
    tables = (module._parameters.values(), module._buffers.values())
    return (weight for weight in chain.from_iterable(tables) if weight is not None)


class Held:
    """All that attributes hold: containers, objects, tensors, cached functions and generators, each once.

    again are the spots where weights are held once more. changed names numbers, flags and caches that were otherwise
    when all was restored, by their paths; what was filled for the first time is kept for reuse, most often, and not
    among them.
    """

    def __init__(self, weights: Set[int]) -> None:
        self.again: list[Spot] = []
        self.changed: dict[str, None] = {}
        self._weights = weights
        self._contents: list[tuple[Any, Any, Where]] = []  # each container, and what was in it
        self._empty: list[Any] = []  # usual containers without anything in them
        self._misses: list[tuple[Any, int]] = []  # of each cached function
        self._states: list[tuple[Any, Any]] = []  # of each generator
        self._lent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: itself, and its copy
        self._known: set[int] = set()
        self._waiting: list[tuple[Any, int, Where]] = []

    def add(self, attributes: dict[str, Any], path: str | None = None) -> None:
        """Add what attributes are, of a module where a path is given, and what is within."""
        self._waiting.append((attributes, DEEP, None if path is None else (path, "")))
        while self._waiting:
            self._open(*self._waiting.pop())

    def _open(self, container: Any, depth: int, where: Where) -> None:
        """Keep what is in a container, and look at what matters of it."""
        if type(container) in EXACT and not container:
            self._empty.append(container)
        elif id(container) not in self._known:
            self._known.add(id(container))
            before = container.copy() if type(container) in EXACT else copied_content(container)
            self._contents.append((container, before, where))
            if not isinstance(container, set):
                items = before.items() if isinstance(before, dict) else enumerate(before)
                self._look_at(container, [item for item in items if MATTERS[type(item[1])]], depth, where)

    def _look_at(self, container: Any, items: Iterable[tuple[Any, Any]], depth: int, where: Where) -> None:
        is_module = where is not None and not where[1]
        for key, value in items:
            kind = type(value)
            if kind in EXACT and not value:
                self._empty.append(value)  # most of what a module holds
            elif where is not None and is_module and key in TABLES:
                self._contents.append((value, copied_content(value), (where[0], key) if key == BUFFERS else None))
            elif where is not None and is_module and kind in LISTS:
                self._waiting.append((value, depth, (where[0], key)))
            else:
                lent = self._of(value, (container, key), depth)
                if lent is not value:
                    plain_class(container).__setitem__(container, key, lent)

    def _of(self, value: Any, spot: Spot, depth: int) -> Any:
        """What a pass finds in a spot: itself, or a copy of a tensor."""
        kind = type(value)
        if IS_TENSOR[kind]:
            return self._tensor(value, spot)
        if isinstance(value, tuple):
            return self._tuple(value, spot, depth)
        if isinstance(value, CONTAINERS):
            self._waiting.append((value, depth, None))
        elif kind is LRU_CACHE:
            self._misses.append((value, value.cache_info().misses))
        elif kind in STATES:
            self._states.append((value, STATES[kind].read(value)))
        elif depth:
            self._waiting.append((vars(value), depth - 1, None))
        return value

    def _tensor(self, value: torch.Tensor, spot: Spot) -> torch.Tensor:
        if id(value) in self._weights:
            self.again.append(spot)
        if id(value) in self._weights or isinstance(value, nn.Parameter):
            return value
        if id(value) not in self._lent:
            self._lent[id(value)] = value, value.clone()
        return self._lent[id(value)][1]

    def _tuple(self, value: tuple[Any, ...], spot: Spot, depth: int) -> Any:
        """A tuple, with copies of the tensors in it; one of a class of its own only where it can be made anew."""
        if PARTLESS.issuperset(map(type, value)):
            return value
        parts = [self._of(part, spot, depth) if MATTERS[type(part)] else part for part in value]
        if all(part is before for part, before in zip(parts, value, strict=True)):
            return value
        made = tuple if type(value) is tuple else getattr(type(value), "_make", None)
        return made(parts) if made else value

    def restore(self) -> None:
        """Make all of it as it was."""
        for cache, misses in self._misses:
            if cache.cache_info().misses != misses:
                cache.cache_clear()
        if any(self._empty):
            for container in self._empty:
                container.clear()
        for container, items, where in self._contents:
            if where is not None and not where[1] and MODE in container and MODE in items:
                container[MODE] = items[MODE]  # of most modules all that is otherwise
            if not is_as_before(container, items):
                if where is not None:
                    self.changed.update(dict.fromkeys(_changed(container, items, *where)))
                put_back(container, items)
        for generator, state in self._states:
            STATES[type(generator)].restore(generator, state)


def _changed(now: Any, before: Any, path: str, name: str) -> Iterator[str]:
    """Paths of attributes of a module with which a later call may take another way."""
    if name == BUFFERS:
        names = [key for key, buffer in now.items() if _has_another_shape(buffer, before.get(key))]
    elif type(now) in LISTS:
        names = [name] if len(now) != len(before) else []
    else:
        others = [key for key, value in before.items() if now.get(key, value) is not value]
        names = [key for key in others if key not in OF_TORCH and _differs(now[key], before[key])]
    yield from (f"{path}.{each}" if path else each for each in names)


def _differs(now: Any, before: Any) -> bool:
    """Whether a number is another one, or a tensor has another shape."""
    is_number = type(now) is type(before) and type(before) in NUMBERS
    return bool(now != before) if is_number else _has_another_shape(now, before)


def _has_another_shape(now: Any, before: Any) -> bool:
    return isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor) and now.shape != before.shape


def _matters(kind: type) -> bool:
    """Whether something may be within values of a class, or in them, that a pass can change."""
    if kind in PARTLESS:
        return False
    return issubclass(kind, (torch.Tensor, tuple, *CONTAINERS)) or kind is LRU_CACHE or kind in STATES or IS_PLAIN[kind]


MATTERS = AskedOnce(_matters)
IS_TENSOR = AskedOnce(lambda kind: issubclass(kind, torch.Tensor))


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
        weights = {*part._parameters.keys(), *part._buffers.keys()}
        for name, value in attributes.items():
            if name not in weights and (lent := _with_copies(value)) is not value:
                held.setattr(name, lent)
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
