"""Models whose bodies and functions keep their values in a file beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.onnx_models.reading import weight_files
from tests.builders.onnx_graphs import graph, model, node, stored, value

SIZE = 4 * 8 * 8


def outside(name: str, offset: int) -> onnx.TensorProto:
    """An 8 x 8 tensor of the file beside the model."""
    made = stored(name, 8, 8)
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    for key, entry in {"location": "w.bin", "offset": offset, "length": SIZE}.items():
        made.external_data.add(key=key, value=str(entry))
    return made


def in_a_body() -> onnx.ModelProto:
    """x times a matrix in either branch: an initializer, or what a Constant holds."""
    constant = helper.make_node("Constant", [], ["c"], value=outside("", SIZE))
    branches = {
        "then_branch": graph([node("MatMul", "x w", "t")], [], [value("t", 2, 8)], [outside("w", 0)]),
        "else_branch": graph([constant, node("MatMul", "x c", "e")], [], [value("e", 2, 8)]),
    }
    chosen = [node("ReduceSum", "x", "s", keepdims=0), node("Cast", "s", "b", to=TensorProto.BOOL)]
    return model([*chosen, node("If", "b", "y", **branches)], [value("x", 2, 8)], [value("y", 2, 8)])


def in_a_function() -> onnx.ModelProto:
    """x times a matrix that a function of the file's own holds."""
    constant = helper.make_node("Constant", [], ["c"], value=outside("", 0))
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "F", ["x"], ["y"], [constant, node("MatMul", "x c", "y")], opsets)
    call = node("F", "x", "y", domain="own")
    return model([call], [value("x", 2, 8)], [value("y", 2, 8)], opset=18, domains=["own"], functions=[function])


def saved(proto: onnx.ModelProto, folder: Path, entry: float | None) -> Path:
    folder.mkdir()
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    if entry is not None:
        (folder / "w.bin").write_bytes(np.full((2, 8, 8), entry, np.float32).tobytes())
    return folder / "m.onnx"


@pytest.mark.parametrize("made", [in_a_body, in_a_function], ids=lambda made: made.__name__)
@pytest.mark.parametrize(("entry", "outcome"), [(1.0, Outcome.WITHIN), (1.01, Outcome.OVER), (None, Outcome.UNKNOWN)])
def test_values_beside_a_model_are_read(made: object, entry: float | None, outcome: Outcome, tmp_path: Path) -> None:
    """The same ones, other ones, and a file that is not there."""
    proto = made()  # type: ignore[operator]
    first, second = saved(proto, tmp_path / "first", 1.0), saved(proto, tmp_path / "second", entry)
    found = check_equivalence(first, second)
    assert found.outcome is outcome, found.reason
    if outcome is Outcome.UNKNOWN:
        assert "lie in a file that is not there" in found.reason


@pytest.mark.parametrize("made", [in_a_body, in_a_function], ids=lambda made: made.__name__)
def test_a_copy_of_a_model_has_the_files_of_its_bodies(made: object, tmp_path: Path) -> None:
    path = saved(made(), tmp_path / "first", 1.0)  # type: ignore[operator]
    assert weight_files(path) == (path.parent / "w.bin",)
