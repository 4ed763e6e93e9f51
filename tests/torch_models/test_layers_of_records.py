"""The layer table of layers that take and give tensors in dicts, records and objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.reports.layer_table import layer_table
from pytest_modelbudget.torch_models.module import load

pytestmark = pytest.mark.needs_torch
ROWS = ((4, 8),)  # the shape of one tensor


@dataclass
class Record:
    x: torch.Tensor
    before: Any = None


@dataclass
class Slotted:
    __slots__ = ("x",)
    x: torch.Tensor


class Named(NamedTuple):
    x: torch.Tensor
    step: int = 0


def circle(x: torch.Tensor) -> Record:
    record = Record(x)
    record.before = [record]
    return record


WAYS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "dict": (lambda x: {"x": x, "step": 0}, lambda held: held["x"]),
    "dict of dicts": (lambda x: {"a": {"x": x}}, lambda held: held["a"]["x"]),
    "list of dicts": (lambda x: [{"x": x}], lambda held: held[0]["x"]),
    "dataclass": (Record, lambda held: held.x),
    "dataclass with slots": (Slotted, lambda held: held.x),
    "dataclass that holds itself": (circle, lambda held: held.x),
    "named tuple": (Named, lambda held: held.x),
    "dict of dataclasses": (lambda x: {"a": Record(x)}, lambda held: held["a"].x),
}


class Layer(nn.Module):
    """One product, of what came in a container, in a container."""

    def __init__(self, into: Callable[[torch.Tensor], Any], out_of: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.into, self.out_of = into, out_of

    def forward(self, held: Any) -> Any:
        return self.into(self.out_of(held) @ self.weight)


class Net(nn.Module):
    def __init__(self, layer: nn.Module, into: Callable[..., Any], out_of: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.into, self.out_of = layer, into, out_of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_of(self.layer(self.into(x)))


def row_of_layer(net: nn.Module) -> Any:
    source = ModelSource("torch", net, InputSpecs((TensorSpec("float32", (4, 8)),)))
    model = load(source, builtin_ops())
    rows = layer_table(model, CostedGraph(model.graph, builtin_ops())).rows
    return next(row for row in rows if row.scope == "layer")


@pytest.mark.parametrize(("into", "out_of"), WAYS.values(), ids=WAYS)
def test_a_layer_gives_what_is_in_its_result(into: Callable[..., Any], out_of: Callable[..., torch.Tensor]) -> None:
    """4 rows of 8 floats are 128 bytes, whatever holds them."""
    row = row_of_layer(Net(Layer(into, out_of), into, out_of))
    assert (row.inputs, row.outputs, row.output_nbytes) == (ROWS, ROWS, 4 * 8 * 4)


def test_what_an_object_knows_is_no_input() -> None:
    """A result with attributes is one all the same."""
    row = row_of_layer(Net(Layer(lambda x: SimpleNamespace(x=x), lambda x: x), lambda x: x, lambda held: held.x))
    assert (row.inputs, row.outputs, row.output_nbytes) == (ROWS, ROWS, 4 * 8 * 4)
    row = row_of_layer(Net(Layer(lambda x: x, lambda held: held.x), lambda x: SimpleNamespace(x=x), lambda x: x))
    assert (row.inputs, row.output_nbytes) == ((), 4 * 8 * 4)
