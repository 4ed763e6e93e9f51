"""Attributes and functions of others: replaced for a while, or read without a call of their own code."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import is_
from types import CodeType, FunctionType
from typing import Any

ABSENT = object()


@contextmanager
def replaced(places: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes, each by its owner, name and value, have these values in this context, and their own afterwards."""
    before = []
    try:
        for owner, name, value in places:
            before.append((owner, name, vars(owner).get(name, ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is ABSENT:  # inherited, and found there again
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def recoded(stand_ins: Iterable[tuple[FunctionType, Callable[..., Any]]]) -> Iterator[None]:
    """Functions do something else in this context: what is called with what each did, then its arguments.

    They stay the objects that they are, under every name and in every table that has them.
    """
    before = []
    try:
        for function, stand_in in stand_ins:
            parts = function.__code__, function.__defaults__, function.__kwdefaults__
            before.append((function, parts))
            function.__code__ = _standing_in(function, stand_in, parts)
            function.__defaults__ = function.__kwdefaults__ = None
        yield
    finally:
        for function, parts in reversed(before):
            function.__code__, function.__defaults__, function.__kwdefaults__ = parts


_standing: dict[tuple[FunctionType, Callable[..., Any]], tuple[tuple[Any, ...], CodeType]] = {}


def _standing_in(function: FunctionType, stand_in: Callable[..., Any], parts: tuple[Any, ...]) -> CodeType:
    """The code that calls what stands in, with what a function of these parts did; made once for the same parts."""
    known = _standing.get((function, stand_in))
    if known is None or not all(map(is_, known[0], parts)):
        code, defaults, keywords = parts
        own = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
        own.__kwdefaults__ = keywords
        consts = [partial(stand_in, own) if each == STAND_IN else each for each in _stub.__code__.co_consts]
        standing = _stub.__code__.replace(co_consts=tuple(consts), co_freevars=code.co_freevars)
        _standing[function, stand_in] = known = parts, standing
    return known[1]


STAND_IN = "what is called in its place"


def _stub(*args: Any, **kwargs: Any) -> Any:
    """The code of every such function, with a callable as its constant."""
    stand_in: Any = "what is called in its place"
    return stand_in(*args, **kwargs)


def in_dict(value: Any) -> Mapping[str, Any]:
    """What an object keeps in its dictionary, by their names; empty of one without.

    An object of a class that mypyc compiled has none before it is given an attribute that its class does not know.
    """
    found = _stored(value, "__dict__")
    return {} if found is ABSENT else found


def in_slots(value: Any) -> dict[str, Any]:
    """What an object keeps in slots, by their names; private ones as Python calls them."""
    found = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            is_private = name.startswith("__") and not name.endswith("__")
            full = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            found[full] = ABSENT if full in {"__dict__", "__weakref__"} else _stored(value, full)
    return {name: part for name, part in found.items() if part is not ABSENT}


def _stored(value: Any, name: str) -> Any:
    """An attribute that is there, or ABSENT: a __getattr__, which may raise whatever it likes, is not asked."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return ABSENT
