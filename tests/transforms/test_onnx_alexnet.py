"""AlexNet as ONNX: 14,336 tile products, the same outputs, and one lost tile of 9,216 is seen."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.check.tables import tables
from pytest_modelbudget.transforms.claim import Claim
from pytest_modelbudget.transforms.equivalence import Equivalence
from pytest_modelbudget.transforms.onnx_drawing import redrawn
from pytest_modelbudget.transforms.onnx_loading import measured_graph
from pytest_modelbudget.transforms.onnx_sides import sides
from pytest_modelbudget.transforms.onnx_verifying import Judge, Rewritten
from pytest_modelbudget.transforms.outcome import Outcome
from pytest_modelbudget.transforms.tile_grid import Tile
from pytest_modelbudget.transforms.tile_linear_onnx import Tiling, tiled_linears

from .onnx_linears import operators
from .test_onnx_equivalence import change

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "tiling" / "write_tiling_models.py"
PRODUCTS = 144 * 64 + 64 * 64 + 64 * 16  # of 9216 → 4096 → 4096 → 1000


@pytest.fixture(scope="module")
def alexnet() -> onnx.ModelProto:
    """AlexNet with drawn weights."""
    built: onnx.ModelProto = runpy.run_path(str(SCRIPT))["alexnet"](drawn=False)
    return redrawn(built, tables().ops)


def judged(proto: onnx.ModelProto, twin: Rewritten) -> Equivalence:
    """One seed of each family, both steps."""
    sums = twin.partial_sums
    judge = Judge(
        Claim(seeds=(0,)), {"batch": 1}, lambda first: sides(first, twin.model, partial_sums=sums)
    )
    return judge.equivalence(proto, tables().ops)


@pytest.mark.slow
def test_every_product_is_a_node(alexnet: onnx.ModelProto) -> None:
    """17 nodes stay; a linear layer is a Split, products, sums, a Concat and a bias."""
    twin = tiled_linears(alexnet, Tiling(Tile(None, 64, 64)))
    assert [change.became for change in twin.changes] == [
        "9,216 products of 64x64", "4,096 products of 64x64", "1,024 products of 64x64",
    ]  # fmt: skip
    columns = 64 + 64 + 16
    found = operators(twin.model)
    assert found["MatMul"] == PRODUCTS == 14_336
    assert found["Add"] == PRODUCTS - columns + 3
    assert sum(found.values()) == 17 + 2 * PRODUCTS - columns + 3 * 3 == 28_554
    result = judged(alexnet, twin)
    assert result.outcome is Outcome.WITHIN, result.reason
    normal = next(record for record in result.outputs if record.family == "normal")
    assert normal.figures.mse < 1e-12
    assert normal.algebra is not None
    assert normal.algebra < 1e-14


@pytest.mark.slow
def test_what_runs_is_what_was_measured(alexnet: onnx.ModelProto) -> None:
    """The graph that costs are read from has the products of the graph that is run."""
    twin = tiled_linears(alexnet, Tiling(Tile(None, 64, 64))).model
    loaded = measured_graph(twin, "alexnet.onnx", {"batch": 1}, tables().ops)
    names = [op.name for op in loaded.graph.ops]
    assert names.count("onnx::MatMul") == PRODUCTS
    assert len(names) == len(twin.graph.node)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_lost_tile_of_thousands(alexnet: onnx.ModelProto, dtype: str) -> None:
    """In both types a right twin passes, and one tile of 9,216 set to zero fails in its layer."""
    proto = alexnet if dtype == "float32" else in_half(alexnet)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), "batched"))
    if dtype == "float16":  # the test above has judged float32
        right = judged(proto, twin)
        assert right.outcome is Outcome.WITHIN, right.reason
    change(twin.model, "classifier.1.weight_k0_n0", without_one_tile)
    wrong = judged(proto, twin)
    assert wrong.outcome is Outcome.OVER
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.scope == "classifier.1"


def without_one_tile(tiles: np.ndarray) -> np.ndarray:
    """A batch of tiles (k tiles, n tiles, k, n) with one of them zero."""
    tiles[100, 31] = 0
    return tiles


def in_half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same network stored and computed in float16."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made
