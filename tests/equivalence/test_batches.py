"""Stacked rows are a short cut, and only for models that treat each row by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.torch_models.weights import redraw

pytestmark = pytest.mark.needs_torch

Call = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Called(nn.Module):
    """A layer of 8 by 8, called as ``call`` says."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.call = call
        redraw(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.fc, x)


def right(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = fc(x)
    return result


def at_size(rows: int) -> Call:
    """Wrong where just so many rows come at once."""
    return lambda fc, x: right(fc, x) + float(len(x) == rows)


def attention(scale: float) -> Call:
    """Rows are tokens that look at each other."""
    return lambda fc, x: torch.softmax(scale * right(fc, x) @ x.T, -1) @ x


def scaled(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Every call is rounded to a grid of its own, as dynamic quantisation does."""
    scale = x.abs().max() / 127
    return right(fc, (x / scale).round() * scale)


@pytest.mark.parametrize(
    ("spec", "call", "outcome"),
    [
        pytest.param("1x8", right, "within", id="right"),
        pytest.param("1x8", at_size(1), "over", id="wrong at the declared size"),
        pytest.param("3x8", at_size(3), "over", id="wrong at a larger declared size"),
        pytest.param("1x8", at_size(9), "over", id="wrong where rows are stacked"),
        pytest.param("1x8", scaled, "over", id="no number for zeros"),
    ],
)
def test_the_declared_size_is_run(spec: str, call: Call, outcome: str) -> None:
    """Three families of three seeds are stacked, and a normal row and zeros are run as declared."""
    first, second = Called(right), Called(call)
    assert check_equivalence(first, second, f"float32 {spec}").outcome == outcome


def test_rows_that_look_at_each_other_are_run_alone() -> None:
    """Beside large values those of the other families would count for nothing."""
    first, second = Called(attention(1.0)), Called(attention(1.0 + 1e-6))
    found = check_equivalence(first, second, "float32 5x8")
    assert found.outcome == "over"
    same = check_equivalence(first, copy.deepcopy(first), "float32 5x8")
    assert same.outcome == "within"


def test_a_lossy_claim_is_held_on_the_declared_size() -> None:
    """One grid for all families would leave nothing of the small ones."""

    def grid(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return scaled(fc, x) if x.any() else right(fc, x)

    bounds = {"kind": "lossy", "bounds": {"sqnr": 30}}
    assert check_equivalence(Called(right), Called(grid), "float32 1x8", **bounds).outcome == "within"
