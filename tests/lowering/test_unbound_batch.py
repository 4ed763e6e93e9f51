"""A file whose batch nobody bound is lowered, too: what it stores does not hang on it."""

from pathlib import Path

import onnx
import pytest

from tests.builders.onnx_graphs import model, node, stored, value
from tests.builders.programs import program

NORM = "{0}.scale {0}.shift {0}.mean {0}.variance"


def norm(name: str, channels: int) -> list[onnx.TensorProto]:
    return [stored(word, channels) for word in NORM.format(name).split()]


def net(batch: int | str) -> onnx.ModelProto:
    """A convolution of one channel into four and a layer of 64 into 3, each with a norm behind it."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", f"a {NORM.format('n')}", "b"),
        node("Relu", "b", "c"),
        node("Flatten", "c", "d"),
        node("Gemm", "d v", "e", transB=1),
        node("BatchNormalization", f"e {NORM.format('m')}", "y"),
    ]
    weights = [stored("w", 4, 1, 3, 3), *norm("n", 4), stored("v", 3, 64), *norm("m", 3)]
    return model(nodes, [value("x", batch, 1, 4, 4)], [value("y", batch, 3)], weights)


@pytest.mark.parametrize(
    ("lowering", "nbytes"),
    [
        pytest.param({}, 4 * (36 + 4 + 192 + 3), id="float32"),
        pytest.param({"dtype": "int8"}, 36 + 192 + (4 + 4) * (4 + 3), id="int8"),  # a scale and a bias each
        pytest.param({"dtype": "int8", "in_place": "depthwise"}, 36 + 192 + (4 + 4) * (4 + 3), id="in place"),
    ],
)
def test_weights_are_those_of_any_batch(lowering: dict[str, str], nbytes: int, tmp_path: Path) -> None:
    for batch in (1, "N"):
        path = tmp_path / f"{batch}.onnx"
        onnx.save(net(batch), path)
        assert program(path, **lowering)["weight_memory"] == nbytes, batch
