"""Every mistake is found in AlexNet as ONNX, and the layer is named: on request in both types, else one of each kind.

What is wrong in a layer is wrong in a last layer of its own, several of them beside a right one,
so that they are judged in one run. One seed is fewer runs than a gate makes. Its linear layers are a quarter as wide
as AlexNet's; MODELBUDGET_MODELS=all takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.figures import ALGEBRA
from pytest_modelbudget.equivalence.judgement import Equivalence
from pytest_modelbudget.transforms.on_onnx import Rewritten
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.marks import by_turns, usually
from tests.builders.onnx_alexnet import WIDTH, drawn_alexnet, in_half, judged
from tests.builders.onnx_linears import change, drawn, find
from tests.builders.onnx_mutants import BATCHED, Place, one_weight, values_of
from tests.builders.onnx_output_mutants import DECLARED, copied, dropout_left_on, narrow_sums
from tests.builders.torch_and_onnx_mutants import OUTPUTS, STRUCTURAL

pytestmark = pytest.mark.slow
Stored = tuple[onnx.ModelProto, str]
TYPES = ("float32", "float16")
RIGHT, OTHER = "right", "classifier.4.weight"
LAST = {
    name: Place(name, f"{name}.weight", f"{name}.bias", OTHER, f"last.{name}", ragged=100)
    for name in (RIGHT, *STRUCTURAL)
}


@pytest.fixture(scope="module")
def alexnet() -> onnx.ModelProto:
    """AlexNet in float32."""
    return drawn_alexnet(WIDTH)


@pytest.fixture(scope="module", params=TYPES)
def stored(request: pytest.FixtureRequest, alexnet: onnx.ModelProto) -> Stored:
    """The same, stored in a type."""
    dtype: str = request.param
    return alexnet if dtype == "float32" else in_half(alexnet), dtype


def same(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    return made


def with_last_layers(proto: onnx.ModelProto, places: Iterable[Place]) -> onnx.ModelProto:
    """The same network, with as many last layers as there are places, and an output of each.

    Each has the thousand classes in another order, so that none computes what another does.
    """
    made = same(proto)
    last, declared = find(made, "output"), made.graph.output.pop()
    made.graph.node.remove(last)
    x, *stored = last.input
    for position, place in enumerate(places):
        weights = zip((place.weight, place.bias), stored, strict=True)
        made.graph.initializer.extend(
            numpy_helper.from_array(np.roll(values_of(made, name), position, 0), own) for own, name in weights
        )
        made.graph.node.append(
            helper.make_node(
                "Gemm", [x, place.weight, place.bias], [place.result],
                f"/last/{place.result}/Gemm", transB=1,
            )
        )  # fmt: skip
        made.graph.output.append(copied(declared, place.result))
    return made


def over(found: Equivalence) -> set[str]:
    """Outputs and layers that are wrong."""
    return {each.name for each in found.outputs if each.outcome is Outcome.OVER}


def with_tiles(proto: onnx.ModelProto, places: Mapping[str, Place]) -> Rewritten:
    """All of its last layers in batches of tiles, of the sizes that mistakes need."""
    tiles = {place.scope: place.tiling(name, "batched").tile for name, place in places.items()}
    for tile in set(tiles.values()):
        scopes = tuple(scope for scope, each in tiles.items() if each == tile)
        proto = tiled_linears(proto, Tiling(tile, "batched", scopes)).model
    return Rewritten(proto, (), partial_sums=WIDTH // 64)


@pytest.mark.parametrize(("first", "stored"), by_turns("0123", TYPES, "01"), indirect=["stored"])
def test_wrong_tiles_are_found(stored: Stored, first: str) -> None:
    """Beside a right layer, each with one wrong column of 64, or a wrong tile in it, is over.

    So is its output, and no other. All mistakes at once would take twice the memory.
    """
    names = STRUCTURAL[int(first) :: 4]
    places = {name: LAST[name] for name in (RIGHT, *names)}
    original = with_last_layers(stored[0], places.values())
    twin = with_tiles(original, places)
    for name in names:
        BATCHED[name](twin.model, places[name])
    found = judged(original, twin)
    assert found.outcome is Outcome.OVER
    assert over(found) == {each for name in names for each in (name, places[name].scope)}
    assert getattr(found.first_divergence, "scope", None) == places[names[0]].scope


@pytest.mark.parametrize("stored", usually("float32", TYPES), indirect=True)
def test_one_lost_tile_of_thousands(stored: Stored) -> None:
    """With all 2,816 tiles cut, the right twin passes, and one of 2,304 in a layer fails; 14,336 on request."""
    proto, _ = stored
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), "batched"))
    right = judged(proto, twin)
    assert right.outcome is Outcome.WITHIN, right.reason
    change(twin.model, "classifier.1.weight_k0_n0", without_one_tile)
    wrong = judged(proto, twin)
    assert wrong.outcome is Outcome.OVER
    assert getattr(wrong.first_divergence, "scope", None) == "classifier.1"


def without_one_tile(tiles: np.ndarray) -> np.ndarray:
    """A batch of tiles (k tiles, n tiles, k, n) with one of them zero."""
    tiles[100, 15] = 0
    return tiles


def tiled(proto: onnx.ModelProto) -> Rewritten:
    """The second of three layers in tiles, 4,096 where it is as wide as AlexNet's."""
    return tiled_linears(proto, Tiling(Tile(None, 64, 64), "batched", ("classifier.4",)))


@pytest.mark.parametrize("stored", usually("float32", TYPES), indirect=True)
def test_narrow_sums_are_found(stored: Stored) -> None:
    """Float16 in float32 is right in float64, and too coarse; eight bits stay so in float64 too."""
    proto, dtype = same(stored[0]), stored[1]
    proto.opset_import[0].version = 19  # from which eight bits are a type
    twin = tiled(proto)
    narrow_sums(twin.model, "/classifier/4/Gemm_output", dtype)
    found = judged(proto, twin)
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == "classifier.4"
    if dtype == "float32":
        assert all((each.algebra or 0.0) <= ALGEBRA for each in found.outputs)
        assert max(each.precision or 0.0 for each in found.outputs) > 1


@pytest.mark.parametrize("stored", usually("float16", TYPES), indirect=True)
def test_dropout_left_on_is_found(stored: Stored) -> None:
    """Half of what the second layer is fed is zero, and it is the first that differs."""
    proto, _ = stored
    twin = tiled(proto)
    dropout_left_on(twin.model, "/classifier/2/Relu_output")
    found = judged(proto, twin)
    assert found.outcome is Outcome.OVER
    assert getattr(found.first_divergence, "scope", None) == "classifier.4"


@pytest.fixture(scope="module")
def two(stored: Stored) -> Stored:
    """A layer makes of the thousand outputs a second thousand."""
    proto, dtype = same(stored[0]), stored[1]
    weight = drawn(0, 1000, 1000, dtype=dtype) / np.sqrt(1000).astype(dtype)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "second.weight"))
    reads = ["output", "second.weight"]
    proto.graph.node.append(helper.make_node("MatMul", reads, ["second"], "/second/MatMul"))
    proto.graph.output.append(copied(proto.graph.output[0], "second"))
    return proto, dtype


@pytest.mark.parametrize("stored", usually("float16", TYPES), indirect=True)
def test_a_wrong_second_output_is_found(two: Stored) -> None:
    """One weight of the layer that makes the second output is a hundredth larger."""
    proto, _ = two
    twin = tiled(proto)
    change(twin.model, "second.weight", one_weight)
    found = judged(proto, twin)
    assert over(found) == {"second"}
    assert getattr(found.first_divergence, "scope", None) == "second"


@pytest.mark.parametrize(("name", "stored"), by_turns(OUTPUTS, TYPES, OUTPUTS[:2]), indirect=["stored"])
def test_other_outputs_fail(two: Stored, name: str) -> None:
    """Outputs of another type, number or order are not the same outputs."""
    proto, dtype = two
    twin = tiled(proto)
    mutate, said = DECLARED[name]
    mutate(twin.model)
    found = judged(proto, twin)
    assert found.outcome is Outcome.OVER
    assert said.format(first="output", dtype=dtype) in found.reason
