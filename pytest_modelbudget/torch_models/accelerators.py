"""Models that were written, built or saved for an accelerator: they are read, and run, on the CPU."""

import copy
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pytest_modelbudget.torch_models.patches import replaced

CPU = torch.device("cpu")
KINDS = frozenset({"cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu"})  # as torch and its plugins call their devices
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
STARTS = "_lazy_init"  # what torch calls first of an accelerator, and what fails where there is none
BACKENDS = (torch.cuda, torch.xpu, torch.accelerator)
TO: Any = torch.Tensor.to
# Methods of a tensor that name a device by their own name.
MOVES = {name: getattr(torch.Tensor, name) for name in KINDS | {"ipu"} if hasattr(torch.Tensor, name)}


def is_accelerator(device: object) -> bool:
    """Whether something names a device other than the CPU, and with memory: "cuda:0", torch.device("mps")."""
    if isinstance(device, str):
        return device.partition(":")[0] in KINDS
    return isinstance(device, torch.device) and device.type in KINDS


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


def _as_if_absent(owner: Any) -> Callable[[], bool]:
    """Whether there is an accelerator: a model is told that there is none, torch itself and whoever keeps this not."""
    own: Callable[[], bool] = owner.is_available

    @functools.wraps(own)
    def is_available() -> bool:
        is_of_torch = sys._getframe(1).f_code.co_filename.startswith(TORCH)
        return own() if is_of_torch or owner.is_available is not is_available else False

    return is_available


# What a pass asks of the machine and tells it, and what stands there: everything is on the CPU.
ABSENT: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    *((owner, "is_available", _as_if_absent(owner)) for owner in (*BACKENDS, torch.backends.mps)),
    *((owner, "synchronize", lambda *_, **__: None) for owner in BACKENDS),
    *((torch.Tensor, name, _home) for name in MOVES),
    (torch.Tensor, "to", _to),
    (torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor),
    (nn.DataParallel, "forward", lambda spread, *args, **kwargs: spread.module(*args, **kwargs)),
)


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
    """What is made in this context lies on the CPU, and no accelerator is there, whatever the machine has."""
    with ExitStack() as stack:
        stack.enter_context(replaced(ABSENT))
        if torch.get_default_device() != CPU:
            stack.enter_context(CPU)
        stack.enter_context(MadeOnCPU())
        yield


@contextmanager
def read_onto_cpu() -> Iterator[None]:
    """What torch unpickles in this context lies on the CPU, wherever it lay when it was saved."""
    restored: Any = torch.serialization.default_restore_location

    def restore(storage: Any, location: str) -> Any:
        return restored(storage, CPU.type if is_accelerator(location) else location)

    with replaced([(torch.serialization, "default_restore_location", restore)]), on_cpu():
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


def asks_for_one(error: BaseException | None) -> bool:
    """Whether code failed because it asks for an accelerator that is not there, as ``.cuda()`` does."""
    innermost = None if error is None else error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code.co_name == STARTS
