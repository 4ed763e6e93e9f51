"""The state of the process around a model: kept, and what a model left of it kept for it alone."""

import builtins
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.backends.opt_einsum as opt_einsum
from torch import nn
from torch.autograd import forward_ad as _forward_ad
from torch.nested._internal import nested_tensor as _nested_tensor
from torch.utils import _device, _python_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from pytest_modelbudget.torch_models import compiler
from pytest_modelbudget.torch_models.generators import seeded
from pytest_modelbudget.torch_models.patches import Changes, Patch, PlacesFollowed, put, replaced
from pytest_modelbudget.torch_models.places import is_of_package
from pytest_modelbudget.torch_models.script_plans import scripts_as_written

functions: Any = torch.overrides  # these six keep modes, levels and a tensor; torch gives no types for that
dispatch: Any = _python_dispatch
devices: Any = _device
functorch: Any = torch._C._functorch
forward_ad: Any = _forward_ad
jagged: Any = _nested_tensor
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


AUTOCAST = ("cpu", "cuda")
Autocast = tuple[tuple[bool, torch.dtype], ...]  # of each kind whether it is on, and its type


def _autocast() -> Autocast:
    return tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST])


def _set_autocast(state: Autocast) -> None:
    for kind, (enabled, dtype) in zip(AUTOCAST, state, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _set_default_place(kind: str) -> None:
    """Where plain tensors are made; torch sets their type with it."""
    dtype = torch.get_default_dtype()
    torch._C._set_default_tensor_type((torch if kind == "cpu" else getattr(torch, kind)).FloatTensor)
    torch.set_default_dtype(dtype)


SWITCHES = (
    Switch("autocast", _autocast, _set_autocast, is_models_own=True),
    Switch("place of plain tensors", torch._C._get_default_device, _set_default_place),
    Switch("grad", torch.is_grad_enabled, torch.set_grad_enabled),
    Switch("threads", torch.get_num_threads, torch.set_num_threads),
    Switch("deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Switch("precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Switch("engine of quantised operators", torch._C._get_qengine, torch._C._set_qengine, is_models_own=True),
    Switch("setting of oneDNN", torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, is_models_own=True),
    Switch("setting of NNPACK", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, is_models_own=True),
)
CALMED = sys.stdlib_module_names | {"torch", "numpy", "torchvision"}  # whose import changes nothing of torch


@dataclass(frozen=True, slots=True)
class Left:
    """What importing or building a model leaves behind; its forward pass may count on it.

    folder is "" where it stayed. switches are those that are otherwise. modes were entered and never left; no pass
    runs in those. staying names what was set where nothing stood, which nobody takes back.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    folder: str = ""
    patches: tuple[Patch, ...] = ()
    hooks: Hooks = NO_HOOKS
    modes: int = 0
    switches: tuple[tuple[Switch, Any], ...] = ()
    staying: tuple[str, ...] = ()

    def words(self) -> Iterator[str]:
        """What it is, one thing each."""
        if self.dtype is not torch.float32:
            yield f"default type {str(self.dtype).removeprefix('torch.')}"
        if self.device is not None:
            yield f"default device {self.device}"
        if self.folder:
            yield "another current folder"
        yield from (f"{patch.label} replaced" for patch in self.patches)
        yield from (
            f"hooks on every module ({name.strip('_')})" for name, own in zip(HOOKS, self.hooks, strict=True) if own
        )
        if self.modes:
            yield "a mode that is never left, without which the forward pass runs"
        yield from (f"another {switch.name}" for switch, _ in self.switches)

    def apply(self) -> None:
        """Give it to the process."""
        torch.set_default_dtype(self.dtype)
        if self.device != default_device():
            torch.set_default_device(self.device)
        for owner, name, value, _ in self.patches:
            put(owner, name, value)
        for hooks, own in zip(HOOKS.values(), self.hooks, strict=True):
            hooks.update(own)
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


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors of this floating type are made in this context where none is said, as before afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def default_device() -> torch.device | None:
    """The device that ``torch.set_default_device`` was given; None where it was not called."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def now() -> Left:
    """Default type and device as they are, for models that were made by the caller."""
    return Left(torch.get_default_dtype(), default_device())


class Surroundings:
    """Default type and device, modes, switches, folder and torch's own functions as they are when it is made.

    behind is what was otherwise when all of it was restored.
    """

    behind: Left

    def __init__(self) -> None:
        self.places = PlacesFollowed()
        self._dtype, self._folder = torch.get_default_dtype(), _folder()
        self._device_context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self._current_device = devices.CURRENT_DEVICE
        self._modes, self._dispatch_modes = function_modes(), dispatch._len_torch_dispatch_stack()
        self._hooks_then: Hooks = tuple(map(dict, HOOKS.values()))
        self._switches = tuple([switch.read() for switch in SWITCHES])
        self._transforms = _transforms()

    def left(self, *, of_files: bool = True) -> Left:
        """What is otherwise now than it was at this moment, without parts of functions; without of_files, in torch."""
        return self._left(self.places.changes(of_files=of_files, parts=False))

    def _left(self, changes: Changes) -> Left:
        folder, device = _folder(), default_device()
        of_device = (device is not None) - (self._device_context is not None)
        modes = len(function_modes()) + dispatch._len_torch_dispatch_stack() - of_device
        return Left(
            torch.get_default_dtype(),
            device,
            folder if folder != self._folder else "",
            tuple(change.patch for change in changes.taken_back),
            tuple({key: now[key] for key in now.keys() - then.keys()} for now, then in self._hooks()),
            max(modes - len(self._modes) - self._dispatch_modes, 0),
            tuple((switch, now) for switch, now, then in self._switched() if switch.is_models_own and now != then),
            changes.staying,
        )

    def _switched(self) -> Iterator[tuple[Switch, Any, Any]]:
        """(switch, now, then) of each."""
        return ((switch, switch.read(), then) for switch, then in zip(SWITCHES, self._switches, strict=True))

    def _hooks(self) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
        """(now, then) of each kind of hooks on every module."""
        return zip(HOOKS.values(), self._hooks_then, strict=True)

    def restore(self) -> None:
        """Make all of it as it was at this moment; what was otherwise is behind then."""
        changes = self.places.changes()
        self.behind = self._left(changes)
        changes.undo()
        for now, then in self._hooks():
            if now != then:
                now.clear()
                now.update(then)
        self._restore_modes()
        torch.set_default_dtype(self._dtype)
        for switch, now, then in self._switched():
            if now != then:
                switch.set(then)
        if self._folder and self._folder != _folder():
            os.chdir(self._folder)

    def _restore_modes(self) -> None:
        _end_transforms(self._transforms)
        set_function_modes(self._modes)
        while dispatch._len_torch_dispatch_stack() > self._dispatch_modes:
            dispatch._pop_mode()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = self._device_context
        devices.CURRENT_DEVICE = self._current_device


def _transforms() -> tuple[int, int]:
    """How many of vmap, grad and jvp are entered, and the level of forward-mode differentiation."""
    return functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level


def _end_transforms(then: tuple[int, int]) -> None:
    """End what a pass that failed never left: vmap and jvp are entered by nodes of an exported program."""
    depth, dual_level = then
    functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    while forward_ad._current_level > dual_level:
        forward_ad.exit_dual_level()
    if dual_level < 0:  # nobody is in a level of Python's; a node enters torch's own alone
        with suppress(RuntimeError):  # it was not entered, which torch tells in no other way
            torch._C._exit_dual_level(level=0)


@contextmanager
def under(grad: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """A pass under what autograd is to do; transforms that it leaves open end before that does, for they keep it."""
    with grad():
        then = _transforms()
        try:
            yield
        finally:
            _end_transforms(then)


@contextmanager
def jagged_dummy_apart() -> Iterator[None]:
    """The tensor that torch makes with the first jagged one of a process, and keeps for all, is made by no pass."""
    own = jagged._nt_view_dummy

    def made_apart() -> torch.Tensor:
        with dispatch._disable_current_modes(), torch.inference_mode(False):
            return cast("torch.Tensor", own())

    with replaced([(jagged, "_nt_view_dummy", made_apart)]):
        yield


def _folder() -> str:
    """The current folder; "" where somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def function_modes() -> tuple[Any, ...]:
    """The function modes that are entered, the outermost first."""
    modes = tuple(functions._pop_mode() for _ in range(functions._len_torch_function_stack()))[::-1]
    set_function_modes(modes)
    return modes


def set_function_modes(modes: Sequence[Any]) -> None:
    """These modes are entered, the outermost first, and no others."""
    for _ in range(functions._len_torch_function_stack()):
        functions._pop_mode()
    for mode in modes:
        functions._push_mode(mode)


def set_by_others() -> Iterator[str]:
    """What a conftest.py or a test set of torch before a model is measured, and its pass runs under."""
    if any(is_on for is_on, _ in _autocast()):
        yield "autocast"
    yield from (f"hooks on every module ({name.strip('_')})" for name, hooks in HOOKS.items() if hooks)
    if len(function_modes()) + dispatch._len_torch_dispatch_stack() > (default_device() is not None):
        yield "a mode that was entered"


@contextmanager
def torch_as_it_starts() -> Iterator[None]:
    """Torch without what others set of it, which is there again afterwards: no code of a file asked for that."""
    before = Surroundings()
    with dispatch._disable_current_modes():
        try:
            set_function_modes(())
            torch._GLOBAL_DEVICE_CONTEXT.device_context = devices.CURRENT_DEVICE = None
            torch.set_default_dtype(torch.float32)
            _set_autocast(tuple([(False, dtype) for _, dtype in _autocast()]))
            for hooks in HOOKS.values():
                hooks.clear()
            yield
        finally:
            before.restore()


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
        is_within = _is_installed_together(globals or {}, full)
        self.load(full, of_files=not is_within)
        found = self._import(name, globals, locals, fromlist, level)
        for item in fromlist or ():
            if f"{full}.{item}" in sys.modules:
                self.repeat(f"{full}.{item}")
        return found

    def load(self, name: str, *, of_files: bool = True) -> None:
        """Import a module and those above it, each noted or repeated."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part in sys.modules:
                self.repeat(part)
                continue
            before = self._surroundings.left(of_files=of_files)
            self._import(part)
            self._note(part, before, of_files)

    def _note(self, name: str, before: Left, of_files: bool) -> None:
        after = self._surroundings.left(of_files=of_files)
        changed = {
            f.name: getattr(after, f.name)
            for f in fields(Left)
            if f.name not in {"patches", "switches", "staying"} and getattr(after, f.name) != getattr(before, f.name)
        }
        known = {(id(patch.owner), patch.name): patch.value for patch in before.patches}
        new: dict[str, list[Any]] = {
            "patches": [p for p in after.patches if known.get((id(p.owner), p.name), self) is not p.value],
            "switches": [pair for pair in after.switches if pair not in before.switches],
        }
        changed.update((field, tuple(values)) for field, values in new.items() if values)
        if changed:
            Imports.left[name] = changed
            self._repeated.add(name)
        if of_files:
            self._surroundings.places.pass_over(set(after.staying).difference(before.staying))
            self._surroundings.places.grow()

    def repeat(self, name: str) -> None:
        """Do again what the first import of a module did, once."""
        changed = Imports.left.get(name)
        if changed and name not in self._repeated:
            self._repeated.add(name)
            replace(self._surroundings.left(), **changed).apply()


def _is_installed_together(importer: Mapping[str, Any], name: str) -> bool:
    """Whether a file of an installed package imports another of it: how they are put together is the package's own."""
    is_within = str(importer.get("__name__")).partition(".")[0] == name.partition(".")[0]
    return is_within and is_of_package(importer.get("__file__") or "")


@contextmanager
def surroundings_kept(start: Left | None = None) -> Iterator[Surroundings]:
    """Everything around is as before afterwards; inside, a model's own state where one is given."""
    before = Surroundings()
    try:
        if start is not None:
            start.apply()
        with replaced([(builtins, "__import__", Imports(before))]), compiler.unloaded():
            yield before
    finally:
        before.restore()


@contextmanager
def untouched_globals(seed: int = 0, start: Left | None = None) -> Iterator[Surroundings]:
    """Random generators and all that ``Surroundings`` has are as before afterwards.

    Inside, the generators start from ``seed``, so that a build or run always draws the
    same; default type, device, folder and replaced functions are those of ``start``, where one is
    given; and a model's warnings stay silent, so that ``-W error`` does not make a model
    unmeasurable.
    """
    with seeded(seed), warnings.catch_warnings(), surroundings_kept(start) as surroundings:
        warnings.simplefilter("ignore")
        yield surroundings


@contextmanager
def silenced() -> Iterator[None]:
    """No log lines: a trace or file that fails is an answer here, not an incident.

    ``logging.disable`` would go through all loggers, of which torch has hundreds, twice.
    """
    with replaced([(logging.Logger, "handle", lambda logger, record: None)]):
        yield


class EagerMode(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """A dispatch mode that sees every operator, without a guard against compiling around each: all of it runs eagerly.

    That guard is a call of torch's compiler for every operator, and loading it takes a second.
    """

    records = False  # whether it makes a graph of them, and knows all ways of a branch

    def __init__(self) -> None:  # torch gives no types
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# Made of products of matrices, which take a conjugated operand as it is; in inference mode torch copies it for them.
TAKE_CONJUGATES = ("matmul", "linear", "einsum", "tensordot", "inner", "linalg_multi_dot")


@contextmanager
def run_eagerly() -> Iterator[list[Any]]:
    """Run compiled functions as they are written; yields a list that gets an entry for each call of one.

    Every call of what ``torch.compile`` made asks ``_callback_from_stance`` which compiler to use. Torch compiles the
    bodies of its own ``cond`` or ``flex_attention`` so, too, by a backend that runs them as they are written.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and loading it takes a second
        yield []
        return
    from torch._dynamo import eval_frame
    from torch._higher_order_ops.utils import _in_hop_compile

    calls: list[Any] = []
    chosen: Any = eval_frame._callback_from_stance

    def noted(compiler: Any) -> Any:
        if compiler not in (None, False) and not _in_hop_compile():  # neither disabled, nor a body
            calls.append(compiler)
        return chosen(compiler)

    with torch.compiler.set_stance("force_eager"), replaced([(eval_frame, "_callback_from_stance", noted)]):
        yield calls


@contextmanager
def exact_operators() -> Iterator[list[Any]]:
    """Operators run as written: nothing compiled or fused, einsum from left to right, conjugates not copied first.

    Yields a list that gets an entry for each call of a compiled function.
    """
    fast_path, reordering = torch.backends.mha.get_fastpath_enabled(), opt_einsum.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    opt_einsum.enabled = False
    conjugates: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch gives no types
    for name in TAKE_CONJUGATES:
        conjugates.impl(name, torch.library.fallthrough_kernel, "Conjugate", allow_override=True)
    try:
        with run_eagerly() as compiled_calls, scripts_as_written():
            yield compiled_calls
    finally:
        conjugates._destroy()
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
