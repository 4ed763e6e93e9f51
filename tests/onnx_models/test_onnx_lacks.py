"""A node that lacks an operand which it must have is refused with the operand's name, as by ONNX Runtime."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_graphs import measured, model, stored, value

X = (1, 3, 8, 8)


def _graph(made: onnx.NodeProto, *stored_tensors: onnx.TensorProto, declared: bool) -> onnx.ModelProto:
    result = value("y", *X) if declared else onnx.helper.make_empty_tensor_value_info("y")
    return model([made], [value("x", *X)], [result], stored_tensors)


def _node(operator: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return onnx.helper.make_node(operator, inputs, ["y"], name="it", **attributes)


CHANNELS = [stored(name, 3) for name in "smv"]
LEFT_OUT = r"Node \(it\)'s input {} is marked single but has an empty string in the graph"
LACKS = [
    pytest.param(_node("MatMul", "x"), r"Node\(it\) with schema\(::MatMul:13\) has input size 1", id="none"),
    pytest.param(_node("MatMul", "x", ""), LEFT_OUT.format(1), id="empty"),
    pytest.param(_node("MatMul", "", "x"), LEFT_OUT.format(0), id="the first"),
    pytest.param(_node("Add", "x", ""), LEFT_OUT.format(1), id="elementwise"),
    pytest.param(_node("Conv", "x", "", kernel_shape=[3, 3]), LEFT_OUT.format(1), id="a weight"),
    pytest.param(_node("Relu", ""), LEFT_OUT.format(0), id="the only one"),
    pytest.param(_node("Reshape", "x", ""), LEFT_OUT.format(1), id="a shape"),
    pytest.param(_node("BatchNormalization", "x", "s", "", "m", "v"), LEFT_OUT.format(2), id="within"),
]


@pytest.mark.parametrize("declared", [False, True], ids=["unknown", "declared"])
@pytest.mark.parametrize(("made", "words"), LACKS)
def test_what_a_node_lacks_is_named(made: onnx.NodeProto, words: str, declared: bool, tmp_path: Path) -> None:
    """Whether or not the file declares a shape of its result; ONNX Runtime takes neither file."""
    proto = _graph(made, *CHANNELS, declared=declared)
    with pytest.raises(Exception, match=r"INVALID_GRAPH|invalid model|Fail"):
        onnxruntime.InferenceSession(proto.SerializeToString())
    with pytest.raises(SourceError, match=words):
        measured(proto, tmp_path)


def test_what_may_be_absent_is_no_lack(tmp_path: Path) -> None:
    """A bound of Clip, of which ONNX Runtime takes the file, too."""
    proto = _graph(_node("Clip", "x", "", "h"), stored("h"), declared=True)
    onnxruntime.InferenceSession(proto.SerializeToString())
    assert measured(proto, tmp_path)["flops"].value == 3 * 8 * 8
