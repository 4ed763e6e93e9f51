"""Recurrent layers run in float64, and an engine's word about its kernels is never taken."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.onnx_models import session
from pytest_modelbudget.onnx_models.recurrent import RECURRENT
from pytest_modelbudget.onnx_models.session import OnnxRun
from tests.builders.onnx_graphs import graph, model, node, stored, value

TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS: tuple[Sequence[int] | None, ...] = (None, [5, 2, 1], [0, 3, 5])
PLAIN: dict[str, Any] = {}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "RNN": [
        PLAIN,
        {"clip": 0.7},
        *({"activations": [name]} for name in ("Relu", "LeakyRelu", "Elu", "HardSigmoid")),
        *({"activations": [name]} for name in ("Softsign", "Softplus", "Sigmoid")),
        {"activations": ["ScaledTanh"], "activation_alpha": [1.7], "activation_beta": [0.6]},
        {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.2]},
        {"activations": ["ThresholdedRelu"], "activation_alpha": [0.3]},
    ],
    "GRU": [
        PLAIN,
        {"clip": 0.7},
        {"linear_before_reset": 1},
        {"activations": ["HardSigmoid", "Softsign"], "linear_before_reset": 1},
        {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.3]},
        {"activations": ["HardSigmoid", "ScaledTanh"], "activation_alpha": [0.3, 1.2], "activation_beta": [0.4, 0.7]},
    ],
    "LSTM": [
        PLAIN,
        {"clip": 0.7},
        {"input_forget": 1},
        {"activations": ["HardSigmoid", "Relu", "Softsign"]},
        {"activations": ["HardSigmoid", "Affine", "Tanh"], "activation_alpha": [0.3, 0.5],
         "activation_beta": [0.4, 0.1]},
    ],
}  # fmt: skip
CASES = [
    pytest.param(operator, direction, settings, id=f"{operator}-{direction}-{at}")
    for operator in SETTINGS
    for direction in ("forward", "reverse", "bidirectional")
    for at, settings in enumerate(SETTINGS[operator])
]


def layer(
    operator: str, direction: str, settings: dict[str, Any], lengths: Sequence[int] | None, *, full: bool
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """One layer with all that it may read, or only with what it must, and its float32 operands."""
    generator = np.random.default_rng(7)
    gates, ways = GATES[operator], 2 if direction == "bidirectional" else 1
    shapes = {"X": (TIME, BATCH, FEATURES), "W": (ways, gates * HIDDEN, FEATURES), "R": (ways, gates * HIDDEN, HIDDEN)}
    names = ["X", "W", "R", "", "", ""]
    if full:
        shapes |= {"B": (ways, 2 * gates * HIDDEN), "H": (ways, BATCH, HIDDEN)}
        names[3], names[5] = "B", "H"
        if operator == "LSTM":
            shapes |= {"C": (ways, BATCH, HIDDEN), "P": (ways, 3 * HIDDEN)}
            names += ["C", "P"]
    feeds: dict[str, Any] = {name: generator.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    if lengths is not None:
        names[4], feeds["L"] = "L", np.array(lengths, "int32")
    outputs = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    repeated = {key: entry * ways if isinstance(entry, list) else entry for key, entry in settings.items()}
    made = helper.make_node(operator, names, outputs, hidden_size=HIDDEN, direction=direction, **repeated)
    codes = {name: TensorProto.INT32 if name == "L" else TensorProto.FLOAT for name in feeds}
    inputs = [value(name, *array.shape, code=codes[name]) for name, array in feeds.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    proto = model([made], inputs, results, opset=17)
    proto.ir_version = 8
    return proto, feeds


def in_onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    made = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(made.run(None, feeds))


@pytest.mark.parametrize(("operator", "direction", "settings"), CASES)
def test_kernels_agree_with_onnx_runtime(operator: str, direction: str, settings: dict[str, Any]) -> None:
    """In float64, up to what float32 rounds, with and without lengths, bias, states and peepholes."""
    for lengths, full in itertools.product(LENGTHS, (False, True)):
        proto, feeds = layer(operator, direction, settings, lengths, full=full)
        wide = {name: array.astype("float64") if name != "L" else array for name, array in feeds.items()}
        results = ReferenceEvaluator(proto, new_ops=RECURRENT).run(None, wide)
        expected = in_onnxruntime(proto, feeds)
        assert len(results) == len(expected)
        for one, other in zip(results, expected, strict=True):
            assert one.dtype == np.float64
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("operator", list(GATES))
def test_layout_is_an_order_of_axes(operator: str) -> None:
    """With layout 1 the batch comes first, in operands and in results."""
    proto, feeds = layer(operator, "bidirectional", PLAIN, None, full=True)
    wide = {name: array.astype("float64") for name, array in feeds.items()}
    straight = ReferenceEvaluator(proto, new_ops=RECURRENT).run(None, wide)
    proto.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    turned = {name: np.swapaxes(array, 0, 1) if name in "XHC" else array for name, array in wide.items()}
    every, *last = ReferenceEvaluator(proto, new_ops=RECURRENT).run(None, turned)
    np.testing.assert_array_equal(every, straight[0].transpose(2, 0, 1, 3))
    for one, other in zip(last, straight[1:], strict=True):
        np.testing.assert_array_equal(one, np.swapaxes(other, 0, 1))


def recurrent(operator: str, *, dtype: Any = np.float32, damage: float = 0.0, inside: str = "") -> onnx.ModelProto:
    """x (3, 1, 5) through one layer of four units, perhaps in a branch or a function."""
    generator = np.random.default_rng(0)
    gates = GATES[operator]
    w = generator.standard_normal((1, gates * 4, 5)).astype(dtype)
    r = generator.standard_normal((1, gates * 4, 4)).astype(dtype)
    r[0, 0, 0] += damage
    weights = [numpy_helper.from_array(w, "W"), numpy_helper.from_array(r, "R")]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = node(operator, "x W R", "y", hidden_size=4)
    inputs, outputs = [value("x", 3, 1, 5, code=code)], [value("y", 3, 1, 1, 4, code=code)]
    if inside == "a branch":
        body = graph([made], [], outputs)
        inputs.append(value("flag", code=TensorProto.BOOL))
        return model([node("If", "flag", "y", then_branch=body, else_branch=body)], inputs, outputs, weights, opset=17)
    if inside == "a function":
        opsets = [helper.make_opsetid("", 17)]
        own = helper.make_function("own", "layer", ["x", "W", "R"], ["y"], [made], opsets)
        call = node("layer", "x W R", "y", domain="own")
        return model([call], inputs, outputs, weights, opset=17, domains=["own"], functions=[own])
    return model([made], inputs, outputs, weights, opset=17)


def saved(proto: onnx.ModelProto, path: Path) -> Path:
    proto.ir_version = 8
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("inside", ["", "a branch", "a function"])
@pytest.mark.parametrize("operator", list(GATES))
def test_recurrent_models_are_compared(operator: str, inside: str, tmp_path: Path) -> None:
    """A file is within against itself, and over where one weight of a gate differs."""
    first = saved(recurrent(operator, inside=inside), tmp_path / "a.onnx")
    second = saved(recurrent(operator, inside=inside, damage=0.01), tmp_path / "b.onnx")
    assert check_equivalence(first, first).outcome is Outcome.WITHIN
    assert check_equivalence(first, second).outcome is Outcome.OVER


def test_an_engine_that_throws_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only declared is found out, for the one node among many that it concerns."""
    monkeypatch.setattr(session, "float64_engine", session.runtime)
    nodes = [node("Mul", "x x", "a"), node("GRU", "a W R", "b", hidden_size=4), node("Mul", "b b", "y")]
    weights = [stored("W", 1, 12, 5), stored("R", 1, 12, 4)]
    proto = model(nodes, [value("x", 3, 1, 5)], [value("y", 3, 1, 1, 4)], weights, opset=17)
    proto.ir_version = 8
    run = OnnxRun(proto, float64=True)
    x = np.full((3, 1, 5), 0.1)
    y = run({"x": x})["y"]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, in_onnxruntime(proto, {"x": x.astype("float32")})[0], rtol=1e-5)
    np.testing.assert_array_equal(run({"x": x})["y"], y)


def test_an_operator_without_any_kernel_is_named() -> None:
    """The one that runs nowhere in float64, with what both engines say."""
    nodes = [
        node("Mul", "x x", "a"),
        node("QuickGelu", "a", "b", domain="com.microsoft"),
        node("mystery", "b", "y", domain="lab"),
    ]
    proto = model(nodes, [value("x", 4)], [value("y", 4)], domains=["com.microsoft", "lab"])
    with pytest.raises(TransformError, match=r"lab::mystery 'y' does not run in float64: .*onnx\.reference"):
        OnnxRun(proto, float64=True)({"x": np.ones(4)})
