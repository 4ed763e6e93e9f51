"""Questions about classes and files that are asked once: the answer is then one look-up, and no call."""

import sys
from argparse import Namespace
from collections import ChainMap, UserDict, UserList
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

LRU_CACHE = type(lru_cache(lambda: None))
NOTHING = object()
DEEP = 3  # containers and objects within one another that are looked into
FRAMEWORKS = frozenset({"torch", "numpy", "builtins"})  # whose objects hold nothing of a model


Answer = TypeVar("Answer")


class AskedOnce(dict[Any, Answer]):
    """The answer to a question, by class: ``IS_TENSOR[type(value)]``."""

    def __init__(self, answer: Callable[[Any], Answer]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, kind: Any) -> Answer:
        self[kind] = answer = self._answer(kind)
        return answer


class AskedOfFile(Generic[Answer]):
    """The answer to a question about a Python file, asked again where that has another number of names."""

    def __init__(self, answer: Callable[[ModuleType], Answer]) -> None:
        self._answer = answer
        self._known: WeakKeyDictionary[ModuleType, tuple[int, Answer]] = WeakKeyDictionary()

    def __getitem__(self, file: ModuleType) -> Answer:
        known = self._known.get(file)
        if known is None or known[0] != len(vars(file)):
            self._known[file] = known = len(vars(file)), self._answer(file)
        return known[1]


def slots_of(kind: Any) -> tuple[str, ...]:
    """The attributes that a class and those above it declare as slots, private ones as Python calls them."""
    found = []
    for each in kind.__mro__:
        written = vars(each).get("__slots__", ())
        for name in (written,) if isinstance(written, str) else tuple(written):
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in found if name not in {"__dict__", "__weakref__"})


def in_slots(value: Any) -> dict[str, Any]:
    """What an object keeps in slots, by their names."""
    return {name: part for name in slots_of(type(value)) if (part := _kept(value, name)) is not NOTHING}


def in_dict(value: Any) -> Mapping[str, Any]:
    """What an object keeps in its dictionary, by their names; empty of one without.

    An object of a class that mypyc compiled has none before it is given an attribute that its class does not know.
    """
    found = _kept(value, "__dict__")
    return {} if found is NOTHING else found


def unwrapped(member: Any) -> Any:
    """The function behind a static method, a class's or a bound one; any other member of a class as it is."""
    return member.__func__ if isinstance(member, (staticmethod, classmethod, MethodType)) else member


def _kept(value: Any, name: str) -> Any:
    """An attribute that is there, or NOTHING: a __getattr__, which may raise whatever it likes, is not asked."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return NOTHING


OF_ANYBODY = {SimpleNamespace, Namespace, ChainMap, UserDict, UserList}  # of Python, in which anybody keeps things


def _is_looked_into(kind: type) -> bool:
    """Whether objects of a class are looked into: somebody's own, that are no modules, tensors or classes."""
    home = kind.__module__.partition(".")[0]
    is_own = home not in FRAMEWORKS and home not in sys.stdlib_module_names
    is_apart = issubclass(kind, (torch.nn.Module, torch.Tensor, type, ModuleType, Enum))
    return (is_own or kind in OF_ANYBODY) and not is_apart


IS_PLAIN = AskedOnce(lambda kind: kind.__dictoffset__ != 0 and _is_looked_into(kind))  # with attributes in a dict
IS_SLOTTED = AskedOnce(lambda kind: bool(slots_of(kind)) and _is_looked_into(kind))
