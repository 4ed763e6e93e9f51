"""Every wrong tiling is found, in every storage type, and the layer is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from pytest_modelbudget.frontends.torch_drawing import redraw
from pytest_modelbudget.transforms.equivalence import ALL_FAMILIES
from pytest_modelbudget.transforms.outcome import Outcome
from tests.transforms.mutants import (
    STRUCTURAL,
    DirtyPadding,
    Mutant,
    OtherWeights,
    half_accumulation,
    right,
    verified,
)

TYPES = ("float32", "float16", "bfloat16")


def one_layer() -> nn.Module:
    """200 inputs are three tiles of 64 and a remainder of 8; 130 outputs two tiles and 2."""
    return drawn(nn.Sequential(nn.Linear(200, 130)))


def several_layers() -> nn.Module:
    """The layer in question stands third of five, behind a convolution."""
    return drawn(
        nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten()),
            nn.Linear(8 * 5 * 5, 200),
            nn.ReLU(inplace=True),
            nn.Linear(200, 200),
            nn.Tanh(),
            nn.Linear(200, 200),
            nn.Linear(200, 10),
        )
    )


def drawn(model: nn.Module) -> nn.Module:
    redraw(model)
    return model


MODELS = {
    "one layer": (one_layer(), (1, 200), "0"),
    "several layers": (several_layers(), (1, 2, 7, 7), "3"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wrong", STRUCTURAL.values(), ids=STRUCTURAL)
def test_wrong_tiles_are_found(name: str, dtype: str, wrong: Callable[..., Any]) -> None:
    """One wrong column of one layer is over, and that layer is the first that differs."""
    model, shape, scope = MODELS[name]
    found = verified(model, shape, Mutant(wrong, scope), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == scope
    assert found.first_divergence.worst is not None


@pytest.mark.parametrize("dtype", TYPES)
def test_padding_that_is_not_zero_is_found(dtype: str) -> None:
    """A hundredth in the 56 columns that fill up the last tile is over."""
    model, shape, scope = MODELS["several layers"]
    found = verified(model, shape, DirtyPadding(scope), dtype, seeds=(0,))
    assert (found.outcome, getattr(found.first_divergence, "scope", "")) == (Outcome.OVER, scope)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wrong", ["channel scale", "one weight"])
def test_what_an_activation_hides_is_found(wrong: str, dtype: str) -> None:
    """Column 2 of tiles is wrong where ReLU shuts all of it in every run: the outputs are equal."""
    model = drawn(nn.Sequential(nn.Linear(200, 130), nn.ReLU(), nn.Linear(130, 10)))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("bias")[64:128] = -60_000  # below any sum of inputs
    found = verified(model, (1, 200), Mutant(STRUCTURAL[wrong], "0"), dtype, seeds=(0,))
    outputs = [each for each in found.outputs if each.family != ALL_FAMILIES]
    assert all(each.outcome is Outcome.WITHIN for each in outputs)
    assert found.outcome is Outcome.OVER
    assert found.reason.startswith("layer '0': float64 outputs differ")
    assert getattr(found.first_divergence, "scope", "") == "0"


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_another_layer_are_found(dtype: str) -> None:
    """The product with the weights of a layer of the same shape is over."""
    model, shape, scope = MODELS["several layers"]
    other = model.get_submodule("5").get_parameter("weight").detach()
    found = verified(model, shape, OtherWeights(scope, other), dtype, seeds=(0,))
    assert (found.outcome, getattr(found.first_divergence, "scope", "")) == (Outcome.OVER, scope)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_accumulation_is_found_in_float32(name: str) -> None:
    """Partial sums kept in float16 are too coarse for float32; float64 runs do not show it."""
    model, shape, scope = MODELS[name]
    found = verified(model, shape, Mutant(half_accumulation, scope), seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert all(each.algebra is not None and each.algebra < 1e-14 for each in found.outputs)
    assert found.first_divergence is not None
    assert found.first_divergence.scope == scope
    assert 1e-5 < found.first_divergence.error < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["one tile dropped", "one weight"])
def test_one_tile_of_thousands_is_found_in_alexnet(wrong: str) -> None:
    """In bfloat16 one of 9,216 tiles, or one weight of 37 million, is over."""
    alexnet = drawn(models.alexnet())
    found = verified(
        alexnet, (1, 3, 224, 224), Mutant(STRUCTURAL[wrong], "classifier.1"), "bfloat16", seeds=(0,)
    )
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "classifier.1"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", TYPES)
def test_right_tiles_are_within(name: str, dtype: str) -> None:
    """What the mutants are made from is within."""
    model, shape, _ = MODELS[name]
    for rewrite in (right(), right(pad=True), right(m=3)):
        assert verified(model, shape, rewrite, dtype).outcome is Outcome.WITHIN
