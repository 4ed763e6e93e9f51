"""Every mistake is found in AlexNet, and the layer is named: on request in every storage type, else one of each kind.

Each is in one layer of three, in the middle of the network. Only two columns of that layer are cut
into tiles, the second of them wrongly: all else is what right tiles come to. Images are of 64x64,
which leaves every linear layer its full size, and one seed is fewer runs than a gate makes.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torchvision import models

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import ALGEBRA
from pytest_modelbudget.torch_models.weights import redraw
from pytest_modelbudget.transforms.tile.grid import Tile
from tests.builders.marks import by_turns, usually
from tests.builders.mutants import Mutant, NarrowSums, Place, dropped, verified
from tests.builders.output_mutants import OUTPUT_MUTANTS, TwoOutputs, two_outputs
from tests.builders.torch_and_onnx_mutants import DROPOUT, FOREIGN, LAST_TILE, OUTPUTS, PADDING, STRUCTURAL

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch]
TYPES = ("float32", "float16", "bfloat16")
IMAGE = (1, 3, 64, 64)


@pytest.fixture(scope="module")
def alexnet() -> models.AlexNet:
    """AlexNet with drawn weights."""
    model = models.alexnet()
    redraw(model)
    return model


@pytest.mark.parametrize(("name", "dtype"), by_turns(STRUCTURAL, TYPES, [LAST_TILE, PADDING, FOREIGN, "channel scale"]))
def test_wrong_tiles_are_found(alexnet: models.AlexNet, name: str, dtype: str) -> None:
    """One wrong column of 64 in the second of three linear layers is over, in that layer."""
    place = Place(alexnet, IMAGE, "classifier.4", whole=64, ragged=100, cut=2)
    found = verified(alexnet, IMAGE, place.mutant(name), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == place.scope


@pytest.mark.parametrize("dtype", usually("float16", TYPES))
def test_right_tiles_are_within(alexnet: models.AlexNet, dtype: str) -> None:
    """Without the mistake the very same tilings are within, those that leave a remainder too."""
    for tile in (64, 100):
        same = Mutant(lambda *given: given[-1], "classifier.4", tile=tile, cut=2)
        assert verified(alexnet, IMAGE, same, dtype, seeds=(0,)).outcome is Outcome.WITHIN


@pytest.mark.parametrize("dtype", usually("bfloat16", TYPES))
def test_one_tile_of_thousands_is_found(alexnet: models.AlexNet, dtype: str) -> None:
    """With all 9,216 tiles of a layer cut, one of them is over."""
    mutant = Mutant(dropped(1), "classifier.1", cut=4096 // 64)
    found = verified(alexnet, IMAGE, mutant, dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == "classifier.1"


@pytest.mark.parametrize("dtype", usually("float32", TYPES))
def test_narrow_sums_are_found(alexnet: models.AlexNet, dtype: str) -> None:
    """144 partial sums kept in a narrower type are right in float64, and too coarse in its own."""
    sums = NarrowSums(Tile(None, 64, 4096))
    found = verified(alexnet, IMAGE, sums, dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert all((each.algebra or 0.0) <= ALGEBRA for each in found.outputs)
    assert max(each.precision or 0.0 for each in found.outputs) > 1
    assert getattr(found.first_divergence, "scope", None) == "classifier.1"


@pytest.fixture(scope="module")
def two(alexnet: models.AlexNet) -> TwoOutputs:
    """AlexNet with a second output of a thousand numbers."""
    return two_outputs(alexnet, 1000)


@pytest.mark.parametrize("dtype", usually("float16", TYPES))
def test_a_wrong_second_output_is_found(two: TwoOutputs, dtype: str) -> None:
    """One weight of the layer that makes the second output is half as large again."""
    place = Place(two, IMAGE, "second", whole=100, ragged=64, cut=2)
    found = verified(two, IMAGE, place.mutant("one weight"), dtype, seeds=(0,))
    assert found.outcome is Outcome.OVER
    over = {each.name for each in found.outputs if each.outcome is Outcome.OVER}
    assert "1" in over
    assert "0" not in over
    assert getattr(found.first_divergence, "scope", None) == "second"


@pytest.mark.parametrize(("name", "dtype"), by_turns([*OUTPUTS, DROPOUT], TYPES, [OUTPUTS[0], DROPOUT]))
def test_wrong_outputs_are_found(two: TwoOutputs, name: str, dtype: str) -> None:
    """Outputs in another order or number, or of another type, and dropout left on."""
    model = copy.deepcopy(two).to(getattr(torch, dtype))
    wrong, said = OUTPUT_MUTANTS[name]
    found = check_equivalence(model, wrong(model), f"{dtype} 1x3x64x64", seeds=(0,))
    assert found.outcome is Outcome.OVER
    assert said in found.reason
    # Right dropout changes nothing, so that what differs first is what stands behind it.
    named = "net.classifier.4" if name == DROPOUT else None
    assert getattr(found.first_divergence, "scope", None) == named
