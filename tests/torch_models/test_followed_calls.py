"""Operators stand under the module that runs, whatever hooks it has, and tensors are what they are now."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure

pytestmark = pytest.mark.needs_torch


def operators(model: nn.Module) -> dict[str, int]:
    """How many operators run in each scope, on four floats."""
    return {share.scope: int(share.value) for share in measure(model, "float32 1x4")["ops"].shares}


class Again(nn.Module):
    """Doubles its input and calls itself, once."""

    def forward(self, x: torch.Tensor, *, is_first: bool = True) -> torch.Tensor:
        result: torch.Tensor = self(x * 2, is_first=False) if is_first else torch.relu(x)
        return result


def test_hooks_of_a_module_run_in_it() -> None:
    """x * 2, the layer and + 1 of its result."""
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    layer.register_forward_hook(lambda module, args, result: result + 1)
    assert operators(nn.Sequential(layer)) == {"0": 3}


def test_a_module_with_a_hook_that_calls_itself() -> None:
    """x * 2, relu and + 1 twice."""
    again = Again()
    again.register_forward_hook(lambda module, args, result: result + 1)
    assert operators(nn.Sequential(again)) == {"0": 4}


class Fails(nn.Module):
    """A layer that raises, and is let."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")


class Tries(nn.Module):
    """Goes on without a layer that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = Fails()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            result: torch.Tensor = self.fails(x)
        except ValueError:
            return torch.relu(x)
        return result


def test_a_module_that_raises_is_left() -> None:
    """What runs after it is no part of it."""
    assert operators(nn.Sequential(Tries())) == {"0": 1}


class Assigned(nn.Module):
    """Gives a result other memory, of another shape, by something that is no operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        twice: Any = torch.cat([x, x])
        y.data = twice
        return y + 1


def test_a_tensor_that_was_given_other_data_is_the_other() -> None:
    """cat writes 8 floats, and y + 1 reads those and writes 8; what relu wrote is read by nobody, and costs nothing."""
    numbers = measure(Assigned(), "float32 1x4")
    assert numbers["total_activation"].value == (8 + 8) * 4
    assert numbers["bandwidth"].parts["read"] == (4 + 4 + 8) * 4  # cat reads its one operand once


class Swapped(nn.Module):
    """Swaps a layer's result with one row, runs the layer again on the result, and adds the row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, row = self.layer(x), x[:1] + 1
        torch.utils.swap_tensors(y, row)
        return self.layer(row) + y


class Converted(nn.Module):
    """Runs a layer in doubles, in place of whose weights torch has others for that while."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            self.layer.double()
            result: torch.Tensor = self.layer(x.double())
            self.layer.float()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        return result


ROWS, ROW, LAYER = 4 * 6 * 4, 6 * 4, (6 * 6 + 6) * 4  # bytes
# a model, the most that is alive, and what is written
SWAPS = [
    pytest.param(Swapped(), 2 * ROWS + ROW, 3 * ROWS + ROW, id="results"),  # both results, or one and the sum
    pytest.param(Converted(), 2 * (2 * ROWS + LAYER), 2 * (2 * ROWS + LAYER), id="weights"),  # x, layer, result
]


@pytest.mark.parametrize(("model", "peak", "written"), SWAPS)
def test_a_tensor_that_was_swapped_is_the_other(model: nn.Module, peak: int, written: int) -> None:
    """Each has the other's shape, type and memory from then on; torch swaps none of those that a trace keeps."""
    row = measure(model, "float32 4x6")
    assert row.traced == "real"
    assert (row["peak_activation"].value, row["total_activation"].value) == (peak, written)


class Reshaped(nn.Module):
    """Shapes a result anew in place, after it was read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        z = y + 1
        y.t_()
        return y @ z


def test_a_tensor_that_was_transposed_in_place_has_its_new_shape() -> None:
    """(4, 1) @ (1, 4)."""
    assert measure(Reshaped(), "float32 1x4")["macs"].value == 4 * 4 * 1
