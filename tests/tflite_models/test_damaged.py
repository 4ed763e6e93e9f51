"""Damaged and unusual TFLite files: one sentence with place, cause and way out, or numbers that can be true.

``MODELBUDGET_FUZZ=20`` tries 2,000 mutants.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_modelbudget import measure
from pytest_modelbudget.errors import ModelBudgetError
from tests.builders.device_mutants import measured
from tests.builders.marks import TIMES
from tests.builders.tflite_files import Graph, Net, O, T, tflite_file

SECONDS, BYTES = 5, 500_000_000


def small() -> bytes:
    """One layer of each kind, with a plan of its arena."""
    net = Net((1, 8, 8, 3))
    net.conv(4, 3)
    net.depthwise()
    net.add(net.x - 3)
    net.mean()
    net.dense(5)
    net.softmax()
    offsets = [-1] * len(net.tensors)
    plan = np.array([1, 0, len(offsets), *offsets], np.int32).tobytes()
    return net.content(metadata={"OfflineMemoryAllocation": plan})


def test_mutants_are_refused_or_measured(tmp_path: Path) -> None:
    """Nothing but the project's errors comes out, in bounded time and memory; most mutants are refused."""
    path = tmp_path / "net.tflite"
    path.write_bytes(small())
    mutants = measured(path, 100 * TIMES)
    assert mutants.seconds < SECONDS
    assert mutants.nbytes < BYTES
    assert 0 < mutants.refused < 100 * TIMES


X, Y = T("x", (1, 4)), T("y", (1, 4))
RELU = O("RELU", (0,), (1,))
CASES = {
    "another format": (b"\0\0\0\0ORTM" + bytes(64), "is an ONNX Runtime file, not a TFLite file: give the ONNX file"),
    "no flatbuffer": (b"not a flatbuffer at all", "is no TFLite file (TFL3), or only a part of one: export it again"),
    "cut": (small()[:600], "is a damaged TFLite file"),
    "schema version": (tflite_file(Graph([X, Y], [RELU], [0], [1]), version=2), "has schema version 2, and 3 is known"),
    "negative shape": (tflite_file(Graph([T("x", (1, -4)), Y], [RELU], [0], [1])), "tensor 'x' has the shape [1, -4]"),
    "tensor that is not there": (tflite_file(Graph([X, Y], [O("RELU", (7,), (1,))], [0], [1])), "names tensor 7 of 2"),
    "read before it is written": (
        tflite_file(Graph([X, Y, T("z", (1, 4))], [O("ADD", (0, 2), (1,)), O("RELU", (0,), (2,))], [0], [1])),
        "y reads tensor 2 before it is written",
    ),
    "written twice": (tflite_file(Graph([X, Y], [RELU, RELU], [0], [1])), "writes tensor 1, which is not its own"),
    "short buffer": (
        tflite_file(Graph([X, T("w", (4, 4), data=b"123"), Y], [O("FULLY_CONNECTED", (0, 1), (2,))], [0], [2])),
        "'w' takes 16 B, its buffer has 3",
    ),
    "plan that overlaps": (
        tflite_file(
            Graph([X, Y], [RELU], [0], [1]),
            metadata={"OfflineMemoryAllocation": np.array([1, 0, 2, 0, 2], np.int32).tobytes()},
        ),
        "the plan puts 'y' at 2, where another tensor lives meanwhile: write its offline plan again",
    ),
    "plan of others": (
        tflite_file(
            Graph([X, Y], [RELU], [0], [1]),
            metadata={"OfflineMemoryAllocation": np.array([1, 0, 1, 0], np.int32).tobytes()},
        ),
        "has an offline plan of 1 other tensors: write it again",
    ),
}


@pytest.mark.parametrize("key", CASES)
def test_what_is_wrong_is_one_sentence(key: str, tmp_path: Path) -> None:
    """With the file, what is wrong in it, and what to do."""
    content, says = CASES[key]
    path = tmp_path / "net.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelBudgetError) as error:
        measure(path)
    assert "net.tflite" in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_inputs_and_dims_are_refused(tmp_path: Path) -> None:
    """A file has fixed shapes."""
    path = tmp_path / "net.tflite"
    path.write_bytes(small())
    for given in ({"inputs": "float32 1x3"}, {"dims": {"batch": 2}}):
        with pytest.raises(ModelBudgetError, match="has fixed shapes and types: leave out inputs, dims and dtype"):
            measure(path, **given)  # type: ignore[arg-type]
