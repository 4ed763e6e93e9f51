"""Devices other than the CPU: what names one stays on the CPU, and none is there."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_modelbudget.errors import TraceError
from pytest_modelbudget.torch_models import versions
from pytest_modelbudget.torch_models.environment import replaced

CPU = torch.device("cpu")
KINDS = frozenset({"cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu"})  # as torch and its plugins call their devices
# How torch tells of others, of what was saved there, and of any of them out of C++.
NOT_THERE = (
    "Found no NVIDIA driver",
    "not compiled with CUDA",
    "compiled without CUDA",
    "has no attribute '_cuda_",
    "from the 'CUDA' backend",
    "an error when deserializing the saved file",
    "not linked with support for",
    "No module named 'torch.",
    "CUDA driver version",
    "exchangeDevice",
    "Attempting to deserialize object on",
    "invalid device ordinal",
)


def is_accelerator(device: object) -> bool:
    """Whether something names a device other than the CPU, and with memory: "cuda:0", torch.device("mps")."""
    if isinstance(device, str):
        return device.partition(":")[0] in KINDS
    return isinstance(device, torch.device) and device.type in KINDS


# Methods of a tensor that name a device by their own name.
MOVES = frozenset(getattr(torch.Tensor, name) for name in KINDS | {"ipu"} if hasattr(torch.Tensor, name))
dispatched: Any = versions.HigherOrderOperator.dispatch  # torch gives no types for these two
keys_of: Any = versions.compute_keyset
NAME_DEVICES = frozenset({str, torch.device})
STAYS = frozenset({torch.Tensor.pin_memory, torch.Tensor.record_stream})


class MadeOnCPU(TorchFunctionMode):
    """What is made on an accelerator that is named, or is moved to one, is on the CPU, and its memory is not pinned."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch with the CPU in the place of any other device; a number is the index of one."""
        kwargs = kwargs or {}
        if isinstance(func, versions.HigherOrderOperator):  # whose bodies are code of the model
            if not versions.SEES_BODIES and versions.current_modes():
                raise TraceError(versions.lacks(f"following {func}", "2.10"))
            key = keys_of(args, kwargs, func.non_fallthrough_keys).highestPriorityTypeId()
            with self:
                return dispatched(func, key, *args, **kwargs)
        if func in MOVES:
            return args[0].cpu()
        if func in STAYS:
            return args[0]
        if is_accelerator(device := kwargs.get("device")) or type(device) is int:
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], CPU, *args[2:])
        if func is torch.Tensor.type:
            args = tuple(map(_type_on_cpu, args))
        elif not NAME_DEVICES.isdisjoint(map(type, args)) and any(map(is_accelerator, args)):
            args = tuple(CPU if is_accelerator(each) else each for each in args)
        return func(*args, **kwargs)


def _type_on_cpu(kind: Any) -> Any:
    """The name of a type of tensors on the CPU for one of an accelerator: "torch.HalfTensor"."""
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__name__}"
    if isinstance(kind, str):
        parts = kind.split(".")
        return ".".join(part for part in parts if not is_accelerator(part))
    return kind


def is_there() -> bool:
    """Whether this machine has an accelerator."""
    return any(backend.is_available() for backend in versions.DEVICES)


def without_accelerators() -> Iterator[tuple[Any, str, Any]]:
    """Yield attributes and replacements by which no accelerator is available, and starting one fails."""

    def start() -> None:
        raise RuntimeError(NOT_THERE[0])

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: False,
        "device_count": lambda: 0,
        "current_accelerator": lambda check_available=False: None,
        versions.LAZY_START: start,
    }
    there = [(backend, name) for backend in versions.DEVICES if backend.is_available() for name in answers]
    yield from ((owner, name, answers[name]) for owner, name in there if hasattr(owner, name))


def default_on_cpu() -> AbstractContextManager[Any]:
    """What is made in this context is on the CPU where no device is named, whatever the default device is."""
    return nullcontext() if torch.get_default_device() == CPU else CPU


@contextmanager
def on_cpu() -> Iterator[None]:
    """What is made in this context lies on the CPU, and no accelerator is there."""
    with replaced(without_accelerators()), default_on_cpu(), MadeOnCPU():
        yield


@contextmanager
def read_onto_cpu() -> Iterator[None]:
    """What torch unpickles in this context lies on the CPU, wherever it lay when it was saved."""
    restored: Any = torch.serialization.default_restore_location
    read: Any = torch.jit.load

    def restore(storage: Any, location: str) -> Any:
        return restored(storage, CPU.type if is_accelerator(location) else location)

    def read_script(file: Any, map_location: Any = None, *rest: Any, **settings: Any) -> Any:
        elsewhere = map_location is None or is_accelerator(map_location)
        return read(file, CPU if elsewhere else map_location, *rest, **settings)

    places = [(torch.serialization, "default_restore_location", restore), (torch.jit, "load", read_script)]
    with replaced(places), on_cpu():
        yield


@contextmanager
def copied_onto(device: torch.device) -> Iterator[None]:
    """Tensors that are deep-copied in this context lie on a device, wherever those that they are copies of do."""

    def of(own: Callable[[Any, dict[int, Any]], Any]) -> Callable[[Any, dict[int, Any]], Any]:
        def copied(tensor: Any, memo: dict[int, Any]) -> Any:
            if id(tensor) in memo or tensor.device.type in (device.type, "meta"):
                return own(tensor, memo)
            same = tensor.detach().to(device)
            if isinstance(tensor, nn.Parameter) and not isinstance(same, nn.Parameter):
                same = type(tensor)(same)
            memo[id(tensor)] = same.requires_grad_(tensor.requires_grad)
            vars(same).update(copy.deepcopy(vars(tensor), memo))
            return same

        return copied

    with replaced([(owner, "__deepcopy__", of(owner.__deepcopy__)) for owner in (torch.Tensor, nn.Parameter)]):
        yield


NO_ANSWER = (
    "models are measured on a CPU, where there is no accelerator: ask is_available() before, which is False there"
)


def asks_for_one(error: BaseException | None) -> bool:
    """Whether code failed because it asks for an accelerator that is not there, as ``.cuda()`` does.

    Also where it has caught that, and raised something else.
    """
    while error is not None:
        if _is_started(error) or any(words in str(error) for words in NOT_THERE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_started(error: BaseException) -> bool:
    """Whether an error was raised where torch starts an accelerator."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code.co_name == versions.LAZY_START
