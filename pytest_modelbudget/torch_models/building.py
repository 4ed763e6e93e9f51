"""Building a torch model from its name, without filling weights that nobody will look at."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_modelbudget.errors import SourceError, user_code
from pytest_modelbudget.formats.source import ModelSource, made, resolved
from pytest_modelbudget.torch_models.isolation import (
    OWN,
    is_resolved,
    left_by_import,
    note_import,
    note_model,
    now,
    untouched_globals,
)
from pytest_modelbudget.torch_models.offline import without_downloads

INITIALISERS = frozenset(name for name in vars(nn.init) if name.endswith("_") and not name.endswith("__"))
OTHER_FILLS = (
    "fill_ zero_ copy_ exponential_ random_ bernoulli_ log_normal_ cauchy_ geometric_ erfinv_ "
    "mul_ add_ sub_ div_ clamp_"
)
FILLS = INITIALISERS.union(OTHER_FILLS.split())
VIEWS = frozenset({
    "detach", "view", "view_as", "t", "transpose", "permute", "flatten", "unsqueeze", "squeeze",
    "narrow", "select", "reshape", "__getitem__", "chunk", "split", "unbind",
})  # fmt: skip
DATA_OF = torch.Tensor.data.__get__  # type: ignore[attr-defined]  # a new object at each access


class UnfilledParameters(TorchFunctionMode):
    """Skips every method that would only give a parameter other values.

    Untouched ``torch.empty`` memory costs nothing, so that a model of any size is built at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0
        self._unwrapped: dict[int, torch.Tensor] = {}  # results of parameter.data, kept alive

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Return the parameter as it is for a fill; call everything else."""
        name = getattr(func, "__name__", "")
        if name in FILLS:  # by name: libraries wrap torch.nn.init
            target = args[0] if args else kwargs.get("tensor")
            if self.skips(target):
                return target
        result = func(*args, **(kwargs or {}))
        if (name in VIEWS or func == DATA_OF) and self._is_parameters(args[0]):
            for view in result if isinstance(result, (tuple, list)) else (result,):
                self._unwrapped[id(view)] = view
        return result

    def _is_parameters(self, tensor: object) -> bool:
        """Whether this is a parameter, or memory of one under another name."""
        return isinstance(tensor, nn.Parameter) or id(tensor) in self._unwrapped

    def skips(self, tensor: object) -> bool:
        """Whether a fill of this is skipped: of a parameter, its ``.data``, or a view of either."""
        skipped = self._is_parameters(tensor)
        self.skipped += skipped
        return skipped


@contextmanager
def initialisation_skipped() -> Iterator[UnfilledParameters]:
    """``torch.nn.init`` and in-place fills leave parameters alone inside this context.

    Not every initialiser asks modes (``trunc_normal_`` does not), and libraries keep them under
    names and in tables of their own, so that their code is replaced, for as long as this lasts.
    """
    mode = UnfilledParameters()
    kept = [(fill, fill.__code__, fill.__defaults__) for fill in _initialisers()]
    fills = {
        fill.__name__: FunctionType(code, fill.__globals__, fill.__name__, defaults) for fill, code, defaults in kept
    }

    def skip(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0] if args else kwargs.get("tensor")
        return target if mode.skips(target) else fills[name](*args, **kwargs)

    for fill, _, _ in kept:
        places = {NAME: fill.__name__, SKIP: skip}
        named = [places.get(value, value) for value in _stub.__code__.co_consts]
        fill.__defaults__ = None
        fill.__code__ = _stub.__code__.replace(co_consts=tuple(named))
    try:
        with mode:
            yield mode
    finally:
        for fill, code, defaults in kept:
            fill.__code__, fill.__defaults__ = code, defaults


NAME, SKIP = "name of the initialiser", "what is called in its place"


def _stub(*args: Any, **kwargs: Any) -> Any:
    """The code of every initialiser, with its own name and a function as the constants."""
    skip: Any = "what is called in its place"
    return skip("name of the initialiser", args, kwargs)


def _initialisers() -> Iterator[FunctionType]:
    """Torch's own functions that fill a tensor, whatever stands under their names now."""
    for fill in vars(nn.init).values():
        is_torchs = isinstance(fill, FunctionType) and fill.__module__ == nn.init.__name__
        if is_torchs and fill.__name__ in INITIALISERS and not fill.__closure__:
            yield fill


def named_by(source: ModelSource) -> object:
    """What a source names; what importing it leaves behind is kept for its own models alone."""
    if not isinstance(source.target, str):
        return source.target
    if is_resolved(source.target):
        return resolved(source.target)
    with untouched_globals(start=OWN) as surroundings, without_downloads():
        found = resolved(source.target)
        note_import(source.target, surroundings.left())
    return found


def is_an_instance(source: ModelSource) -> bool:
    """Whether a source names a module that exists already, and is not built for us."""
    return isinstance(named_by(source), nn.Module)


def built(source: ModelSource, *, initialised: bool = False, seed: int = 0) -> nn.Module:
    """The module that a source names: an instance as it is, a class or function called.

    Parameters of a called one hold arbitrary memory, unless ``initialised`` or its builder computes
    with their values. What it draws comes from ``seed``. Raises SourceError where no module comes
    of it.
    """
    named = named_by(source)
    what = source.target if isinstance(source.target, str) else type(named).__name__
    if isinstance(named, nn.Module):
        if source.args or source.kwargs:
            raise SourceError(f"{what} is a module already: args and kwargs have no use")
        if isinstance(source.target, str):
            note_model(named, left_by_import(source.target))
        return named
    if not callable(named):
        raise SourceError(f"{what} is a {type(named).__name__}, not a module or a callable")
    build = functools.partial(_called, named, source, str(what), seed)
    model = build() if initialised else _built_unfilled(build)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{what} returned {type(model).__name__}, not a torch.nn.Module: name a callable that builds the model"
        )
    return model


def _built_unfilled(build: Callable[[], object]) -> object:
    """Build without filling parameters.

    Where there is not the memory for one of them, without any memory; and otherwise again with
    filling, where a builder may have missed the values.
    """
    with initialisation_skipped() as mode:
        try:
            return build()
        except SourceError as error:
            if _lacks_memory(error):
                with torch.device("meta"):
                    return build()
            if not mode.skipped:
                raise
    return build()


NO_MEMORY = ("you tried to allocate", "not enough memory", "out of memory")


def _lacks_memory(error: SourceError) -> bool:
    """Whether a builder asked for more memory than there is."""
    cause = error.__cause__
    return isinstance(cause, MemoryError) or any(words in str(cause) for words in NO_MEMORY)


def _called(named: Callable[..., object], source: ModelSource, what: str, seed: int) -> object:
    start = left_by_import(source.target) if isinstance(source.target, str) else now()
    with untouched_globals(seed, start) as surroundings, without_downloads(), user_code(f"calling {what}", SourceError):
        model = named(*made(source.args), **made(dict(source.kwargs)))
        if isinstance(model, nn.Module):
            note_model(model, surroundings.left())
    return model


def converted(dtype: str | None) -> torch.dtype | None:
    """The floating type that a budget's ``dtype:`` asks for; raises SourceError for another."""
    if dtype is None:
        return None
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SourceError(f"dtype '{dtype}' is no floating type of torch")
    return found
