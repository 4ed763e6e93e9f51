"""Inputs without elements: a model that reads nothing else would cost nothing, and that is no measurement."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from pytest_modelbudget import InputError, measure
from tests.builders.onnx_graphs import model, node, stored, value

pytestmark = pytest.mark.needs_torch


class Cached(nn.Module):
    """A Linear 4 → 2 over past rows and new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([past, x]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("inputs", ["float32 0x4", "float32 0x3x4", ["float32 0x4", "float32 0x4"]])
def test_no_element_at_all_is_refused(inputs: str | list[str]) -> None:
    made = Cached() if isinstance(inputs, list) else nn.Linear(4, 2)
    with pytest.raises(InputError, match="no input has an element, and so every cost would be 0"):
        measure(made, inputs)


def test_a_symbol_that_is_bound_to_0_is_refused(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], [value("x", "N", 4)], [value("y", "N", 2)], [stored("w", 4, 2)])
    onnx.save(proto, tmp_path / "net.onnx")
    assert measure(tmp_path / "net.onnx", dims={"N": 3})["macs"].value == 3 * 4 * 2
    with pytest.raises(InputError, match="give sizes of 1 and more"):
        measure(tmp_path / "net.onnx", dims={"N": 0})


def test_one_of_several_is_said() -> None:
    """A cache of 0 past rows is a first step: 3 rows by 4 by 2."""
    measured = measure(Cached(), ["float32 3x4", "float32 0x4"])
    assert measured["macs"].value == 3 * 4 * 2
    assert measured.notes == ("input input.1 has a size of 0",)
