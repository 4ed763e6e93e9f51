"""The state of the process around a model: kept, and what a model left of it kept for it alone."""

import builtins
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from importlib.util import resolve_name
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch.utils import _device, _python_dispatch
from torch.utils.weak import WeakIdKeyDictionary

functions: Any = torch.overrides  # these three keep modes; torch gives no types for that
dispatch: Any = _python_dispatch
devices: Any = _device
Patch = tuple[Any, str, Any]  # owner, name, what stands there
LAYERS = {kind for layer in vars(nn).values() if isinstance(layer, type) for kind in layer.__mro__}
# Where libraries put functions of their own in place of torch's.
WATCHED: tuple[Any, ...] = (
    *(torch, nn, nn.functional, nn.init, torch.Tensor),
    *sorted((kind for kind in LAYERS if kind.__module__.startswith("torch.nn")), key=repr),
)
DICTS: tuple[Mapping[str, Any], ...] = tuple(map(vars, WATCHED))  # as they are now, always
VALUES = tuple([names.values() for names in DICTS])  # likewise
HOOKS: dict[str, dict[Any, Any]] = {
    name: hooks
    for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
}
Hooks = tuple[dict[Any, Any], ...]  # the content of each of them
NO_HOOKS: Hooks = tuple({} for _ in HOOKS)


class Switch(NamedTuple):
    """A switch of torch's by the words for it: what reads it, and what sets it.

    is_models_own says that a model which sets it while it is built runs with it, too: packed weights are laid out for
    one engine, and code may ask what there is. The others are set by a trace, or change no number.
    """

    name: str
    read: Callable[[], Any]
    set: Callable[[Any], Any]
    is_models_own: bool = False


SWITCHES = (
    Switch("grad", torch.is_grad_enabled, torch.set_grad_enabled),
    Switch("threads", torch.get_num_threads, torch.set_num_threads),
    Switch("deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Switch("precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Switch("engine of quantised operators", torch._C._get_qengine, torch._C._set_qengine, is_models_own=True),
    Switch("setting of oneDNN", torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, is_models_own=True),
    Switch("setting of NNPACK", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, is_models_own=True),
)
AUTOCAST = ("cpu", "cuda")
Autocast = tuple[tuple[bool, torch.dtype], ...]  # whether it is on, and its type
ABSENT = object()
OF_DTYPE = "Storage"  # torch.Storage is the class of the default type
CALMED = sys.stdlib_module_names | {"torch", "numpy", "torchvision"}  # whose import changes nothing of torch


@dataclass(frozen=True, slots=True)
class Left:
    """What importing or building a model leaves behind; its forward pass may count on it.

    folder is "" where it stayed. autocast is () where it is as before, and so are switches. modes were entered and
    never left; no pass runs in those.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    folder: str = ""
    patches: tuple[Patch, ...] = ()
    hooks: Hooks = NO_HOOKS
    autocast: Autocast = ()
    modes: int = 0
    switches: tuple[tuple[Switch, Any], ...] = ()

    def words(self) -> Iterator[str]:
        """What it is, one thing each."""
        if self.dtype is not torch.float32:
            yield f"default type {str(self.dtype).removeprefix('torch.')}"
        if self.device is not None:
            yield f"default device {self.device}"
        if self.folder:
            yield "another current folder"
        yield from (f"{owner.__name__}.{name} replaced" for owner, name, _ in self.patches)
        yield from (
            f"hooks on every module ({name.strip('_')})" for name, own in zip(HOOKS, self.hooks, strict=True) if own
        )
        if self.autocast:
            yield "another autocast"
        if self.modes:
            yield "a mode that is never left, without which the forward pass runs"
        yield from (f"another {switch.name}" for switch, _ in self.switches)

    def apply(self) -> None:
        """Give it to the process."""
        torch.set_default_dtype(self.dtype)
        if self.device != default_device():
            torch.set_default_device(self.device)
        for owner, name, value in self.patches:
            put(owner, name, value)
        for hooks, own in zip(HOOKS.values(), self.hooks, strict=True):
            hooks.update(own)
        if self.autocast:
            set_autocast(self.autocast)
        for switch, value in self.switches:
            switch.set(value)
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


class Attributes(NamedTuple):
    """What stands in the watched modules and classes: all values in a row, and by owner and name."""

    values: tuple[Any, ...]
    copies: tuple[dict[str, Any], ...]


def _values() -> tuple[Any, ...]:
    return tuple(chain.from_iterable(VALUES))


_last: list[Attributes] = []  # of the states that were seen last, of which one usually comes again


def _attributes() -> Attributes:
    values = _values()
    for seen in _last:
        if seen.values == values:
            return seen
    seen = Attributes(values, tuple([dict(own) for own in DICTS]))
    _last[:] = [seen, *_last[:1]]
    return seen


@dataclass(frozen=True)
class Surroundings:
    """Default type and device, modes, autocast, switches, folder and torch's own functions at one moment."""

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    folder: str = field(default_factory=lambda: _folder())
    switches: tuple[Any, ...] = field(default_factory=lambda: tuple([switch.read() for switch in SWITCHES]))
    autocast: Autocast = field(default_factory=lambda: _autocast())
    device_context: Any = field(default_factory=lambda: getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None))
    current_device: Any = field(default_factory=lambda: devices.CURRENT_DEVICE)
    modes: tuple[Any, ...] = field(default_factory=lambda: _function_modes())
    dispatch_modes: int = field(default_factory=dispatch._len_torch_dispatch_stack)
    attributes: Attributes = field(default_factory=lambda: _attributes())
    hooks: Hooks = field(default_factory=lambda: tuple(map(dict, HOOKS.values())))
    compared: list[tuple[Any, ...]] = field(default_factory=list)  # what stood there last, and what of it is new

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
            tuple({key: now[key] for key in now.keys() - then.keys()} for now, then in self._hooks()),
            _autocast() if _autocast() != self.autocast else (),
            max(modes - len(self.modes) - self.dispatch_modes, 0),
            tuple((switch, now) for switch, now, then in self._switched() if switch.is_models_own and now != then),
        )

    def _switched(self) -> Iterator[tuple[Switch, Any, Any]]:
        """(switch, now, then) of each."""
        return ((switch, switch.read(), then) for switch, then in zip(SWITCHES, self.switches, strict=True))

    def _hooks(self) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
        """(now, then) of each kind of hooks on every module."""
        return zip(HOOKS.values(), self.hooks, strict=True)

    def _patches(self) -> tuple[tuple[Any, str, Any, Any], ...]:
        """(owner, name, now, then) of what somebody else than torch has replaced, added or taken away.

        Asked around every import: what stands there is compared without a step in Python, and looked through only where
        it is neither as it was at this moment nor as it was when it was asked last.
        """
        values = _values()
        if values == self.attributes.values:
            return ()
        if not self.compared or self.compared[0] != values:
            self.compared[:] = [values, tuple(self._changes())]
        return self.compared[1]

    def _changes(self) -> Iterator[tuple[Any, str, Any, Any]]:
        for owner, after, before in zip(WATCHED, DICTS, self.attributes.copies, strict=True):
            for name in {**before, **after}:
                now, then = after.get(name, ABSENT), before.get(name, ABSENT)
                if now is not then and not _is_torchs(owner, name, now, then):
                    yield owner, name, now, then

    def restore(self) -> None:
        """Make all of it as it was at this moment."""
        for owner, name, _, value in self._patches():
            put(owner, name, value)
        for now, then in self._hooks():
            if now != then:
                now.clear()
                now.update(then)
        self._restore_modes()
        torch.set_default_dtype(self.dtype)
        if _autocast() != self.autocast:
            set_autocast(self.autocast)
        for switch, now, then in self._switched():
            if now != then:
                switch.set(then)
        if self.folder and self.folder != _folder():
            os.chdir(self.folder)

    def _restore_modes(self) -> None:
        for _ in range(functions._len_torch_function_stack()):
            functions._pop_mode()
        for mode in self.modes:
            functions._push_mode(mode)
        while dispatch._len_torch_dispatch_stack() > self.dispatch_modes:
            dispatch._pop_mode()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = self.device_context
        devices.CURRENT_DEVICE = self.current_device


def _folder() -> str:
    """The current folder; "" where somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _autocast() -> Autocast:
    return tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST])


def set_autocast(state: Autocast) -> None:
    """Switch autocast on or off, kind by kind."""
    for kind, (enabled, dtype) in zip(AUTOCAST, state, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def put(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a module or class, or take it away."""
    if value is not ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _function_modes() -> tuple[Any, ...]:
    """The function modes that are entered, the outermost first."""
    modes = [functions._pop_mode() for _ in range(functions._len_torch_function_stack())]
    for mode in reversed(modes):
        functions._push_mode(mode)
    return tuple(reversed(modes))


def _is_torchs(owner: Any, name: str, now: Any, then: Any) -> bool:
    """Whether torch itself has made this change, as it does when a part of it is first loaded."""
    if not callable(now) and now is not ABSENT:
        return then is ABSENT or not isinstance(owner, type)  # a submodule, a note of pickle or warnings
    if then is not ABSENT and name != OF_DTYPE and getattr(now, "__name__", name) != name:
        return False
    while now is not ABSENT:
        file = getattr(now, "__globals__", {}).get("__name__") or getattr(now, "__module__", None)
        if str(file or type(now).__module__).partition(".")[0] not in {"torch", "builtins"}:
            return False
        now = getattr(now, "__wrapped__", ABSENT)
    return then is ABSENT or callable(then)


class Imports:
    """Imports as they happen; one that was there already leaves again what its first import left.

    A module runs once in a process, and what it does to torch holds for every model whose code
    imports it, in whatever order the models come.
    """

    left: ClassVar[dict[str, dict[str, Any]]] = {}  # module, and the fields of Left that it changed

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._import: Any = builtins.__import__
        self._repeated: set[str] = set()

    def __call__(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Stands for ``__import__``."""
        package = (globals or {}).get("__package__") or (globals or {}).get("__name__", "")
        full = resolve_name("." * level + name, package) if level else name
        if full.partition(".")[0] in CALMED:
            return self._import(name, globals, locals, fromlist, level)
        self.load(full)
        found = self._import(name, globals, locals, fromlist, level)
        for item in fromlist or ():
            if f"{full}.{item}" in sys.modules:
                self.repeat(f"{full}.{item}")
        return found

    def load(self, name: str) -> None:
        """Import a module and those above it, each noted or repeated."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part in sys.modules:
                self.repeat(part)
                continue
            before = self._surroundings.left()
            self._import(part)
            self._note(part, before)

    def _note(self, name: str, before: Left) -> None:
        after = self._surroundings.left()
        changed = {
            f.name: getattr(after, f.name) for f in fields(Left) if getattr(after, f.name) != getattr(before, f.name)
        }
        if changed:
            Imports.left[name] = changed
            self._repeated.add(name)

    def repeat(self, name: str) -> None:
        """Do again what the first import of a module did, once."""
        changed = Imports.left.get(name)
        if changed and name not in self._repeated:
            self._repeated.add(name)
            replace(self._surroundings.left(), **changed).apply()


@contextmanager
def _imports_followed(surroundings: Surroundings) -> Iterator[Imports]:
    before = builtins.__import__
    imports = Imports(surroundings)
    builtins.__import__ = imports
    try:
        yield imports
    finally:
        builtins.__import__ = before


@contextmanager
def surroundings_kept(start: Left | None = None) -> Iterator[Surroundings]:
    """Everything around is as before afterwards; inside, a model's own state where one is given."""
    before = Surroundings()
    try:
        if start is not None:
            start.apply()
        with _imports_followed(before):
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
