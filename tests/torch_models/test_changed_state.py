"""A pass that changes its module is said to be counted on its first call; what is kept for reuse is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_modelbudget import measure

pytestmark = pytest.mark.needs_torch
SAID = "counted on its first call; a later one may cost more"


class Stateful(nn.Module):
    """A layer with a cache of 3 rows, a counter and places for more, and a pass that a test writes."""

    cache: torch.Tensor

    def __init__(self, step: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.step, self.calls, self.is_new, self.table, self.rows = step, 0, True, None, [0]
        self.past: list[torch.Tensor] = []
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the test wrote."""
        return self.step(self, x)


def counts(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Twice the work from the second call on."""
    m.calls += 1
    return m.l(m.l(x)) if m.calls > 1 else m.l(x)  # type: ignore[no-any-return]  # of a module


def marks(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.is_new = False
    return m.l(x)  # type: ignore[no-any-return]


def grows(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.cache = torch.cat([m.cache, m.l(x)])
    return m.cache @ x.T  # type: ignore[no-any-return]


def gathers(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.rows.append(m.l(x))
    return sum(m.rows)  # type: ignore[return-value]


def begins(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A cache that is empty at first, as most are."""
    m.past.append(m.l(x))
    return torch.cat(m.past)


def puts(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.rows = [*m.rows, m.l(x)]
    return sum(m.rows)  # type: ignore[return-value]


def keeps(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A table that is made once, and the mean of a buffer in place."""
    if m.table is None:
        m.table = torch.ones(4)
    m.cache.mul_(0.5)
    return m.norm(m.l(x)) * m.table  # type: ignore[no-any-return]


@pytest.mark.parametrize(("step", "name"), [
    (counts, "calls"), (marks, "is_new"), (grows, "cache"), (gathers, "rows"), (begins, "past"), (puts, "rows"),
])  # fmt: skip
def test_what_a_pass_changes_is_said(step: Callable[..., torch.Tensor], name: str) -> None:
    """The number is that of the first call, every time that it is asked for."""
    model = Stateful(step)
    for _ in range(2):
        numbers = measure(model, "float32 2x4")
        assert f"the forward pass changes {name}: {SAID}" in numbers.notes
    assert f"the forward pass changes 0.{name}: {SAID}" in measure(nn.Sequential(model), "float32 2x4").notes


def test_the_second_call_of_a_counter_costs_more() -> None:
    """2 · 4 · 4 MACs, and twice as many from then on: what the note is about."""
    model = Stateful(counts)
    assert measure(model, "float32 2x4")["macs"].value == 2 * 4 * 4
    model(torch.zeros(2, 4))
    assert measure(model, "float32 2x4")["macs"].value == 2 * 2 * 4 * 4


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_is_kept_for_reuse_is_not_named(mode: str) -> None:
    """Nor are the statistics of a norm, and its count of batches."""
    model = Stateful(keeps)
    getattr(model, mode)()
    assert not [note for note in measure(model, "float32 2x4").notes if SAID in note]


class Scripted(nn.Module):
    """Runs its layer as often as it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.calls, self.past = nn.Linear(4, 4), 0, [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.past.append(1)
        for _ in range(self.calls):
            x = self.l(x)
        return x


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_what_a_script_changes_is_said() -> None:
    """Whether it is the model, or a part of it."""
    script = torch.jit.script(Scripted())
    for model, path in ((script, ""), (nn.Sequential(script), "0.")):
        measured = measure(model, "float32 2x4")
        assert measured["macs"].value == 2 * 4 * 4
        assert f"the forward pass changes {path}calls, {path}past: {SAID}" in measured.notes
