"""What a call returns: the tensors in it, and what is computed only when somebody asks for it."""

import builtins
import gc
from collections import deque
from collections.abc import Awaitable, Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from concurrent.futures import Future
from dataclasses import is_dataclass
from dis import get_instructions
from functools import cached_property, partial
from io import IOBase
from logging import Logger
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.patching import in_dict, in_slots
from pytest_modelbudget.torch_models.weights import leaves
from pytest_modelbudget.units import with_article

COLLECTIONS = (list, tuple, set, frozenset, deque)
SEVERAL = (*COLLECTIONS, ValuesView, ItemsView)
PLAIN = (str, bytes, int, float, type(None))
PARTLESS = (*PLAIN, type, ModuleType, IOBase, Logger)
OF_PYTHON = frozenset({"builtins", "itertools", "collections"})
LATER = (Iterator, Awaitable, Future, torch._C.Future)  # generators, map, coroutines: computed when it is asked for
BOUND = (MethodType, BuiltinMethodType, MethodWrapperType)
WRAPPERS = (staticmethod, classmethod, property, cached_property)
WRAPPED = ("__func__", "fget", "fset", "fdel", "func")  # where they have a function
FRAMEWORKS = frozenset({"torch", "numpy", "builtins"})  # whose classes hold nothing of a model
CALLS = (FunctionType, partial, *BOUND)
IsMade = Callable[[torch.Tensor], bool]  # whether the pass has computed a tensor


def output_tensors(result: Any) -> Iterator[torch.Tensor]:
    """Every tensor a caller gets: in lists, mappings, dataclasses and attributes of objects."""
    return (leaf for leaf in _leaves(result, {}, _unknown) if isinstance(leaf, torch.Tensor))


def given_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a layer is given: in lists, mappings and dataclasses, but not in objects that know more."""
    return _given(value, {})


def _given(value: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen and (isinstance(value, (Mapping, list, tuple)) or _is_record(value)):
        seen[id(value)] = value
        for part in _parts(value):
            yield from _given(part, seen)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, (type, nn.Module))


def _unknown(tensor: torch.Tensor) -> bool:
    return False


def returned_tensors(result: Any, is_made: IsMade = _unknown) -> tuple[torch.Tensor, ...]:
    """All that a whole model returns. Raises TraceError where there is no tensor, or some of it is not computed yet."""
    seen: dict[int, Any] = {}
    found = [*_leaves(result, seen, is_made)]
    known = set(map(id, found))
    found += (each for each in _in_classes(seen.values(), is_made) if id(each) not in known)
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


def _leaves(value: Any, seen: dict[int, Any], is_made: IsMade) -> Iterator[Any]:
    """Tensors, and what is computed later; seen is what was looked into, kept so that nothing new has its id."""
    if is_traceable_wrapper_subclass(value):
        yield from (part for _, part in leaves(value))
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, type):
        seen[id(value)] = value  # what a pass put into it, if it did: _in_classes
    elif isinstance(value, PARTLESS) or id(value) in seen:
        return
    elif isinstance(value, LATER):
        yield from () if _is_counting(value) else (value,)
    elif isinstance(value, CALLS):
        seen[id(value)] = value
        yield from (value,) if _computes(value, is_made) else ()
    else:
        seen[id(value)] = value
        for part in _parts(value):
            yield from _leaves(part, seen, is_made)


def _in_classes(values: Iterable[Any], is_made: IsMade) -> Iterator[Any]:
    """What a pass put into the classes of values: tensors that it computed, and what computes more of them later.

    Classes may be older than the pass: what it did not make is none of what it returns. What methods reach in the
    classes themselves is found where it lies, as what they reach in an object is.
    """
    waiting, seen = [each if isinstance(each, type) else type(each) for each in values], dict[int, Any]()
    for each in waiting:  # which grows
        if isinstance(each, torch.Tensor):
            yield from (each,) if is_made(each) else ()
        elif id(each) not in seen:
            seen[id(each)] = each
            if isinstance(each, type):
                waiting += _of_class(each)
            elif not isinstance(each, (*CALLS, *LATER, *PARTLESS)):
                waiting += [type(each), *_unasked_parts(each)]
    elsewhere = {**seen}  # what was looked into, and grows
    for each in seen.values():
        if isinstance(each, CALLS):
            yield from (each,) if _reaches_made(each, is_made, elsewhere) else ()
        elif isinstance(each, LATER):
            yield from () if _is_counting(each) or _is_naming(each) else (each,)


def _of_class(kind: Any) -> list[Any]:
    """What is in a class and those above it, its own class too; nothing of those that no pass makes."""
    own = [each for each in (*kind.__mro__, type(kind)) if str(each.__module__).partition(".")[0] not in FRAMEWORKS]
    parts = [part for each in own for part in vars(each).values()]
    wrapped = [getattr(part, name, None) for part in parts if isinstance(part, WRAPPERS) for name in WRAPPED]
    return [*parts, *wrapped]


def _reaches_made(value: Any, is_made: IsMade, seen: dict[int, Any]) -> bool:
    """Whether something that the pass has computed can be reached from a function or a class, however far.

    seen is what was looked into before, and is looked into once: all that is looked into here joins it.
    """
    waiting = _beneath(value)
    for each in waiting:  # which grows
        if isinstance(each, torch.Tensor):
            if is_made(each):
                return True
        elif id(each) not in seen:
            seen[id(each)] = each
            waiting += _beneath(each)
    return False


def _beneath(value: Any) -> list[Any]:
    """What is at once to be reached from a value."""
    if isinstance(value, CALLS):
        return _held(value)
    if isinstance(value, type):
        return _of_class(value)
    return [] if isinstance(value, (*LATER, *PARTLESS)) else _unasked_parts(value)


def _is_counting(value: Any) -> bool:
    """Whether all that an iterator holds is plain: it counts, or goes through words, and computes nothing."""
    waiting, seen = [value], dict[int, Any]()
    for each in waiting:  # which grows
        if isinstance(each, PARTLESS) or id(each) in seen:
            continue
        seen[id(each)] = each
        if type(each).__module__ not in OF_PYTHON or not _goes_through(each):
            return False
        waiting += gc.get_referents(each)
    return True


def _is_naming(value: Any) -> bool:
    """Whether nothing but plain values is within an iterator, also one with code: it makes numbers and words of them.

    A class keeps such a one to give its objects names. Its code may call nothing but Python's own.
    """
    waiting, seen = [value], dict[int, Any]()
    for each in waiting:  # which grows
        if isinstance(each, PLAIN) or each is builtins or id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, GeneratorType):
            waiting += _in_frame(each)
        elif isinstance(each, BuiltinMethodType):
            waiting.append(each.__self__)
        elif type(each).__module__ in OF_PYTHON and _goes_through(each):
            waiting += gc.get_referents(each)
        elif not isinstance(each, type) or each.__module__ not in OF_PYTHON:
            return False
    return True


def _in_frame(generator: Any) -> list[Any]:
    """The variables of a generator, the globals that its code and the code within that name, and what of it imports."""
    frame = generator.gi_frame
    if frame is None:  # it is at its end
        return []
    codes = [*_codes(generator.gi_code)]
    names = dict.fromkeys(name for code in codes for name in code.co_names if name in frame.f_globals)
    importing = [code for code in codes if any(each.opname == "IMPORT_NAME" for each in get_instructions(code))]
    return [*frame.f_locals.values(), *(frame.f_globals[name] for name in names), *importing]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions and generators that are written in it."""
    yield code
    for within in code.co_consts:
        if isinstance(within, CodeType):
            yield from _codes(within)


def _goes_through(value: Any) -> bool:
    """Whether it is an iterator of Python's own, without code of anybody's, or a container."""
    return isinstance(value, (*SEVERAL, dict)) or (isinstance(value, Iterator) and not hasattr(value, "gi_code"))


def _computes(function: Any, is_made: IsMade) -> bool:
    """Whether a function holds what this pass has computed, from which it makes more when somebody calls it.

    Weights, and modules with theirs, are parts of the model that were not called, but for what the pass put on them.
    """
    waiting, seen = [function], dict[int, Any]()
    for each in waiting:  # which grows
        if isinstance(each, torch.Tensor) and not isinstance(each, nn.Parameter):
            return True
        if isinstance(each, LATER) and not _is_counting(each):
            return True
        if any(map(is_made, _tensors_below(_not_its_own(each)))):
            return True
        if isinstance(each, type) and _reaches_made(each, is_made, {}):
            return True
        if not isinstance(each, (torch.Tensor, nn.Module, *LATER, *PARTLESS)) and id(each) not in seen:
            seen[id(each)] = each
            waiting += _held(each) if isinstance(each, CALLS) else _parts(each)
    return False


def _not_its_own(value: Any) -> list[Any]:
    """What was there before a pass, which may have put something there: a module, and globals that a function reads."""
    if isinstance(value, FunctionType):
        return [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
    return [value] if isinstance(value, nn.Module) else []


def _tensors_below(values: list[Any]) -> Iterator[torch.Tensor]:
    """The tensors in some values, in attributes and buffers of modules, too."""
    waiting, seen = [*values], dict[int, Any]()
    for each in waiting:  # which grows
        if isinstance(each, torch.Tensor):
            yield each
        elif not isinstance(each, (*CALLS, *LATER, *PARTLESS)) and id(each) not in seen:
            seen[id(each)] = each
            waiting += _parts(each)


def _held(function: Any) -> list[Any]:
    """What a function closes over, keeps in defaults or attributes, is a method of, or is given beforehand."""
    if isinstance(function, partial):
        return [function.func, *function.args, *function.keywords.values(), *vars(function).values()]
    if isinstance(function, MethodType):
        return [function.__self__, function.__func__]
    if isinstance(function, BOUND):
        return [function.__self__]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return [*cells, *defaults, *vars(function).values()]


def _unasked_parts(value: Any) -> list[Any]:
    """The parts of a value without a call of its own code, which may do anything where a class keeps it for later."""
    is_of_its_own = isinstance(value, (Mapping, *SEVERAL)) and type(value) not in (dict, *COLLECTIONS)
    return gc.get_referents(value) if is_of_its_own else _parts(value)


def _parts(value: Any) -> list[Any]:
    """What is in a value, then those of its attributes that are not in it, too."""
    items = [*value.values()] if isinstance(value, Mapping) else [*value] if isinstance(value, SEVERAL) else []
    if isinstance(value, (Mapping, *SEVERAL)) and not isinstance(value, (dict, *COLLECTIONS)):
        return items  # what others keep for themselves is in their items
    attributes = (*in_dict(value).values(), *in_slots(value).values())
    known = set(map(id, items))
    return [*items, *(part for part in attributes if id(part) not in known)]
