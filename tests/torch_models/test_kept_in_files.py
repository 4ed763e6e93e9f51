"""What a model reads from a file and writes into in its pass is its own memory, whoever allocated it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")]

ONE = 3 * 8 * 8  # MACs of x (3, 8) through a layer 8 → 8


class Keeps(nn.Module):
    """A layer, a counter and its last result, which are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("passes", torch.zeros(1, dtype=torch.long))
        self.register_buffer("last", torch.zeros(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.add_(1)
        self.last.copy_(self.layer(x))
        return self.last * 2


class KeepsInAList(nn.Module):
    """A layer, and its last result in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), [torch.zeros(3, 8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last[0].add_(self.layer(x))
        return self.last[0] * 2


class Decides(nn.Module):
    """Is run, since values decide."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 1e9 else self.part(x)


SCRIPTS = {
    "scripted": lambda: torch.jit.script(Keeps()),
    "traced": lambda: torch.jit.trace(Keeps(), torch.randn(3, 8)),
    "a list": lambda: torch.jit.script(KeepsInAList()),
}


def is_measured(target: Any) -> None:
    measured = measure(target, "float32 3x8")
    assert measured["params"].value == 8 * 8 + 8
    for key in ("macs", "flops", "bandwidth", "peak_activation"):
        assert measured[key].complete, key
    assert measured["macs"].value == ONE


@pytest.mark.parametrize("build", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_writes_into_what_its_file_holds(build: Any, tmp_path: Path) -> None:
    build().save(tmp_path / "keeps.pt")
    is_measured(str(tmp_path / "keeps.pt"))
    is_measured(lambda: Decides(torch.jit.load(tmp_path / "keeps.pt")))


def test_a_module_writes_into_buffers_that_were_loaded(tmp_path: Path) -> None:
    """A whole module from a pickle, and one that was given the tensors of a state dict."""
    whole, state = tmp_path / "whole.pt", tmp_path / "state.pt"
    torch.save(Decides(Keeps()), whole)
    torch.save(Keeps().state_dict(), state)

    def assigned() -> nn.Module:
        part = Keeps()
        part.load_state_dict(torch.load(state, mmap=True), assign=True)
        return Decides(part)

    is_measured(lambda: torch.load(whole, weights_only=False))
    is_measured(assigned)
