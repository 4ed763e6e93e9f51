"""A transform that writes into the original model is found out, by the first tensor's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.registry import tables

pytestmark = pytest.mark.needs_torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)
        self.last.weight = nn.Parameter(self.first.weight.detach().t())  # tied memory
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).relu())
        return out


ORIGINAL = Net()
TOUCH: list[Callable[[Net], object]] = []


def kept() -> Net:
    """A factory that always gives the same module."""
    return ORIGINAL


def touching(model: nn.Module) -> nn.Module:
    """Gives the copy back as it is, and does something to the original."""
    with torch.no_grad():
        TOUCH[-1](ORIGINAL)
    return model


def added(net: Net) -> None:
    net.first.register_buffer("extra", torch.ones(2))


def exchanged(net: Net) -> None:
    net.last.bias = nn.Parameter(net.last.bias + 1)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The original, as it was before the test."""
    before = {name: value.clone() for name, value in ORIGINAL.state_dict().items()}
    yield
    for extra in ORIGINAL.first._buffers.copy():
        del ORIGINAL.first._buffers[extra]
    ORIGINAL.load_state_dict(before)


@pytest.mark.parametrize("target", [ORIGINAL, kept], ids=["an instance", "a factory that keeps it"])
@pytest.mark.parametrize(
    ("touch", "name"),
    [
        pytest.param(lambda net: net.first.bias.add_(0.5), "first.bias", id="a parameter"),
        pytest.param(lambda net: net.first.bias[-1].neg_(), "first.bias", id="a sign"),
        pytest.param(lambda net: net.last.bias.copy_(net.last.bias.flip(0)), "last.bias", id="an order"),
        pytest.param(lambda net: net.last.weight.data.mul_(2), "first.weight", id="tied memory"),
        pytest.param(lambda net: net.calls.add_(1), "calls", id="an integer buffer"),
        pytest.param(added, "first.extra", id="one more"),
        pytest.param(exchanged, "last.bias", id="another tensor"),
    ],
)
def test_the_first_tensor_of_the_original_that_changes_is_named(
    target: object, touch: Callable[[Net], object], name: str
) -> None:
    """The copy, which was made before, would compare as the same."""
    TOUCH.append(touch)
    with pytest.raises(TransformError, match=f"changed '{name}' of the original model"):
        applied(target)


def test_who_leaves_the_original_alone_is_let_pass() -> None:
    """Reading it, or writing the values that are there, changes nothing."""
    TOUCH.append(lambda net: net.first.bias.mul_(1))
    applied(ORIGINAL)


def applied(target: object) -> None:
    source = ModelSource("torch", target, InputSpecs((TensorSpec("float32", (2, 4)),)))
    settings = {"apply": f"{__name__}:touching"}
    assert apply_transform(source, Transformation("apply", settings), tables()).changed.model.graph
