"""Inputs of a torch model: without memory, or drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_modelbudget.errors import InputError
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, TensorSpec

Maker = Callable[[TensorSpec], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Arguments of one forward call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of every input, lists flattened: "0", "1.0", "mask"."""
        for position, value in enumerate(self.args):
            yield from _flat(str(position), value)
        for name, value in self.kwargs.items():
            yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for position, element in enumerate(value):
            yield from _flat(f"{name}.{position}", element)


def call_inputs(specs: InputSpecs, make: Maker) -> CallInputs:
    """The arguments that specs describe; a nested spec becomes a list of tensors."""

    def made(spec: InputSpec) -> Any:
        return make(spec) if isinstance(spec, TensorSpec) else [made(part) for part in spec]

    return CallInputs(
        tuple(made(spec) for spec in specs.positional),
        {name: made(spec) for name, spec in specs.named.items()},
    )


def empty(spec: TensorSpec, device: str) -> torch.Tensor:
    """A tensor of this type and shape whose values nobody looks at."""
    return torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device=device)


def drawn(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Seeded values: N(0, 1) for floating types, uniform in [low, high) for integers."""
    dtype = dtype_named(spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(spec.shape, generator=generator).to(dtype)
    low, high = spec.low or 0, spec.high if spec.high is not None else 2
    return torch.randint(low, high, spec.shape, generator=generator).to(dtype)


def dtype_named(name: str) -> torch.dtype:
    """torch's element type of this name; raises InputError where there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"'{name}' is no element type of torch: write float32, int64, bool, …")
    return found
