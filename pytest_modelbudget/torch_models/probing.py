"""Values on the way of a torch model, handed out one by one while it runs.

A model of modules gives what its modules return. TorchScript and exported programs run no modules: they give what
their operators do, under the module that calls them, or in a frozen script that owns the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import _disable_current_modes

from pytest_modelbudget.formats.model import LayerValue, Probe
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.bodies import RunningMode
from pytest_modelbudget.torch_models.outputs import output_tensors
from pytest_modelbudget.torch_models.recording import is_taken_apart, signature
from pytest_modelbudget.torch_models.scopes import ModuleScopes, WeightScopes
from pytest_modelbudget.torch_models.tracing import NameOf, WatchedScopes
from pytest_modelbudget.torch_models.values import dtype_of, tensors_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ProbedValues:
    """Hands values to a probe, those of a layer's later calls under names of their own: "relu", "relu #2"."""

    probe: Probe
    read: Callable[[torch.Tensor], NDArray[Any]]
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, scope: str, types: tuple[str, ...], results: Iterable[torch.Tensor], holds: bool) -> None:
        """What one call gave; several tensors are called "lstm", "lstm[1]". Numbers alone are values."""
        tensors = [tensor for tensor in results if tensor.dtype != torch.bool and not tensor.is_complex()]
        if not tensors or not self.probe.wants(scope, types, holds):
            return
        self.calls[name] += 1
        again = f" #{self.calls[name]}" if self.calls[name] > 1 else ""
        with _disable_current_modes():
            for at, tensor in enumerate(tensors):
                own = f"{name}{f'[{at}]' if at else ''}{again}"
                dtype = dtype_of(tensor.dtype).name
                self.probe.take(LayerValue(own, scope, types[0], dtype, self.read(tensor)))


class ProbedOperators(RunningMode):
    """Hands out what operators give that make new values, each as the outermost one that a rule knows."""

    def __init__(self, probed: ProbedValues, scopes: WatchedScopes, rules: OpTable, name_of: NameOf) -> None:
        super().__init__()
        self._probed, self._scopes, self._rules, self._name_of = probed, scopes, rules, name_of
        self._scope = ""

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and hand out its results."""
        if is_taken_apart(func, self._rules):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        called, read = signature(func), list(tensors_in(args))
        name = called.spelling(self._rules)
        if isinstance(self._scopes, WeightScopes):  # which a recorder alone tells what operators read
            own = (self._name_of(tensor).rpartition(".")[0] for tensor in read)
            self._scope = next(filter(None, own), self._scope)
        else:
            self._scope = self._scopes.scope_of(())
        kinds = (self._rules[name].kind,) if name in self._rules else ()
        plain = called.name.rpartition(":")[2]
        label = ".".join(filter(None, (self._scope, plain)))
        made = (each for each in tensors_in(result) if called.mutates or not any(each.is_set_to(one) for one in read))
        self._probed.add(label, self._scope, (plain, name, *kinds), made, False)
        return result


@contextmanager
def probing(
    probed: ProbedValues, model: nn.Module, scopes: WatchedScopes, rules: OpTable, name_of: NameOf
) -> Iterator[None]:
    """Hand values out while the context lasts."""
    if not isinstance(scopes, ModuleScopes):
        with ProbedOperators(probed, scopes, rules, name_of):
            yield
        return
    paths = {id(module): path for path, module in model.named_modules()}

    def returned(module: nn.Module, args: Any, result: Any) -> None:
        if id(module) in paths:
            path, types = paths[id(module)], (type(module).__name__,)
            probed.add(path, path, types, output_tensors(result), bool(module._modules))

    hook = register_module_forward_hook(returned)
    try:
        yield
    finally:
        hook.remove()
