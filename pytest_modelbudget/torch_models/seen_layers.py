"""Outputs of a torch model's layers in one run, and which layer reads which.

Where a value comes from is followed through every operator, by the memory that it lies in: views and
what is written in place share it. So a layer is known to read another one across functions, sums
and branches that no module stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import _disable_current_modes

from pytest_modelbudget.formats import model as models
from pytest_modelbudget.torch_models.bodies import RunningMode
from pytest_modelbudget.torch_models.outputs import output_tensors
from pytest_modelbudget.torch_models.rewriting import has_memory
from pytest_modelbudget.torch_models.values import tensors_in

INPUT = -1  # among positions of layers
NOWHERE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Seen:
    """The first floating tensor that a layer or an operator gave, and the layers that it comes from."""

    path: str
    value: torch.Tensor
    sources: frozenset[int]


class SeenLayers(RunningMode):
    """Keeps what each layer below a model returns; of_operators also what each operator does, without a name."""

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
        with _disable_current_modes():  # a copy: an in-place operation that follows would change what was returned
            self._seen.append(_Seen(path, tensors[0].clone(), sources))
        for tensor in tensors:
            self._sources[_memory(tensor)] = frozenset({position})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See layers and operators while the context lasts."""
        hook = register_module_forward_hook(self._note)
        try:
            with self:
                yield
        finally:
            hook.remove()

    def outputs(self, returned: Iterable[torch.Tensor]) -> tuple[models.LayerOutput, ...]:
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
            models.LayerOutput(
                seen.path, seen.path, _array(seen.value), tuple(readers.get(at, ())), at in ends, at not in moving
            )
            for at, seen in enumerate(self._seen)
        )
        return (*layers, *(models.LayerOutput("", "", _array(tensor)) for tensor in self._operators))


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if has_memory(tensor) else id(tensor)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.double().detach().cpu().numpy()
