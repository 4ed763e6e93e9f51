"""Integer weights behind DequantizeLinear: on the grid, as close as it allows, and listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget import measure
from pytest_modelbudget.equivalence.claim import Claim, Kind, Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.transforming import Applied, apply_transform
from pytest_modelbudget.onnx_models.session import OnnxRun
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.quantize.grid import Grid
from pytest_modelbudget.transforms.quantize.on_onnx import off_grid, quantised, quantised_weights
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_linears import change, drawn, is_close, linear, operators, written

RANGES = {(8, True): (-127, 127), (8, False): (-128, 127), (4, True): (-7, 7), (4, False): (-8, 7)}


def stored(proto: onnx.ModelProto) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}


@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize(("bits", "symmetric"), RANGES)
def test_weights_lie_on_the_grid(bits: int, symmetric: bool, per_channel: bool, tmp_path: Path) -> None:
    """Every stored integer is in range, and s·(q - z) is no further off than half a step."""
    proto = linear(65, 30, dtype="float32")
    found = quantised_weights(proto, Grid(bits, per_channel, symmetric))
    written(found.model, tmp_path)
    tensors = stored(found.model)
    integers = tensors["fc.weight.quantized"].astype(np.int64)
    low, high = RANGES[bits, symmetric]
    assert low <= integers.min()
    assert integers.max() <= high
    scale = tensors["fc.weight.scale"].astype(np.float64).reshape(-1, 1)
    zero = tensors["fc.weight.zero_point"].astype(np.int64).reshape(-1, 1)
    assert scale.size == (30 if per_channel else 1)
    error = np.abs(scale * (integers - zero) - stored(proto)["fc.weight"])
    within = 0.5 if symmetric else 1.0  # the zero point is rounded too
    assert (error <= within * scale * (1 + 1e-6)).all()
    assert off_grid(proto, found.model, Grid(bits, per_channel, symmetric)) == ()
    x = drawn(9, 3, 65)
    wanted = x @ (scale * (integers - zero)).T + stored(proto)["fc.bias"]
    assert is_close(OnnxRun(found.model)({"x": x})["y"], wanted, 1e-6)


def test_bytes_as_stored(tmp_path: Path) -> None:
    """65·30 weights of a byte or half of one, 30 scales and zero points, 30 biases of 4 bytes."""
    for bits, weights in ((8, 65 * 30), (4, 65 * 30 // 2)):
        proto = quantised_weights(linear(65, 30), Grid(bits)).model
        found = measure(written(proto, tmp_path))
        assert found["params"].value == 65 * 30 + 30
        assert found["weight_memory"].value == weights + 30 * 4 + 30 * bits // 8 + 30 * 4
        assert found["macs"].value == 3 * 65 * 30


def quantised_file(folder: Path, **given: object) -> Applied:
    """The transform of the file in a folder, with its defaults where nothing else is said."""
    settings = {"bits": 8, "per": "channel", "symmetric": True, "layers": ("*",)} | given
    source = ModelSource("onnx", "model.onnx", base=folder)
    return apply_transform(source, "quantize_weights", settings, tables())


def network() -> onnx.ModelProto:
    """A convolution, a turned weight, two activations, a table, and a weight of a Gemm."""
    nodes = [
        node("Conv", "x k", "c"),
        node("Flatten", "c", "f"),
        node("Transpose", "w0", "t", perm=[1, 0]),
        node("MatMul", "f t", "y0"),
        node("Gemm", "y0 w1", "y1"),
        node("MatMul", "y1 y1", "y2"),
        node("Add", "w2 w2", "ww"),
        node("MatMul", "y1 ww", "y3"),
    ]
    arrays = {
        "k": drawn(0, 4, 2, 3, 3), "w0": drawn(1, 5, 16), "w1": drawn(2, 5, 5),
        "w2": drawn(3, 5, 5),
    }  # fmt: skip
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    outputs = [value(name, 5, 5) for name in ("y2", "y3")]
    return model(nodes, [value("x", 5, 2, 4, 4)], outputs, weights)


def test_the_table_of_changes() -> None:
    """Every layer with a weight is listed; a product of activations has none."""
    found = quantised_weights(network(), Grid(layers=("c", "y0", "y3")))
    onnx.checker.check_model(found.model, full_check=True)
    assert [(each.scope, each.operation, each.became or each.why) for each in found.changes] == [
        ("c", "onnx::Conv", "int8, a scale per channel"),
        ("y0", "onnx::MatMul", "int8, a scale per channel"),
        ("y1", "onnx::Gemm", "layers: leaves it out"),
        ("y3", "onnx::MatMul", "its weight comes out of onnx::Add"),
    ]
    assert operators(found.model)["DequantizeLinear"] == 2
    arrays = stored(found.model)
    assert [arrays[name].shape for name in ("k.scale", "w0.scale")] == [(4,), (5,)]


def test_a_float_weight_in_disguise_is_told() -> None:
    """A layer that says it was changed and reads floats is off the grid."""
    proto = linear(65, 30)
    found = quantised_weights(proto, Grid())
    gemm = next(each for each in found.model.graph.node if each.op_type == "Gemm")
    float_weight = numpy_helper.from_array(drawn(0, 30, 65), "floats")
    found.model.graph.initializer.append(float_weight)
    gemm.input[1] = "floats"
    assert off_grid(proto, found.model, Grid()) == ("y",)


def towards_zero(values: Any) -> Any:
    values[2, 3] -= 1 if values[2, 3] > 0 else -1
    return values


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("layer", [(3,), (1, 3)], ids=["Gemm", "MatMul"])
@pytest.mark.parametrize(
    ("part", "symmetric", "how"),
    [
        pytest.param("quantized", True, np.zeros_like, id="zeros"),
        pytest.param("quantized", True, towards_zero, id="one integer"),
        pytest.param("quantized", True, lambda values: np.roll(values, 1), id="channels"),
        pytest.param("scale", True, lambda values: values * 1.5, id="scale"),
        pytest.param("zero_point", False, lambda values: values - np.sign(values), id="zero point"),
    ],
)
def test_integers_that_are_not_the_weight_are_told(
    part: str, symmetric: bool, how: Callable[[Any], Any], layer: tuple[int, ...], bits: int
) -> None:
    """What is stored is held to the weight that it stands for, not to its own range."""
    proto = linear(65, 30, leading=layer)
    grid = Grid(bits, symmetric=symmetric)
    found = quantised_weights(proto, grid)
    assert off_grid(proto, found.model, grid) == ()
    change(found.model, f"fc.weight.{part}", how)
    assert len(off_grid(proto, found.model, grid)) == 1


def test_a_product_of_activations_beside_a_layer(tmp_path: Path) -> None:
    """Attention's q·kᵀ stands in the module of its projection, and has no weight to be a grid's."""
    nodes = [node("MatMul", "x w", "q"), node("Transpose", "q", "k", perm=[1, 0]), node("MatMul", "q k", "y")]
    for each in nodes:
        each.name = f"/attention/{each.output[0]}"
    weights = [numpy_helper.from_array(drawn(0, 8, 8), "w")]
    written(model(nodes, [value("x", 3, 8)], [value("y", 3, 3)], weights), tmp_path)
    done = quantised_file(tmp_path)
    assert [(each.scope, each.became) for each in done.changed.changes] == [("attention", "int8, a scale per channel")]
    assert done.verify(Claim(Kind.LOSSY, seeds=(0,))).outcome is Outcome.WITHIN


def test_int4_needs_a_new_operator_set() -> None:
    """INT4 came with operator set 21."""
    proto = linear(65, 30)
    proto.opset_import[0].version = 17
    (change,) = quantised_weights(proto, Grid(4)).changes
    assert change.why == "operator set 17 has no int4 weights: 21 has"


@pytest.mark.parametrize(
    ("dtype", "opset", "why"),
    [
        ("float16", 18, "operator set 18 has no DequantizeLinear to float16: 19 has"),
        ("float64", 21, "its weight 'fc.weight' is double, which no DequantizeLinear gives"),
    ],
)
def test_types_that_no_dequantizer_gives(dtype: str, opset: int, why: str) -> None:
    """Half scales came with operator set 19 and double ones never did: no file is made of them."""
    proto = linear(65, 30)
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    proto.opset_import[0].version = opset
    found = quantised_weights(proto, Grid())
    assert [change.why for change in found.changes] == [why]
    assert operators(found.model) == operators(proto)


def test_a_channel_of_zeros() -> None:
    """Zeros stay zeros, with a scale of one."""
    proto = linear(8, 4)
    weight = stored(proto)["fc.weight"].copy()
    weight[2] = 0
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "fc.weight"))
    tensors = stored(quantised_weights(proto, Grid()).model)
    assert tensors["fc.weight.scale"][2] == 1.0
    assert not tensors["fc.weight.quantized"][2].any()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("code", "smallest"),
    [
        pytest.param(TensorProto.FLOAT16, -24, id="float16"),
        pytest.param(TensorProto.BFLOAT16, -133, id="bfloat16"),
        pytest.param(TensorProto.FLOAT, -149, id="float32"),
    ],
)
def test_weights_of_any_size_lie_on_their_grid(code: int, smallest: int, bits: int, symmetric: bool) -> None:
    """A channel whose scale is below the smallest normal number is no further off than others."""
    sizes = 2.0 ** np.arange(smallest - 2, smallest + 28)
    weight = (drawn(0, 30, 64, dtype="float64") * sizes[:, None]).astype(tensor_dtype_to_np_dtype(code))
    found = quantised(weight, Grid(bits, symmetric=symmetric), 0)
    step = found.scale.astype("float64")[:, None]
    assert (step > 0).all()
    off = np.abs(step * (found.integers - found.zero_point[:, None]) - weight.astype("float64"))
    assert (off / step).max() <= (0.5 if symmetric else 1.0)


@pytest.mark.parametrize(
    ("bits", "layers", "sentence"),
    [
        pytest.param(4, ("*",), "operator set 17 has no int4 weights: 21 has", id="int4"),
        pytest.param(8, ("head",), "layers: no module of the model matches 'head'", id="no layer"),
    ],
)
def test_nothing_changed_says_why(bits: int, layers: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    """A quantiser that changed nothing raises, with the reason."""
    proto = linear(65, 30)
    proto.opset_import[0].version = 17
    written(proto, tmp_path)
    with pytest.raises(TransformError, match=sentence):
        quantised_file(tmp_path, bits=bits, layers=layers)


@pytest.mark.parametrize(("bits", "least"), [(8, 6.02 * 8 - 12), (4, 6.02 * 4 - 12)])
def test_a_lossy_claim_without_bounds(bits: int, least: float, tmp_path: Path) -> None:
    """One quantised layer owes 6.02 dB a bit less 12: the twin holds it, a coarser one does not."""
    written(linear(200, 130), tmp_path)
    done = quantised_file(tmp_path, bits=bits)
    found = done.verify(Claim(Kind.LOSSY, seeds=(0,)))
    assert found.outcome is Outcome.WITHIN, found.reason
    moving = [record for record in found.outputs if record.family != "zeros"]
    assert all(least <= record.figures.sqnr < least + 24 for record in moving)


def test_each_run_of_a_weight_has_a_share_of_noise(tmp_path: Path) -> None:
    """One weight in three products owes 48.16 - 12 - 10·log10(3) = 31.39 dB, as three weights do."""
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("MatMul", "b w", "y")]
    given, result = value("x", 1, 3, 16), value("y", 1, 3, 16)
    written(model(nodes, [given], [result], [numpy_helper.from_array(drawn(0, 16, 16) / 4, "w")]), tmp_path)
    floor = quantised_file(tmp_path).changed.floor
    assert floor is not None
    assert round(floor.decibels, 2) == 31.39
