"""What a call returns: the tensors in it, and what is computed only when somebody asks for it."""

from collections import deque
from collections.abc import Awaitable, ItemsView, Iterator, Mapping, ValuesView
from concurrent.futures import Future
from io import IOBase
from logging import Logger
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.classes import slots_of
from pytest_modelbudget.torch_models.weights import leaves
from pytest_modelbudget.units import with_article

PLAIN = (list, tuple, set, frozenset, deque)
SEVERAL = (*PLAIN, ValuesView, ItemsView)
PARTLESS = (str, bytes, int, float, type, type(None), ModuleType, IOBase, Logger)
LATER = (Iterator, Awaitable, Future, torch._C.Future)  # generators, map, coroutines: computed when it is asked for


def output_tensors(result: Any) -> Iterator[torch.Tensor]:
    """Every tensor a caller gets: in lists, mappings, dataclasses and attributes of objects."""
    return (leaf for leaf in _leaves(result, {}) if isinstance(leaf, torch.Tensor))


def returned_tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """All that a whole model returns. Raises TraceError where there is no tensor, or some of it is not computed yet."""
    found = [*_leaves(result, {})]
    later = next((leaf for leaf in found if not isinstance(leaf, torch.Tensor)), None)
    if later is not None:
        raise TraceError(
            f"the model returns {with_article(type(later).__name__)}, and what that gives is computed only when "
            "somebody asks for it: return a list or a tuple"
        )
    if not found:
        raise TraceError(
            f"the model returns {with_article(type(result).__name__)} in which there is no tensor, so what it "
            "computes for its caller cannot be told"
        )
    return tuple(found)


def _leaves(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Tensors, and what is computed later; seen is what was looked into, kept so that nothing new has its id."""
    if is_traceable_wrapper_subclass(value):
        yield from (part for _, part in leaves(value))
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PARTLESS) or id(value) in seen:
        return
    elif isinstance(value, LATER):
        yield value
    else:
        seen[id(value)] = value
        for part in _parts(value):
            yield from _leaves(part, seen)


def _parts(value: Any) -> list[Any]:
    """What is in a value, then those of its attributes that are not in it, too."""
    items = [*value.values()] if isinstance(value, Mapping) else [*value] if isinstance(value, SEVERAL) else []
    if isinstance(value, (Mapping, *SEVERAL)) and not isinstance(value, (dict, *PLAIN)):
        return items  # what others keep for themselves is in their items
    slots = [getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)]
    known = set(map(id, items))
    return [*items, *(part for part in (*getattr(value, "__dict__", {}).values(), *slots) if id(part) not in known)]
