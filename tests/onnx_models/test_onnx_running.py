"""Runs of ONNX models: large graphs in pieces, float64 copies, and values in the middle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from math import erf
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.onnx_models.session import REFERENCE, RUNTIME, OnnxRun, Step, float64_engine, pieces, runtime
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_linears import drawn, is_close


def chain(length: int) -> onnx.ModelProto:
    """x + w₀ + w₁ + …, each sum a node."""
    names = ["x", *(f"y{each}" for each in range(length))]
    nodes = [node("Add", f"{names[i]} w{i}", names[i + 1]) for i in range(length)]
    weights = [numpy_helper.from_array(drawn(i, 4), f"w{i}") for i in range(length)]
    return model(nodes, [value("x", 4)], [value(names[-1], 4)], weights)


def conv_net(*pools: onnx.NodeProto) -> onnx.ModelProto:
    """A convolution, pools and a linear layer's worth of operators that need two engines."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean variance", "n"),
        node("Tanh", "n", "e"),
        *pools,
        node("GlobalAveragePool", "p", "g"),
        node("Flatten", "g", "y"),
    ]
    stored = {
        "w": drawn(0, 6, 3, 3, 3), "b": drawn(1, 6), "scale": drawn(2, 6), "shift": drawn(3, 6),
        "mean": drawn(4, 6), "variance": np.abs(drawn(5, 6)) + 0.5,
    }  # fmt: skip
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    return model(nodes, [value("x", "batch", 3, 12, 12)], [value("y", "batch", 6)], weights)


POOLS = {
    "max": {"operator": "MaxPool", "kernel_shape": [2, 2], "strides": [2, 2]},
    "average": {"operator": "AveragePool", "kernel_shape": [3, 3], "strides": [2, 2]},
    "padded": {"operator": "AveragePool", "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "ceiling": {"operator": "AveragePool", "kernel_shape": [5, 5], "strides": [3, 3],
                "ceil_mode": 1},
    "dilated": {"operator": "AveragePool", "kernel_shape": [2, 2], "dilations": [2, 2]},
}  # fmt: skip


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
def test_float64_is_what_the_reference_says(pool: dict[str, Any]) -> None:
    """A float64 run on two engines gives what onnx's reference gives on upcast values."""
    attributes = dict(pool)
    proto = conv_net(node(attributes.pop("operator"), "e", "p", **attributes))
    x = drawn(9, 2, 3, 12, 12).astype("float64")
    wanted = reference_in_float64(proto).run(None, {"x": x})[0]
    assert is_close(OnnxRun(proto, float64=True)({"x": x})["y"], wanted)


CONVS = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 2), {}),
    "padded, with strides": ((2, 3, 6, 5), (4, 3, 3, 2), {"pads": [2, 0, 1, 3], "strides": [2, 1]}),
    "in groups, one axis": ((2, 6, 9), (4, 3, 3), {"group": 2, "pads": [1, 0]}),
    "each channel, three axes": ((1, 4, 3, 4, 5), (4, 1, 2, 1, 3), {"group": 4, "pads": [0, 0, 1, 1, 0, 1]}),
    "dilated": ((2, 3, 6, 5), (4, 3, 2, 2), {"dilations": [2, 3]}),
    "as large as x": ((2, 3, 6, 5), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
}


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("shape", "kernel", "attributes"), CONVS.values(), ids=CONVS.keys())
def test_float64_convolutions(
    shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], biased: bool
) -> None:
    """Those of onnx's reference, bit by bit."""
    arrays = {"w": drawn(0, *kernel), **({"b": drawn(1, kernel[0])} if biased else {})}
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    convolve = node("Conv", f"x {' '.join(arrays)}", "y", **attributes)
    proto = model([convolve], [value("x", *shape)], [value("y", *("?" * len(shape)))], stored)
    x = drawn(9, *shape).astype("float64")
    wanted = reference_in_float64(proto).run(None, {"x": x})[0]
    assert np.array_equal(OnnxRun(proto, float64=True)({"x": x})["y"], wanted)


def reference_in_float64(proto: onnx.ModelProto) -> ReferenceEvaluator:
    upcast = onnx.ModelProto()
    upcast.CopyFrom(proto)
    for tensor in upcast.graph.initializer:
        array = numpy_helper.to_array(tensor).astype("float64")
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return ReferenceEvaluator(upcast)


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_pieces_hold_every_node_once(most: int) -> None:
    """Whatever their size, pieces in order are the nodes of the graph in order."""
    proto = chain(20)
    names = {tensor.name for tensor in proto.graph.initializer}
    found = pieces(proto.graph.node, {"y19"}, names, runtime, most_nodes=most)
    assert [each for piece in found for each in piece.nodes] == list(proto.graph.node)
    assert len(found) == -(-20 // most)
    x = drawn(3, 4)
    whole, cut = (OnnxRun(proto, most_nodes=n)({"x": x})["y19"] for n in (100, most))
    assert (whole == cut).all()


def test_engines() -> None:
    """What ONNX Runtime has no float64 kernel for, and what holds such a node, runs elsewhere."""
    assert float64_engine(node("MatMul", "x w", "y")) == RUNTIME
    assert float64_engine(node("Conv", "x w", "y")) == REFERENCE
    assert float64_engine(node("Shape", "x", "y")) == RUNTIME
    assert float64_engine(node("Not", "x", "y")) == RUNTIME
    body = onnx.helper.make_graph([node("Conv", "x w", "y")], "b", [], [value("y", 1)])
    assert float64_engine(node("If", "c", "y", then_branch=body, else_branch=body)) == REFERENCE


def test_values_in_the_middle() -> None:
    """Watched values are handed out beside the outputs, from whichever piece makes them."""
    run = OnnxRun(chain(5), watched=["y1", "y3"], most_nodes=2)
    found = run({"x": np.zeros(4, np.float32)})
    assert list(found) == ["y4", "y1", "y3"]
    assert is_close(found["y1"], drawn(0, 4) + drawn(1, 4), 1e-6)


def test_runs_that_begin_later_share_sessions() -> None:
    """Pieces are cut from the end: of five nodes in pieces of two, a run behind the first node makes none again."""
    steps: dict[Hashable, Step] = {}
    whole = OnnxRun(chain(5), watched=["y0"], most_nodes=2, steps=steps)({"x": drawn(3, 4)})
    later = OnnxRun(chain(5), given=frozenset({"y0"}), most_nodes=2, steps=steps)({"y0": whole["y0"]})
    assert len(steps) == 3
    assert (later["y4"] == whole["y4"]).all()


def test_given_values_replace_their_nodes() -> None:
    """A value that is fed is not computed, nor what leads to it."""
    run = OnnxRun(chain(5), given=frozenset({"y0", "y1", "y2"}))
    found = run({"y2": np.zeros(4, np.float32)})["y4"]
    assert is_close(found, drawn(3, 4) + drawn(4, 4), 1e-6)


def test_casts_and_constants_are_upcast() -> None:
    """A cast to float32 in the middle does not round the float64 copy."""
    constant = onnx.helper.make_node("Constant", [], ["third"], value_float=1 / 3)
    nodes = [
        node("Cast", "x", "c", to=TensorProto.FLOAT),
        constant,
        node("Mul", "c third", "product"),
        node("Shape", "x", "shape"),
        node("ConstantOfShape", "shape", "zeros"),
        node("Add", "product zeros", "y"),
    ]
    proto = model(nodes, [value("x", 2)], [value("y", 2)])
    x = np.array([1 / 3, 1e-9])
    assert is_close(OnnxRun(proto, float64=True)({"x": x})["y"], x * float(np.float32(1 / 3)))


def test_what_cannot_run_is_said() -> None:
    """The engine's own words stand in the error."""
    proto = model([node("MatMul", "x x", "y")], [value("x", 2, 3)], [value("y", 2, 3)])
    with pytest.raises(TransformError, match="running on onnxruntime raised"):
        OnnxRun(proto)({"x": drawn(0, 2, 3)})


def test_an_output_that_no_node_makes() -> None:
    """An input or a stored tensor may be an output too."""
    weight = numpy_helper.from_array(drawn(0, 4), "w")
    outputs = [value("x", 4), value("w", 4)]
    found = OnnxRun(model([], [value("x", 4)], outputs, [weight]))({"x": drawn(1, 4)})
    assert (found["x"] == drawn(1, 4)).all()
    assert (found["w"] == drawn(0, 4)).all()


# Operators that networks are made of, on x (2, 6, 4, 4): their own formulas in float64.
FORMULAS: Mapping[str, Callable[[Any], Any]] = {
    "Erf": lambda x: np.vectorize(erf)(x),
    "Gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "Softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "HardSwish": lambda x: x * np.clip(x * float(np.float32(1 / 6)) + 0.5, 0, 1),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "ReduceMean": lambda x: x.mean(keepdims=True),
    "Elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
}


@pytest.mark.parametrize("operator", FORMULAS)
def test_nothing_is_rounded_on_the_way(operator: str) -> None:
    """A float64 run is float64 all through: to 1e-14 what the formula gives."""
    proto = model([node(operator, "x", "y")], [value("x", 2, 6, 4, 4)], [value("y", *[None] * 4)])
    x = drawn(7, 2, 6, 4, 4).astype("float64")
    assert is_close(OnnxRun(proto, float64=True)({"x": x})["y"], FORMULAS[operator](x), 1e-14)


@pytest.mark.parametrize("operator", ["LayerNormalization", "GroupNormalization", "RMSNormalization"])
def test_norms_are_float64_inside(operator: str) -> None:
    """Statistics that a file wants in float32 are float64 in its copy."""
    is_grouped = operator == "GroupNormalization"
    arrays = {name: drawn(seed, 6 if is_grouped else 4) for seed, name in enumerate("sb")}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    attributes = {"num_groups": 3} if is_grouped else {}
    root = operator == "RMSNormalization"
    norm = node(operator, "x s" if root else "x s b", "y", **attributes)
    proto = model([norm], [value("x", 2, 6, 4, 4)], [value("y", 2, 6, 4, 4)], weights)
    x = drawn(7, 2, 6, 4, 4).astype("float64")
    groups = x.reshape(2, 3, -1) if is_grouped else x
    centred = groups if root else groups - groups.mean(-1, keepdims=True)
    epsilon = float(np.float32(1e-5))
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    scale, shift = (array.astype(float).reshape((6, 1, 1) if is_grouped else (4,)) for array in arrays.values())
    wanted = normed.reshape(x.shape) * scale + (0.0 if root else shift)
    assert is_close(OnnxRun(proto, float64=True)({"x": x})["y"], wanted, 1e-13)
