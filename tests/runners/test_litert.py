"""LiteRT as the second side of a claim: right files are within, damaged ones over, in floats and in int8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pytest_modelbudget.onnx_models.reading import write_model
from tests.builders.marks import needs
from tests.builders.project import Project

pytestmark = needs("ai_edge_litert", "wild")

RUNNER = "python -m pytest_modelbudget.runners litert --layers {model} {inputs} {outputs}"
BUDGET = """model_budget: 1
models:
  net:
    onnx: net.onnx
    transforms:
"""
ENTRY = """      {name}:
        runner:
          command: "{command}"
          inputs: {{x: {{name: x, layout: NHWC}}}}
          layers: {{first: {{name: first, layout: NHWC}}, second: {{name: second, layout: NHWC}}}}
        model: {name}.tflite
        equivalence: {{kind: lossy, sqnr: 60, families: [normal], seeds: [0, 1]}}
"""


def drawn(seed: int, *shape: int) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


WEIGHTS = {"w0": drawn(0, 8, 3, 3, 3), "b0": drawn(1, 8) / 8, "w1": drawn(2, 6, 8, 3, 3), "b1": drawn(3, 6) / 8,
           "w2": drawn(4, 5, 24), "b2": drawn(5, 5)}  # fmt: skip


def onnx_net() -> onnx.ModelProto:
    """Two convolutions with ReLU and a linear layer, channels first: 1x3x6x6 → 8x4x4 → 6x2x2 → 5."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"]), helper.make_node("Relu", ["c0"], ["first"]),
        helper.make_node("Conv", ["first", "w1", "b1"], ["c1"]), helper.make_node("Relu", ["c1"], ["second"]),
        helper.make_node("Flatten", ["second"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w2", "b2"], ["y"], transB=1),
    ]  # fmt: skip
    stored = [numpy_helper.from_array(values, name) for name, values in WEIGHTS.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])
    return helper.make_model(helper.make_graph(nodes, "net", [x], [y], stored))


def tflite_net(weights: dict[str, Any]) -> bytes:
    """The same with channels last: a weight is O×H×W×I, and the linear layer reads H×W×C."""
    from tests.builders.tflite_files import Graph, O, T, tflite_file

    last = weights["w2"].reshape(5, 6, 2, 2).transpose(0, 2, 3, 1).reshape(5, 24)
    stored = {
        **weights,
        "w0": weights["w0"].transpose(0, 2, 3, 1),
        "w1": weights["w1"].transpose(0, 2, 3, 1),
        "w2": last,
    }
    shapes = {"x": (1, 6, 6, 3), "first": (1, 4, 4, 8), "second": (1, 2, 2, 6), "flat": (1, 24), "y": (1, 5)}
    tensors = [T(name, shape, "FLOAT32") for name, shape in shapes.items()]
    at = {name: len(tensors) + number for number, name in enumerate(stored)}
    tensors += [
        T(name, values.shape, "FLOAT32", np.ascontiguousarray(values).tobytes()) for name, values in stored.items()
    ]
    tensors.append(T("shape", (2,), "INT32", np.array([1, 24], "<i4").tobytes()))
    conv = ("Conv2DOptions", {"Padding": 1, "StrideW": 1, "StrideH": 1, "FusedActivationFunction": 1})
    operators = [
        O("CONV_2D", (0, at["w0"], at["b0"]), (1,), conv), O("CONV_2D", (1, at["w1"], at["b1"]), (2,), conv),
        O("RESHAPE", (2, len(tensors) - 1), (3,)),
        O("FULLY_CONNECTED", (3, at["w2"], at["b2"]), (4,), ("FullyConnectedOptions", {})),
    ]  # fmt: skip
    return tflite_file(Graph(tensors, operators, (0,), (4,)))


def damages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Thirty ways to be wrong, and the layer that each stands in: one weight, a channel, an axis, a sign, a shift."""
    edits = {
        "element": lambda w: w.flat.__setitem__(0, w.flat[0] + 1),
        "channel": lambda w: w.__setitem__(0, w[0] * 1.5),
        "swapped": lambda w: w.__setitem__([0, 1], w[[1, 0]].copy()),
        "sign": lambda w: w.__setitem__(-1, -w[-1]),
        "zeroed": lambda w: w.__setitem__(3, 0),
    }
    for name in WEIGHTS:
        for how, edit in edits.items():
            weights = {key: values.copy() for key, values in WEIGHTS.items()}
            edit(weights[name])
            yield f"{how}_{name}", weights


def first_off(claim: Any) -> str:
    """The first layer that is off by more than rounding explains."""
    return next(
        (each["scope"] for each in claim.get("layers", ()) if each.get("sqnr") and float(each["of_its_size"]) > 1e-5),
        "",
    )


@pytest.fixture
def compared(project: Project) -> Any:
    """The outcome of each of some files, by name, with the first layer that is off."""

    def compare(files: dict[str, bytes]) -> dict[str, tuple[str, str]]:
        write_model(onnx_net(), project.path / "budgets" / "net.onnx")
        text = BUDGET
        for name, content in files.items():
            (project.path / "budgets" / f"{name}.tflite").write_bytes(content)
            text += ENTRY.format(name=name, command=RUNNER)
        project.write("budgets/a.yaml", text)
        project.run("--model-budget-report=json:out.json", "budgets")
        report = json.loads(Path(project.path, "out.json").read_text())
        claims = {each["name"]: each["equivalence"] for each in report["models"][0]["transforms"]}
        return {name: (claim["outcome"], first_off(claim)) for name, claim in claims.items()}

    return compare


def test_right_files_are_within_and_damaged_ones_over(compared: Any) -> None:
    """Thirty damaged files, each over; of a convolution the first layer that is off is the one that was changed."""
    wrong = dict(damages())
    assert len(wrong) == 30
    found = compared({"right": tflite_net(WEIGHTS), **{name: tflite_net(each) for name, each in wrong.items()}})
    assert found.pop("right")[0] == "within"
    assert {name: outcome for name, (outcome, _) in found.items() if outcome != "over"} == {}
    layers = {"w0": "first", "b0": "first", "w1": "second", "b1": "second"}
    told = {name: scope for name, (_, scope) in found.items() if name.rpartition("_")[2] in layers}
    assert {name: scope for name, scope in told.items() if scope != layers[name.rpartition("_")[2]]} == {}
