"""The module path of each operator of a pass, and the calls of layers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from pytest_modelbudget.formats.model import LayerCall
from pytest_modelbudget.graph.graph import UNKNOWN_LAYER, Operand
from pytest_modelbudget.graph.tensor import StorageKind, Tensor
from pytest_modelbudget.torch_models.outputs import given_tensors, output_tensors
from pytest_modelbudget.torch_models.values import TorchValues
from pytest_modelbudget.torch_models.versions import CALL, submodules_of
from pytest_modelbudget.torch_models.weights import ModuleTree


class ModuleScopes:
    """The path of the innermost running module, which a function in place of torch's own follows during a trace.

    The hooks of a module run in it. Hooks on every module would follow the same calls, by a detour that takes longer
    than most operators. A script calls its modules without Python: there, whatever reads a weight runs in its owner.
    """

    def __init__(self, values: TorchValues, modules: ModuleTree) -> None:
        self._stack = [""]
        self._paths = {id(module): name for name, module in modules}
        self._scripts = {name for name, module in modules if isinstance(module, torch.jit.ScriptModule)}
        self._scripts_of_several = {name.rpartition(".")[0] for name in self._scripts} & self._scripts
        self._values = values
        self.calls: list[LayerCall] = []

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the running module, or of the part of a script that owns the first weight among the operands."""
        path = self._stack[-1]
        owner = owner_of(operands) if self._scripts else ""
        if owner in self._scripts and (not path or owner.startswith(f"{path}.")):
            return owner
        return f"{path}.{UNKNOWN_LAYER}" if path in self._scripts_of_several and owner is None else path

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        yield nn.Module, CALL, self._followed(getattr(nn.Module, CALL))

    def _followed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function that calls a module, and follows its path."""
        paths, stack = self._paths, self._stack

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = paths.get(id(module))
            if path is None:  # made by forward, or of no module of the model
                return call(module, *args, **kwargs)
            stack.append(path)
            try:
                result = call(module, *args, **kwargs)
            except Exception:
                self._leave(module, args, kwargs, None)
                raise
            self._leave(module, args, kwargs, result)
            return result

        return called

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if len(args) == 1 and not kwargs else (*args, *kwargs.values())
        kind = type(module)
        self.calls.append(
            LayerCall(
                self._stack.pop(), kind.__name__, self._seen(given, given_tensors),
                self._seen(result, output_tensors), kernel_of(module), not submodules_of(module),
            )
        )  # fmt: skip

    def _seen(self, value: Any, tensors_of: Callable[[Any], Iterator[torch.Tensor]]) -> tuple[Tensor, ...]:
        """Values of the graph among what a module takes or returns."""
        known = self._values.known
        if type(value) is torch.Tensor:
            seen = known(value)
            return () if seen is None else (seen,)
        return tuple([seen for seen in map(known, tensors_of(value)) if seen is not None])


def kernel_of(module: nn.Module) -> tuple[int, ...]:
    """The window of a convolution or pooling module; () for any other."""
    size = getattr(module, "kernel_size", None)
    if size is None:
        return ()
    if isinstance(size, int):
        return (size, size) if "2d" in type(module).__name__ else (size,)
    if isinstance(size, (tuple, list)) and all(isinstance(k, int) for k in size):
        return tuple(size)
    return ()


def owner_of(operands: tuple[Operand, ...]) -> str | None:
    """Path of the module that owns the first weight among these; None where none is a module's."""
    for operand in operands:
        for tensor in operand if isinstance(operand, tuple) else (operand,):
            if tensor is not None and not tensor.storage.is_activation:
                owner, dot, _ = tensor.name.rpartition(".")
                if dot and tensor.storage.kind is not StorageKind.CONSTANT:
                    return owner
    return None


class WeightScopes:
    """For scripts, which call their modules without Python: the owner of a weight that an operator reads."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that owns the first weight among the operands, "?" where none does."""
        owner = owner_of(operands)
        return UNKNOWN_LAYER if owner is None else owner

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        return iter(())


class NodeScopes:
    """For exported programs, whose nodes carry the stack of modules they came from.

    Those of a branch or a body carry none, and of an nn.Sequential torch < 2.7 writes none that is a path ("getattr"):
    they belong to the owner of a weight that they read, and to that of the operator before them where they read none.
    """

    def __init__(self) -> None:
        self._current = ""
        self._is_in_body = self._is_unnamed = False
        self.calls: list[LayerCall] = []

    def enter(self, stack: Mapping[str, tuple[str, Any]] | None) -> None:
        """Take the path of the innermost module; calls after the first are written path@1."""
        if stack:
            path, _ = list(stack.values())[-1]
            self._is_unnamed = path == "getattr"
            if not self._is_unnamed:
                self._current = path.partition("@")[0]

    def scope_of(self, operands: tuple[Operand, ...]) -> str:
        """Path of the module that the running node came from."""
        if self._is_in_body or self._is_unnamed:
            self._current = owner_of(operands) or self._current
        return self._current

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """A call of a branch or body, which is followed."""
        call = getattr(nn.Module, CALL)

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = self._current, self._is_in_body
            self._is_in_body |= isinstance(module, fx.GraphModule)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._current, self._is_in_body = before

        yield nn.Module, CALL, called
