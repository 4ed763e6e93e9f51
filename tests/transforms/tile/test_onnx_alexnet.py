"""AlexNet as ONNX, of 2,816 tile products or, at its full width on request, of 14,336: and the same outputs."""

from __future__ import annotations

import onnx
import pytest

from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reader import measured_graph
from pytest_modelbudget.transforms.on_onnx import Rewritten
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.marks import ALL_MODELS
from tests.builders.onnx_alexnet import WIDTH, drawn_alexnet, judged
from tests.builders.onnx_linears import operators

TILES = WIDTH // 64
EACH = (144 * TILES, TILES * TILES, TILES * 16)  # of 9216 → width → width → 1000
PRODUCTS = sum(EACH)


@pytest.fixture(scope="module")
def alexnet() -> onnx.ModelProto:
    """AlexNet with drawn weights."""
    return drawn_alexnet(WIDTH)


@pytest.fixture(scope="module")
def twin(alexnet: onnx.ModelProto) -> Rewritten:
    """All of its linear layers in tiles."""
    return tiled_linears(alexnet, Tiling(Tile(None, 64, 64)))


@pytest.mark.slow
def test_every_product_is_a_node(alexnet: onnx.ModelProto, twin: Rewritten) -> None:
    """17 nodes stay; a linear layer is a Split, products, sums, a Concat and a bias."""
    assert [change.became for change in twin.changes] == [f"{each:,} products of 64x64" for each in EACH]
    columns = TILES + TILES + 16
    found = operators(twin.model)
    assert found["MatMul"] == PRODUCTS
    assert found["Add"] == PRODUCTS - columns + 3
    assert sum(found.values()) == 17 + 2 * PRODUCTS - columns + 3 * 3
    # Outputs of the last layer show it of products that are nodes; MODELBUDGET_MODELS=all runs those of all three.
    judged_twin = twin if ALL_MODELS else tiled_linears(alexnet, Tiling(Tile(None, 64, 64), layers=("classifier.6",)))
    result = judged(alexnet, judged_twin)
    assert result.outcome is Outcome.WITHIN, result.reason
    normal = next(record for record in result.outputs if record.family == "normal")
    assert normal.figures.mse < 1e-12
    assert normal.algebra is not None
    assert normal.algebra < 1e-14


@pytest.mark.slow
def test_what_runs_is_what_was_measured(twin: Rewritten) -> None:
    """The graph that costs are read from has the products of the graph that is run."""
    loaded = measured_graph(Program(twin.model), "alexnet.onnx", {"batch": 1})
    names = [op.name for op in loaded.graph.ops]
    assert names.count("onnx::MatMul") == PRODUCTS
    assert len(names) == len(twin.model.graph.node)
