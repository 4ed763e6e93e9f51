"""What attributes, containers, arrays and generators hold, whatever their classes refuse: compared, and given back."""

import array
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy
import torch

from pytest_modelbudget.torch_models.classes import AskedOnce

CONTAINERS = (dict, list, set, deque)
CONTENTLESS = frozenset({bool, int, float, str, type(None), tuple})  # the commonest
EXACT = frozenset({dict, list, set, OrderedDict, deque})  # the usual ones, asked without detours
NUMBERS = frozenset({bool, int, float, str})
MODE = "training"  # the attribute of a module


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


class State(NamedTuple):
    """How a state is read, and given back."""

    read: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]


def _values_of_array(values: numpy.ndarray[Any, Any]) -> Any:
    """Its values as a copy, in its shape; None of one that nobody writes into, or that is a file's."""
    is_written = values.flags.writeable and not isinstance(values, numpy.memmap)
    return numpy.ndarray.copy(values) if is_written else None


def _restore_array(values: numpy.ndarray[Any, Any], before: Any) -> None:
    if before is None or not values.flags.writeable:
        return
    if values.shape != before.shape:
        numpy.ndarray.resize(values, before.shape, refcheck=False)
    numpy.copyto(values, before)


_ITEMS = State(lambda items: items[:], lambda items, before: items.__setitem__(slice(None), before))
# Of what a model has for itself and a pass may change in place, by its class.
STATES: Mapping[type, State] = {
    torch.Generator: State(torch.Generator.get_state, torch.Generator.set_state),
    random.Random: State(random.Random.getstate, random.Random.setstate),
    numpy.random.RandomState: State(numpy.random.RandomState.get_state, numpy.random.RandomState.set_state),
    numpy.random.Generator: State(
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    numpy.ndarray: State(_values_of_array, _restore_array),
    **dict.fromkeys((bytearray, array.array), _ITEMS),
}


def _state_of(kind: type) -> State | None:
    return next((STATES[each] for each in kind.__mro__ if each in STATES), None)


STATE_OF = AskedOnce(_state_of)  # None of classes whose objects have no such state


def is_filled(cell: CellType) -> bool:
    """Whether a variable that a function closes over has a value."""
    return cell != CellType()


def held_by(function: FunctionType) -> list[Any]:
    """What a function closes over, and keeps in defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def differs(now: Any, before: Any) -> bool:
    """Whether a number is another one, a container has more or less in it, or a tensor another shape."""
    if type(now) is type(before) and type(before) in NUMBERS:
        return bool(now != before)
    if type(now) is type(before) and type(before) in EXACT:
        return len(now) != len(before)
    return has_another_shape(now, before)


def has_another_shape(now: Any, before: Any) -> bool:
    """Whether two values are tensors of different shapes."""
    return isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor) and now.shape != before.shape
