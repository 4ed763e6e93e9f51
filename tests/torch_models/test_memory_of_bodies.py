"""What torch's scan, map and while_loop move and hold: as much as the same rounds written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from pytest_modelbudget import measure
from tests.builders.micro_modules import Layer

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore")]  # torch's compiler warns about many things
Forward = Callable[[Any, torch.Tensor], Any]
KEYS = ("peak_activation", "bandwidth", "bandwidth_floor", "total_activation", "flops")
ROUNDS, ROW = 5, 4 * 16  # bytes of a row of sixteen floats


def scanned(step: Callable[..., Any], xs: torch.Tensor, carry: torch.Tensor, *, by_hand: bool) -> Any:
    """The last state and the stacked results of some steps: torch's own operator, or one after the other."""
    if not by_hand:
        return scan(step, carry, xs)
    rows = []
    for x in xs:
        carry, row = step(carry, x)
        rows.append(row)
    return carry, torch.stack(rows)


def recurrence(m: Any, x: torch.Tensor, *, by_hand: bool) -> Any:
    """A layer that each round reads, and what was made before the rounds."""
    before = x.exp()

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        state = torch.sigmoid(m.l(carry) + row)
        return state, state * 2

    return scanned(step, before, before[0] * 2, by_hand=by_hand)[1]


def read_behind(m: Any, x: torch.Tensor, *, by_hand: bool) -> Any:
    """What the first round starts with, which is read after the last one, and a value from outside."""
    start, outside = x[0] + 1, x.sum(0)

    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        return carry * outside + row, carry - row

    last, rows = scanned(step, x, start, by_hand=by_hand)
    return last + start, rows


def nested(m: Any, x: torch.Tensor, *, by_hand: bool) -> Any:
    """Rounds within rounds."""

    def inner(carry: torch.Tensor, part: torch.Tensor) -> Any:
        return torch.tanh(carry + part), carry * part

    def outer(carry: torch.Tensor, row: torch.Tensor) -> Any:
        last, parts = scanned(inner, m.l(row).reshape(4, 4), carry, by_hand=by_hand)
        return last, parts.sum(0)

    return scanned(outer, x, x[0, :4] + 1, by_hand=by_hand)[1]


def mapped(m: Any, x: torch.Tensor, *, by_hand: bool) -> Any:
    """A layer for each row."""

    def each(row: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(m.l(row)) * 2

    return torch.stack([each(row) for row in x]) if by_hand else map_rows(each, x)


def looped(m: Any, x: torch.Tensor, *, by_hand: bool) -> Any:
    """Three rounds, as long as a condition holds."""
    at = torch.tensor(0)
    if not by_hand:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, torch.sigmoid(m.l(y))), (at, x))[1]
    while at < 3:
        at, x = at + 1, torch.sigmoid(m.l(x))
    return x


ROUNDED = [recurrence, read_behind, nested, mapped, looped]


def figures(model: Any, inputs: str | None = f"float32 {ROUNDS}x16") -> dict[str, Any]:
    found = measure(model, inputs)
    assert all(found[key].complete for key in KEYS)
    return {key: found[key].value for key in KEYS}


@pytest.mark.parametrize("forward", ROUNDED, ids=lambda forward: forward.__name__)
def test_rounds_cost_as_much_as_written_out(forward: Any) -> None:
    """Also as an exported program, and as what that is made of."""
    made = Layer(lambda m, x: forward(m, x, by_hand=False)).eval()
    by_hand = figures(Layer(lambda m, x: forward(m, x, by_hand=True)).eval())
    program = torch.export.export(made, (torch.ones(ROUNDS, 16),))
    assert figures(made) == by_hand
    assert figures(program, None) == by_hand
    assert figures(program.run_decompositions(), None) == by_hand


def test_the_rounds_of_a_scan_hold_all_that_is_scanned_and_all_that_is_stacked() -> None:
    """n rows in, n rows and the last state out, where each round adds and rectifies.

    The addition reads a state and a row and writes a state, the relu reads and writes one; the first state is zero
    times a row, and at the end n results are read and stacked. Most is alive in the last addition: x, n - 1 results,
    the state before and the one behind.
    """

    def forward(m: Any, x: torch.Tensor) -> Any:
        return scan(lambda c, row: (c + row, c.relu()), x[0] * 0, x)

    found = figures(Layer(forward))
    assert found["bandwidth"] == (2 + ROUNDS * (3 + 2) + 2 * ROUNDS) * ROW
    assert found["total_activation"] == (1 + ROUNDS * 2 + ROUNDS) * ROW
    assert found["peak_activation"] == (ROUNDS + (ROUNDS - 1) + 2) * ROW
    assert found["bandwidth_floor"] == (ROUNDS + ROUNDS + 1) * ROW


def test_a_loop_without_a_round_gives_a_copy() -> None:
    """As torch does, of what it was given: abs and the copy write x, the condition one sum."""
    found = figures(Layer(lambda m, x: while_loop(lambda y: y.sum() < 0, lambda y: (y + 1,), (x.abs(),))[0]))
    assert found["total_activation"] == 2 * ROUNDS * ROW + 4
