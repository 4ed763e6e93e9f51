"""quantize_weights on torch modules: grids, tied weights, cost, tables, outputs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn

from pytest_modelbudget.equivalence.claim import Bound
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.quantize import on_torch as quantize_weights_torch
from pytest_modelbudget.transforms.quantize.grid import Grid, floor_of
from pytest_modelbudget.transforms.quantize.on_torch import StoredOnce, on_grid
from tests.builders.module_transforms import EXACT, LOSSY, applied, numbers, table

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("per", ["channel", "tensor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_integers_lie_on_their_grid(bits: int, symmetric: bool, per: str) -> None:
    """Every weight is within half a step of s·(q - z), in integers of so many bits."""
    weight = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(bits)) + 0.3
    grid = Grid(bits, per == "channel", symmetric, ("*",))
    q, scale, zero = on_grid(weight, grid, 0)
    assert scale.numel() == (6 if per == "channel" else 1)
    assert -(2 ** (bits - 1)) <= int(q.min()) <= int(q.max()) < 2 ** (bits - 1)
    step = scale.double()
    error = (step * (q.double() - zero.double()) - weight.double()).abs()
    # Half a step of rounding, and another half where the zero point was rounded too.
    assert bool((error <= step * (0.5 if symmetric else 1.0) + 1e-6).all())
    if symmetric:
        assert not bool(zero.any())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [(torch.float16, -24), (torch.bfloat16, -133), (torch.float32, -149)],
    ids=["float16", "bfloat16", "float32"],
)
def test_weights_of_any_size_lie_on_their_grid(dtype: torch.dtype, smallest: int, bits: int, symmetric: bool) -> None:
    """A channel whose scale is below the smallest normal number is no further off than others."""
    drawn = torch.randn(30, 64, generator=torch.Generator().manual_seed(0)).double()
    sizes = 2.0 ** torch.arange(smallest - 2, smallest + 28, dtype=torch.float64)
    weight = (drawn * sizes[:, None]).to(dtype)
    q, scale, zero = on_grid(weight, Grid(bits, symmetric=symmetric), 0)
    step = scale.double()
    assert bool((step > 0).all())
    off = (step * (q.double() - zero.double()) - weight.double()).abs() / step
    assert float(off.max()) <= (0.5 if symmetric else 1.0)


def test_integer_linears_of_the_lab_net() -> None:
    """3 of 9 layers change; 1,765 weights of a byte, 70 float biases, 162 norm parameters."""
    done = applied("quantize_weights", "examples.lab.nets:jsc_tiny", (10, 16), layers=("*",))
    assert table(done) == {"BatchNorm1d": "0 of 3", "ReLU": "0 of 3", "Linear": "3 of 3"}
    found = numbers(done)
    weights, biases, norms, scales = 16 * 40 + 40 * 25 + 25 * 5, 70, 162, 40 + 25 + 5
    assert found["params"] == weights + biases + norms
    assert found["weight_memory"] == weights + 4 * (biases + norms + scales)
    assert found["macs"] == 10 * weights
    assert done.verify(LOSSY).outcome == "within"


def test_four_bits_take_half_a_byte() -> None:
    """128 weights of four bits are 64 bytes, with one scale for the tensor."""
    net = nn.Sequential(nn.Linear(16, 8, bias=False))
    done = applied("quantize_weights", net, (1, 16), bits=4, per="tensor")
    assert (numbers(done)["params"], numbers(done)["weight_memory"]) == (128, 64 + 4)


class Tied(nn.Module):
    """Two linear layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "stored"), [(8, 256), (4, 128)])
def test_tied_weights_stay_tied(bits: int, stored: int, symmetric: bool) -> None:
    """256 weights of two layers are stored once, with 16 scales, and 16 zero points of a byte."""
    done = applied("quantize_weights", Tied(), (2, 16), bits=bits, symmetric=symmetric)
    found = numbers(done)
    assert found["params"] == 256
    assert found["weight_memory"] == stored + 16 * 4 + (0 if symmetric else 16)
    assert table(done) == {"Linear": "2 of 2"}
    assert done.verify(LOSSY).outcome == "within"


def test_one_weight_along_two_axes() -> None:
    """A convolution scales rows, a transposed one of the same weight columns."""
    weight = nn.Parameter(torch.randn(6, 6, 1))
    stored = StoredOnce(Grid())
    rows, columns = (stored.of(weight, axis) for axis in (0, 1))
    assert (rows.scale.shape, columns.scale.shape) == ((6, 1, 1), (1, 6, 1))
    assert stored.of(weight, 0) is rows


def test_attention_and_modules_that_read_weights_are_quantised() -> None:
    """nn.MultiheadAttention's packed projection is a weight of its own; nothing is replaced."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    redraw(layer)
    done = applied("quantize_weights", layer, (2, 5, 16))
    changed = {change.scope for change in done.changed.changes if change.became}
    assert changed == {"self_attn", "self_attn.out_proj", "linear1", "linear2"}
    assert done.verify(LOSSY).outcome == "within"


def spoilt(how: str, *given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A grid with one thing wrong in it: all of it in range, and none of it the weight."""
    integers, scale, zero = on_grid(*given)
    if how == "zeros":
        return torch.zeros_like(integers), scale, zero
    if how == "one integer":
        integers[2, 3] -= integers[2, 3].sign() or -1
    elif how == "channels":
        return integers.roll(1, 0), scale, zero
    elif how == "scale":
        scale[1] *= 1.5
    return integers, scale, zero + (how == "zero point")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("how", "symmetric"),
    [
        ("zeros", True),
        ("zeros", False),
        ("one integer", True),
        ("channels", True),
        ("scale", True),
        ("zero point", False),
    ],
)
def test_integers_that_are_not_the_weight_are_refused(
    how: str, symmetric: bool, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored is held to the weight that it stands for, not to its own range."""
    net = nn.Sequential(nn.Linear(64, 8, bias=False))
    redraw(net)
    monkeypatch.setattr(quantize_weights_torch, "on_grid", partial(spoilt, how))
    with pytest.raises(TransformError, match=r"0\.weight is .* steps off what it was"):
        applied("quantize_weights", net, (2, 64), bits=bits, symmetric=symmetric)


def test_layers_that_stay_say_why() -> None:
    """An LSTM and a table have matrices, of types that are not quantised; a norm has none."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(5, 8), nn.LayerNorm(8)
            self.lstm, self.head, self.tail = nn.LSTM(8, 8), nn.Linear(8, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.tail(self.head(self.lstm(self.norm(self.table.weight + x))[0]))

    done = applied("quantize_weights", Words(), (2, 5, 8), layers=("head",))
    assert {change.scope: change.why for change in done.changed.changes} == {
        "table": "its type is not quantised",
        "norm": "it has no weight matrix",
        "lstm": "its type is not quantised",
        "head": "",
        "tail": "layers: leaves it out",
    }


def test_too_few_bits_are_over() -> None:
    """Four bits do not reach 30 dB, and the floor of eight does not hold for four."""
    few, enough = (applied("quantize_weights", "examples.lab.nets:jsc_tiny", (10, 16), bits=bits) for bits in (4, 8))
    declared = replace(LOSSY, bounds={Bound.SQNR: Fraction(30)})
    of_eight = floor_of(8, 3).bound(LOSSY)  # 48.16 - 12 - 4.77
    assert of_eight.bounds == {Bound.SQNR: Fraction("31.39")}
    for claim, outcome in ((LOSSY, "within"), (declared, "over"), (of_eight, "over")):
        assert few.verify(claim).outcome == outcome
        assert enough.verify(claim).outcome == "within"
    assert few.verify(EXACT).outcome == "over"


@pytest.mark.parametrize(
    ("bits", "outcome", "reason"),
    [
        pytest.param(8, "over", "sqnr 0 < 23.61", id="48.16 - 12 - 12.55"),
        pytest.param(4, "unknown", "= -0.47 dB is no floor: declare one", id="24.08 - 12 - 12.55"),
    ],
)
def test_a_quantiser_that_stores_zeros(bits: int, outcome: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen layers of zeros are within no floor: 0 dB is what an output of zeros has."""
    layers = [nn.Sequential(nn.Linear(16, 16, bias=False), nn.Tanh()) for _ in range(18)]
    net = nn.Sequential(*layers)
    redraw(net)
    done = applied("quantize_weights", net, (2, 16), bits=bits)

    def zeros(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        integers, scale, zero = on_grid(*given)
        return torch.zeros_like(integers), scale, zero

    monkeypatch.setattr(quantize_weights_torch, "on_grid", zeros)
    done.release()  # so that the weights are quantised again
    found = done.verify(LOSSY)
    assert found.outcome == outcome
    assert reason in found.reason


class Runs(nn.Module):
    """A layer that runs so often, one that never does, and one tied to the first that runs once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.layer, self.unused = times, nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.layer(x).relu()
        return cast("torch.Tensor", self.tied(x))


@pytest.mark.parametrize(
    ("net", "shape", "bits", "decibels"),
    [
        pytest.param(Runs(0), (2, 16), 8, 36.16, id="one product: 48.16 - 12"),
        pytest.param(Runs(2), (2, 16), 8, 31.39, id="three: 36.16 - 4.77"),
        pytest.param(Runs(2), (2, 16), 4, 7.31, id="of four bits: 12.08 - 4.77"),
        pytest.param(Runs(9), (2, 16), 8, 26.16, id="ten: 36.16 - 10"),
        pytest.param(nn.Sequential(*[nn.Conv1d(4, 4, 1)] * 2), (1, 4, 5), 8, 33.15, id="a kernel twice: less 3.01"),
    ],
)
def test_each_run_of_a_weight_has_a_share_of_noise(
    net: nn.Module, shape: tuple[int, ...], bits: int, decibels: float
) -> None:
    """The errors of one weight meet as many inputs as it has products, however many modules hold it."""
    floor = applied("quantize_weights", net, shape, bits=bits).changed.floor
    assert floor is not None
    assert round(floor.decibels, 2) == decibels
