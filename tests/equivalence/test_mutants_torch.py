"""Every wrong tiling is found, and the layer is named: on request in every storage type, else in one, by turns."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import ALGEBRA
from pytest_modelbudget.equivalence.judgement import ALL_FAMILIES
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.tile.grid import Tile
from tests.builders.marks import each_in_turn
from tests.builders.mutants import NarrowSums, Place, right, verified
from tests.builders.output_mutants import OUTPUT_MUTANTS, two_outputs
from tests.builders.torch_and_onnx_mutants import DROPOUT, FOREIGN, OUTPUTS, STRUCTURAL

pytestmark = pytest.mark.needs_torch

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


PLACES = {
    "one layer": Place(one_layer(), (1, 200), "0", whole=50, ragged=64),
    "several layers": Place(several_layers(), (1, 2, 7, 7), "3", whole=50, ragged=64),
}
ALONE = (FOREIGN, "one layer")  # has no other layer to take from
PLACED = [each for each in product(STRUCTURAL, PLACES) if each != ALONE]


@pytest.mark.parametrize(("name", "place", "dtype"), each_in_turn(PLACED, TYPES))
def test_wrong_tiles_are_found(name: str, place: str, dtype: str) -> None:
    """One wrong column of one layer is over, and that layer is the first that differs."""
    at = PLACES[place]
    found = verified(at.model, at.shape, at.mutant(name), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == at.scope
    assert found.first_divergence.worst is not None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("wrong", ["channel scale", "one weight"])
def test_what_an_activation_hides_is_found(wrong: str, dtype: str) -> None:
    """Column 2 of tiles is wrong where ReLU shuts all of it in every run: the outputs are equal."""
    model = drawn(nn.Sequential(nn.Linear(200, 130), nn.ReLU(), nn.Linear(130, 10)))
    with torch.no_grad():
        model.get_submodule("0").get_parameter("bias")[64:128] = -60_000  # below any sum of inputs
    place = Place(model, (1, 200), "0", whole=65, ragged=64)
    found = verified(model, place.shape, place.mutant(wrong), dtype, seeds=(0,))
    outputs = [each for each in found.outputs if each.family != ALL_FAMILIES]
    assert all(each.outcome is Outcome.WITHIN for each in outputs)
    assert found.outcome is Outcome.OVER
    assert found.reason.startswith("layer '0': float64 outputs differ")
    assert getattr(found.first_divergence, "scope", "") == "0"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", TYPES)
def test_narrow_sums_are_found(dtype: str, place: str) -> None:
    """Partial sums kept in a narrower type are right in float64, and too coarse in the model's."""
    at = PLACES[place]
    found = verified(at.model, at.shape, NarrowSums(Tile(None, 64, 64)), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert all((each.algebra or 0.0) <= ALGEBRA for each in found.outputs)
    assert max(each.precision or 0.0 for each in found.outputs) > 1
    first = {"one layer": "0", "several layers": "1"}
    assert getattr(found.first_divergence, "scope", None) == first[place]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_wrong_second_output_is_found(dtype: str) -> None:
    """One weight of the layer that makes the second output is half as large again."""
    model = two_outputs(one_layer(), 130)
    place = Place(model, (1, 200), "second", whole=65, ragged=64)
    found = verified(model, place.shape, place.mutant("one weight"), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    over = {each.name for each in found.outputs if each.outcome is Outcome.OVER}
    assert "1" in over
    assert "0" not in over
    assert getattr(found.first_divergence, "scope", None) == "second"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [*OUTPUTS, DROPOUT])
def test_wrong_outputs_are_found(name: str, dtype: str) -> None:
    """One layer with dropout, and outputs in another order or number, or of another type."""
    net = nn.Sequential(nn.Linear(200, 130), nn.Dropout())
    model = two_outputs(net, 130).to(getattr(torch, dtype))
    wrong, said = OUTPUT_MUTANTS[name]
    found = check_equivalence(model, wrong(model), f"{dtype} 1x200", seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert said in found.reason
    # Right dropout changes nothing, so that what differs first is what stands behind it.
    named = "second" if name == DROPOUT else None
    assert getattr(found.first_divergence, "scope", None) == named


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", TYPES)
def test_right_tiles_are_within(place: str, dtype: str) -> None:
    """What the mutants are made from is within."""
    at = PLACES[place]
    for rewrite in (right(), right(pad=True), right(m=3)):
        assert verified(at.model, at.shape, rewrite, dtype).outcome is Outcome.WITHIN
