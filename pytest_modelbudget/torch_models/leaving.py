"""Where values leave torch: what is computed with them there is not seen, and is said so."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_modelbudget.torch_models.patching import replaced
from pytest_modelbudget.torch_models.recording import Recorder, UnseenError

# Every door that hands over values or their address: its owner, and its name there.
DOORS: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("numpy", "__array__", "__dlpack__", "data_ptr", "tolist")),
    *((torch.UntypedStorage, name) for name in ("data_ptr", "tolist", "__getitem__", "__iter__")),
    *((owner, "to_dlpack") for owner in (torch, torch.utils.dlpack)),
)
# What fails without values, and calls no operator before that: as a kernel that is missing (NotImplementedError), so
# that the next way of following is tried. A run goes on, also where the pass would catch it.
NEED_VALUES: tuple[tuple[Any, str], ...] = (
    *((torch.Tensor, name) for name in ("__format__", "share_memory_", "backward")),
    *((torch.TypedStorage, name) for name in ("__getitem__", "tolist")),
    (torch.UntypedStorage, "share_memory_"),
    (torch.autograd, "grad"),
)
# Graphs of captured kernels, which run without an operator; older torch has not all of them.
GRAPHS: tuple[type, ...] = tuple(
    getattr(owner, name)
    for owner, name in ((torch.cuda, "CUDAGraph"), (torch.xpu, "XPUGraph"), (torch.accelerator, "Graph"))
    if hasattr(owner, name)
)
REPLAYED = (
    "the forward pass replays a captured graph of its device, whose operators are not seen: "
    "give the model as it was before it was captured"
)
TRITON = "triton.runtime.jit"  # where its kernels are launched
LAUNCHED = (
    "the forward pass launches a kernel of Triton, in which no operator is seen: wrap it in torch.library.triton_op, "
    "which makes it one, and give that a rule"
)
READS_VALUES = frozenset({"tolist"})  # torch itself refuses it where there are none
PRINTS = "torch._tensor_str"  # text of a tensor is for readers: nothing is computed with it


class Doors:
    """Notes each value that leaves in a real run; lets none leave that has no memory.

    Behind a null address native code would write anywhere, and end the process.
    """

    def __init__(self, recorder: Recorder, way: str) -> None:
        self._recorder = recorder
        self._is_real = way == "real"
        self._inside = False  # one door may call another: __array__ calls numpy

    def guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function behind a watch."""

        @functools.wraps(function)
        def leave(value: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not isinstance(value, (torch.Tensor, torch.UntypedStorage)):
                return function(value, *args, **kwargs)
            if sys._getframe(1).f_globals.get("__name__") == PRINTS:
                return function(value, *args, **kwargs)
            self._inside = True
            try:
                self._note(name, value)
                return function(value, *args, **kwargs)
            except BaseException as error:  # which the forward pass may catch
                self._recorder.failure = self._recorder.failure or error
                raise
            finally:
                self._inside = False

        return leave

    def needing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that needs values, whose failure without them is none of the model's own."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if self._is_real:
                    raise
                failure = NotImplementedError(f"{name} without values: {error}")
                self._recorder.failure = self._recorder.failure or failure  # which the forward pass may catch
                raise failure from error

        return call

    def kernels(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """What launches a kernel, which an operator may do inside: the recorder is no mode there."""

        @functools.wraps(launch)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._recorder in _get_current_dispatch_mode_stack():
                self._recorder.unseen = UnseenError(LAUNCHED)
                raise self._recorder.unseen
            return launch(*args, **kwargs)

        return run

    def refuse_replay(self, *_: Any) -> None:
        """In place of what runs a captured graph."""
        self._recorder.unseen = UnseenError(REPLAYED)  # which the forward pass may catch
        raise self._recorder.unseen

    def filling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What copies one memory into another, which is a result of the pass then, and nothing that it found."""

        @functools.wraps(function)
        def copy(memory: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            self._recorder.filled = memory
            try:
                return function(memory, *args, **kwargs)
            finally:
                self._recorder.filled = None

        return copy

    def _note(self, name: str, value: Any) -> None:
        if not self._is_real:
            lacks_values = isinstance(value, torch.Tensor) and self._recorder.is_emptied(value)
            if lacks_values or (name not in READS_VALUES and has_no_memory(value)):
                # C code would read address 0 and crash; the real run, tried next, has memory.
                raise NotImplementedError(f"{name} of a tensor without memory")
        elif isinstance(value, torch.UntypedStorage):
            self._recorder.leave_storage(name, value)
        elif name not in READS_VALUES or is_more_than_a_decision(value):
            self._recorder.leave(name, value)


def has_no_memory(value: Any) -> bool:
    """Whether a tensor or storage has a shape and no values."""
    return isinstance(value, FakeTensor) or value.device.type == "meta"


def is_more_than_a_decision(tensor: torch.Tensor) -> bool:
    """Several floating values: one decides a branch, and integers are sizes and places."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 1


@contextmanager
def doors_watched(recorder: Recorder, way: str) -> Iterator[None]:
    """Every door is watched inside this context, and as it was afterwards."""
    doors = Doors(recorder, way)
    watched = [
        (owner, name, doors.guarded(name, getattr(owner, name))) for owner, name in DOORS if hasattr(owner, name)
    ]
    needing = [(owner, name, doors.needing(name, getattr(owner, name))) for owner, name in NEED_VALUES]
    graphs = [(owner, "replay", doors.refuse_replay) for owner in GRAPHS]
    kernels = [
        (owner, "run", doors.kernels(owner.run))
        for owner in filter(None, [getattr(sys.modules.get(TRITON), "JITFunction", None)])
    ]
    filling = (torch.UntypedStorage, "copy_", doors.filling(torch.UntypedStorage.copy_))
    with replaced([*watched, *needing, *graphs, *kernels, filling]):
        yield
