"""Tensors in the values that a model or a layer takes and returns."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from numbers import Number
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.environment import ABSENT
from pytest_modelbudget.torch_models.versions import is_traceable_wrapper_subclass, pytree
from pytest_modelbudget.torch_models.weights import leaves
from pytest_modelbudget.units import with_article

Content = list[tuple[object, Any]]  # (key, part)
OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
PLAIN = (type(None), Number, str, bytes, Enum, range, slice, *OF_TORCH)  # values without parts
NO_PARTS = (type, ModuleType, nn.Module)


def content(value: Any) -> Content | None:
    """The parts of a container, of a class that pytree knows, or of an object with attributes; None of another value.

    A set has no order, an iterator and a function have not computed their values: the parts of those are unknown.
    """
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value)) + _attributes(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    parts = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)[0]
    if not (len(parts) == 1 and parts[0] is value):
        return list(enumerate(parts))
    if isinstance(value, (*NO_PARTS, Iterator)) or callable(value) or type(value).__module__ == "builtins":
        return None
    return _attributes(value) or None


def _attributes(value: Any) -> Content:
    """The attributes of an object, in its dictionary or in slots."""
    held = {**_in_slots(value), **_in_dict(value)}
    return [(name, part) for name, part in held.items() if not (name.startswith("__") or _is_code(part))]


def _in_dict(value: Any) -> Mapping[str, Any]:
    """What an object keeps in its dictionary, by their names; empty of one without.

    An object of a class that mypyc compiled has none before it is given an attribute that its class does not know.
    """
    found = _stored(value, "__dict__")
    return {} if found is ABSENT else found


def _in_slots(value: Any) -> dict[str, Any]:
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


def _is_code(value: Any) -> bool:
    """Return whether a value is no part of a result: a cache names its class, and functions that hold no tensor."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    is_in_module = isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType)
    return is_in_module or isinstance(value, NO_PARTS)


def returned_tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors that a model returns."""
    found = tuple(_tensors(result, {}, refuses=True))
    if not found:
        raise TraceError(
            f"the model returns {with_article(type(result).__name__)} in which there is no tensor, so what it computes "
            "for its caller is not known: return a tensor, tuple, dict or dataclass"
        )
    return found


def output_tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors that a layer returns, as far as its result can be looked into."""
    return _tensors(result, {})


def given_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that a layer takes: in lists, mappings and dataclasses, but not in objects, such as caches."""
    return _tensors(value, {}, in_objects=False)


def _tensors(
    value: Any, seen: dict[int, Any], name: str = "", *, refuses: bool = False, in_objects: bool = True
) -> Iterator[torch.Tensor]:
    """seen holds the values that were looked into, so that no new one gets their ids."""
    if is_traceable_wrapper_subclass(value):
        yield from (part for _, part in leaves(value))
    elif isinstance(value, torch.Tensor):
        yield value
    elif not _is_plain(value) and id(value) not in seen:
        seen[id(value)] = value
        parts = content(value) if in_objects or _is_container(value) else []
        if parts is None and refuses:
            raise opaque(value, name or "0")
        found: list[torch.Tensor] = []
        for key, part in parts or ():
            within = f"{name}.{key}" if name else str(key)
            found += _tensors(part, seen, within, refuses=refuses, in_objects=in_objects)
        yield from found


def _is_plain(value: Any) -> bool:
    """Return whether a value can hold no tensor."""
    is_set = isinstance(value, (set, frozenset))
    return isinstance(value, PLAIN) or type(value).__module__ == "numpy" or (is_set and all(map(_is_plain, value)))


def _is_container(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple)) or (is_dataclass(value) and not isinstance(value, nn.Module))


def opaque(value: Any, name: str) -> TraceError:
    """The refusal of an output that cannot be looked into."""
    fix = "return tensors, numbers, words, lists, tuples, mappings, dataclasses or objects with attributes"
    if "cache" in type(value).__name__.lower() or "past_key" in name:
        fix += "; config.use_cache = False leaves the cache of a Hugging Face model out"
    return TraceError(f"output '{name}' is {with_article(type(value).__name__)}, which cannot be looked into: {fix}")
