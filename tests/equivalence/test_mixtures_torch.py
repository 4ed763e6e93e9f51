"""Operations held in place by mixtures of their outputs, and columns of tiles that are computed at once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.torch_models.rewriting import Call, mixes_alike
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_torch import TileLinear
from pytest_modelbudget.transforms.tile.products_on_torch import LARGE, Linear

pytestmark = pytest.mark.needs_torch

ROWS, K, N = 12, 200, 130


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def call_of(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Call:
    func = torch.ops.aten.linear.default
    return Call("aten::linear", builtin_ops()["aten::linear"], func, (x, weight, bias), {}, lambda _: "", str)


def element(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def wrong(y: torch.Tensor) -> torch.Tensor:
        return y.index_put((torch.tensor(7), torch.tensor(129)), torch.tensor(value, dtype=y.dtype))

    return wrong


# Each is off by more than 1e-10 of the size of all outputs, some by hardly more.
WRONG = {
    "one element of 1,560 by 2e-10 of all": lambda y: y + F.pad(y.norm().view(1, 1) * 2e-10, (3, N - 4, 5, ROWS - 6)),
    "one column by 1e-8": lambda y: torch.cat([y[:, :1] * (1 + 1e-8), y[:, 1:]], 1),
    "two columns swapped": lambda y: y[:, [1, 0, *range(2, N)]],
    "one row of another": lambda y: torch.cat([y[1:2], y[1:]]),
    "NaN": element(float("nan")),
    "Inf": element(float("inf")),
    "another shape": lambda y: y[:, 1:],
    "one row fewer": lambda y: y[1:],
    "a narrower type": lambda y: y.float(),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_no_wrong_output_passes_by_its_mixtures(wrong: str, bias: bool) -> None:
    """What differs by as little as twice what step 1 allows is left to the comparison of all elements."""
    call = call_of(seeded(ROWS, K), seeded(N, K, seed=1), seeded(N, seed=2) if bias else None)
    assert not mixes_alike(call, WRONG[wrong](F.linear(*call.args)))


@pytest.mark.parametrize("shape", [(ROWS, K), (K,), (2, 3, K)])
def test_right_tiles_pass_by_their_mixtures(shape: tuple[int, ...]) -> None:
    """And so do zeros of zeros, whose error has no size to be held against."""
    x, weight, bias = seeded(*shape), seeded(N, K, seed=1), seeded(N, seed=2)
    tiled = TileLinear(Tile(None, 64, 64), ("*",)).columns(Linear(x, weight, bias))
    assert mixes_alike(call_of(x, weight, bias), tiled)
    nothing = call_of(torch.zeros_like(x), weight, None)
    assert mixes_alike(nothing, torch.zeros(*shape[:-1], N, dtype=torch.float64))
    assert not mixes_alike(nothing, torch.full((*shape[:-1], N), 1e-100, dtype=torch.float64))


def test_only_what_mixes_is_judged_by_mixtures() -> None:
    """Another operator is compared whole."""
    call = call_of(seeded(ROWS, K), seeded(N, K, seed=1), None)
    assert not mixes_alike(replace(call, name="aten::matmul"), F.linear(*call.args))


class Counting(TorchDispatchMode):
    """Counts the operators that its thread runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_columns_that_are_computed_at_once_are_the_same_columns() -> None:
    """Large products run on all threads, but where a mode counts them: none of the 3 · 4 may be missed."""
    rows = LARGE // 64**2
    layer = nn.Linear(K, N).requires_grad_()
    linear = Linear(torch.randn(rows, K), layer.weight, layer.bias)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tiles = TileLinear(Tile(None, 64, 64), ("*",))
        with torch.inference_mode():
            at_once = tiles.columns(linear)
            with Counting() as counting:
                in_turn = tiles.columns(linear)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(at_once, in_turn)
    assert at_once.is_inference()
    assert counting.counts["aten::linear"] == 3 * 4
