"""Where in the module tree an operator runs, while hooks watch the calls."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from pytest_modelbudget.formats.model import LayerCall
from pytest_modelbudget.graph.graph import Operand
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.torch_models.recording import tensors_in
from pytest_modelbudget.torch_models.values import TorchValues
from pytest_modelbudget.torch_models.weights import ModuleTree


class ModuleScopes:
    """The path of the innermost running module, kept by hooks that exist only during a trace."""

    def __init__(self, values: TorchValues, modules: ModuleTree) -> None:
        self._paths = {id(module): name for name, module in modules}
        self._stack = [""]
        self._values = values
        self.calls: list[LayerCall] = []

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that is running; operands tell nothing more."""
        return self._stack[-1]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow every module call."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._stack.append(self._paths.get(id(module), self._stack[-1]))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scope = self._stack.pop()
        if id(module) not in self._paths:
            return
        self.calls.append(
            LayerCall(
                scope,
                type(module).__name__,
                self._seen((*args, *kwargs.values())),
                self._seen(result),
                kernel_of(module),
                leaf=not module._modules,
            )
        )

    def _seen(self, value: Any) -> tuple[Tensor, ...]:
        """Values of the graph among what a module takes or returns."""
        parts = tuple(value.values()) if isinstance(value, Mapping) else value
        values = [self._values.known(tensor) for tensor in tensors_in(parts)]
        return tuple([value for value in values if value is not None])


def kernel_of(module: nn.Module) -> tuple[int, ...]:
    """The window of a convolution or pooling module; () for any other."""
    size = getattr(module, "kernel_size", ())
    if isinstance(size, int):
        return (size, size) if "2d" in type(module).__name__ else (size,)
    if isinstance(size, (tuple, list)) and all(isinstance(k, int) for k in size):
        return tuple(size)
    return ()


class WeightScopes:
    """For operators that carry no path: the owner of a weight that the op reads.

    An op that reads none runs where the op before it ran.
    """

    def __init__(self) -> None:
        self._last = ""
        self.calls: list[LayerCall] = []

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that owns the first weight among the operands."""
        for operand in operands:
            for tensor in operand if isinstance(operand, tuple) else (operand,):
                if tensor is not None and not tensor.storage.is_activation:
                    owner, dot, _ = tensor.name.rpartition(".")
                    if dot and tensor.storage.kind is not StorageKind.CONSTANT:
                        self._last = owner
                        return owner
        return self._last

    def watching(self) -> AbstractContextManager[None]:
        """Nothing to follow."""
        return nullcontext()


class NodeScopes:
    """For exported programs, whose nodes carry the stack of modules they came from."""

    def __init__(self) -> None:
        self._current = ""
        self.calls: list[LayerCall] = []

    def enter(self, stack: Mapping[str, tuple[str, Any]] | None) -> None:
        """Take the path of the innermost module; calls after the first are written path@1."""
        if stack:
            path, _ = list(stack.values())[-1]
            self._current = path.partition("@")[0]

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that the running node came from."""
        return self._current

    def watching(self) -> AbstractContextManager[None]:
        """Nothing to follow."""
        return nullcontext()
