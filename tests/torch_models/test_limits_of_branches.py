"""Parts and minima of torch models in which data decide what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.metrics.measurement import Measurement, part_of

pytestmark = pytest.mark.needs_torch

BIG = 4 * 64 * 64
SMALL = 4 * 64 * 16


class Parts(nn.Module):
    """4,096 weights in big, 1,024 in small."""

    def __init__(self, choose: Callable[[Parts, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.big = nn.Linear(64, 64, bias=False)
        self.small = nn.Linear(64, 16, bias=False)
        self.choose = choose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.choose(self, x)

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.big(x))

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.small(x)] * 4, 1)

    def neither(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def either(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one, self.wide, (x,))

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0, self.wide, self.neither, (x,))

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        """The second branch begins with what reads no weight."""
        return self.either(torch.cond(x.sum() > 1, self.one, lambda x: self.one(x.relu()), (x,)))

    def nested(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one, self.inner, (x,))


def macs_of(choose: Callable[[Parts, torch.Tensor], torch.Tensor]) -> Measurement:
    return measure(Parts(choose).eval(), inputs="float32 4x64").macs


@pytest.mark.parametrize(
    ("choose", "most", "least", "in_small"),
    [
        pytest.param(Parts.either, BIG, SMALL, (0, False), id="one of two"),
        pytest.param(Parts.nested, BIG, 0, (0, False), id="a choice within the branch that is not counted"),
        pytest.param(lambda net, x: net.either(net.either(x)), 2 * BIG, 2 * SMALL, (0, False), id="two choices"),
        pytest.param(Parts.inner, SMALL, 0, (SMALL, True), id="the other branch has none"),
        pytest.param(Parts.one, BIG, BIG, (0, True), id="no choice"),
    ],
)
def test_parts_and_minima(
    choose: Callable[[Parts, torch.Tensor], torch.Tensor], most: int, least: int, in_small: tuple[int, bool]
) -> None:
    """The most is counted, and all of it; of a part what is counted there; the least over all paths."""
    macs = macs_of(choose)
    part = part_of(macs, "small")
    assert (macs.value, macs.complete, macs.least) == (most, True, least)
    assert (part.value, part.complete) == in_small


def test_of_several_choices_the_most_is_said() -> None:
    """Both take their other branch."""
    (op,) = part_of(macs_of(lambda net, x: net.either(net.either(x))), "small").unmeasured
    assert op.op == "torch::cond"
    assert op.why.startswith(f"{2 * SMALL / 1000:.2f} kMAC where data take")


def by_scope(number: Measurement) -> dict[str, int]:
    return {share.scope: share.value for share in number.shares}


@pytest.mark.parametrize("choice", ["either", "inner", "nested", "twice"])
def test_what_an_exported_branch_runs_belongs_to_the_owner_of_its_weights(tmp_path: Path, choice: str) -> None:
    """Its nodes name no module; a limit on one would be held with nothing of it."""
    model, x = Parts(getattr(Parts, choice)).eval(), torch.ones(4, 64)
    with torch.no_grad():
        torch.export.save(torch.export.export(model, (x,)), tmp_path / "net.pt2")
    eager, exported = measure(model, x)["macs"], measure(tmp_path / "net.pt2")["macs"]
    assert by_scope(exported) == by_scope(eager)
    for part in ("big", "small"):
        here, there = part_of(eager, part), part_of(exported, part)
        for each in ("value", "least", "most", "complete"):
            assert getattr(there, each) == getattr(here, each), each
