"""Calls of torch by a forward pass: devices answer as in a run on a CPU, and values that leave torch are noted."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import torch

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models.accelerators import CPU, MadeOnCPU, is_there
from pytest_modelbudget.torch_models.environment import EagerMode
from pytest_modelbudget.torch_models.recording import Recorder, UnseenError
from pytest_modelbudget.torch_models.values import META, TorchValues, is_on_meta
from pytest_modelbudget.torch_models.versions import DEVICES, PASS_ON, FakeTensor, current_modes

# Of a tensor, as in a run; the device is known again where the pass hands it on.
ATTRIBUTES = {"device": CPU, "is_cpu": True, "is_meta": False}
OWN_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
# They give what has its values already, and on the CPU is often that itself.
OF_VALUES: frozenset[Callable[..., Any]] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.to, torch.Tensor.new_tensor}
)
READS_VALUES = frozenset({"tolist"})  # torch itself refuses it where there are none
DOORS = ("numpy", "__array__", "__dlpack__", "data_ptr", "tolist")  # of tensors: they hand over values or an address
MEMORIES = ("untyped_storage", "storage")  # whose values anything may read
# What fails without values, and calls no operator before that: as a kernel that is missing (NotImplementedError), so
# that the next way of following is tried.
NEED_VALUES = (torch.Tensor.__format__, torch.Tensor.share_memory_, torch.Tensor.backward, torch.autograd.grad)
# Graphs of captured kernels, which run without an operator; older torch has not all of them.
GRAPHS: tuple[type, ...] = tuple(
    getattr(owner, name) for owner in DEVICES for name in ("CUDAGraph", "XPUGraph", "Graph") if hasattr(owner, name)
)
REPLAYED = (
    "the forward pass replays a captured graph of its device, whose operators are not seen: "
    "give the model as it was before it was captured"
)
AUTOCAST = "the forward pass casts under torch.autocast, which tensors without memory do not see"
TRITON = "triton.runtime.jit"  # where its kernels are launched
LAUNCHED = (
    "the forward pass launches a kernel of Triton, in which no operator is seen: wrap it in torch.library.triton_op, "
    "which makes it one, and give that a rule"
)
Special = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class CallsOfTorch(MadeOnCPU):
    """Sees each function and attribute of torch that code of the model asks for.

    Behind the null address of a tensor without memory native code would write anywhere, and end the process.
    """

    def __init__(self, recorder: Recorder, values: TorchValues, way: str) -> None:
        super().__init__()
        self._recorder, self._values = recorder, values
        self._is_real, self._is_on_meta = way == "real", way == "meta"
        self._special: dict[Any, Special] = {
            **{getattr(torch.Tensor, name): self._leave for name in DOORS},
            **{getattr(torch.Tensor, name): self._share for name in MEMORIES},
            **dict.fromkeys(NEED_VALUES, self._needing),
            **{getattr(torch.Tensor, name).__get__: self._attribute for name in ATTRIBUTES},
            torch.Tensor.type: self._type,
            torch.Tensor.__deepcopy__: self._copy,
            torch.Tensor.data.__set__: self._assign,  # type: ignore[attr-defined]  # torch types it as a tensor
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (special := self._special.get(func)) is not None:
            try:
                return special(func, args, kwargs)
            except BaseException as error:  # which the forward pass may catch
                self._recorder.failure = self._recorder.failure or error
                raise
        if self._is_on_meta and torch.is_autocast_enabled("cpu"):
            self._recorder.failure = TraceError(AUTOCAST)  # which the forward pass may catch
            raise self._recorder.failure
        takes_values = func in OF_VALUES or kwargs.get("generator") is not None
        if self._is_on_meta and kwargs.get("device") is CPU and not takes_values:
            kwargs = {**kwargs, "device": META}
        return super().__torch_function__(func, types, args, kwargs)

    def _leave(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, tensor = func.__name__, args[0]
        if self._is_real:
            # Several floating values: one decides a branch, and integers are sizes and places.
            several = (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 1
            if several or name not in READS_VALUES:
                self._recorder.leave(name, tensor)
        elif self._recorder.is_emptied(tensor) or (name not in READS_VALUES and has_no_memory(tensor)):
            raise NotImplementedError(f"{name} of a tensor without memory")
        return func(*args, **kwargs)

    def _share(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The memory of a tensor, of whose values nothing is known from then on."""
        if self._is_asked_by_model(sys._getframe(2)):
            if not self._is_real and has_no_memory(args[0]):
                raise NotImplementedError(f"{func.__name__} of a tensor without memory")
            if self._is_real:
                self._recorder.leave(func.__name__, args[0])
        return func(*args, **kwargs)

    def _needing(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that needs values, whose failure without them is none of the model's own."""
        try:
            return func(*args, **kwargs)
        except Exception as error:  # whatever the function makes of having none
            if self._is_real:
                raise
            raise NotImplementedError(f"{func.__name__} without values: {error}") from error

    def _attribute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_real or not is_on_meta(args[0]) or not self._is_asked_by_model(sys._getframe(2)):
            return func(*args)
        return ATTRIBUTES[func.__self__.__name__]

    def _type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = super().__torch_function__(func, (), args, kwargs)
        return answer.replace("torch.meta.", "torch.") if isinstance(answer, str) else answer

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A deep copy, which copies memory without an operator: it is a result of the pass, and nothing it found."""
        self._recorder.known(args[0])  # which may be what it found
        self._recorder.is_copying = True
        try:
            return func(*args, **kwargs)
        finally:
            self._recorder.is_copying = False

    def _assign(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``tensor.data = other``: no operator gives a tensor other memory."""
        self._values.loosen(args[0])
        return func(*args)

    def _is_asked_by_model(self, asking: FrameType | None) -> bool:
        """Whether this is code of the model, outside of operators: while one runs, the recorder is no mode."""
        while asking is not None and asking.f_globals.get("__name__") in PASS_ON:
            asking = asking.f_back
        is_own = asking is not None and asking.f_code.co_filename.startswith(OWN_CODE)
        return not is_own and self._recorder in current_modes()


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and no values."""
    return isinstance(tensor, FakeTensor) or is_on_meta(tensor)


class OtherThread(EagerMode):
    """Notes that a thread runs operators: no recorder is there, and nothing is claimed of the pass."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self._recorder.unseen = UnseenError(
            "the forward pass computes in another thread, where its operators are not seen"
        )
        return func(*args, **(kwargs or {}))


def work_unseen(recorder: Recorder, calls: CallsOfTorch) -> Iterator[tuple[Any, str, Any]]:
    """Yield attributes and replacements that note or refuse work which no operator shows.

    Such work runs in a thread, in a captured graph of a device, or in a kernel of Triton.
    """
    start, launch = Thread.start, None

    def started(thread: Thread) -> None:
        run = thread.run

        def watched() -> None:
            with calls, OtherThread(recorder):
                run()

        thread.run = watched  # type: ignore[method-assign]
        start(thread)

    def replay(_: Any) -> None:
        recorder.unseen = UnseenError(REPLAYED)  # which the forward pass may catch
        raise recorder.unseen

    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder in current_modes():  # which it is not within an operator
            recorder.unseen = UnseenError(LAUNCHED)
            raise recorder.unseen
        return launch(kernel, *args, **kwargs)  # type: ignore[misc]  # it is there

    yield Thread, "start", started
    yield from ((owner, "replay", replay) for owner in GRAPHS if is_there())
    if triton := getattr(sys.modules.get(TRITON), "JITFunction", None):
        launch = triton.run
        yield triton, "run", launched
