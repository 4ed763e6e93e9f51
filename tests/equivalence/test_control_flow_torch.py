"""Operators that call functions: what runs in their bodies is compared, rewritten and watched as anything else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from tests.builders.micro_modules import Layer, in_three_rounds, row_by_row
from tests.builders.module_transforms import EXACT, numbers, tiled

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's compiler warns about many things
SHAPE = (4, 16)
LAYER = 4 * 16 * 16


def branches(m: Any, x: torch.Tensor) -> Any:
    """Two layers or one, as the data say."""
    return torch.cond(x.sum() > 0, lambda y: m.l(m.l(y)), lambda y: m.l(y), (x,))


def in_rows(m: Any, x: torch.Tensor) -> Any:
    """A branch in each of four rows."""

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        state = carry + torch.cond(row.sum() > 0, lambda y: m.l(y), lambda y: m.l(y) - 1, (row,))
        return state, state.clone()

    return scan(step, torch.zeros(16), x)


FLOWS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], int]] = {
    "scan": (row_by_row, LAYER),
    "cond": (branches, 2 * LAYER),
    "cond in scan": (in_rows, LAYER),
    "while_loop": (in_three_rounds, 3 * LAYER),
    "map": (lambda m, x: mapped(lambda row: m.l(row), x), LAYER),
    "flex_attention": (lambda m, x: flex_attention(*[m.l(x).reshape(1, 2, 4, 8)] * 3), LAYER + 2 * (2 * 4 * 4 * 8)),
}


@pytest.mark.parametrize("forward", [forward for forward, _ in FLOWS.values()], ids=FLOWS)
def test_bodies_are_compared(forward: Callable[[Any, torch.Tensor], Any]) -> None:
    """A copy is the same, and one of whose 256 weights one is another is not."""
    model = Layer(forward)
    other = copy.deepcopy(model)
    assert check_equivalence(model, other, "float32 4x16").outcome == "within"
    with torch.no_grad():
        other.l.weight[3, 5] += 1e-3
    found = check_equivalence(model, other, "float32 4x16")
    assert (found.outcome, "float64 outputs differ" in found.reason) == ("over", True)


@pytest.mark.parametrize("name", ["scan", "cond", "while_loop"])
def test_bodies_of_exported_programs_are_compared(name: str, tmp_path: Path) -> None:
    model = Layer(FLOWS[name][0]).eval()
    torch.export.save(torch.export.export(model, (torch.randn(SHAPE),)), tmp_path / "model.pt2")
    assert check_equivalence(model, tmp_path / "model.pt2", "float32 4x16").outcome == "within"


@pytest.mark.parametrize("name", FLOWS)
def test_layers_in_bodies_are_tiled(name: str) -> None:
    """As many products as before, in tiles of 8 inputs."""
    forward, macs = FLOWS[name]
    source = ModelSource("torch", lambda: Layer(forward), InputSpecs((TensorSpec("float32", SHAPE),)))
    done = tiled(source, (None, 8, 16))
    assert numbers(done)["macs"] == macs
    assert {change.became for change in done.changed.changes} == {"2 products of 8x16"}
    assert done.verify(EXACT).outcome == "within"


def test_a_branch_that_never_runs_proves_nothing() -> None:
    """A layer there may differ, and no run tells."""

    class Rare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rare, self.often = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 1e9, lambda y: self.rare(y), lambda y: self.often(y), (x,))

    model = Rare()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.rare.weight.mul_(2)
    found = check_equivalence(model, other, "float32 4x16")
    assert (found.outcome, "'rare.weight'" in found.reason) == ("unknown", True)
