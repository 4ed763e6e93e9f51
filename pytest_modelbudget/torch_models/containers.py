"""Dicts, lists and sets of any class: read, copied and restored past methods that refuse it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_modelbudget.torch_models.weights import CONTAINERS, CONTENTLESS

EXACT = frozenset({dict, list, set, OrderedDict})  # the usual ones, asked without detours


def containers(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Filled and empty dicts, lists and sets among these values, nested ones too, each once."""
    filled: dict[int, Any] = {}
    empty: list[Any] = []
    waiting: list[Any] = [attributes]
    while waiting:
        for value in content_of(waiting.pop()):
            if type(value) in CONTENTLESS or not isinstance(value, CONTAINERS):
                continue
            if not (value if type(value) in EXACT else plain_class(value).__len__(value)):
                empty.append(value)
            elif id(value) not in filled:
                filled[id(value)] = value
                waiting.append(value)
    return list(filled.values()), empty


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
    if type(container) in EXACT:
        container.clear()
        (container.extend if type(container) is list else container.update)(items)
        return
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
    if plain_class(container).__len__(container) != len(items):
        return False
    if isinstance(container, dict):
        pairs = zip(plain_class(container).items(container), items.items(), strict=True)
        return all(a[0] == b[0] and a[1] is b[1] for a, b in pairs)
    return all(a is b for a, b in zip(plain_class(container).__iter__(container), items, strict=True))
