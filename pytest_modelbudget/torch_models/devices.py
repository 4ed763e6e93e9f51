"""What a forward pass asks of the device of its tensors: without memory they answer as in a run, on the CPU."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_modelbudget.torch_models.isolation import function_modes, set_function_modes
from pytest_modelbudget.torch_models.patches import replaced
from pytest_modelbudget.torch_models.recording import META, Recorder

OWN_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
# What is asked, by its owner and name, and the answer of a run.
ANSWERS: tuple[tuple[Any, str, Any], ...] = (
    (torch.Tensor, "device", torch.device("cpu")),
    (torch.Tensor, "is_cpu", True),
    (torch.Tensor, "is_meta", False),
    (torch.UntypedStorage, "device", torch.device("cpu")),
    (torch.TypedStorage, "device", torch.device("cpu")),
)
# They give what has its values already, and on the CPU is often that itself.
OF_VALUES: frozenset[Callable[..., Any]] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.to, torch.Tensor.new_tensor}
)


class MadeOnMeta(TorchFunctionMode):
    """Takes the CPU for meta in a pass that was told the CPU: what is made there has no memory."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch; one that draws from a generator stays on the CPU, as the generator does."""
        kwargs = kwargs or {}
        takes_values = func in OF_VALUES or kwargs.get("generator") is not None
        if "device" in kwargs and is_the_cpu(kwargs["device"]) and not takes_values:
            kwargs = {**kwargs, "device": META}
        return func(*args, **kwargs)


def is_the_cpu(device: Any) -> bool:
    """Whether an argument, a device or the name of one, is the CPU."""
    return getattr(device, "type", device) in ("cpu", "cpu:0")


class Answers:
    """Tells the model what a run would, and operators, which ask too, the truth."""

    def __init__(self, recorder: Recorder, way: str) -> None:
        self._recorder = recorder
        self._mode = MadeOnMeta()
        self._is_on_meta = way == "meta"
        self._has_told = False

    def to_attribute(self, own: Any, device: Any, answer: Any) -> property:
        """An attribute with this answer, where device tells that its owner is on meta."""

        def ask(value: Any) -> Any:
            if device.__get__(value) != META or not self._is_model(sys._getframe(1)):
                return own.__get__(value)
            self._tell()
            return answer

        return property(ask)

    def to_type(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """The method ``type`` of tensors, whose answer holds the name of the device."""

        def ask(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            answer = own(tensor, *args, **kwargs)
            if not isinstance(answer, str) or not self._is_model(sys._getframe(1)):
                return answer
            return answer.replace("torch.meta.", "torch.")

        return ask

    def _is_model(self, frame: FrameType) -> bool:
        """Whether the model asks. The recorder is no mode while an operator runs."""
        is_own = frame.f_code.co_filename.startswith(OWN_CODE)
        return not is_own and self._recorder in _get_current_dispatch_mode_stack()

    def _tell(self) -> None:
        """Take the CPU for meta from now on.

        The mode that does is outside of those that the model has entered, which it leaves before, and inside of torch's
        own for a default device, which torch keeps outermost.
        """
        if self._is_on_meta and not self._has_told:
            self._has_told = True
            modes = function_modes()
            outermost = sum(isinstance(mode, DeviceContext) for mode in modes)
            set_function_modes((*modes[:outermost], self._mode, *modes[outermost:]))

    def end(self) -> None:
        """Take the CPU for itself again."""
        if self._has_told:
            set_function_modes([mode for mode in function_modes() if mode is not self._mode])


@contextmanager
def devices_answered(recorder: Recorder, way: str) -> Iterator[None]:
    """A forward pass in this context, without memory, is told that its tensors are on the CPU."""
    if way == "real":
        yield
        return
    answers = Answers(recorder, way)
    places = [
        (owner, name, answers.to_attribute(getattr(owner, name), owner.device, answer))
        for owner, name, answer in ANSWERS
    ]
    try:
        with replaced([*places, (torch.Tensor, "type", answers.to_type(torch.Tensor.type))]):
            yield
    finally:
        answers.end()
