"""Where code finds what it runs on, as it stands at one moment: in torch, files that hold it, and their classes."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property, partial, partialmethod
from itertools import chain
from operator import attrgetter, is_
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from pytest_modelbudget.torch_models.classes import DEEP, FRAMEWORKS, IS_PLAIN, AskedOfFile, in_dict

LAYERS = {kind for layer in vars(nn).values() if isinstance(layer, type) for kind in layer.__mro__}
# Where libraries put functions of their own in place of torch's.
OF_TORCH: tuple[Any, ...] = (
    *(torch, nn, nn.functional, nn.init, torch.Tensor),
    *sorted((kind for kind in LAYERS if kind.__module__.startswith("torch.nn")), key=repr),
)
OURS = {"pytest_modelbudget"}
CALM = sys.stdlib_module_names | FRAMEWORKS | OURS  # in whose files nothing of a model stands
PACKAGES = {"site-packages", "dist-packages"}  # folders of what is installed
MOST_ITEMS = 1000  # of a container; a larger one is a table and holds no settings
END = object()
ENDED = (END,)


class Place(NamedTuple):
    """A module, class, dict, list or set by its name; view is what it holds now, always."""

    owner: Any
    label: str
    view: Iterable[Any]
    is_torchs: bool = False
    is_own: bool = False

    def content(self) -> Any:
        """What it holds now, in a dict or tuple of its own."""
        if isinstance(self.owner, (ModuleType, type)):
            return dict(vars(self.owner))
        return dict.copy(self.owner) if isinstance(self.owner, dict) else tuple(self.owner)


@dataclass(frozen=True, eq=False)
class Moment:
    """What stood in some places at one moment: each place's content, and all values in a row; joins are its parts."""

    places: tuple[Place, ...]
    contents: tuple[Any, ...]
    views: tuple[Iterable[Any], ...]
    values: tuple[Any, ...]
    joins: "tuple[Moment, ...]" = ()

    def is_now(self) -> bool:
        """Whether the same objects stand there: compared without a step in Python."""
        return all(map(is_, chain.from_iterable((*self.views, ENDED)), self.values))

    def changed(self) -> Iterator[tuple[Place, Any, Any]]:
        """(place, content now, content then) of each that holds something else."""
        for place, view, before in zip(self.places, self.views, self.contents, strict=True):
            values = before.values() if isinstance(before, dict) else before
            if not all(map(is_, chain(view, ENDED), chain(values, ENDED))):
                yield place, place.content(), before

    @cached_property
    def functions(self) -> tuple[FunctionType, ...]:
        """Functions that stood there, and those within wrappers."""
        if self.joins:
            return tuple(dict.fromkeys(chain.from_iterable(moment.functions for moment in self.joins)))
        waiting = list(self.values)
        reached: dict[int, FunctionType] = {}
        while waiting:
            value = waiting.pop()
            if isinstance(value, FunctionType):
                if id(value) in reached:
                    continue
                reached[id(value)] = value
                waiting += [cell.cell_contents for cell in value.__closure__ or () if _is_function(cell)]
            if isinstance(value, WRAPPERS):
                waiting += [getattr(value, name, None) for name in WRAPPED]
        return tuple(reached.values())

    def parts(self) -> "Parts":
        """Code and defaults that those functions have now."""
        return tuple([tuple(map(read, self.functions)) for read in READ_PARTS])


PARTS = ("__code__", "__defaults__", "__kwdefaults__")
Parts = tuple[tuple[Any, ...], ...]  # each of those, of many functions
READ_PARTS = tuple(map(attrgetter, PARTS))
WRAPPERS = (staticmethod, classmethod, property, partial, partialmethod, cached_property, MethodType, FunctionType)
WRAPPED = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")


def _is_function(cell: CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType)
    except ValueError:  # an empty one
        return False


def moment_of(places: Iterable[Place]) -> Moment:
    """What stands in these places now."""
    places = tuple(places)
    views = tuple([place.view for place in places])
    return Moment(places, tuple([place.content() for place in places]), views, (*chain.from_iterable(views), *ENDED))


def joined(moments: Iterable[Moment]) -> Moment:
    """Several moments as one, which is compared in one go, however many there are."""
    several = tuple(moments)
    places, contents, views = (
        tuple(chain.from_iterable(map(attrgetter(name), several))) for name in ("places", "contents", "views")
    )
    values = chain.from_iterable(moment.values[:-1] for moment in several)  # each is ended
    return Moment(places, contents, views, (*values, *ENDED), several)


def _attributes(owner: Any, label: str, **whose: bool) -> Place:
    return Place(owner, label, vars(owner).values(), **whose)


TORCH_PLACES = (
    *(_attributes(owner, owner.__name__, is_torchs=True) for owner in OF_TORCH),
    *{  # as what TorchScript takes for constants
        id(value): Place(value, f"{kind.__name__}.{name}", value, is_torchs=True)
        for kind in OF_TORCH
        if isinstance(kind, type)
        for name, value in vars(kind).items()
        if type(value) is list
    }.values(),
)


class Latest:
    """The moments of some places that were seen last, of which one usually comes again."""

    def __init__(self, look: Callable[[], Moment]) -> None:
        self._look = look
        self._seen: list[Moment] = []

    def now(self) -> Moment:
        """What stands there now."""
        for moment in self._seen:
            if moment.is_now():
                return moment
        moment = self._look()
        self._seen[:] = [moment, *self._seen[:1]]
        return moment


OF_TORCH_ITSELF = Latest(lambda: moment_of(TORCH_PLACES))
_loaded: dict[tuple[int, str], tuple[Latest, Latest]] = {}  # of the modules that are loaded now
_of_own: dict[str, tuple[ModuleType, Latest]] = {}


def moments() -> list[Moment]:
    """What stands now in torch, in files of installed packages, and in files of one's own."""
    loaded = loaded_modules()
    if loaded not in _loaded:
        held = files(imported())
        own = {name: module for name, module in held.items() if is_own(module)}
        installed = file_places({name: held[name] for name in held if name not in own})
        each = [_latest_of(name, module) for name, module in own.items()]
        _loaded.clear()
        _loaded[loaded] = (
            Latest(lambda: moment_of(installed)), Latest(lambda: joined(latest.now() for latest in each)),
        )  # fmt: skip
    return [latest.now() for latest in (OF_TORCH_ITSELF, *_loaded[loaded])]


def _latest_of(name: str, module: ModuleType) -> Latest:
    known = _of_own.get(name)
    if known is None or known[0] is not module:
        _of_own[name] = known = module, Latest(lambda: moment_of(file_places({name: module})))
    return known[1]


def loaded_modules() -> tuple[int, str]:
    """What differs as soon as a module is loaded, or loaded anew."""
    return len(sys.modules), next(reversed(sys.modules))


_installed: dict[str, tuple[ModuleType, tuple[Place, ...]]] = {}  # places of files that nobody edits, read once


def imported(known: Set[str] = frozenset()) -> set[str]:
    """Names of modules, without known ones and those still being imported, which are not yet what they will be."""
    return {name for name in sys.modules.keys() - known if not _is_loading(sys.modules[name])}


def files(names: Iterable[str]) -> dict[str, ModuleType]:
    """Of these modules, files that hold something of torch, and own ones that those name or take from."""
    modules = {name: sys.modules[name] for name in names if name.partition(".")[0] not in CALM}
    once = {id(module): name for name, module in modules.items() if isinstance(module, ModuleType)}
    loaded = {name: modules[name] for name in once.values()}
    held = {name: module for name, module in loaded.items() if HOLDS_TORCH[module]}
    for module in filter(is_own, tuple(held.values())):
        for name in set(map(_home, tuple(vars(module).values()))) & loaded.keys() - held.keys():
            if is_own(loaded[name]):
                held[name] = loaded[name]
    return held


def _is_loading(module: Any) -> bool:
    return isinstance(module, ModuleType) and getattr(vars(module).get("__spec__"), "_initializing", False) is True


def is_own(module: ModuleType) -> bool:
    """Whether a file is somebody's who works on a model, and no installed package's."""
    return not is_of_package(vars(module).get("__file__") or "")


@cache
def is_of_package(file: str) -> bool:
    """Whether a file lies where packages are installed; Python's own files and this project's do not."""
    return not PACKAGES.isdisjoint(Path(file).parts)


def _home(value: Any) -> str:
    """The file that a module, class or function is or comes from; "" of anything else."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(value.__module__) if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else ""


def _holds_torch(module: ModuleType) -> bool:
    """Whether a file takes something from torch; of an installed package, whether it makes layers."""
    values, own = tuple(vars(module).values()), is_own(module)
    makes_layers = any(
        isinstance(value, type) and issubclass(value, nn.Module) and (own or value.__module__ == module.__name__)
        for value in values
    )
    return makes_layers or (own and any(_home(value).partition(".")[0] == "torch" for value in values))


HOLDS_TORCH = AskedOfFile(_holds_torch)


def file_places(held: Mapping[str, ModuleType]) -> tuple[Place, ...]:
    """Places of these files, each once: the files, their classes, and what own ones hold."""
    found: dict[int, Place] = {}
    for name, module in held.items():
        places = _places_of(name, module)
        found.update((id(place.owner), place) for place in places if id(place.owner) not in found)
    return tuple(found.values())


def _places_of(name: str, module: ModuleType) -> tuple[Place, ...]:
    if is_own(module):
        return tuple(_places_in(module, name, is_own=True))
    known = _installed.get(name)
    if known is None or known[0] is not module:
        _installed[name] = known = module, tuple(_places_in(module, name, is_own=False))
    return known[1]


def _places_in(owner: Any, label: str, *, is_own: bool, depth: int = DEEP) -> Iterator[Place]:
    """A file or class, and those within it; of an own file also what is in its containers and objects."""
    yield Place(owner, label, vars(owner).values(), is_own=is_own)
    home = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for name, value in tuple(vars(owner).items()):
        if isinstance(value, type):
            if value is not owner and depth and _is_followed(value, str(home), is_own):
                yield from _places_in(value, value.__qualname__, is_own=is_own, depth=depth - 1)
        elif is_own and isinstance(value, FunctionType):
            for part in ("__defaults__", "__kwdefaults__", "__dict__"):
                yield from _contents(getattr(value, part), f"{label}.{name}.{part}", DEEP)
        elif is_own and not name.startswith("__"):
            yield from _contents(value, f"{label}.{name}", DEEP)


def _is_followed(kind: type, home: str, is_own: bool) -> bool:
    """Whether a class comes from this file; of an installed one from its package, if it is no list of names."""
    file = str(kind.__module__)
    return file == home if is_own else file.split(".")[0] == home.split(".")[0] and not issubclass(kind, Enum)


def _contents(value: Any, label: str, depth: int) -> Iterator[Place]:
    """A container or object with attributes, and those within it."""
    if isinstance(value, tuple):
        within: Iterable[tuple[Any, Any]] = enumerate(value)
    elif isinstance(value, dict):
        within = tuple(dict.items(value))
    elif type(value) in (list, set):
        within = enumerate(tuple(value))
    elif IS_PLAIN[type(value)] and type(value).__module__.partition(".")[0] not in OURS:
        value = in_dict(value)
        within = tuple(value.items())
    else:
        return
    if len(value) > MOST_ITEMS:
        return
    if not isinstance(value, tuple):
        yield Place(value, label, dict.values(value) if isinstance(value, dict) else value, is_own=True)
    if depth:
        for name, part in within:
            yield from _contents(part, f"{label}[{name!r}]", depth - 1)
