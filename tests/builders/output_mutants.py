"""Networks with two outputs, and copies that return what they should not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_modelbudget.torch_models.weights import redraw
from tests.builders.torch_and_onnx_mutants import DROPOUT


class TwoOutputs(nn.Module):
    """A network, and a layer that makes of its output a second one of the same size.

    outputs makes of both what is returned.
    """

    def __init__(self, net: nn.Module, size: int) -> None:
        super().__init__()
        self.net = net
        self.second = nn.Linear(size, size)
        self.outputs: Callable[..., Any] = lambda first, second: (first, second)

    def forward(self, x: torch.Tensor) -> Any:
        first = self.net(x)
        return self.outputs(first, self.second(first))


def two_outputs(net: nn.Module, size: int) -> TwoOutputs:
    """A copy of the network, and a second output, on drawn weights."""
    model = TwoOutputs(copy.deepcopy(net), size)
    redraw(model)
    return model


class LeftOn(nn.Dropout):
    """Drops at random in eval mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.p, training=True)


def dropout_left_on(model: TwoOutputs) -> TwoOutputs:
    """The last of the network's dropouts, under its own name."""
    other = copy.deepcopy(model)
    path = [name for name, each in other.named_modules() if isinstance(each, nn.Dropout)][-1]
    parent, _, name = path.rpartition(".")
    setattr(other.get_submodule(parent), name, LeftOn())
    return other


def returning(outputs: Callable[..., Any]) -> Callable[[TwoOutputs], TwoOutputs]:
    def wrong(model: TwoOutputs) -> TwoOutputs:
        other = copy.copy(model)
        other.outputs = outputs
        return other

    return wrong


# What is made of a model, and what the reason must say.
OUTPUT_MUTANTS: dict[str, tuple[Callable[[TwoOutputs], TwoOutputs], str]] = {
    "outputs swapped": (returning(lambda first, second: (second, first)), "output '0'"),
    "output missing": (returning(lambda first, second: (first,)), "tuple(0: tensor) in place"),
    "output added": (returning(lambda first, second: (first, second, first)), "2: tensor) in"),
    "type changed": (returning(lambda first, second: (first, second.double())), "output '1' is float64 and was"),
    DROPOUT: (dropout_left_on, "float64 outputs differ"),
}
