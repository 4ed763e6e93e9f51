"""Convolutions of ONNX graphs in tiles of channels: right for every size, and as costly."""

from __future__ import annotations

import runpy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget import check_equivalence, measure
from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.tile.conv_on_onnx import tiled_convolutions
from pytest_modelbudget.transforms.tile.grid import ONE_CHANNEL, Tile
from tests.builders.marks import each_in_turn
from tests.builders.onnx_graphs import model, node, stored, value
from tests.builders.onnx_linears import CODES, drawn, in_float64, is_close, operators, written

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "write_onnx_models.py"
CHANNELS = (1, 3, 63, 64, 65, 130)


def convolution(
    k: int,
    n: int,
    *kernel: int,
    size: int = 6,
    groups: int = 1,
    bias: bool = True,
    operator: str = "Conv",
    dtype: str = "float32",
    **attributes: Any,
) -> onnx.ModelProto:
    """x (2, k, size ...) by W (n, k / groups, kernel ...), or turned, to y."""
    shape = (k, n // groups) if operator == "ConvTranspose" else (n, k // groups)
    fan_in = np.prod(kernel) * k / groups
    weights = {
        "conv.weight": (drawn(0, *shape, *kernel) / np.sqrt(fan_in)).astype(dtype),
        "conv.bias": drawn(1, n, dtype=dtype),
    }
    names = list(weights)[: 2 if bias else 1]
    made = node(operator, f"x {' '.join(names)}", "y", group=groups, **attributes)
    code = CODES[dtype]
    x = value("x", 2, k, *(size for _ in kernel), code=code)
    y = value("y", 2, n, *(None for _ in kernel), code=code)
    return model([made], [x], [y], [numpy_helper.from_array(weights[name], name) for name in names])


def expected(proto: onnx.ModelProto, x: Any, *, stride: int = 1, pad: int = 0) -> Any:
    """The 2-D convolution in float64, by numpy: windows of x (batch, k, h, w) times the weight."""
    tensors = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    weight = tensors["conv.weight"].astype("float64")
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    groups = x.shape[1] // weight.shape[1]
    pairs = zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True)
    parts = [np.einsum("bkhwij,nkij->bnhw", some, part) for some, part in pairs]
    bias = tensors.get("conv.bias", np.zeros(len(weight))).astype("float64")
    return np.concatenate(parts, 1) + bias.reshape(-1, 1, 1)


def check(proto: onnx.ModelProto, tile: Tile, wanted: Any, folder: Path, *shape: int) -> None:
    """The tiled twin is valid, gives what is wanted of seed 9, and keeps inputs and outputs."""
    twin = tiled_convolutions(proto, tile).model
    written(twin, folder)
    assert is_close(in_float64(twin, x=drawn(9, *shape))["y"], wanted)
    for side in ("input", "output"):
        assert list(getattr(twin.graph, side)) == list(getattr(proto.graph, side))


@pytest.mark.parametrize(("k", "n", "edge"), each_in_turn([*product(CHANNELS, CHANNELS)], ("ragged", "pad")))
def test_every_size(k: int, n: int, edge: str, tmp_path: Path) -> None:
    """Below, at and above the tile, with and without a bias, strides and padding."""
    tile, shape = Tile(None, 64, 64, pads=edge == "pad"), (2, k, 6, 6)
    x = drawn(9, *shape)
    proto = convolution(k, n, 3, 2)
    check(proto, tile, expected(proto, x), tmp_path, *shape)
    proto = convolution(k, n, 3, 3, bias=False, strides=[2, 2], pads=[1, 1, 1, 1])
    check(proto, tile, expected(proto, x, stride=2, pad=1), tmp_path, *shape)


@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
@pytest.mark.parametrize(("k", "n", "groups"), [(40, 36, 2), (12, 8, 4), (40, 20, 20)])
def test_groups(k: int, n: int, groups: int, pads: bool, tmp_path: Path) -> None:
    """Each group's channels are cut for themselves."""
    shape = (2, k, 6, 6)
    proto = convolution(k, n, 3, 3, groups=groups)
    wanted = expected(proto, drawn(9, *shape))
    check(proto, Tile(None, 8, 8, pads=pads), wanted, tmp_path, *shape)


@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        pytest.param((3,), {"strides": [2]}, id="1-D"),
        pytest.param((3, 1, 2), {"dilations": [2, 1, 1]}, id="3-D"),
        pytest.param((2, 2), {"auto_pad": "SAME_UPPER"}, id="same"),
        pytest.param((3, 3), {"operator": "ConvTranspose"}, id="transposed"),
        pytest.param(
            (3,),
            {"operator": "ConvTranspose", "strides": [2], "output_padding": [1], "groups": 2},
            id="transposed groups",
        ),
    ],
)
def test_convolutions_of_every_kind(
    kernel: tuple[int, ...], attributes: dict[str, Any], pads: bool, tmp_path: Path
) -> None:
    """What ONNX Runtime makes of the whole node in float32, to a few of its roundings."""
    proto = convolution(20, 36, *kernel, **attributes)
    twin = tiled_convolutions(proto, Tile(None, 8, 8, pads=pads)).model
    written(twin, tmp_path)
    x = {"x": drawn(9, 2, 20, *(6 for _ in kernel))}
    assert is_close(OnnxRun(twin)(x)["y"], OnnxRun(proto)(x)["y"], tolerance=1e-6)


def test_the_nodes_of_a_tiled_convolution() -> None:
    """200 to 130 channels in 64 x 64: 4 · 3 products, 3 · 3 sums, a Split of x and one of b."""
    found = tiled_convolutions(convolution(200, 130, 3, 3), Tile(None, 64, 64))
    assert operators(found.model) == {"Add": 3 * 3, "Concat": 1, "Conv": 4 * 3, "Split": 2}
    assert found.partial_sums == 4
    assert [(each.scope, each.operation, each.became) for each in found.changes] == [
        ("y", "onnx::Conv", "12 products of 64x64")
    ]
    grouped = tiled_convolutions(convolution(40, 36, 3, groups=2), Tile(None, 8, 16))
    assert operators(grouped.model)["Conv"] == 2 * 3 * 2  # groups · ⌈20/8⌉ · ⌈18/16⌉
    assert operators(grouped.model)["Split"] == 2


def test_cost_stays(tmp_path: Path) -> None:
    """Parameters, their bytes and MACs are those of the whole layer: 9 taps of 200 by 130."""
    proto = convolution(200, 130, 3, 3)
    before = measure(written(proto, tmp_path, "before.onnx"))
    twin = tiled_convolutions(proto, Tile(None, 64, 64)).model
    after = measure(written(twin, tmp_path, "after.onnx"))
    for found in (before, after):
        assert found["params"].value == 9 * 200 * 130 + 130
        assert found["weight_memory"].value == 4 * (9 * 200 * 130 + 130)
        assert found["macs"].value == 2 * 4 * 4 * 9 * 200 * 130
        assert found["macs"].complete
    assert after["bandwidth"].value > before["bandwidth"].value


@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_weight_with_two_readers_is_stored_once(operator: str, pads: bool, tmp_path: Path) -> None:
    """Two layers that share a kernel cut it where the graph runs."""
    proto = convolution(40, 40, 3, groups=2, operator=operator, pads=[1, 1])
    again = node(operator, "y conv.weight conv.bias", "z", group=2, pads=[1, 1])
    proto.graph.node.append(again)
    proto.graph.output.append(value("z", 2, 40, 6))
    twin = tiled_convolutions(proto, Tile(None, 8, 8, pads=pads)).model
    kernels = 40 * 20 * 3 + 40
    assert measure(written(twin, tmp_path))["params"].value == kernels
    x = {"x": drawn(9, 2, 40, 6)}
    assert is_close(OnnxRun(twin)(x)["z"], OnnxRun(proto)(x)["z"], tolerance=1e-6)


def test_what_stays_whole_is_said() -> None:
    """Every convolution is listed: those that cannot be cut, with the reason."""
    nodes = [
        node("DequantizeLinear", "q s", "w0"),
        node("Conv", "x w0", "y0"),
        node("Conv", "x given", "y1"),
        node("Conv", "x w", "y2", group=8),
        node("ConvInteger", "i q", "y3"),
        node("Conv", "x w1", "y4"),
    ]
    weights = [stored("q", 4, 8, 3, 3, dtype=np.int8), stored("s"), stored("w", 8, 1, 3, 3), stored("w1", 4, 8, 3, 3)]
    inputs = [value("x", 1, 8, 5, 5), value("given", 4, 8, 3, 3)]
    inputs.append(value("i", 1, 8, 5, 5, code=TensorProto.INT8))
    proto = model(nodes, inputs, [value(f"y{each}") for each in range(5)], weights)
    found = tiled_convolutions(proto, Tile(None, 4, 4), ["y[0-3]"])
    assert {each.scope: each.why for each in found.changes} == {
        "y0": "its weight is quantised: tile the float model, then quantise",
        "y1": "its weight is computed in the graph",
        "y2": "one input channel a group",
        "y3": "onnx::ConvInteger is rewritten by no form of tiles",
        "y4": "layers: leaves it out",
    }
    assert found.model.graph == proto.graph


def test_the_original_stays_as_it_is() -> None:
    """Nothing of the given model is written to."""
    proto = convolution(40, 36, 3, groups=2)
    before = proto.SerializeToString(deterministic=True)
    tiled_convolutions(proto, Tile(None, 8, 8))
    assert proto.SerializeToString(deterministic=True) == before


def applied(path: Path, **settings: Any) -> Applied:
    """The transform as a budget applies it."""
    using = tables()
    given = {"tile": (None, 8, 8), "edge": "ragged", "layers": ("*",)} | settings
    source = ModelSource("onnx", path.name, base=path.parent)
    return apply_transform(source, Transformation("tile_conv", given), using)


@pytest.mark.parametrize("edge", ["ragged", "pad"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_onnx_runtime_runs_what_is_measured(dtype: str, edge: str, tmp_path: Path) -> None:
    """The claim holds in the file's own type, and the run has the products of the graph."""
    proto = convolution(20, 36, 3, 3, groups=2, dtype=dtype)
    done = applied(written(proto, tmp_path), edge=edge)
    assert [each.became for each in done.changed.changes] == ["12 products of 8x8"]
    assert done.verify(Claim()).outcome == "within"


def test_what_stays_whole_is_never_green(tmp_path: Path) -> None:
    """A depthwise convolution may stay, but then something else must have changed."""
    with pytest.raises(TransformError, match=r"stays as it is \(one input channel a group\)"):
        applied(written(convolution(20, 20, 3, groups=20), tmp_path))
    without = model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)])
    with pytest.raises(TransformError, match="the model has no convolutions"):
        applied(written(without, tmp_path))


@pytest.mark.slow
def test_mobilenet_is_tiled_whole(tmp_path: Path) -> None:
    """17 depthwise convolutions stay, 35 become ⌈K/64⌉ · ⌈N/64⌉ each.

    Of 32 x 32 pixels all but the head takes 1/49 of the 300,774,272 MACs at 224 x 224.
    """
    write: Any = runpy.run_path(str(SCRIPT))["mobilenet_v2"]
    proto: onnx.ModelProto = write()
    for side in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        side.dim_value = 32
    shapes = {each.name: tuple(each.dims) for each in proto.graph.initializer}
    kernels = [shapes[each.input[1]] for each in proto.graph.node if each.op_type == "Conv"]
    whole = [kernel for kernel in kernels if kernel[1] == 1]
    products = sum(-(-n // 64) * -(-k // 64) for n, k, *_ in kernels if k > 1)
    (tmp_path / "mobilenet.onnx").write_bytes(proto.SerializeToString())
    done = applied(tmp_path / "mobilenet.onnx", tile=(None, 64, 64))
    assert (len(whole), len(done.changed.changes)) == (17, 52)
    assert [each.why for each in done.changed.changes if not each.became] == [ONE_CHANNEL] * 17
    costed = CostedGraph(done.changed.model.graph, tables().ops)
    assert sum(op.name == "onnx::Conv" for op in done.changed.model.graph.ops) == products + 17
    assert tables().metrics["macs"].measure(costed).value == (300_774_272 - 1_280_000) // 49 + 1_280_000
    found = done.verify(Claim(seeds=(0,)))
    assert (found.outcome, found.weights) == ("within", "drawn, seed 0")


WRONG = {
    "a tile dropped": ("conv.weight_g1_k2_n2", lambda values: 0 * values),
    "a tile's sign": ("conv.weight_g0_k1_n0", lambda values: -values),
    "a kernel turned": ("conv.weight_g0_k0_n1", lambda values: values.swapaxes(2, 3)),
    "channels turned": ("conv.weight_g0_k0_n1", lambda values: values.swapaxes(0, 1)),
    "one weight": ("conv.weight_g1_k0_n0", lambda values: values + one_of(values)),
    "another bias": ("conv.bias", lambda values: np.roll(values, 1)),
}


def one_of(values: Any) -> Any:
    """A half in one place of as many values."""
    found = np.zeros_like(values)
    found[3, 2, 1, 0] = 0.5
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "change"), WRONG.values(), ids=WRONG)
def test_wrong_tiles_are_found(name: str, change: Any, dtype: str, tmp_path: Path) -> None:
    """A twin with one wrong tile is over, and its layer is the first that differs."""
    proto = convolution(40, 36, 3, 3, groups=2, dtype=dtype)
    twin = tiled_convolutions(proto, Tile(None, 8, 8)).model
    (tensor,) = (each for each in twin.graph.initializer if each.name == name)
    wrong = change(numpy_helper.to_array(tensor)).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(wrong, name))
    found = check_equivalence(written(proto, tmp_path, "a.onnx"), written(twin, tmp_path))
    assert found.outcome == "over"
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "y"
