"""The state of the process around a model: kept, and what a model left of it kept for it alone."""

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch.utils import _device, _python_dispatch
from torch.utils.weak import WeakIdKeyDictionary

functions: Any = torch.overrides  # these three keep modes; torch gives no types for that
dispatch: Any = _python_dispatch
devices: Any = _device
Patch = tuple[Any, str, Any]  # owner, name, what stands there
# Where libraries put functions of their own in place of torch's.
NAMESPACES: tuple[Any, ...] = (torch, torch.Tensor, nn.functional, nn.init, nn.Module)
LAYERS = tuple(kind for kind in vars(nn).values() if isinstance(kind, type))
AUTOCAST = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Left:
    """What importing or building a model leaves behind; its forward pass may count on it.

    folder is "" where it stayed. modes were entered and never left; no pass runs in those.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    folder: str = ""
    patches: tuple[Patch, ...] = ()
    modes: int = 0

    def words(self) -> Iterator[str]:
        """What it is, one thing each."""
        if self.dtype is not torch.float32:
            yield f"default type {str(self.dtype).removeprefix('torch.')}"
        if self.device is not None:
            yield f"default device {self.device}"
        if self.folder:
            yield "another current folder"
        yield from (f"another {owner.__name__}.{name}" for owner, name, _ in self.patches)
        if self.modes:
            yield "a mode that is never left, without which the forward pass runs"

    def apply(self) -> None:
        """Give it to the process."""
        torch.set_default_dtype(self.dtype)
        if self.device != default_device():
            torch.set_default_device(self.device)
        for owner, name, value in self.patches:
            setattr(owner, name, value)
        if self.folder and Path(self.folder).is_dir():
            os.chdir(self.folder)


OWN = Left()  # as torch starts
_BY_IMPORT: dict[str, Left] = {}
_RESOLVED: set[str] = set()
_BY_MODEL: Any = WeakIdKeyDictionary()  # a Left for each module, by identity: classes may compare as they like


def left_by_import(target: str) -> Left:
    """What the first import of a target's module left behind."""
    return _BY_IMPORT.get(target.partition(":")[0], OWN)


def left_by(model: nn.Module) -> Left | None:
    """What the import and the factory of this model left behind; None for one built elsewhere."""
    left: Left | None = _BY_MODEL.get(model)
    return left


def is_resolved(target: str) -> bool:
    """Whether this target was resolved before, so that doing so again imports nothing."""
    return target in _RESOLVED


def note_import(target: str, left: Left) -> None:
    """Remember what the first import of a target's module has left: a later one runs nothing."""
    _RESOLVED.add(target)
    _BY_IMPORT.setdefault(target.partition(":")[0], left)


def note_model(model: nn.Module, left: Left) -> None:
    """Remember what building this model has left."""
    _BY_MODEL[model] = left


def note_copy(model: nn.Module, same: nn.Module) -> None:
    """A copy runs as the model does that it was made from."""
    if model in _BY_MODEL:
        _BY_MODEL[same] = _BY_MODEL[model]


def default_device() -> torch.device | None:
    """The device that ``torch.set_default_device`` was given; None where it was not called."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def now() -> Left:
    """Default type and device as they are, for models that were made by the caller."""
    return Left(torch.get_default_dtype(), default_device())


@dataclass(frozen=True)
class Surroundings:
    """Default type and device, modes, autocast, folder and torch's own functions at one moment."""

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    folder: str = field(default_factory=lambda: _folder())
    grad: bool = field(default_factory=torch.is_grad_enabled)
    threads: int = field(default_factory=torch.get_num_threads)
    deterministic: int = field(default_factory=torch.get_deterministic_debug_mode)
    precision: str = field(default_factory=torch.get_float32_matmul_precision)
    autocast: tuple[bool, ...] = field(default_factory=lambda: _autocast())
    device_context: Any = field(default_factory=lambda: getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None))
    current_device: Any = field(default_factory=lambda: devices.CURRENT_DEVICE)
    modes: tuple[Any, ...] = field(default_factory=lambda: _function_modes())
    dispatch_modes: int = field(default_factory=dispatch._len_torch_dispatch_stack)
    attributes: tuple[dict[str, Any], ...] = field(
        default_factory=lambda: tuple(dict(vars(owner)) for owner in NAMESPACES)
    )
    passes: tuple[Any, ...] = field(default_factory=lambda: _passes())

    def left(self) -> Left:
        """What is otherwise now than it was at this moment."""
        folder, device = _folder(), default_device()
        of_device = (device is not None) - (self.device_context is not None)
        modes = len(_function_modes()) + dispatch._len_torch_dispatch_stack() - of_device
        return Left(
            torch.get_default_dtype(),
            device,
            folder if folder != self.folder else "",
            tuple((owner, name, now) for owner, name, now, _ in self._patches()),
            max(modes - len(self.modes) - self.dispatch_modes, 0),
        )

    def _patches(self) -> Iterator[tuple[Any, str, Any, Any]]:
        """(owner, name, now, then) of what somebody else than torch has replaced."""
        for owner, before in zip(NAMESPACES, self.attributes, strict=True):
            after = vars(owner)
            if after == before:  # the usual case, and compared without a step in Python
                continue
            for name, value in before.items():
                if after.get(name, value) is not value and not _is_torchs(name, after[name]):
                    yield owner, name, after[name], value
        for layer, before, after in zip(LAYERS, self.passes, _passes(), strict=True):
            if before is not after:
                yield layer, "forward", after, before

    def restore(self) -> None:
        """Make all of it as it was at this moment."""
        for owner, name, _, value in tuple(self._patches()):
            setattr(owner, name, value)
        for _ in range(functions._len_torch_function_stack()):
            functions._pop_mode()
        for mode in self.modes:
            functions._push_mode(mode)
        while dispatch._len_torch_dispatch_stack() > self.dispatch_modes:
            dispatch._pop_mode()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = self.device_context
        devices.CURRENT_DEVICE = self.current_device
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.grad)
        for kind, enabled in zip(AUTOCAST, self.autocast, strict=True):
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if torch.get_deterministic_debug_mode() != self.deterministic:
            torch.set_deterministic_debug_mode(self.deterministic)
        if torch.get_float32_matmul_precision() != self.precision:
            torch.set_float32_matmul_precision(self.precision)
        if self.folder and self.folder != _folder():
            os.chdir(self.folder)


def _folder() -> str:
    """The current folder; "" where somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in AUTOCAST)


def _function_modes() -> tuple[Any, ...]:
    """The function modes that are entered, the outermost first."""
    modes = [functions._pop_mode() for _ in range(functions._len_torch_function_stack())]
    for mode in reversed(modes):
        functions._push_mode(mode)
    return tuple(reversed(modes))


def _passes() -> tuple[Any, ...]:
    """The forward pass of each of torch's layers."""
    return tuple([getattr(layer, "forward", None) for layer in LAYERS])


def _is_torchs(name: str, value: Any) -> bool:
    """Whether torch itself has put this there, as it does when a part of it is first loaded."""
    if name.startswith("__") or not callable(value):
        return True
    return str(getattr(value, "__module__", None) or "torch").partition(".")[0] == "torch"


@contextmanager
def surroundings_kept(start: Left | None = None) -> Iterator[Surroundings]:
    """Everything around is as before afterwards; inside, a model's own state where one is given."""
    before = Surroundings()
    try:
        if start is not None:
            start.apply()
        yield before
    finally:
        before.restore()


@contextmanager
def untouched_globals(seed: int = 0, start: Left | None = None) -> Iterator[Surroundings]:
    """Random generators and all that ``Surroundings`` has are as before afterwards.

    Inside, torch and ``random`` start from ``seed``, so that a build or run always draws the
    same; default type, device, folder and replaced functions are those of ``start``, where one is
    given; and a model's warnings stay silent, so that ``-W error`` does not make a model
    unmeasurable.
    """
    torch_state, random_state = torch.get_rng_state(), random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = numpy_random.get_state() if numpy_random else None
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    try:
        with warnings.catch_warnings(), surroundings_kept(start) as surroundings:
            warnings.simplefilter("ignore")
            yield surroundings
    finally:
        if numpy_random:
            numpy_random.set_state(numpy_state)
        random.setstate(random_state)
        torch.set_rng_state(torch_state)


@contextmanager
def silenced() -> Iterator[None]:
    """No log lines: a trace or file that fails is an answer here, not an incident."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def exact_operators() -> Iterator[None]:
    """Operators run as written: nothing compiled or fused, einsum from left to right."""
    fast_path, reordering = torch.backends.mha.get_fastpath_enabled(), opt_einsum.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    opt_einsum.enabled = False
    # What was never loaded compiled nothing, and takes a second to load.
    is_compiling = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if is_compiling else nullcontext()
    try:
        with eager:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        opt_einsum.enabled = reordering


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms where there are any, as before afterwards.

    By the debug mode: ``torch.use_deterministic_algorithms`` imports torch's compiler.
    """
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
