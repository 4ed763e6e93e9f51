"""A module with a scripted part is as before after it was measured, in every way of measuring."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.errors import TraceError

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8


class Part(nn.Module):
    """Runs its layer in the first call, and changes all that it holds."""

    calls: int
    seen: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(8, 8), 0, [7]
        self.register_buffer("sum", torch.zeros(1))
        self.scale = torch.ones(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.sum.add_(1)
        self.scale.mul_(2)
        return self.layer(x) if self.calls == 1 else x * self.scale + self.sum


class Holder(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.part, self.way = torch.jit.script(Part()), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "real" and float(x.sum()) > 1e9:
            return x
        with torch.autocast("cpu", enabled=self.way == "fake"):  # which tensors on meta do not see
            return self.part(x)


@pytest.mark.parametrize("way", ["meta", "fake", "real"])
def test_a_scripted_part_is_as_before(way: str) -> None:
    """Its weights are the same tensors with the same values, and its attributes those that it had."""
    model: Any = Holder(way).eval()
    weight, values = model.part.layer.weight, model.part.layer.weight.clone()
    for _ in range(2):
        measured = measure(model, "float32 3x8")
        assert (measured.traced, measured["macs"].value) == (way, ONE)
        assert model.part.layer.weight is weight
        assert torch.equal(weight, values)
        assert (model.part.calls, model.part.seen) == (0, [7])
        assert (model.part.sum.item(), model.part.scale.item()) == (0, 1)
    x = torch.ones(3, 8)
    with torch.autocast("cpu", enabled=False):
        assert torch.equal(model.part(x), nn.functional.linear(x, weight, model.part.layer.bias))


PARTS: dict[str, Callable[[nn.Module], Any]] = {
    "traced": lambda layer: torch.jit.trace(layer, torch.zeros(3, 8)),
    "frozen": lambda layer: torch.jit.freeze(torch.jit.script(layer)),
}


@pytest.mark.parametrize("made", PARTS.values(), ids=PARTS)
def test_a_part_that_stands_twice_is_as_before(made: Callable[[nn.Module], Any]) -> None:
    """Also one that keeps its weights as constants of its program."""
    part = made(nn.Linear(8, 8).eval())
    model, x = nn.Sequential(part, nn.ReLU(), part), torch.ones(3, 8)
    before = model(x)
    measured = measure(model, "float32 3x8")["macs"]
    assert (measured.value, measured.complete) == (2 * ONE, True)
    assert torch.equal(model(x), before)


def test_a_copy_within_a_run_is_one() -> None:
    """A run prints no values of a memory that it is given: they have not left torch."""

    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.l(copy.deepcopy(x)) if float(x.sum()) < 1e9 else x

    measured = measure(Copies(), "float32 3x8")
    assert (measured.traced, measured["macs"].value, measured["macs"].complete) == ("real", ONE, True)


class Deep(nn.Module):
    """Counts in tensors within what it holds."""

    counts: dict[str, list[torch.Tensor]]
    pair: tuple[int, torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.counts, self.pair = {"n": [torch.zeros(1)]}, (0, torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = float(self.counts["n"][0].add_(1).item()) + float(self.pair[1].add_(1).item()) == 2.0
        return self.layer(x) if first else x * 1


def test_tensors_within_are_as_before() -> None:
    model: Any = nn.Sequential(torch.jit.script(Deep())).eval()
    for _ in range(3):
        assert measure(model, "float32 3x8")["macs"].value == ONE
    assert (model[0].counts["n"][0].item(), model[0].pair[1].item()) == (0, 0)


class Chosen(nn.Module):
    """A layer, and a factor where values say so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if bool(x.sum() > 1e9):
            y = y * 2
        return y


class TooWide(Chosen):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([x, x], 1))


def test_a_part_in_which_values_choose_is_run() -> None:
    """Without values its interpreter fails alike on meta and fake tensors, without a word of why."""
    measured = measure(nn.Sequential(nn.ReLU(), torch.jit.script(Chosen())), "float32 3x8")
    assert (measured.traced, measured["macs"].value) == ("real", 3 * 8 * 8)
    with pytest.raises(TraceError, match=r"in the layer 1 \(RecursiveScriptModule, given 3x8\)"):
        measure(nn.Sequential(nn.ReLU(), torch.jit.script(TooWide())), "float32 3x8")
