"""Orders, arenas and peaks of whole networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_modelbudget.deployment.arena import PLANNERS, buffers_of, planned
from pytest_modelbudget.deployment.order import best_order, reordered
from tests.builders.programs import IMAGE, peak, program

pytestmark = [pytest.mark.needs_torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def separable(kernel: int) -> nn.Module:
    """ReLU, depthwise, pointwise, norm; twice, as NASNet has it."""
    once = [
        nn.ReLU(),
        nn.Conv2d(44, 44, kernel, padding=kernel // 2, groups=44, bias=False),
        nn.Conv2d(44, 44, 1, bias=False),
        nn.BatchNorm2d(44),
    ]
    return nn.Sequential(*once, *once)


class NormalCell(nn.Module):
    """NASNet-A's normal cell: five pairs of branches over the last two results, put side by side.

    Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", 2018, figure 4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threes = nn.ModuleList(separable(3) for _ in range(3))
        self.fives = nn.ModuleList(separable(5) for _ in range(2))
        self.pool = nn.AvgPool2d(3, 1, padding=1)

    def forward(self, h: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        pairs = [
            self.threes[0](h) + h,
            self.threes[1](before) + self.fives[0](h),
            self.pool(h) + before,
            self.pool(before) + self.pool(before),
            self.fives[1](before) + self.threes[2](before),
        ]
        return torch.cat([before, *pairs], 1)


class Cells(nn.Module):
    """Three of them, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(NormalCell() for _ in range(3))
        self.fit = nn.ModuleList(nn.Conv2d(6 * 44, 44, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, h = x, x
        for cell, fit in zip(self.cells, self.fit, strict=True):
            before, h = h, fit(cell(h, before))
        return h


@pytest.mark.parametrize("lowering", [{"fold_batchnorm": False, "fuse_activations": ()}, {"dtype": "int8"}], ids=str)
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        pytest.param("torchvision.models:googlenet", IMAGE, id="GoogLeNet"),
        pytest.param("torchvision.models:densenet121", IMAGE, id="DenseNet-121"),
        pytest.param("torchvision.models:inception_v3", "float32 1x3x299x299", id="Inception-v3"),
        pytest.param("torchvision.models:squeezenet1_1", IMAGE, id="SqueezeNet"),
        pytest.param(Cells().eval(), "float32 1x44x28x28", id="NASNet's cell"),
    ],
)
def test_the_best_order_of_networks_with_branches_is_proved(
    model: object, inputs: str, lowering: dict[str, object]
) -> None:
    """And best ≤ peak ≤ arena, whatever planner places the buffers."""
    graph = program(model, inputs, **lowering).lowered.graph
    best = best_order(graph)
    assert best.proved
    assert best.nbytes == peak(reordered(graph, best.order)) <= peak(graph)
    for planner in PLANNERS:
        arena = planned(buffers_of(graph), planner=planner, align=1)
        assert arena.bound == peak(graph) <= arena.nbytes
