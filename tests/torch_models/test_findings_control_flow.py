"""Operators that call functions: the dearer branch, and a body times its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from pytest_modelbudget import measure
from tests.builders.micro_modules import Layer

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's compiler warns about many things
LAYER = 4 * 16 * 16


def branch(m: Any, x: torch.Tensor) -> Any:
    """One layer more, or none."""
    return torch.cond(x.sum() > 2, lambda y: m.l(m.l(y)), lambda y: y + 1, (x,))


def same(m: Any, x: torch.Tensor) -> Any:
    """The same product in both branches."""
    return torch.cond(x.sum() > 2, lambda y: y @ y.T, lambda y: -(y @ y.T), (x,))


def nested(m: Any, x: torch.Tensor) -> Any:
    """A branch within a branch: the deepest is the dearest."""

    def inner(y: torch.Tensor) -> Any:
        return torch.cond(y.sum() > 0, lambda z: m.l(m.l(z)), lambda z: z + 1, (y,))

    return torch.cond(x.sum() > 2, lambda y: y + 1, inner, (x,))


def rows(m: Any, x: torch.Tensor) -> Any:
    """A recurrence over four rows."""

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        state = torch.tanh(m.l(row) + carry)
        return state, state.clone()

    return scan(step, torch.zeros(16), x)


def looped(m: Any, x: torch.Tensor) -> Any:
    """Three passes."""
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, m.l(y)), (torch.tensor(0), x))[1]


COUNTED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], int]] = {
    "cond": (branch, 2 * LAYER),
    "cond, both alike": (same, 4 * 4 * 16),
    "cond in cond": (nested, 2 * LAYER),
    "scan": (rows, LAYER),
    "while_loop": (looped, 3 * LAYER),
    "associative_scan": (lambda m, x: associative_scan(torch.add, m.l(x), dim=0, combine_mode="generic"), LAYER),
    "flex_attention": (lambda m, x: flex_attention(*[m.l(x).reshape(1, 2, 4, 8)] * 3), LAYER + 2 * (2 * 4 * 4 * 8)),
}


@pytest.mark.parametrize(("forward", "macs"), COUNTED.values(), ids=list(COUNTED))
def test_s7_bodies_are_counted(forward: Callable[[Any, torch.Tensor], Any], macs: int) -> None:
    """S7: what the dearest path through the model multiplies."""
    measured = measure(Layer(forward), "float32 4x16")
    assert (measured["macs"].value, measured["macs"].unmeasured) == (macs, ())
    assert measured["params"].value == 16 * 16 + 16


def test_s7_the_dearer_branch_is_said() -> None:
    """S7: which one it is, where they differ."""
    notes = measure(Layer(branch), "float32 4x16").notes
    assert "torch.cond is counted as its dearer branch, true" in notes
