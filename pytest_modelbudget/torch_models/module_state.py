"""The state of a model's modules: as before after a pass, whatever it sets and writes into."""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain, filterfalse
from types import CellType, FunctionType, MethodType
from typing import Any, Union

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.torch_models.classes import (
    DEEP,
    FRAMEWORKS,
    IS_PLAIN,
    IS_SLOTTED,
    LRU_CACHE,
    AskedOnce,
    in_dict,
    in_slots,
    slots_of,
    unwrapped,
)
from pytest_modelbudget.torch_models.contents import (
    CONTAINERS,
    CONTENTLESS,
    EXACT,
    MODE,
    STATE_OF,
    State,
    copied_content,
    differs,
    has_another_shape,
    is_as_before,
    is_filled,
    plain_class,
    put_back,
)
from pytest_modelbudget.torch_models.tensor_values import (
    Values,
    can_be_written,
    is_in_parts,
    put_values_back,
    values_of,
)
from pytest_modelbudget.torch_models.weights import ModuleTree, Spot, weights_of

BUFFERS = "_buffers"  # where modules have them
CALLABLE = (FunctionType, MethodType, partial)
PARTLESS = CONTENTLESS - {tuple}
LISTS = frozenset({list, deque})
Where = Union[tuple[str, str], None]  # a module's path, and the attribute; "" of all that it has itself
OF_TORCH = frozenset(vars(nn.Module()))  # what every module has, such as its mode
TABLES = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, CONTAINERS))  # among it


@contextmanager
def module_state_kept(modules: ModuleTree) -> Iterator["Held"]:
    """Attributes, flags, parameters, buffers and hooks of every module, and marks on weights, are as before afterwards.

    A forward pass may set any of them: a cache, a counter, a weight that a hook computes. It may also write into
    tensors that are no weights, which have their values back.
    """
    weights = [*weights_of(modules)]
    held = Held({id(weight) for weight in weights}, {id(module) for _, module in modules})
    try:
        for path, module in modules:
            held.add_module(vars(module), path)
        for weight in weights:
            if (marks := vars(weight)) and not is_traceable_wrapper_subclass(weight):  # whose attributes are its values
                held.add(marks)
        for kind in {type(module) for _, module in modules}:
            if HOLDS_STATE[kind]:
                held.add({str(at): method for at, method in enumerate(_methods_with_state(kind))})
        yield held
    finally:
        held.restore()


def _methods_with_state(kind: type) -> Iterator[FunctionType]:
    """Methods of a class that close over variables of the function it was written in, or keep things in a default."""
    own = (each for each in kind.__mro__ if each.__module__.partition(".")[0] not in FRAMEWORKS)
    for member in chain.from_iterable(vars(each).values() for each in own):
        method = unwrapped(member)
        if isinstance(method, FunctionType):
            defaults = (*(method.__defaults__ or ()), *(method.__kwdefaults__ or {}).values())
            if set(method.__code__.co_freevars) - {"__class__"} or any(MATTERS[type(each)] for each in defaults):
                yield method


HOLDS_STATE = AskedOnce(lambda kind: any(True for _ in _methods_with_state(kind)))


class Held:
    """All that attributes hold: containers, objects, tensors, cached functions and generators, each once.

    again are the spots where weights are held once more, also within tuples there. changed names numbers, flags and
    caches of modules that were otherwise when all was restored, by their paths; what was filled for the first time is
    kept for reuse, most often, and only lists are among them.
    """

    def __init__(self, weights: Set[int], modules: Set[int]) -> None:
        self.again: list[Spot] = []
        self.changed: dict[str, None] = {}
        self._weights = weights
        self._modules = modules
        self._contents: list[tuple[Any, Any, Where]] = []  # each container, and what was in it
        self._empty: list[Any] = []  # containers without anything in them
        self._own_empty: list[tuple[Any, tuple[str, str]]] = []  # those that are a module's own
        self._misses: list[tuple[Any, int]] = []  # of each cached function
        self._states: list[tuple[State, Any, Any]] = []  # of each generator, array and the like
        self._slotted: list[tuple[Any, dict[str, Any]]] = []  # objects with slots, and what was in them
        self._cells: list[tuple[CellType, Any]] = []  # variables of functions around others, and what they were
        self._values: list[Values] = []
        self._known: dict[int, int] = {}  # the depth that was left at each container, object and tensor, by id
        self._waiting: list[tuple[Any, Spot, int, Where]] = []

    def add_module(self, attributes: dict[str, Any], path: str) -> None:
        """Add what attributes of a module are, and what is within; what hooks among it close over is the caller's."""
        self._known[id(attributes)] = DEEP
        self._contents.append((attributes, attributes.copy(), (path, "")))
        buffers, tables = attributes.get(BUFFERS), [*map(attributes.get, TABLES)]
        self._empty += filterfalse(None, tables)  # most of what a module holds
        for table in filter(None, tables):
            if MATTERS[type(table)]:
                self._contents.append((table, copied_content(table), (path, BUFFERS) if table is buffers else None))
        for key, value in attributes.items():
            if key in OF_TORCH or not MATTERS[type(value)]:
                continue
            if type(value) in EXACT and not value:
                self._own_empty.append((value, (path, key)))
            elif not _is_partless(value):
                self._waiting.append((value, (attributes, key), DEEP, (path, key)))
        self._visit_waiting()

    def add(self, attributes: dict[str, Any]) -> None:
        """Add what attributes of anything else are, and what is within."""
        self._open(attributes, DEEP, None)
        self._visit_waiting()

    def _visit_waiting(self) -> None:
        while self._waiting:
            value, spot, depth, where = self._waiting.pop()
            if self._known.get(id(value), -1) < depth:
                self._visit(value, spot, depth, where)

    def _open(self, container: Any, depth: int, where: Where) -> None:
        """Keep what is in a container, and look at what matters of it."""
        if id(container) not in self._known:
            before = container.copy() if type(container) in EXACT else copied_content(container)
            self._contents.append((container, before, where))
        self._known[id(container)] = depth
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in [item for item in items if MATTERS[type(item[1])]]:
            if type(value) in EXACT and not value:
                self._empty.append(value)
            elif not _is_partless(value):
                self._waiting.append((value, (container, key), depth, None))

    def _visit(self, value: Any, spot: Spot, depth: int, where: Where) -> None:
        kind = type(value)
        if IS_MODULE[kind]:
            if id(value) not in self._modules:  # held in a list or an object: keras keeps layers so
                self._known[id(value)] = DEEP
                self._open(vars(value), DEEP, None)
            return
        if IS_TENSOR[kind]:
            self._keep(value, spot)
        elif isinstance(value, tuple):
            self._known[id(value)] = depth
            self._waiting += [(part, spot, depth, None) for part in value if MATTERS[type(part)]]
        elif isinstance(value, CONTAINERS):
            self._open(value, depth, where if kind in LISTS else None)
        elif kind is LRU_CACHE:
            self._misses.append((value, value.cache_info().misses))
        elif state := STATE_OF[kind]:
            self._states.append((state, value, state.read(value)))
        elif depth:
            self._known[id(value)] = depth
            self._look_into(value, depth - 1)
        if depth and kind.__dictoffset__ and kind not in EXACT and not is_traceable_wrapper_subclass(value):
            self._open(in_dict(value), depth - 1, None)

    def _look_into(self, value: Any, depth: int) -> None:
        """An object, or a function with what it closes over; what is there is no spot in which a twin could stand."""
        if isinstance(value, FunctionType):
            cells = [cell for cell in value.__closure__ or () if is_filled(cell)]
            self._cells += [(cell, cell.cell_contents) for cell in cells]
            within = [*(cell.cell_contents for cell in cells), value.__defaults__, value.__kwdefaults__]
        elif isinstance(value, MethodType):
            within = [value.__self__]
        elif isinstance(value, partial):
            within = [value.func, value.args, value.keywords]
        else:
            slots = in_slots(value)
            self._slotted.append((value, slots))
            within = [*slots.values()]
        nowhere = ([None], 0)
        self._waiting += [(part, nowhere, depth, None) for part in within if MATTERS[type(part)]]

    def _keep(self, tensor: torch.Tensor, spot: Spot) -> None:
        """Keep the values of a tensor; of a weight the spot alone, each time."""
        container, key = spot
        if id(tensor) in self._weights:
            self.again.append(spot)
        elif isinstance(tensor, nn.Parameter) or is_lazy(tensor):
            return
        elif is_in_parts(tensor):  # a copy stands there meanwhile
            if isinstance(container, (dict, list, deque)) and container[key] is tensor:
                plain_class(container).__setitem__(container, key, tensor.clone())
        elif can_be_written(tensor):
            self._known[id(tensor)] = DEEP
            self._values.append(values_of(tensor))

    def restore(self) -> None:
        """Make all of it as it was."""
        self._restore_contents()
        for owner, attributes in self._slotted:
            _restore_slots(owner, attributes)
        for cell, value in self._cells:
            cell.cell_contents = value
        for kept in self._values:
            put_values_back(*kept)
        for cache, misses in self._misses:
            if cache.cache_info().misses != misses:
                cache.cache_clear()
        for state, owner, before in self._states:
            state.restore(owner, before)

    def _restore_contents(self) -> None:
        for container, (path, name) in self._own_empty:
            if container:
                self.changed[_within(path, name)] = None
                container.clear()
        for container in filter(None, self._empty):
            if isinstance(container, CONTAINERS):
                plain_class(container).clear(container)
        for container, items, where in self._contents:
            if where is not None and not where[1] and MODE in container and MODE in items:
                container[MODE] = items[MODE]  # of most modules all that is otherwise
            if not is_as_before(container, items):
                if where is not None:
                    self.changed.update(dict.fromkeys(_changed(container, items, *where)))
                put_back(container, items)


def _changed(now: Any, before: Any, path: str, name: str) -> Iterator[str]:
    """Paths of attributes of a module with which a later call may take another way."""
    if name == BUFFERS:
        names = [key for key, buffer in now.items() if has_another_shape(buffer, before.get(key))]
    elif type(now) in LISTS:
        names = [name] if len(now) != len(before) else []
    else:
        others = [key for key, value in before.items() if now.get(key, value) is not value]
        names = [key for key in others if key not in OF_TORCH and differs(now[key], before[key])]
    yield from (_within(path, each) for each in names)


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_partless(value: Any) -> bool:
    """Whether it is a tuple of sizes and the like."""
    return type(value) is tuple and PARTLESS.issuperset(map(type, value))


def _restore_slots(owner: Any, before: Mapping[str, Any]) -> None:
    for name in slots_of(type(owner)):
        if name in before:
            if getattr(owner, name, None) is not before[name]:
                object.__setattr__(owner, name, before[name])
        elif hasattr(owner, name):
            object.__delattr__(owner, name)


def _matters(kind: type) -> bool:
    """Whether something may be within values of a class, or in them, that a pass can change."""
    if kind in PARTLESS:
        return False
    if issubclass(kind, (torch.Tensor, tuple, *CONTAINERS)) or kind in {LRU_CACHE, *CALLABLE} or STATE_OF[kind]:
        return True
    return IS_PLAIN[kind] or IS_SLOTTED[kind] or IS_MODULE[kind]


MATTERS = AskedOnce(_matters)
IS_TENSOR = AskedOnce(lambda kind: issubclass(kind, torch.Tensor))
IS_MODULE = AskedOnce(lambda kind: issubclass(kind, nn.Module))
