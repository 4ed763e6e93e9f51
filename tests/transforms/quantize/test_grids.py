"""Integers of a weight: on their grid, as close as it allows, and as the labs print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.transforms.quantize import grid as grids
from pytest_modelbudget.transforms.quantize.grid import Grid, on_grid, scheme_of
from pytest_modelbudget.transforms.table import transform_table

WIDTHS = (2, 3, 4, 8, 12, 16)


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("axes", [(0,), (1,), ()], ids=["rows", "columns", "tensor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", WIDTHS)
def test_integers_lie_on_their_grid(bits: int, symmetric: bool, axes: tuple[int, ...]) -> None:
    """Every weight is within half a step of s·(q - z), or a whole one where z was rounded; 0 is on the grid."""
    weight = drawn(6, 5, 3) + 0.3
    found = on_grid(weight, Grid(bits, symmetric), axes)
    step = found.scale.max()
    assert found.scale.shape == (weight.shape[axes[0]] if axes else 1, 1)
    assert -(2 ** (bits - 1)) <= found.integers.min() <= found.integers.max() < 2 ** (bits - 1)
    assert np.abs(found.values(axes, "float64") - weight).max() <= step * (0.5 if symmetric else 1.0) * (1 + 1e-9)
    assert not (symmetric and found.zero.any())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("dtype", "smallest"), [("float16", -24), ("bfloat16", -133), ("float32", -149)])
def test_weights_of_any_size_lie_on_their_grid(dtype: str, smallest: int, bits: int, symmetric: bool) -> None:
    """A channel whose scale is below the smallest normal number is no further off than others."""
    sizes = 2.0 ** np.arange(smallest - 2, smallest + 28)
    weight = (drawn(30, 64) * sizes[:, None]).astype(getattr(ml_dtypes, dtype, dtype))
    found = on_grid(weight, Grid(bits, symmetric), (0,))
    step = found.scale.astype("float64")
    assert (step > 0).all()
    off = np.abs(step * (found.integers - found.zero) - weight.astype("float64")) / step
    assert off.max() <= (0.5 if symmetric else 1.0)


def test_a_group_of_weights_has_a_scale() -> None:
    """Of 10 weights in groups of 4 the last two share one: s = max|w| / 7 each."""
    weight = drawn(3, 10)
    found = on_grid(weight, Grid(4), (0,), 4)
    wanted = [[np.abs(weight[row, at : at + 4]).max() / 7 for at in (0, 4, 8)] for row in range(3)]
    assert found.scale == pytest.approx(np.array(wanted))
    turned = on_grid(weight.T, Grid(4), (1,), 4)
    assert (found.integers == turned.integers.T).all()


def test_a_channel_of_zeros() -> None:
    """Zeros stay zeros, with a scale of one."""
    weight = drawn(4, 8)
    weight[2] = 0
    found = on_grid(weight, Grid(), (0,))
    assert found.scale[2] == 1.0
    assert not found.integers[2].any()


LAB = Path(__file__).with_name("fixed_point_values.json")


@pytest.mark.parametrize("layer", json.loads(LAB.read_text(encoding="utf-8"))["layers"], ids=lambda each: each["layer"])
def test_fixed_point_gives_what_the_lab_prints(layer: dict[str, Any]) -> None:
    """MASE lab 2, question 6: width 8 with 4 fraction bits, 16 + 40 + 25 values."""
    weight = np.array([layer["weights"]])
    found = on_grid(weight, Grid(8, frac=4), (0,))
    assert found.values((0,), "float64").tolist() == [layer["fixed_point_8_4"]]


def test_fixed_point_ends_where_its_bits_do() -> None:
    """Width 4 with 2 fraction bits holds -2 to 1.75, half to even: beyond lies the end."""
    found = on_grid(np.array([[-9.0, -2.0, 0.125, 0.375, 1.75, 9.0]]), Grid(4, frac=2), (0,))
    assert found.integers.tolist() == [[-8, -8, 0, 2, 7, 7]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_integer_stands_for_nan(value: float) -> None:
    weight = drawn(4, 8)
    weight[1, 1] = value
    with pytest.raises(TransformError, match=r"fc\.weight has NaN or Inf"):
        on_grid(weight, Grid(), (0,), name="fc.weight")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("how", ["zeros", "one integer", "channels"])
def test_integers_that_are_not_the_weight_are_refused(how: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is held to the weight that it stands for, not to its own range."""
    right = grids.rounded

    def spoilt(*given: Any) -> Any:
        integers = right(*given)
        if how == "one integer":
            integers[2, 3] -= np.sign(integers[2, 3]) or -1
        return {"zeros": np.zeros_like(integers), "channels": np.roll(integers, 1, 0)}.get(how, integers)

    monkeypatch.setattr(grids, "rounded", spoilt)
    with pytest.raises(TransformError, match=r"0\.weight is .* steps off what it was"):
        on_grid(drawn(8, 64), Grid(bits), (0,), name="0.weight")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"form": "fixed"}, "weights: form: fixed needs its fraction bits: write {bits: 8, frac: 4}"),
        ({"weights": {"bits": 8, "frac": 9}, "form": "fixed"}, "frac of 9 is above the width of 8 bits: write 0 to 8"),
        ({"weights": {"bits": 8, "frac": 4}}, "frac of 4 belongs to fixed point: add form: fixed"),
        ({"layers": {"a": {"activations": {"bits": 8}}}}, "activations of a layer are other than all: give"),
        (
            {"activations": {"bits": 8}, "bias": {"bits": 32}, "granularity": {"group": 32}},
            "groups of weights have several scales: leave 'bias' out",
        ),
        ({"bias": {"bits": 32}}, "its scale is that of activations times weights: give 'activations' too"),
    ],
)
def test_grids_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    settings = {each.key: each.default for each in transform_table()["quantize"].settings} | given
    with pytest.raises(TransformError) as raised:
        scheme_of(settings)
    assert sentence in str(raised.value)
