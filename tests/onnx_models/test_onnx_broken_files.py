"""What is no valid ONNX model ends in one clear error."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget import measure
from pytest_modelbudget.errors import InputError, SourceError
from tests.builders.onnx_graphs import model, node, stored, value


def linear(*rows: int | str | None) -> onnx.ModelProto:
    """x (rows, 4) · weight (4, 2)."""
    inputs, outputs = [value("x", *rows, 4)], [value("y", *rows, 2)]
    return model([node("MatMul", "x w", "y")], inputs, outputs, [stored("w", 4, 2)])


def zipped() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model.onnx", linear(1).SerializeToString())
    return archive.getvalue()


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    """The bytes of a model after one change to it."""
    proto = linear(1)
    change(proto)
    return proto.SerializeToString()


def circle(proto: onnx.ModelProto) -> None:
    del proto.graph.node[:]
    proto.graph.node.extend([node("Add", "x b", "a"), node("Add", "a x", "b"), node("Add", "a b", "y")])


def external(*locations: str) -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for location in locations:
            tensor.external_data.add(key="location", value=location)

    return change


def negative_weight(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -4


def undefined_input(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "nobody"


BROKEN = {
    "empty": (b"", "is empty"),
    "truncated": (linear(1).SerializeToString()[:-20], "is not an ONNX model, or only a part"),
    "zip": (zipped(), "is not an ONNX model"),
    "text": (b"model_budget: 1\n", "is not an ONNX model"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "fetch it with git lfs pull"),
    "a tensor": (stored("w", 4, 2).SerializeToString(), "is not an ONNX model"),
    "a node": (node("Add", "a b", "c").SerializeToString(), "is not an ONNX model"),
    "no graph": (changed(lambda proto: proto.ClearField("graph")), "is not an ONNX model, or only a part"),
    "a cycle": (changed(circle), "a reads 'b' before the node that makes it: the nodes form a cycle"),
    "an undefined input": (changed(undefined_input), "reads 'nobody', which no input, weight or node gives"),
    "a negative weight": (changed(negative_weight), "'w' has a negative dimension: [-4, 2]"),
    "data above the folder": (changed(external("../w.bin")), "outside the model's folder"),
    "a second place above the folder": (changed(external("w.bin", "../w.bin")), "outside the model's folder"),
    "data elsewhere": (changed(external("/etc/passwd")), "outside the model's folder"),
    "data on a drive": (changed(external("C:\\w.bin")), "outside the model's folder"),
}


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=list(BROKEN))
def test_one_clear_error(content: bytes, says: str, tmp_path: Path) -> None:
    """A file that is no valid model is refused in one sentence that names it or its place."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(SourceError) as refused:
        measure(path)
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_missing_external_data_are_not_missed(tmp_path: Path) -> None:
    """Weights in a file that is not there are counted by their declared shape."""
    path = tmp_path / "model.onnx"
    path.write_bytes(changed(external("gone.bin")))
    found = measure(path)
    assert (found["params"].value, found["weight_memory"].value) == (4 * 2, 4 * 2 * 4)
    assert found["macs"].value == 1 * 2 * 4


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        pytest.param({"rows": 2}, "no input of model.onnx has a dimension 'rows': symbols are batch", id="typo"),
        pytest.param({"batch": 2, "x.1": 4}, "has a dimension 'x.1'", id="a fixed one"),
    ],
)
def test_dims_must_name_something(dims: dict[str, int], says: str, tmp_path: Path) -> None:
    """A symbol that no input has is refused, with those that there are."""
    path = tmp_path / "model.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    with pytest.raises(InputError) as refused:
        measure(path, dims=dims)
    assert says in str(refused.value)


def test_dims_of_a_file_without_symbols_have_no_use(tmp_path: Path) -> None:
    """Which is said, as there is no other to name."""
    path = tmp_path / "model.onnx"
    path.write_bytes(linear(1).SerializeToString())
    with pytest.raises(InputError, match=r"has a dimension 'batch': all its sizes are fixed, leave dims out$"):
        measure(path, dims={"batch": 2})


@pytest.mark.parametrize("rows", [None, -1, -2, "?"])
def test_dimensions_without_a_name_go_by_their_axis(rows: int | str | None, tmp_path: Path) -> None:
    """A dimension that has neither a name nor a size is bound as input.axis; a negative size is none, to runtimes."""
    path = tmp_path / "model.onnx"
    path.write_bytes(linear(rows).SerializeToString())
    assert measure(path, dims={"x.0": 3})["macs"].value == 3 * 2 * 4
    found = measure(path)
    assert not found["macs"].complete
    assert "not bound by dims: x.0 (of x)" in found["macs"].unmeasured[0].why


def test_two_question_marks_are_two_sizes(tmp_path: Path) -> None:
    """3 rows of 5 x 4, times 4 x 2; a size that is bound is no other's."""
    inputs, outputs = [value("x", "?", "?", 4)], [value("y", "?", "?", 2)]
    path = tmp_path / "model.onnx"
    onnx.save(model([node("MatMul", "x w", "y")], inputs, outputs, [stored("w", 4, 2)]), path)
    assert measure(path, dims={"x.0": 3, "x.1": 5})["macs"].value == 3 * 5 * 4 * 2
    unbound = measure(path, dims={"x.0": 3})["macs"].unmeasured
    assert "not bound by dims: x.1 (of x)" in unbound[0].why


def test_unbound_symbols_are_unknown_and_listed(tmp_path: Path) -> None:
    """What depends on an unbound symbol is unmeasured, and says so with the symbol's input."""
    path = tmp_path / "model.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    found = measure(path)
    says = "not bound by dims: batch (of x)"
    assert found.notes == (says,)
    assert found["params"].complete
    for key in ("macs", "flops", "bandwidth", "bandwidth_floor", "peak_activation"):
        assert {missing.why for missing in found[key].unmeasured} == {says}, key


def test_files_bring_their_own_inputs(tmp_path: Path) -> None:
    """Inputs given beside the file's own are refused, and so is a conversion; a budget says it at its inputs."""
    path = tmp_path / "model.onnx"
    path.write_bytes(linear(1).SerializeToString())
    with pytest.raises(InputError, match="brings its own inputs: leave inputs out"):
        measure(path, "float32 1x4")


@pytest.mark.parametrize("size", [8, 255, 257, 8000])
@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_values_that_do_not_fill_their_shape_are_refused(size: int, beside: bool, tmp_path: Path) -> None:
    """64 numbers of 4 bytes; ONNX Runtime does not load them either."""
    weight = stored("w", 8, 8)
    weight.raw_data = bytes(size)
    if beside:
        (tmp_path / "m.data").write_bytes(weight.raw_data)
        onnx.external_data_helper.set_external_data(weight, "m.data", length=size)
        weight.ClearField("raw_data")
    proto = model([node("MatMul", "x w", "y")], [value("x", 1, 8)], [value("y", 1, 8)])
    proto.graph.initializer.append(weight)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    said = f"m.onnx: the stored tensor 'w' has {size:,} bytes of values, and its shape [8, 8] of float32 asks for 256"
    with pytest.raises(SourceError, match=re.escape(said)):
        measure(tmp_path / "m.onnx")


@pytest.mark.parametrize(("key", "written"), [("offset", "abc"), ("offset", "-8"), ("length", "1e3")])
def test_places_of_values_beside_the_file_are_numbers(key: str, written: str, tmp_path: Path) -> None:
    mask = stored("w", 8, 8)
    mask.data_location = onnx.TensorProto.EXTERNAL
    mask.ClearField("raw_data")
    for name, entry in (("location", "m.data"), (key, written)):
        mask.external_data.add(key=name, value=entry)
    (tmp_path / "m.data").write_bytes(bytes(256))
    proto = model([node("Add", "x w", "y")], [value("x", 8, 8)], [value("y", 8, 8)], [mask])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(SourceError, match=f"m.onnx.*{written}"):
        measure(tmp_path / "m.onnx")
