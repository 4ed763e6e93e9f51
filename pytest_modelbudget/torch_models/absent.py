"""What a pass asks of an accelerator and tells it, where all is on the CPU: there is none, and nothing to wait for."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_modelbudget.torch_models.accelerators import CPU, KINDS, is_accelerator
from pytest_modelbudget.torch_models.patching import recoded, replaced

TORCH = f"{Path(torch.__file__).parent}{os.sep}"
BACKENDS: tuple[Any, ...] = (torch.cuda, torch.xpu, torch.mps, torch.mtia, torch.accelerator)
TO: Any = torch.Tensor.to
TYPE: Any = torch.Tensor.type
# Methods of a tensor that name a device by their own name, and classes of tensors.
MOVES = tuple(name for name in KINDS | {"ipu"} if hasattr(torch.Tensor, name))
LEGACY = tuple(name for name in vars(torch) if name.endswith("Tensor") and name != "Tensor")
Answer = Callable[..., Any]  # own, *args, **kwargs → what is answered; own is what torch itself would


class Idle:
    """In place of a stream, an event or a chosen device: it has nothing to do, which takes no time."""

    def __enter__(self) -> "Idle":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    record = record_event = wait = wait_event = wait_stream = synchronize = _nothing

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds between two events."""
        return 0.0


def _to_model(answer: object) -> Answer:
    """The answer to a model; torch itself is told what is so."""

    def ask(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if _is_of_torch(sys._getframe(2)) else answer

    return ask


def _is_of_torch(asking: FrameType) -> bool:
    return asking.f_code.co_filename.startswith(TORCH)


def _always(answer: object = None) -> Answer:
    return lambda own, *args, **kwargs: answer


def _idle(own: Callable[..., Any], *_: Any, **__: Any) -> Idle:
    return Idle()


def _state(own: Callable[..., Any], *_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _refused(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _is_of_torch(sys._getframe(2)):
        return own(*args, **kwargs)
    raise RuntimeError(
        f"models are measured on a CPU, where {own.__name__} of an accelerator has no answer: "
        "ask is_available() before, which is False there"
    )


def _of_cpu(own: Callable[..., Any], kind: Any) -> Any:
    return own(_named_on_cpu(kind))


def _on_one(
    own: Callable[..., Any], module: nn.Module, inputs: Any, device_ids: Any = None, output_device: Any = None,
    dim: int = 0, module_kwargs: Any = None,
) -> Any:  # fmt: skip
    """What a model gives that is spread over devices: on one."""
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*inputs, **(module_kwargs or {}))


def _read_on_cpu(own: Callable[..., Any], file: Any, map_location: Any = None, *rest: Any, **settings: Any) -> Any:
    """A script, whose file says where its weights lay."""
    elsewhere = map_location is None or is_accelerator(map_location)
    return own(file, CPU if elsewhere else map_location, *rest, **settings)


def _named_on_cpu(kind: Any) -> Any:
    """The type of tensors on the CPU for one of an accelerator: of "torch.cuda.HalfTensor" "torch.HalfTensor"."""
    if isinstance(kind, type) and is_accelerator(kind.__module__.rpartition(".")[2]):
        return getattr(torch, kind.__name__, kind)
    if not isinstance(kind, str):
        return kind
    first, _, rest = kind.partition(".")
    backend, _, name = rest.partition(".")
    return f"{first}.{name}" if name and is_accelerator(backend) else kind


def _home(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """In place of what moves a tensor to an accelerator."""
    return tensor.cpu()


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``tensor.to()``, the CPU for any accelerator; a number is the index of one."""
    if args and (is_accelerator(args[0]) or type(args[0]) is int):
        args = (CPU, *args[1:])
    if is_accelerator(kwargs.get("device")) or type(kwargs.get("device")) is int:
        kwargs["device"] = CPU
    return TO(tensor, *args, **kwargs)


def _type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``tensor.type()``, likewise: "torch.cuda.HalfTensor" names a type and a device."""
    if args:
        args = (_named_on_cpu(args[0]), *args[1:])
    return TYPE(tensor, *args, **kwargs)


# Functions of a backend by their names. They stay the objects that they are: parts of torch that a pass loads first
# put them into tables, which outlast it.
ANSWERS: Mapping[str, Answer] = {
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), _to_model(False)),
    "device_count": _to_model(0),
    "current_accelerator": _to_model(None),
    **dict.fromkeys(("current_device", "current_device_index"), _always(0)),
    **dict.fromkeys(("synchronize", "set_device", "set_device_index", "empty_cache", "set_stream"), _always()),
    "set_rng_state": _always(),
    "get_rng_state": _state,
    **dict.fromkeys(("current_stream", "default_stream", "stream"), _idle),
    **dict.fromkeys(("get_device_properties", "get_device_capability", "get_device_name", "mem_get_info"), _refused),
}
# Their classes, by the methods that would ask the machine.
CLASSES: Mapping[tuple[str, str], Answer] = {
    ("Stream", "__new__"): _idle, ("Event", "__new__"): _idle,
    ("device", "__enter__"): _always(), ("device", "__exit__"): _always(),
}  # fmt: skip


def _answered() -> Iterator[tuple[FunctionType, Answer]]:
    """Functions of torch and what they answer."""
    for backend in BACKENDS:
        places = [(backend, name, answer) for name, answer in ANSWERS.items()]
        places += [(getattr(backend, kind, None), name, answer) for (kind, name), answer in CLASSES.items()]
        for owner, name, answer in places:
            function = vars(owner).get(name) if owner is not None else None
            function = getattr(function, "__func__", function)  # of a static method, as __new__ is
            if isinstance(function, FunctionType):
                yield function, answer
    yield cast("FunctionType", torch.set_default_tensor_type), _of_cpu
    yield cast("FunctionType", nn.parallel.data_parallel), _on_one
    yield cast("FunctionType", torch.jit.load), _read_on_cpu


ANSWERED = tuple(_answered())
# What names a device by its own name, and what stands there.
REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch.backends.mps, "is_available", wraps(torch.backends.mps.is_available)(lambda: False)),
    *((torch.Tensor, name, _home) for name in MOVES),
    *((kind, "cuda", lambda storage, *_, **__: storage) for kind in (torch.UntypedStorage, torch.TypedStorage)),
    (torch.Tensor, "to", _to),
    (torch.Tensor, "type", _type),
    (torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor),
    (torch.Tensor, "record_stream", lambda *_: None),
    *((backend, kind, getattr(torch, kind)) for backend in BACKENDS for kind in LEGACY if hasattr(backend, kind)),
    (nn.DataParallel, "forward", lambda spread, *args, **kwargs: spread.module(*args, **kwargs)),
)


@contextmanager
def without_accelerators() -> Iterator[None]:
    """No accelerator is there in this context, whatever the machine has; what is moved to one stays on the CPU."""
    with recoded(ANSWERED), replaced(REPLACED):
        yield


class MadeOnCPU(TorchFunctionMode):
    """What is made inside on an accelerator that is named is made on the CPU, and its memory is not pinned."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch with the CPU in the place of any other device."""
        kwargs = kwargs or {}
        if is_accelerator(device := kwargs.get("device")) or type(device) is int:
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if any(map(is_accelerator, args)):
            args = tuple(CPU if is_accelerator(each) else each for each in args)
        return func(*args, **kwargs)


@contextmanager
def on_cpu() -> Iterator[None]:
    """What is made in this context lies on the CPU, and no accelerator is there."""
    with without_accelerators(), default_on_cpu(), MadeOnCPU():
        yield


def default_on_cpu() -> AbstractContextManager[Any]:
    """What is made in this context lies on the CPU where no device is named, whatever somebody's default is."""
    return nullcontext() if torch.get_default_device() == CPU else CPU


@contextmanager
def read_onto_cpu() -> Iterator[None]:
    """What torch unpickles in this context lies on the CPU, wherever it lay when it was saved."""
    restored: Any = torch.serialization.default_restore_location

    def restore(storage: Any, location: str) -> Any:
        return restored(storage, CPU.type if is_accelerator(location) else location)

    with replaced([(torch.serialization, "default_restore_location", restore)]), on_cpu():
        yield
