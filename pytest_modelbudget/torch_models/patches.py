"""What code puts in the place of something else: told apart from what loading does, and put back."""

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial, partialmethod
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

from pytest_modelbudget.torch_models.places import (
    PARTS,
    Moment,
    Parts,
    Place,
    file_places,
    files,
    imported,
    moment_of,
    moments,
)

ABSENT = object()
WHOLE = ""  # the name of all that a list or set holds
OF_DTYPE = "Storage"  # torch.Storage is the class of the default type
CODE = (
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    staticmethod,
    classmethod,
    property,
    partial,
    partialmethod,
)
PLAIN = (bool, int, float, complex, str, bytes, tuple, Enum, torch.dtype, torch.device)


class Patch(NamedTuple):
    """Something that stands at a place: an attribute, an item, or all of a list or set; label says where."""

    owner: Any
    name: Any
    value: Any
    label: str

    @property
    def identity(self) -> tuple[int, Any, int]:
        """The same for the same object at the same place."""
        return id(self.owner), self.name, id(self.value)


class Change(NamedTuple):
    """A patch, and what stood there before."""

    patch: Patch
    then: Any

    def put_back(self) -> None:
        """Make the place as it was."""
        put(self.patch.owner, self.patch.name, self.then)


class Fate(Enum):
    """What becomes of a change when its context ends."""

    TAKEN_BACK = "taken back"
    STAYS = "stays, and is said"
    UNSAID = "stays, and says nothing of a model"


def put(owner: Any, name: Any, value: Any) -> None:
    """Set an attribute or item, or take it away; the name WHOLE stands for all items of a list or set."""
    if isinstance(owner, dict):
        dict.pop(owner, name, None) if value is ABSENT else dict.__setitem__(owner, name, value)
    elif isinstance(owner, list):
        owner[:] = value
    elif isinstance(owner, set):
        owner.clear()
        owner.update(value)
    elif isinstance(owner, ModuleType) and name != "__class__":
        put(vars(owner), name, value)
    elif value is not ABSENT:
        set_attribute = type.__setattr__ if isinstance(owner, type) else setattr  # whatever its metaclass refuses
        set_attribute(owner, name, value)
    elif name in vars(owner):
        type.__delattr__(owner, name)


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


def changes(moment: Moment) -> Iterator[tuple[Change, Fate]]:
    """What stands otherwise now in the places of a moment, and what becomes of it."""
    for place, after, before in moment.changed():
        if not isinstance(before, dict):
            yield Change(Patch(place.owner, WHOLE, after, place.label), before), _fate_of_items(place, after, before)
            continue
        for name in {**before, **after}:
            now, then = after.get(name, ABSENT), before.get(name, ABSENT)
            if now is not then:
                is_item = isinstance(place.owner, dict)
                label = f"{place.label}[{name!r}]" if is_item else f"{place.label}.{name}"
                fate = _fate_of_item(now, then) if is_item else _fate_of_attribute(place, name, now, then)
                yield Change(Patch(place.owner, name, now, label), then), fate


def _fate_of_items(place: Place, after: tuple[Any, ...], before: tuple[Any, ...]) -> Fate:
    """Of a list or set, to which items were added, or which has others."""
    kept = after if isinstance(place.owner, set) else after[: len(before)]
    known = set(map(id, before))
    if place.is_torchs or [id(item) for item in kept if id(item) in known] != list(map(id, before)):
        return Fate.TAKEN_BACK
    added = (item for item in after if id(item) not in known)
    return Fate.STAYS if any(isinstance(item, PLAIN) for item in added) else Fate.UNSAID


def _fate_of_item(now: Any, then: Any) -> Fate:
    """Of an item of a dict, or an attribute of an object."""
    if not _is_nothing(then):
        return Fate.TAKEN_BACK
    return Fate.STAYS if isinstance(now, PLAIN) else Fate.UNSAID


def _fate_of_attribute(place: Place, name: str, now: Any, then: Any) -> Fate:
    """Of an attribute of a module or class."""
    owner = place.owner
    if place.is_torchs:
        return Fate.UNSAID if _is_torchs(owner, name, now, then) else Fate.TAKEN_BACK
    is_code = isinstance(now, CODE) or hasattr(type(now), "__get__")
    stood = _found_above(owner, name) if then is ABSENT else then
    if not _is_nothing(stood):
        return Fate.TAKEN_BACK
    if stood is ABSENT and (isinstance(owner, ModuleType) or (name.startswith("__") and not is_code)):
        return Fate.UNSAID  # a name that no loaded file knows; a note of Python's
    if is_code:
        return Fate.TAKEN_BACK
    return Fate.STAYS if place.is_own or isinstance(now, PLAIN) else Fate.UNSAID


def _is_nothing(value: Any) -> bool:
    return value is ABSENT or value is None or value is False


def _found_above(owner: Any, name: str) -> Any:
    """What a name means that an owner does not have: in the classes above, or built into Python."""
    above = [vars(builtins)] if isinstance(owner, ModuleType) else map(vars, owner.__mro__[1:])
    return next((names[name] for names in above if name in names), ABSENT)


def _is_torchs(owner: Any, name: str, now: Any, then: Any) -> bool:
    """Whether torch itself has made this change, as it does when a part of it is first loaded."""
    if not callable(now) and now is not ABSENT:
        # a submodule, a note of pickle or warnings, a setting of torch's own
        return then is ABSENT or (not isinstance(owner, type) and name.startswith("_"))
    if then is not ABSENT and name != OF_DTYPE and getattr(now, "__name__", name) != name:
        return False
    while now is not ABSENT:
        file = getattr(now, "__globals__", {}).get("__name__") or getattr(now, "__module__", None)
        if str(file or type(now).__module__).partition(".")[0] not in {"torch", "builtins"}:
            return False
        now = getattr(now, "__wrapped__", ABSENT)
    return then is ABSENT or callable(then)


class Changes(NamedTuple):
    """What is to be taken back, and labels of what stays."""

    taken_back: tuple[Change, ...] = ()
    staying: tuple[str, ...] = ()

    def undo(self) -> None:
        """Take back what is to be taken back."""
        for change in self.taken_back:
            change.put_back()


def _changed_parts(before: Mapping[Moment, Parts]) -> Iterator[Change]:
    """Code and defaults that functions have in place of others, and classes that files have."""
    for moment, then in before.items():
        now = moment.parts()
        for name, values, earlier in zip(PARTS, now, then, strict=True):
            if not all(map(is_, values, earlier)):
                for owner, value, old in zip(moment.functions, values, earlier, strict=True):
                    if value is not old:
                        yield Change(Patch(owner, name, value, f"{owner.__qualname__}.{name}"), old)


class PlacesFollowed:
    """Places as they stood when a context began, those of files that it loads as they stood then, and what is new."""

    def __init__(self) -> None:
        self._moments = moments()
        of_torch, _, own = self._moments  # functions of installed packages are not looked into
        self._parts = {moment: moment.parts() for moment in (of_torch, own)}
        self._known = sys.modules.copy()
        self._unsaid: set[str] = set()  # labels of what imports set
        self._compared: dict[int, tuple[Moment, tuple[tuple[Change, Fate], ...]]] = {}

    def grow(self) -> None:
        """Follow the files that were loaded since, too."""
        if found := files(imported(self._known.keys())):
            self._known |= found
            owners = {id(place.owner) for moment in self._moments for place in moment.places}
            moment = moment_of(place for place in file_places(found) if id(place.owner) not in owners)
            self._moments.append(moment)
            self._parts[moment] = moment.parts()

    def changes(self, *, of_files: bool = True, parts: bool = True) -> Changes:
        """What of it is otherwise now; without of_files of torch alone, without parts not of functions' parts."""
        followed = self._moments if of_files else self._moments[:1]
        found = [pair for moment in followed for pair in self._changes(moment)]
        back = [change for change, fate in found if fate is Fate.TAKEN_BACK]
        if parts:
            back += _changed_parts(self._parts)
        return Changes(
            tuple({change.patch.identity: change for change in back}.values()),
            tuple(
                change.patch.label
                for change, fate in found
                if fate is Fate.STAYS and change.patch.label not in self._unsaid
            ),
        )

    def pass_over(self, labels: Iterable[str]) -> None:
        """Say nothing of these: importing has set them."""
        self._unsaid.update(labels)

    def _changes(self, moment: Moment) -> tuple[tuple[Change, Fate], ...]:
        """Of one moment; looked through only where it is neither as when it was asked last, nor as it was then."""
        seen, found = self._compared.get(id(moment), (moment, ()))
        if not seen.is_now():
            is_back = seen is not moment and moment.is_now()
            seen, found = (moment, ()) if is_back else (moment_of(moment.places), tuple(changes(moment)))
            self._compared[id(moment)] = seen, found
        return found
