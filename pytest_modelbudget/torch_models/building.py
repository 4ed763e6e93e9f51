"""Building a torch model from its name, without filling weights that no number depends on, and without downloads."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from operator import attrgetter
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pytest_modelbudget.errors import SourceError, behind, user_code
from pytest_modelbudget.formats.source import ModelSource, made, resolved
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.accelerators import asks_for_one, read_onto_cpu
from pytest_modelbudget.torch_models.environment import EagerMode, replaced, reproducible
from pytest_modelbudget.torch_models.failing_layer import what_it_takes
from pytest_modelbudget.torch_models.packed_weights import packed_objects
from pytest_modelbudget.torch_models.values import PLAIN_TENSORS
from pytest_modelbudget.torch_models.versions import is_traceable_wrapper_subclass
from pytest_modelbudget.torch_models.weights import BATCH_NORMS, CONVOLUTIONS, module_tree, weights_of
from pytest_modelbudget.units import with_article

OTHER_FILLS = (
    "fill_ zero_ copy_ exponential_ random_ bernoulli_ log_normal_ cauchy_ geometric_ erfinv_ "
    "mul_ add_ sub_ div_ clamp_"
)
# Names of functions that give a tensor other values in place: torch's initialisers, and methods.
FILLS = frozenset(name for name in vars(nn.init) if name.endswith("_") and not name.endswith("__")).union(
    OTHER_FILLS.split()
)
OTHER_NAMES: frozenset[Any] = frozenset({torch.Tensor.data.__get__, torch.Tensor.detach})  # type: ignore[attr-defined]
BY_OTHER_NAMES = frozenset(function.__name__ for function in OTHER_NAMES)


class UnfilledParameters(TorchFunctionMode):
    """Skips every function that would only give a parameter other values.

    Untouched ``torch.empty`` memory costs nothing, so that a model of any size is built at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0
        self._addresses: set[int] = set()  # of the storages of parameters that are reached by another name
        self._references: list[StorageWeakRef] = []  # by which no other storage is given their addresses

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch, unless it fills a parameter."""
        kwargs = kwargs or {}
        if (name := func.__name__) in FILLS:
            target = args[0] if args else kwargs.get("tensor", kwargs.get("self", kwargs.get("input")))
            if self.skips(target):
                return target
        elif name in BY_OTHER_NAMES and func in OTHER_NAMES and isinstance(args[0], nn.Parameter):
            self._note(args[0])
        return func(*args, **kwargs)

    def skips(self, tensor: object) -> bool:
        """Return whether a fill of this tensor is skipped, and count it."""
        is_skipped = self._is_parameter(tensor)
        self.skipped += is_skipped
        return is_skipped

    def _note(self, parameter: torch.Tensor) -> None:
        """Remember the memory of a parameter, which goes by another name now: ``.data``, ``.detach()``."""
        if is_lazy(parameter):  # which has no memory yet
            return
        with suppress(RuntimeError):  # a wrapper, which has none
            storage = parameter.untyped_storage()
            self._addresses.add(versions.address_of(storage))
            self._references.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]  # torch gives no types

    def _is_parameter(self, tensor: object) -> bool:
        """Return whether this is a parameter, its ``.data``, or a view of either."""
        if isinstance(tensor, nn.Parameter):
            return True
        if not isinstance(tensor, torch.Tensor):
            return False
        with suppress(RuntimeError):
            return isinstance(versions.base_of(tensor), nn.Parameter) or versions.memory_of(tensor) in self._addresses
        return False


# Layers of torch's own whose ``reset_parameters`` does nothing but fill these.
WITH_STATISTICS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
FILLED_LAYERS = (nn.Linear, *CONVOLUTIONS, nn.LayerNorm, nn.GroupNorm, *WITH_STATISTICS)


@contextmanager
def initialisation_skipped() -> Iterator[UnfilledParameters]:
    """``torch.nn.init`` and in-place fills leave parameters alone inside this context."""
    unfilled = UnfilledParameters()
    truncated = getattr(nn.init, versions.TRUNCATED)

    def skipped(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor if unfilled.skips(tensor) else truncated(tensor, *args, **kwargs)  # which draws until all fit

    def without_parameters(reset: Callable[[Any], None]) -> Callable[[Any], None]:
        def without(layer: Any) -> None:  # without a step through the mode for each of them
            if not {"weight", "bias"} <= versions.parameters_of(layer).keys():
                reset(layer)  # a weight that is computed, or a subclass with other ones
                return
            unfilled.skipped += 1
            if isinstance(layer, WITH_STATISTICS):
                layer.reset_running_stats()

        return without

    layers = [(kind, "reset_parameters", without_parameters(kind.reset_parameters)) for kind in FILLED_LAYERS]
    with replaced([(nn.init, versions.TRUNCATED, skipped), *layers]), unfilled:
        yield unfilled


RANDOM = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})
LARGE = 2**16  # elements from which one number is as good: a million take 5 ms to draw


class QuickFills(EagerMode):
    """Fills a large tensor with one draw from the distribution that it is to be filled from.

    Only the first time, so that a builder that draws until something fits comes to an end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._filled: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operator, or fill with one number."""
        if func in RANDOM and args[0].numel() >= LARGE:
            memory = args[0].untyped_storage().data_ptr()
            if memory not in self._filled:
                self._filled.add(memory)
                return args[0].fill_(func(args[0].new_empty(()), *args[1:], **(kwargs or {})))
        return func(*args, **(kwargs or {}))


REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
HUB = "huggingface_hub"
ASKED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # a user's own word, whatever it says


@contextmanager
def without_downloads() -> Iterator[None]:
    """The Hugging Face hub gives what is in its cache, as under HF_HUB_OFFLINE=1, unless the user has set that.

    The setting and not the variable: the hub reads that once, and would stay offline for what runs after the gate.
    Raises SourceError, with the way out, where something was asked for that is not there.
    """
    if any(name in os.environ for name in ASKED) or find_spec(HUB) is None:
        yield
        return
    constants: Any = import_module(f"{HUB}.constants")
    try:
        with replaced([(constants, "HF_HUB_OFFLINE", True)]):
            yield
    except SourceError as error:
        if not any(type(each).__module__.partition(".")[0] == HUB for each in behind(error)):  # an error of its own
            raise
        way_out = "the gate downloads nothing: build it from a config, or set HF_HUB_OFFLINE=0"
        raise SourceError(f"{error}; {way_out}") from error.__cause__


def named_by(source: ModelSource) -> object:
    """What a source names, imported where it is not yet."""
    if not isinstance(source.target, str):
        return source.target
    return _with_or_without_accelerator(functools.partial(_imported, source.target))


def _imported(target: str) -> object:
    with reproducible(), without_downloads():
        return resolved(target)


def _with_or_without_accelerator(make: Callable[[], Any]) -> Any:
    """What code makes, which may ask for an accelerator where there is none: it has the CPU then."""
    try:
        return make()
    except SourceError as error:
        if not asks_for_one(error.__cause__):
            raise
    with read_onto_cpu():
        return make()


def is_an_instance(source: ModelSource) -> bool:
    """Whether a source names a module that exists already, and is not built for us."""
    return isinstance(named_by(source), nn.Module) or method_of(source) is not None


def method_of(source: ModelSource) -> MethodType | None:
    """The method of a module that a source names and its inputs are for, as of one tower of two; None of factories.

    One that needs no argument may make a model, unless the inputs go by its names.
    """
    named = named_by(source)
    if not (isinstance(named, MethodType) and isinstance(named.__self__, nn.Module) and source.inputs):
        return None
    try:
        takes = signature(named)
        takes.bind(*source.inputs.positional, **source.inputs.named)
    except (TypeError, ValueError):  # as a factory it may say what is wrong
        return None
    asks = any(each.default is each.empty and each.kind not in REST for each in takes.parameters.values())
    return named if asks or source.inputs.named else None


def built(source: ModelSource, *, initialised: bool = False, seed: int = 0) -> nn.Module:
    """The module that a source names: an instance as it is, a class or function called.

    Parameters of a called one hold arbitrary memory, unless ``initialised`` or its builder computes
    with their values. What it draws comes from ``seed``. Raises SourceError where no module comes
    of it.
    """
    named = named_by(source)
    if method := method_of(source):
        named = method.__self__
    what = source.target if isinstance(source.target, str) else getattr(named, "__qualname__", type(named).__name__)
    if isinstance(named, nn.Module):
        if source.args or source.kwargs:
            raise SourceError(f"{what} is a module already: args and kwargs have no use")
        return named
    if isinstance(named, ModuleType):
        raise SourceError(f"{what} is a Python module: name a callable in it that builds the model")
    if not callable(named):
        kind = f" is {with_article(type(named).__name__)}," if isinstance(source.target, str) else " is"
        raise SourceError(f"{what}{kind} not a module or a callable")
    build = functools.partial(_called, named, source, str(what), seed)
    build = build if initialised else functools.partial(_built_unfilled, build)
    model = _with_or_without_accelerator(build)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{what} returned {type(model).__name__}, not a torch.nn.Module: name a callable that builds the model"
        )
    return model


def _built_unfilled(build: Callable[[], object]) -> object:
    """Build without filling parameters.

    Where there is not the memory for one of them, without any memory; and otherwise again with
    filling, where a builder may have missed the values, or has made scales of them.
    """
    try:
        with initialisation_skipped() as unfilled:
            model = build()
    except SourceError as error:
        cause = error.__cause__
        if isinstance(cause, MemoryError) or any(words in str(cause) for words in NO_MEMORY):
            with torch.device("meta"):
                return build()
        if not unfilled.skipped:
            raise
    else:
        if not (unfilled.skipped and isinstance(model, nn.Module) and _is_quantised(model)):
            return model
    return build()


def _is_quantised(model: nn.Module) -> bool:
    """Whether a model holds quantised tensors, or packs or wrappers of such: with scales made of its parameters."""
    modules = module_tree(model)
    weights = (*weights_of(modules),)
    of_own_class = (weight for weight in weights if type(weight) not in PLAIN_TENSORS)
    return (
        any(map(attrgetter("is_quantized"), weights))
        or any(map(is_traceable_wrapper_subclass, of_own_class))
        or any(packed_objects(modules))
    )


NO_MEMORY = ("you tried to allocate", "not enough memory", "out of memory")


def _refused(error: TypeError, named: Callable[..., object]) -> TypeError:
    """The error with what a callable takes, where the call was refused; one that was raised inside it as it is."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or innermost.tb_frame.f_code is not _called.__code__:
        return error
    takes = what_it_takes(named)
    way_out = "give args or kwargs ({call: module:name} makes an object)"
    return TypeError(f"{error}: {way_out}: {takes}") if takes else error


def _called(named: Callable[..., object], source: ModelSource, what: str, seed: int) -> object:
    with reproducible(seed), without_downloads(), user_code(f"calling {what}", SourceError):
        args, kwargs = made(source.args), made(dict(source.kwargs))
        try:
            return named(*args, **kwargs)
        except TypeError as error:
            raise _refused(error, named) from error.__cause__


def converted(dtype: str | None) -> torch.dtype | None:
    """The floating type that a budget's ``dtype:`` asks for; raises SourceError for another."""
    if dtype is None:
        return None
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SourceError(f"dtype '{dtype}' is no floating type of torch")
    return found
