"""One model of a zoo, what is measured of it, and what a second count says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.formats.source import TensorSpec

from .counting import parameters, products


@dataclass(frozen=True)
class Difference:
    """What the second count does not see (more MACs or parameters here), and why."""

    because: str
    macs: int = 0
    params: int = 0


@dataclass(frozen=True)
class Unmeasured:
    """Metrics that name operations they could not count, and why that is right."""

    because: str
    metrics: frozenset[str] = frozenset({"flops"})


@dataclass(frozen=True)
class Entry:
    """A factory, its inputs, and what is known to differ.

    runs: the second count executes the model on the CPU; else shapes alone run, on the device "meta".
    """

    build: Callable[[], nn.Module]
    inputs: Mapping[str, TensorSpec] | TensorSpec
    runs: bool = False
    differs: Difference = field(default=Difference("", 0))
    unmeasured: Unmeasured = field(default=Unmeasured("", frozenset()))


def ints(*shape: int, high: int = 2) -> TensorSpec:
    """Token indices."""
    return TensorSpec("int64", shape, low=0, high=high)


def floats(*shape: int) -> TensorSpec:
    """A float32 input."""
    return TensorSpec("float32", shape)


@dataclass(frozen=True)
class Figures:
    """Parameters, MACs, and the metrics that name operations they leave out."""

    params: int
    macs: int
    incomplete: frozenset[str]


def measured(entry: Entry) -> Figures:
    """The figures that a budget would hold."""
    numbers = measure(entry.build, entry.inputs)
    incomplete = frozenset(key for key, number in numbers.items() if not number.complete)
    return Figures(int(numbers["params"].value), int(numbers["macs"].value), incomplete)


def counted(entry: Entry) -> Figures:
    """The figures by the second count, and what is known to differ from it."""
    params, macs = _second_count(entry)
    return Figures(params + entry.differs.params, macs + entry.differs.macs, entry.unmeasured.metrics)


def _second_count(entry: Entry) -> tuple[int, int]:
    """Parameters and MACs by the second count."""
    device = "cpu" if entry.runs else "meta"
    with torch.device(device):
        module = entry.build()
        if isinstance(entry.inputs, TensorSpec):
            return parameters(module), products(module, {}, (_tensor(entry.inputs, device),))
        inputs = {name: _tensor(spec, device) for name, spec in entry.inputs.items()}
    return parameters(module), products(module, inputs)


def _tensor(spec: TensorSpec, device: str) -> Any:
    """Ones: an index that every table has, and a sample without special values."""
    return torch.ones(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
