"""Devices other than the CPU: what names one, and copies on the CPU of what lies there."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pytest_modelbudget.torch_models.patching import replaced

CPU = torch.device("cpu")
KINDS = frozenset({"cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu"})  # as torch and its plugins call their devices
STARTS = "_lazy_init"  # what torch calls first of most accelerators, and what fails where there is none
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
    return innermost is not None and innermost.tb_frame.f_code.co_name == STARTS
