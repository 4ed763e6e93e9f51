"""Values that the layers of a torch model return while it runs: handed out one by one, or kept with their readers.

A model of modules gives what its modules return. TorchScript and exported programs run no modules: a probe gets what
their operators return, under the module that calls them, or in a script that owns the weight.
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

from pytest_modelbudget.formats.model import LayerOutput, LayerValue, Probe
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.torch_models.bodies import RunningMode
from pytest_modelbudget.torch_models.module_paths import ModuleScopes, WeightScopes
from pytest_modelbudget.torch_models.outputs import output_tensors
from pytest_modelbudget.torch_models.recording import Scopes, is_taken_apart, signature
from pytest_modelbudget.torch_models.rewriting import has_memory
from pytest_modelbudget.torch_models.tracing import NameOf
from pytest_modelbudget.torch_models.values import dtype_of, tensors_in
from pytest_modelbudget.torch_models.versions import disable_current_modes, memory_of, submodules_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

INPUT = -1  # among positions of layers
NOWHERE: frozenset[int] = frozenset()


@contextmanager
def _behind_each_layer(note: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Have every module of the process call this with its arguments and result."""
    hook = register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True, slots=True)
class ProbedValues:
    """Hands values to a probe, those of a layer's later calls under names of their own: "relu", "relu #2"."""

    probe: Probe
    read: Callable[[torch.Tensor], NDArray[Any]]
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, scope: str, types: tuple[str, ...], results: Iterable[torch.Tensor], holds: bool) -> None:
        """Hand out the results of one call; several tensors are called "lstm", "lstm[1]". Numbers alone are values."""
        tensors = [tensor for tensor in results if tensor.dtype != torch.bool and not tensor.is_complex()]
        if not tensors or not self.probe.wants(scope, types, holds):
            return
        self.calls[name] += 1
        again = f" #{self.calls[name]}" if self.calls[name] > 1 else ""
        with disable_current_modes():
            for at, tensor in enumerate(tensors):
                own = f"{name}{f'[{at}]' if at else ''}{again}"
                dtype = dtype_of(tensor.dtype).name
                self.probe.take(LayerValue(own, scope, types[0], dtype, self.read(tensor)))


class ProbedOperators(RunningMode):
    """Hands out what operators give that make new values, each as the outermost one that a rule knows."""

    def __init__(self, probed: ProbedValues, scopes: Scopes, rules: OpTable, name_of: NameOf) -> None:
        super().__init__()
        self._probed, self._scopes, self._rules, self._name_of = probed, scopes, rules, name_of

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
            scope = next(filter(None, own), "")
        else:
            scope = self._scopes.scope_of(())
        kinds = (self._rules[name].kind,) if name in self._rules else ()
        plain = called.name.rpartition(":")[2]
        label = ".".join(filter(None, (scope, plain)))
        made = (each for each in tensors_in(result) if called.mutates or not any(each.is_set_to(one) for one in read))
        self._probed.add(label, scope, (plain, name, *kinds), made, False)
        return result


@contextmanager
def probing(probed: ProbedValues, model: nn.Module, scopes: Scopes, rules: OpTable, name_of: NameOf) -> Iterator[None]:
    """Hand values out while the context lasts."""
    if not isinstance(scopes, ModuleScopes):
        with ProbedOperators(probed, scopes, rules, name_of):
            yield
        return
    paths = {id(module): path for path, module in model.named_modules()}

    def returned(module: nn.Module, args: Any, result: Any) -> None:
        if id(module) in paths:
            path, types = paths[id(module)], (type(module).__name__,)
            probed.add(path, path, types, output_tensors(result), bool(submodules_of(module)))

    with _behind_each_layer(returned):
        yield


@dataclass(frozen=True, slots=True)
class _Seen:
    """The first floating tensor that a layer or an operator gave, and the layers that it comes from."""

    path: str
    value: torch.Tensor
    sources: frozenset[int]


class SeenLayers(RunningMode):
    """Keeps what each layer below a model returns; of_operators also what each operator does, without a name.

    Where a value comes from is followed through every operator, by its memory: views and results in place share it.
    So a layer is known to read another one across functions, sums and branches that are no modules.
    """

    def __init__(self, model: nn.Module, inputs: Iterable[torch.Tensor], *, of_operators: bool) -> None:
        super().__init__()
        self._paths = {id(module): path for path, module in model.named_modules() if path}
        self._of_operators = of_operators
        self._seen: list[_Seen] = []
        self._operators: list[torch.Tensor] = []
        self._sources = {_memory(tensor): frozenset({INPUT}) for tensor in inputs}

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, and follow where its results come from."""
        read = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
        result = func(*args, **kwargs)
        sources = self._of(read)
        shared = {_memory(tensor) for tensor in read}
        for tensor in tensors_in(result):
            memory = _memory(tensor)
            self._sources[memory] = sources
            is_new = memory not in shared or (has_memory(tensor) and tensor.nbytes < tensor.untyped_storage().nbytes())
            if self._of_operators and tensor.is_floating_point() and is_new:
                self._operators.append(tensor.clone())
        return result

    def _of(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        return NOWHERE.union(*(self._sources.get(_memory(tensor), NOWHERE) for tensor in tensors))

    def _note(self, module: nn.Module, args: Any, result: Any) -> None:
        path = self._paths.get(id(module))
        tensors = [tensor for tensor in output_tensors(result) if tensor.is_floating_point()]
        if path is None or not tensors:
            return
        sources = self._of(tensors)
        position = len(self._seen)
        with disable_current_modes():  # a copy: an in-place operation that follows would change what was returned
            self._seen.append(_Seen(path, tensors[0].clone(), sources))
        for tensor in tensors:
            self._sources[_memory(tensor)] = frozenset({position})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See layers and operators while the context lasts."""
        with _behind_each_layer(self._note), self:
            yield

    def outputs(self, returned: Iterable[torch.Tensor]) -> tuple[LayerOutput, ...]:
        """Layers in the order in which they end, then what operators gave."""
        ends = self._of(returned)
        moving: set[int] = {INPUT}
        readers: dict[int, list[int]] = {}
        for at, seen in enumerate(self._seen):
            if seen.sources & moving:
                moving.add(at)
            for source in seen.sources:
                readers.setdefault(source, []).append(at)
        layers = (
            LayerOutput(
                seen.path, seen.path, _array(seen.value), tuple(readers.get(at, ())), at in ends, at not in moving
            )
            for at, seen in enumerate(self._seen)
        )
        return (*layers, *(LayerOutput("", "", _array(tensor)) for tensor in self._operators))


def _memory(tensor: torch.Tensor) -> int:
    return memory_of(tensor) if has_memory(tensor) else id(tensor)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.double().detach().cpu().numpy()
