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

from pytest_modelbudget.torch_models.accelerators import CPU
from pytest_modelbudget.torch_models.environment import function_modes, set_function_modes
from pytest_modelbudget.torch_models.patching import replaced
from pytest_modelbudget.torch_models.recording import Recorder
from pytest_modelbudget.torch_models.values import META

# Of a tensor, as in a run; the device is known again where the pass hands it on.
ATTRIBUTES = {"device": CPU, "is_cpu": True, "is_meta": False}
STORAGES = (torch.UntypedStorage, torch.TypedStorage)
OWN_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
# They give what has its values already, and on the CPU is often that itself.
OF_VALUES: frozenset[Callable[..., Any]] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.to, torch.Tensor.new_tensor}
)


class MadeOnMeta(TorchFunctionMode):
    """What a pass makes on the device that it was given for an answer has no memory."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch; one that draws from a generator stays on the CPU, as the generator does."""
        kwargs = kwargs or {}
        takes_values = func in OF_VALUES or kwargs.get("generator") is not None
        if kwargs.get("device") is CPU and not takes_values:
            kwargs = {**kwargs, "device": META}
        return func(*args, **kwargs)


class Answers:
    """Gives the model the answer of a run, and operators, which ask too, their own."""

    def __init__(self, recorder: Recorder, way: str) -> None:
        self._recorder = recorder
        self._mode = MadeOnMeta()
        self._is_on_meta = way == "meta"
        self._is_entered = False

    def of_attribute(self, owner: Any, name: str) -> property:
        """An attribute of tensors or of their memories."""
        own, device = getattr(owner, name), owner.device

        def ask(value: Any) -> Any:
            if device.__get__(value) != META or not self._is_asked_by_model(sys._getframe(1)):
                return own.__get__(value)
            self._enter()
            return ATTRIBUTES[name]

        return property(ask)

    def of_type(self) -> Callable[..., Any]:
        """The method ``type`` of tensors, whose answer holds the name of the device."""
        own = torch.Tensor.type

        def ask(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            answer = own(tensor, *args, **kwargs)
            if not isinstance(answer, str) or not self._is_asked_by_model(sys._getframe(1)):
                return answer
            return answer.replace("torch.meta.", "torch.")

        return ask

    def _is_asked_by_model(self, frame: FrameType) -> bool:
        """Whether this is code of the model, outside of operators: while one runs, the recorder is no mode."""
        is_own = frame.f_code.co_filename.startswith(OWN_CODE)
        return not is_own and self._recorder in _get_current_dispatch_mode_stack()

    def _enter(self) -> None:
        """Enter the mode that follows an answer.

        It stands outside of those that the model has entered, which it leaves before, and inside of torch's own for a
        default device, which torch keeps outermost.
        """
        if self._is_on_meta and not self._is_entered:
            self._is_entered = True
            modes = function_modes()
            outermost = sum(isinstance(mode, DeviceContext) for mode in modes)
            set_function_modes((*modes[:outermost], self._mode, *modes[outermost:]))

    def leave(self) -> None:
        """Leave that mode, wherever it stands."""
        if self._is_entered:
            set_function_modes([mode for mode in function_modes() if mode is not self._mode])


@contextmanager
def as_on_cpu(recorder: Recorder, way: str) -> Iterator[None]:
    """A forward pass in this context, on tensors without memory, finds them on the CPU."""
    answers = Answers(recorder, way)
    asked = [*((torch.Tensor, name) for name in ATTRIBUTES), *((storage, "device") for storage in STORAGES)]
    places = [(owner, name, answers.of_attribute(owner, name)) for owner, name in asked]
    try:
        with replaced([*places, (torch.Tensor, "type", answers.of_type())]):
            yield
    finally:
        answers.leave()
