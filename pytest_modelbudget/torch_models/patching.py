"""Attributes of others: replaced for a while, or read without a call of their own code."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
