"""Fake tensors for a trace: the shapes of meta tensors, on the CPU as far as a model can tell.

Torch's own ``FakeTensorMode`` takes 0.1 to 1 ms an operator. Here the recorder runs an operator on the meta tensors
that lie under the fake ones, and wraps what comes out. Where that fails, a trace asks torch's mode from the beginning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from pytest_modelbudget.torch_models.environment import function_modes, set_function_modes
from pytest_modelbudget.torch_models.layouts import VIEWED, as_viewed

META = torch.device("meta")
ANSWERED = torch.device("cpu")  # what a fake tensor answers; known again, as an object, where a model hands it on
ATTRIBUTES = {"device": ANSWERED, "is_cpu": True, "is_meta": False}
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
# They give what has its values already, and on the CPU is often that itself.
OF_VALUES: frozenset[Callable[..., Any]] = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.to, torch.Tensor.new_tensor}
)
_make: Any = torch.Tensor._make_subclass
_type: Any = torch.Tensor.type


class MadeFake(TorchFunctionMode):
    """What a model makes on the device of a fake tensor is fake, too; what it makes on none has values."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call one function of torch; one that draws from a generator stays on the CPU, as the generator does."""
        kwargs = kwargs or {}
        takes_values = func in OF_VALUES or kwargs.get("generator") is not None
        if kwargs.get("device") is ANSWERED and not takes_values:
            kwargs = {**kwargs, "device": META}
        return func(*args, **kwargs)


def _without_values(name: str) -> Callable[..., Any]:
    """A method that needs values: it fails as a kernel that is missing, so that a run is tried next."""

    def refuse(fake: Any, *_: Any, **__: Any) -> Any:
        raise fake.fake_mode.failed(NotImplementedError(f"{name} of a tensor without memory"))

    return refuse


class Fake(FakeTensor):
    """A fake tensor over a meta tensor, ``elem``, whose memory is also its own."""

    elem: torch.Tensor

    @property  # type: ignore[misc]  # torch's has a setter, which nobody calls
    def device(self) -> torch.device:  # type: ignore[override]
        """The CPU; from then on, what is made on the device that was told is fake."""
        mode: Any = self.fake_mode
        if mode.in_kernel_invocation:
            return META
        if not mode.is_entered and not sys._getframe(1).f_code.co_filename.startswith(TORCH):
            mode.enter()
        return ANSWERED

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return bool(self.fake_mode.in_kernel_invocation)

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return not self.fake_mode.in_kernel_invocation

    @property
    def data(self) -> Any:
        mode: Any = self.fake_mode
        return mode.wrap(self.elem.data)

    @data.setter
    def data(self, other: Any) -> None:
        mode: Any = self.fake_mode
        mode.loosen(self)
        self.elem.data = mode.unwrapped(other)
        mode.follow(self)

    def type(self, *args: Any, **kwargs: Any) -> Any:
        answer = _type(self, *args, **kwargs)
        return answer.replace("torch.meta.", "torch.") if isinstance(answer, str) else answer

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self.clone()
        return memo[id(self)]


NEED_VALUES = ("numpy", "__array__", "__dlpack__", "data_ptr", "tolist", "__format__", "share_memory_")
for _name in NEED_VALUES:
    setattr(Fake, _name, _without_values(_name))


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Makes the fake tensors of one trace; entered, it is torch's own mode.

    loosen is called before a fake tensor is given other memory; failure is the first of what needs values.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._allow_unsafe_data_ptr_access = False  # else C code gets a null address, and writes
        self.cache_enabled = False  # else views that an operator gave before are new memory the next time
        like: Any = FakeTensor(self, torch.empty(0, device=META), ANSWERED)
        self._attributes = vars(like)
        self._made = MadeFake()
        self.is_entered = False
        self.loosen: Callable[[torch.Tensor], None] = lambda tensor: None
        self.failure: BaseException | None = None

    def dispatch(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """What an operator gives; views have the strides of torch's own, also in dimensions of size 1."""
        result = super().dispatch(func, types, args, kwargs or {})
        return as_viewed(result, args) if func in VIEWED else result

    def wrap(self, elem: torch.Tensor, *, requires_grad: bool = False) -> Any:
        """A fake tensor over a meta one; torch's constructor takes six times as long."""
        fake = _make(Fake, elem, requires_grad, device_for_backend_keys=ANSWERED)
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__ = {**self._attributes, "elem": elem}
        return fake

    def unwrapped(self, value: Any) -> Any:
        """An operator's argument with meta tensors in the place of fake ones."""
        if type(value) is Fake:
            return value.elem
        if isinstance(value, (list, tuple)):
            return [self.unwrapped(each) for each in value]
        return value

    def wrapped(self, result: Any, written: Sequence[Any] = ()) -> Any:
        """An operator's result with fake tensors in the place of meta ones: what it has written stays what it was."""
        if type(result) is torch.Tensor:
            for each in written:
                if type(each) is Fake and each.elem is result:
                    return each
            return self.wrap(result) if result.is_meta else result
        if isinstance(result, (list, tuple)):
            return type(result)([self.wrapped(each, written) for each in result])
        return result

    def follow(self, fake: Any) -> None:
        """Give a fake tensor the shape and the memory that the meta tensor under it has by now."""
        elem = fake.elem
        with in_kernel_invocation_manager(self):
            fake.set_(elem.untyped_storage(), elem.storage_offset(), elem.shape, elem.stride())

    def failed(self, error: BaseException) -> BaseException:
        """Note a failure for want of values, which a forward pass may catch."""
        self.failure = self.failure or error
        return error

    def enter(self) -> None:
        """Follow what is made on the device that was told.

        Outside of modes that the model has entered, which it leaves before, and inside of torch's own for a default
        device, which torch keeps outermost.
        """
        self.is_entered = True
        modes = function_modes()
        outermost = sum(isinstance(mode, DeviceContext) for mode in modes)
        set_function_modes((*modes[:outermost], self._made, *modes[outermost:]))

    def leave(self) -> None:
        """End that, wherever it stands among the modes."""
        if self.is_entered:
            set_function_modes([mode for mode in function_modes() if mode is not self._made])
