"""``tile: {products: 64}`` on torch models: every operator that multiplies matrices, down to tile products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables

pytestmark = pytest.mark.needs_torch

Shapes = tuple[tuple[int, ...], ...]


class Computes(nn.Module):
    """A model whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def tiled(
    model: nn.Module, shapes: Shapes, tile: tuple[int | None, int, int] = (None, 8, 8), edge: str = "ragged",
    dtype: str = "float32", layers: tuple[str, ...] = ("*",),
) -> Applied:  # fmt: skip
    specs = InputSpecs(tuple(TensorSpec(dtype, shape) for shape in shapes))
    settings: Mapping[str, object] = {"products": tile, "edge": edge, "layers": layers}
    return apply_transform(ModelSource("torch", model, specs), Transformation("tile", settings), tables())


def macs(model: Any) -> int:
    value = metric_table()["macs"].measure(CostedGraph(model.graph, builtin_ops())).value
    assert isinstance(value, int)
    return value


def sizes(model: Any) -> list[tuple[int, ...]]:
    """The matrices of every operation that multiplies: rows, summed elements and columns."""
    rules = builtin_ops()
    return [
        (*op.tensors()[0].shape[-2:], op.tensors()[1].shape[-1])
        for op in model.graph.ops
        if op.name in rules and rules[op.name].kind in {"matmul", "linear"}
    ]


def test_a_product_of_two_activations_is_eight() -> None:
    """Subgraph (2) of the lab: A·B of 128³ is 2 · 2 · 2 products of 64³, and equal to 1e-12."""
    done = tiled(Computes(torch.matmul), ((128, 128), (128, 128)), (None, 64, 64), dtype="float64")
    assert sizes(done.changed.model) == [(64, 64, 64)] * 8
    assert [each.became for each in done.changed.changes] == ["8 products of 64x64x64"]
    found = done.verify(Claim())
    assert found.outcome is Outcome.WITHIN
    assert max(each.algebra or 0.0 for each in found.outputs) < 1e-12


ATTENTION = ((2, 3, 20, 10),) * 3
GROUPED = ((2, 4, 20, 10), (2, 2, 20, 10), (2, 2, 20, 10))


def einsum(equation: str) -> nn.Module:
    return Computes(lambda *given: torch.einsum(equation, *given))


# The model, its inputs, and its MACs worked out by hand.
RIGHT: dict[str, tuple[Callable[[], nn.Module], Shapes, int]] = {
    "matmul": (lambda: Computes(torch.matmul), ((10, 20), (20, 12)), 10 * 20 * 12),
    "matmul of stacks": (lambda: Computes(torch.matmul), ((3, 1, 10, 20), (2, 20, 12)), 6 * 10 * 20 * 12),
    "vector": (lambda: Computes(torch.matmul), ((10, 20), (20,)), 10 * 20),
    "two vectors": (lambda: Computes(lambda a, b: (a @ b) + a), ((20,), (20,)), 20),
    "bmm": (lambda: Computes(torch.bmm), ((3, 10, 20), (3, 20, 12)), 3 * 10 * 20 * 12),
    "baddbmm": (
        lambda: Computes(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2)),
        ((3, 10, 12), (3, 10, 20), (3, 20, 12)),
        3 * 10 * 20 * 12,
    ),
    "addmm": (
        lambda: Computes(lambda c, a, b: torch.addmm(c, a, b, alpha=2)),
        ((12,), (10, 20), (20, 12)),
        10 * 20 * 12,
    ),
    "einsum of heads": (lambda: einsum("bhld,bhsd->bhls"), ((2, 3, 10, 20), (2, 3, 9, 20)), 6 * 10 * 20 * 9),
    "einsum of three": (lambda: einsum("ij,jk,kl->il"), ((9, 20), (20, 10), (10, 5)), 9 * 20 * 10 + 9 * 10 * 5),
    "attention": (lambda: Computes(F.scaled_dot_product_attention), ATTENTION, 2 * 6 * 20 * 20 * 10),
    "causal attention": (
        lambda: Computes(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True)),
        ATTENTION,
        2 * 6 * 20 * 20 * 10,
    ),
    "attention of groups": (
        lambda: Computes(lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True)),
        GROUPED,
        2 * 8 * 20 * 20 * 10,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(24, 2, 40, batch_first=True),
        ((2, 10, 24),),
        20 * (4 * 24 * 24 + 2 * 24 * 40) + 2 * 4 * 10 * 10 * 12,
    ),
    "LSTM": (lambda: nn.LSTM(20, 12), ((5, 2, 20),), 10 * 4 * 12 * (20 + 12)),
    "LSTM, both ways, two layers": (
        lambda: nn.LSTM(20, 12, 2, bidirectional=True, batch_first=True),
        ((2, 3, 20),),
        6 * 2 * 4 * 12 * ((20 + 12) + (24 + 12)),
    ),
    "GRU": (lambda: nn.GRU(20, 12), ((5, 2, 20),), 10 * 3 * 12 * (20 + 12)),
    "RNN": (lambda: nn.RNN(20, 12, nonlinearity="relu"), ((5, 2, 20),), 10 * 12 * (20 + 12)),
    "LSTM cell": (lambda: nn.LSTMCell(20, 12), ((2, 20),), 2 * 4 * 12 * (20 + 12)),
    "GRU cell": (lambda: nn.GRUCell(20, 12), ((2, 20),), 2 * 3 * 12 * (20 + 12)),
    "linear": (lambda: nn.Linear(20, 12), ((2, 10, 20),), 20 * 20 * 12),
    "convolution": (
        lambda: nn.Conv2d(3, 10, 3, stride=2, padding=1, dilation=2),
        ((2, 3, 11, 9),),
        2 * 10 * 27 * (5 * 4),
    ),
    "convolution, padded alike": (lambda: nn.Conv2d(3, 10, 3, padding="same"), ((1, 3, 6, 5),), 10 * 27 * 30),
    "groups": (lambda: nn.Conv2d(6, 10, 3, groups=2), ((1, 6, 6, 5),), 10 * 27 * 12),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6, bias=False), ((1, 6, 6, 5),), 6 * 9 * 12),
    "one dimension": (lambda: nn.Conv1d(6, 10, 5, padding=2), ((2, 6, 17),), 2 * 10 * 30 * 17),
    "three dimensions": (lambda: nn.Conv3d(2, 10, 3), ((1, 2, 4, 5, 6),), 10 * 54 * (2 * 3 * 4)),
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(6, 10, 3, stride=2, padding=1, output_padding=1, groups=2),
        ((2, 6, 5, 4),),
        2 * 6 * 5 * 9 * (5 * 4),
    ),
}


PADDED = ("matmul of stacks", "vector", "einsum of heads", "attention", "LSTM", "convolution", "groups")


@pytest.mark.parametrize(("name", "edge"), [*((name, "ragged") for name in RIGHT), *((name, "pad") for name in PADDED)])
def test_right_tiles_are_within_and_complete(name: str, edge: str) -> None:
    """No matrix is larger than a tile, the MACs are those of the formula, and no alarm is given."""
    make, shapes, by_hand = RIGHT[name]
    torch.manual_seed(0)
    done = tiled(make().eval(), shapes, edge=edge)
    assert macs(done.original) == by_hand
    assert all(size in range(9) for each in sizes(done.changed.model) for size in each)
    assert all(each.became for each in done.changed.changes)
    if edge == "ragged":
        assert macs(done.changed.model) == by_hand
    assert done.verify(Claim(seeds=(0,), families=("normal", "large"))).outcome is Outcome.WITHIN


def test_what_stays_whole_is_listed_with_its_share() -> None:
    """Two bilinear forms, x1ᵀ·A·x2, have no tiling, and the linear layer behind them has 60 of 360 MACs."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.form, self.last = nn.Bilinear(4, 5, 6), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.last(self.form(x, y))  # type: ignore[no-any-return]

    form_macs = 2 * 6 * (4 * 5 + 5)
    share = form_macs / (form_macs + 2 * 6 * 5)
    with pytest.raises(TransformError, match=rf"tile left 1 product whole: 'form' .*, {share:.2%} of 360 MACs"):
        tiled(Net(), ((2, 4), (2, 5)))
    (form, last) = tiled(Net(), ((2, 4), (2, 5)), layers=("!form",)).changed.changes
    assert (form.scope, form.why) == ("form", "layers: leaves it out, 83.33% of 360 MACs")
    assert last.became == "1 product of 8x8x8"
