"""Claims on torch models whose weights are cast, or packed, where they are multiplied."""

from __future__ import annotations

import warnings
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Bound, Claim, Kind
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.table import transform_table

pytestmark = pytest.mark.needs_torch


class Autocast(nn.Module):
    """A layer whose weight is cast to bfloat16 while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: torch.Tensor = self.layer(x)
        return out


def applied(key: str, target: object, shape: tuple[int, ...], **settings: object) -> Applied:
    transform = transform_table()[key]
    given = {each.key: each.default for each in transform.settings} | settings
    source = ModelSource("torch", target, InputSpecs((TensorSpec("float32", shape),)))
    return apply_transform(source, Transformation(key, given), tables())


def test_weights_cast_by_autocast_count() -> None:
    """Tiles of four make ⌈9/4⌉ · ⌈6/4⌉ = 6 products, of weights that are cast copies."""
    done = applied("tile_linear", Autocast, (1, 9), tile=(None, 4, 4))
    assert [op.name for op in done.changed.model.graph.ops].count("aten::linear") == 3 * 2
    found = done.verify(Claim(seeds=(0,)))
    assert found.outcome == "within", found.reason


class Packed(nn.Module):
    """Two layers whose weights quantize_dynamic packs into objects that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(9, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).relu())
        return out


def packed(model: nn.Module) -> nn.Module:
    """Dynamically quantised linear layers: int8 weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated, and stays supported here
        made: nn.Module = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return made


def test_packed_weights_count() -> None:
    """A rough bound holds; each layer is executed once, by weights that are no tensors."""
    done = applied("apply", Packed, (1, 9), apply=f"{__name__}:packed")
    found = done.verify(Claim(Kind.LOSSY, bounds={Bound.MAX_ABS: Fraction(10**6)}, seeds=(0,)))
    assert found.outcome == "within", found.reason
