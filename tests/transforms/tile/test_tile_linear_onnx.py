"""Linear operations of ONNX graphs as tiles: right for every size, and nothing else changed."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget import measure
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.marks import each_in_turn
from tests.builders.onnx_graphs import integers, model, node, stored, value
from tests.builders.onnx_linears import drawn, expected, in_float64, is_close, linear, operators, written

SIZES = (1, 63, 64, 65, 200)
FORMS = ("unrolled", "batched")


def check(proto: onnx.ModelProto, tiling: Tiling, shape: tuple[int, ...], folder: Path) -> None:
    """The tiled twin is valid, gives what numpy gives, and keeps inputs and outputs."""
    twin = tiled_linears(proto, tiling).model
    written(twin, folder)
    x = drawn(9, *shape)
    assert is_close(in_float64(twin, x=x)["y"], expected(proto, x))
    for side in ("input", "output"):
        assert list(getattr(twin.graph, side)) == list(getattr(proto.graph, side))


EDGES = [f"{form}, {edge}" for form in FORMS for edge in ("ragged", "pad")]


@pytest.mark.parametrize(("k", "n", "how"), each_in_turn([*product(SIZES, SIZES)], EDGES))
def test_every_size(k: int, n: int, how: str, tmp_path: Path) -> None:
    """Below, at and above the tile, with and without a bias, on matrices and on 3-D inputs."""
    form, edge = how.split(", ")
    tiling = Tiling(Tile(None, 64, 64, pads=edge == "pad"), form)
    check(linear(k, n), tiling, (3, k), tmp_path)
    check(linear(k, n, leading=(2, 3), bias=False), tiling, (2, 3, k), tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_layers(form: str, dtype: str, tmp_path: Path) -> None:
    """4096 x 200 and 65 x 4096 in both storage types, with leading sizes that are not known."""
    for k, n in ((4096, 200), (65, 4096)):
        proto = linear(k, n, leading=("batch", "rows"), dtype=dtype)
        check(proto, Tiling(Tile(None, 64, 64), form), (2, 3, k), tmp_path)


@pytest.mark.parametrize("rows", [1, 7, 8, 9])
@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
def test_rows_in_tiles(rows: int, pads: bool, tmp_path: Path) -> None:
    """tile: [m, k, n] cuts the rows too, all leading axes taken as one."""
    tiling = Tiling(Tile(4, 16, 24, pads=pads))
    check(linear(40, 50, leading=(rows,)), tiling, (rows, 40), tmp_path)
    check(linear(40, 50, leading=(2, rows)), tiling, (2, rows, 40), tmp_path)
    check(linear(40, 50, leading=()), tiling, (40,), tmp_path)
    twin = tiled_linears(linear(40, 50, leading=(rows,)), tiling).model
    assert operators(twin)["MatMul"] == -(-rows // 4) * 3 * 3  # ⌈40/16⌉ · ⌈50/24⌉


def test_the_nodes_of_an_unrolled_layer(tmp_path: Path) -> None:
    """200 x 130 in 64 x 64: 4 · 3 products, 3 · 3 sums and the bias, one Split, one Concat."""
    found = tiled_linears(linear(200, 130), Tiling(Tile(None, 64, 64)))
    assert operators(found.model) == {"Add": 3 * 3 + 1, "Concat": 1, "MatMul": 4 * 3, "Split": 1}
    assert found.partial_sums == 4
    assert [(each.scope, each.operation, each.became) for each in found.changes] == [
        ("y", "onnx::Gemm", "12 products of 64x64")
    ]


def test_the_nodes_of_a_batched_layer() -> None:
    """Whole tiles and three kinds of edges: one product for each."""
    twin = tiled_linears(linear(200, 130), Tiling(Tile(None, 64, 64), "batched")).model
    assert operators(twin)["MatMul"] == operators(twin)["ReduceSum"] == 4
    even = tiled_linears(linear(128, 192, bias=False), Tiling(Tile(None, 64, 64), "batched")).model
    assert operators(even) == {"MatMul": 1, "ReduceSum": 1, "Reshape": 2}


@pytest.mark.parametrize("form", FORMS)
def test_cost_stays(form: str, tmp_path: Path) -> None:
    """Parameters, their bytes and MACs are those of the whole layer: 200·130 + 130."""
    proto = linear(200, 130)
    before = measure(written(proto, tmp_path, "before.onnx"))
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), form)).model
    after = measure(written(twin, tmp_path, "after.onnx"))
    for found in (before, after):
        assert found["params"].value == 200 * 130 + 130
        assert found["weight_memory"].value == 4 * (200 * 130 + 130)
        assert found["macs"].value == 3 * 200 * 130
        assert found["macs"].complete
    assert after["bandwidth"].value > before["bandwidth"].value


GEMMS = {
    "turned": ({"transA": 1, "transB": 1}, (70,)),
    "scaled": ({"alpha": 0.3, "beta": 0.7}, (70,)),
    "scalar bias": ({}, ()),
    "column bias": ({"beta": 2.0}, (5, 1)),
    "full bias": ({"transA": 1}, (5, 70)),
    "ignored bias": ({"beta": 0.0}, (70,)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("attributes", "shape"), GEMMS.values(), ids=GEMMS.keys())
def test_gemm(attributes: dict[str, float], shape: tuple[int, ...], form: str) -> None:
    """alpha · A'B' + beta · C, for every flag and every shape that C may broadcast from."""
    turned_a, turned_b = bool(attributes.get("transA")), bool(attributes.get("transB"))
    a, b, c = drawn(0, 5, 90), drawn(1, 90, 70), drawn(2, *shape)
    weights = [
        numpy_helper.from_array(np.ascontiguousarray(b.T if turned_b else b), "b"),
        numpy_helper.from_array(np.asarray(c), "c"),
    ]
    a = a.T if turned_a else a
    gemm = node("Gemm", "a b c", "y", **attributes)
    proto = model([gemm], [value("a", *a.shape)], [value("y", 5, 70)], weights)
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), form)).model
    onnx.checker.check_model(twin, full_check=True)
    alpha = float(np.float32(attributes.get("alpha", 1.0)))
    beta = float(np.float32(attributes.get("beta", 1.0)))
    a64, b64, c64 = (each.astype("float64") for each in (a.T if turned_a else a, b, c))
    assert is_close(in_float64(twin, a=a)["y"], alpha * (a64 @ b64) + beta * c64)


def test_what_stays_whole_is_said() -> None:
    """Every linear operation is listed: those that no form of tiles knows, with the reason."""
    nodes = [
        node("DequantizeLinear", "q s", "w0"),
        node("MatMul", "x w0", "y0"),
        node("MatMul", "left x", "y1"),
        node("MatMul", "x deep", "y2"),
        node("Add", "w w", "ww"),
        node("MatMul", "x ww", "y3"),
        node("Gemm", "x given", "y4"),
        node("MatMul", "x xt", "y5"),
        node("MatMul", "x w", "y6"),
    ]
    weights = [
        stored("q", 64, 64, dtype=np.int8),
        stored("s"),
        stored("left", 64, 64),
        stored("deep", 2, 64, 64),
        stored("w", 64, 64),
    ]
    inputs = [value(name, 64, 64) for name in ("x", "xt", "given")]
    outputs = [value(f"y{each}", *((2, 64, 64) if each == 2 else (64, 64))) for each in range(7)]
    proto = model(nodes, inputs, outputs, weights)
    found = tiled_linears(proto, Tiling(Tile(None, 32, 32), layers=("y[0-5]",)))
    assert {each.scope: each.why for each in found.changes} == {
        "y0": "its weight is quantised: tile the float model, then quantise",
        "y1": "its weight is the left operand",
        "y2": "its weight has rank 3, not 2",
        "y3": "its weight comes out of onnx::Add",
        "y4": "its weight is computed in the graph",
        "y6": "layers: leaves it out",
    }
    assert found.model.graph == proto.graph


def test_activations_behind_many_nodes() -> None:
    """A product of two activations is told from one by a weight however deep it stands."""
    names = ["x", *(f"r{each}" for each in range(1200))]
    nodes = [node("Relu", *pair) for pair in pairwise(names)]
    nodes += [node("MatMul", f"x {names[-1]}", "product"), node("Gemm", "product w", "y")]
    proto = model(nodes, [value("x", 8, 8)], [value("y", 8, 8)], [stored("w", 8, 8)])
    changes = tiled_linears(proto, Tiling(Tile(None, 8, 8))).changes
    assert [(each.scope, each.why) for each in changes] == [("y", "")]


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_with_two_readers_is_stored_once(form: str, tmp_path: Path) -> None:
    """A table that is embedding and head at once stays one table, and the head is tiled."""
    nodes = [
        node("Gather", "table ids", "x"),
        node("Transpose", "table", "head", perm=[1, 0]),
        node("MatMul", "x head", "y"),
    ]
    table = numpy_helper.from_array(drawn(0, 100, 70), "table")
    ids = value("ids", 3, code=onnx.TensorProto.INT64)
    proto = model(nodes, [ids], [value("y", 3, 100)], [table])
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), form))
    assert twin.changes[0].became == "4 products of 64x64"
    assert measure(written(twin.model, tmp_path))["params"].value == 100 * 70
    given = {"ids": np.array([5, 0, 99])}
    found, wanted = (OnnxRun(each, float64=True)(given)["y"] for each in (twin.model, proto))
    assert is_close(found, wanted)


def test_a_turned_weight_leaves_nothing_behind(tmp_path: Path) -> None:
    """A Transpose that only turned the weight goes with it."""
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    weight = numpy_helper.from_array(drawn(0, 70, 90), "w")
    proto = model(nodes, [value("x", 2, 90)], [value("y", 2, 70)], [weight])
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64))).model
    assert "Transpose" not in operators(twin)
    assert measure(written(twin, tmp_path))["params"].value == 70 * 90


SCOPED = {"/classifier/classifier.1/Gemm": "classifier.1", "fc": "fc", "": "y"}


@pytest.mark.parametrize(("name", "scope"), SCOPED.items(), ids=SCOPED.values())
def test_scopes_stay(name: str, scope: str, tmp_path: Path) -> None:
    """What a layer costs still stands under its module's name."""
    proto = linear(130, 70)
    proto.graph.node[0].name = name
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64), layers=(scope,))).model
    found = measure(written(twin, tmp_path))["macs"]
    assert {share.scope for share in found.shares if share.value} == {scope}


def test_the_original_stays_as_it_is() -> None:
    """Nothing of the given model is written to."""
    proto = linear(130, 70)
    before = proto.SerializeToString(deterministic=True)
    tiled_linears(proto, Tiling(Tile(None, 64, 64)))
    assert proto.SerializeToString(deterministic=True) == before


def test_an_old_operator_set_is_named() -> None:
    """Before operator set 13 Split takes its sizes in another way."""
    proto = linear(130, 70)
    proto.opset_import[0].version = 11
    (change,) = tiled_linears(proto, Tiling(Tile(None, 64, 64))).changes
    assert change.why == "operator set 11 is older than 13: convert the file first"


def test_names_that_are_taken() -> None:
    """A model that is tiled twice has no value under two names."""
    once = tiled_linears(linear(200, 130), Tiling(Tile(None, 64, 64))).model
    twice = tiled_linears(once, Tiling(Tile(None, 32, 32))).model
    onnx.checker.check_model(twice, full_check=True)
    assert operators(twice)["MatMul"] == 7 * 5 + 0  # ⌈200/32⌉ · ⌈130/32⌉, the tiles' edges fit
    x = drawn(9, 3, 200)
    assert is_close(in_float64(twice, x=x)["y"], expected(linear(200, 130), x))


def test_shape_operands_are_no_weights() -> None:
    """A stored integer matrix times integers is no linear layer that has tiles."""
    nodes = [node("MatMul", "x w", "y")]
    ids = value("x", 2, 2, code=onnx.TensorProto.INT64)
    result = value("y", 2, 1, code=onnx.TensorProto.INT64)
    weight = numpy_helper.from_array(np.ones((2, 1), np.int64), "w")
    proto = model(nodes, [ids], [result], [weight, integers("unused", 1)])
    (change,) = tiled_linears(proto, Tiling(Tile(None, 1, 1))).changes
    assert change.why == "its weight 'w' is not floating"


def test_a_sparse_weight_stays_whole() -> None:
    """A weight of which the file holds the values that are not zero alone is listed with that."""
    proto = linear(8, 4, bias=False)
    (weight,) = proto.graph.initializer
    del proto.graph.initializer[:]
    values = numpy_helper.from_array(np.ones(3, np.float32), weight.name)
    places = integers("places", 0, 1, 2)
    sparse = onnx.helper.make_sparse_tensor(values, places, list(weight.dims))
    proto.graph.sparse_initializer.append(sparse)
    (change,) = tiled_linears(proto, Tiling(Tile(None, 4, 4))).changes
    assert change.why == f"its weight '{weight.name}' is stored sparse"
