"""The content of containers, whatever their classes refuse: read, copied, compared by identity, and given back."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from operator import is_
from types import CellType
from typing import Any

CONTAINERS = (dict, list, set, deque)
CONTENTLESS = frozenset({bool, int, float, str, type(None), tuple})  # the commonest
EXACT = frozenset({dict, list, set, OrderedDict, deque})  # the usual ones, asked without detours


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
    if not is_as_before(container, items):
        put_back(container, items)


def put_back(container: Any, items: Any) -> None:
    """Give a container its content back."""
    plain = plain_class(container)
    plain.clear(container)
    if plain is OrderedDict:  # its update would call the subclass's own methods
        for key, value in items.items():
            OrderedDict.__setitem__(container, key, value)
    elif plain in {list, deque}:
        plain.extend(container, items)
    else:
        plain.update(container, items)


def is_as_before(container: Any, items: Any) -> bool:
    """Whether the same objects are in it in the same order: compared without a step in Python."""
    plain = plain_class(container)
    if plain.__len__(container) != len(items):
        return False
    if isinstance(container, dict):
        values = map(is_, plain.values(container), items.values())
        return all(map(is_, plain.keys(container), items)) and all(values)
    return all(map(is_, plain.__iter__(container), items))


def is_filled(cell: CellType) -> bool:
    """Whether a variable that a function closes over has a value."""
    return cell != CellType()
