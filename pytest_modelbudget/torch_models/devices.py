"""What a forward pass asks of the device of its tensors: a branch on it must be that of a run."""

import dis
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from pytest_modelbudget.torch_models.recording import Recorder

OWN: Any = torch._C.TensorBase.device
CPU_OWN: Any = torch._C.TensorBase.is_cpu
OWN_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
COMPARES = frozenset({"COMPARE_OP", "CONTAINS_OP", "IS_OP"})
ENDS = ("STORE_", "POP_JUMP", "JUMP", "RETURN", "YIELD")  # of an expression


@contextmanager
def devices_watched(recorder: Recorder, way: str) -> Iterator[None]:
    """On meta, code that compares devices ends the pass: fake tensors, which are tried next, are on the CPU."""
    if way != "meta":
        yield
        return

    def device(tensor: torch.Tensor) -> Any:
        own = OWN.__get__(tensor)
        if own.type == "meta" and asks_for_a_branch(sys._getframe(1).f_code):
            recorder.refuse("compares the device of a tensor")
        return own

    def is_cpu(tensor: torch.Tensor) -> bool:
        if OWN.__get__(tensor).type == "meta" and not is_own(sys._getframe(1).f_code):
            recorder.refuse("asks whether a tensor is on the CPU")
        return bool(CPU_OWN.__get__(tensor))

    watched: Any = torch.Tensor
    watched.device, watched.is_cpu = property(device), property(is_cpu)
    try:
        yield
    finally:
        del watched.device, watched.is_cpu


def is_own(code: CodeType) -> bool:
    """Whether code is torch's, whose kernels for tensors without memory ask too, or this project's."""
    return code.co_filename.startswith(OWN_CODE)


def asks_for_a_branch(code: CodeType) -> bool:
    """Whether code of a model compares devices. Codes of two files may be equal: only what is in them is kept."""
    return not is_own(code) and compares_devices(code)


@cache
def compares_devices(code: CodeType) -> bool:
    """Whether an expression of this code compares a device with "cpu" or "meta", or two devices."""
    named = asked = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(ENDS):
            named = asked = 0
        elif instruction.opname == "LOAD_CONST":
            named += _names_a_device(instruction.argval)
        elif instruction.opname == "LOAD_ATTR":
            asked += instruction.argval == "device"
        elif instruction.opname in COMPARES and (named or asked > 1):
            return True
    return False


def _names_a_device(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(map(_names_a_device, value))
    return isinstance(value, str) and value.startswith(("cpu", "meta"))
