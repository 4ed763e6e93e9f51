"""Stored tensors whose values are the same bytes of a file beside the model: one memory, as tied weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reader import measured_graph
from tests.builders.onnx_graphs import measured, model, node, stored, value

X, Y = value("x", 2, 8), value("y", 2, 8)
WEIGHT = 8 * 8


def outside(name: str, *shape: int, **place: Any) -> onnx.TensorProto:
    """A stored tensor whose values lie beside the model."""
    made = stored(name, *shape)
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    nbytes = 4 * int(np.prod(shape))
    for key, entry in {"location": "w.bin", "length": nbytes, **place}.items():
        made.external_data.add(key=key, value=str(entry))
    return made


def two(first: onnx.TensorProto, second: onnx.TensorProto) -> onnx.ModelProto:
    return model([node("MatMul", "x w", "h"), node("MatMul", "h v", "y")], [X], [Y], [first, second])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"offset": 0}, {"offset": 0}),
        ({"offset": 4096}, {"offset": 4096, "checksum": "ab"}),
        ({"offset": 0}, {}),
        ({"location": "./w.bin"}, {"location": "w.bin"}),
    ],
)
def test_weights_on_the_same_bytes_are_one(first: dict[str, Any], second: dict[str, Any], tmp_path: Path) -> None:
    """Each product reads all of it; it is stored once, and must be fetched once."""
    found = measured(two(outside("w", 8, 8, **first), outside("v", 8, 8, **second)), tmp_path)
    assert found["params"].value == WEIGHT
    assert found["weight_memory"].value == found["model_size"].value == 4 * WEIGHT
    assert found["bandwidth"].value == 2 * (4 * WEIGHT + 2 * 4 * 16)
    assert found["bandwidth_floor"].value == 4 * WEIGHT + 2 * 4 * 16


@pytest.mark.parametrize("second", [{"offset": 4 * WEIGHT}, {"location": "v.bin"}])
def test_weights_on_other_bytes_are_two(second: dict[str, Any], tmp_path: Path) -> None:
    found = measured(two(outside("w", 8, 8), outside("v", 8, 8, **second)), tmp_path)
    assert (found["params"].value, found["model_size"].value) == (2 * WEIGHT, 2 * 4 * WEIGHT)


def test_what_lies_in_the_model_has_no_place_beside_it(tmp_path: Path) -> None:
    """A place that a tool has left behind, of values that it took into the model, says nothing."""
    left = [outside(name, 8, 8) for name in "wv"]
    for each in left:
        each.data_location = TensorProto.DEFAULT
        each.raw_data = bytes(4 * WEIGHT)
    assert measured(two(*left), tmp_path)["params"].value == 2 * WEIGHT


def test_a_bias_on_the_first_bytes_of_a_weight_is_another_tensor(tmp_path: Path) -> None:
    """As long as they are not the same bytes, they are not held against each other."""
    made = [node("MatMul", "x w", "h"), node("Add", "h b", "y")]
    found = measured(model(made, [X], [Y], [outside("w", 8, 8), outside("b", 8)]), tmp_path)
    assert found["params"].value == WEIGHT + 8


def test_weights_of_which_nothing_says_how_many_bytes_they_are_stay_two(tmp_path: Path) -> None:
    """As in models that are published without their weights: every tensor names the same file, and no more."""
    first, second = (outside(name, 8, 8) for name in "wv")
    for each in (first, second):
        del each.external_data[1]
    assert measured(two(first, second), tmp_path)["params"].value == 2 * WEIGHT


SIZES = pytest.mark.parametrize("size", [8, 32], ids=["small", "large"])


def memories(proto: onnx.ModelProto) -> int:
    """How many memories the weights of a model that a transform made are."""
    graph = measured_graph(Program(proto), "made.onnx", {}).graph
    return len({weight.tensor.storage for weight in graph.weights})


def squares(size: int, **place: Any) -> onnx.ModelProto:
    """Two products with weights of that many rows and columns, which name one place."""
    ends = [value("x", 2, size)], [value("y", 2, size)]
    weights = [outside(name, size, size, **place) for name in "wv"]
    return model([node("MatMul", "x w", "h"), node("MatMul", "h v", "y")], *ends, weights)


@SIZES
def test_what_lies_in_a_model_that_a_transform_made_has_no_place_beside_it(size: int) -> None:
    left = squares(size)
    for each in left.graph.initializer:
        each.data_location = TensorProto.DEFAULT
        each.raw_data = bytes(4 * size * size)
    assert memories(left) == 2


@SIZES
def test_weights_on_the_same_bytes_are_one_in_a_model_that_a_transform_made(size: int) -> None:
    """Its weights lie in a file that is not there, as those of a model without its weights."""
    assert memories(squares(size, offset=0)) == 1
