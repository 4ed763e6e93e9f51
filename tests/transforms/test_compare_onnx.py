"""Two ONNX files that must agree: rearranged weights, weights rounded anew, and wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget.budget.budget import Transformation
from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Basis, Equivalence
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.transforming import apply_transform
from pytest_modelbudget.onnx_models.inputs import drawn_inputs
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reading import write_model
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.fold_batchnorm_on_onnx import folded_batchnorms
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, linear_model, tiled_linears
from tests.builders.onnx_batchnorms import normalised
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_linears import change, drawn, linear, network


def compared(first: onnx.ModelProto, second: onnx.ModelProto, folder: Path) -> Equivalence:
    """Two models through files."""
    paths = folder / "first.onnx", folder / "second.onnx"
    for proto, path in zip((first, second), paths, strict=True):
        write_model(proto, path)
    return compared_files(*paths, Claim(seeds=(0, 1)))


def compared_files(first: Path, second: Path, claim: Claim) -> Equivalence:
    """Whether two files compute the same; each keeps the weights that it holds."""
    original, other = (ModelSource("onnx", str(path)) for path in (first, second))
    return apply_transform(original, Transformation("compare", {"compare": other}), tables()).verify(claim)


@pytest.mark.parametrize("pads", [False, True], ids=["ragged", "pad"])
def test_a_twin_made_elsewhere(pads: bool, tmp_path: Path) -> None:
    """A tiled file is the same model: its weights are the same numbers in other tensors."""
    proto = network("float32")
    twin = tiled_linears(proto, Tiling(Tile(None, 64, 64, pads=pads))).model
    found = compared(proto, twin, tmp_path)
    assert (found.outcome, found.basis, found.weights) == (
        Outcome.WITHIN, Basis.NETWORK, "as loaded",
    )  # fmt: skip


def test_weights_that_were_rounded_anew(tmp_path: Path) -> None:
    """A folding stored in float32 differs by its rounding: step 2 alone decides, and says so."""
    proto = normalised("Conv")
    found = compared(proto, folded_batchnorms(proto).model, tmp_path)
    assert found.outcome is Outcome.WITHIN
    assert found.basis is Basis.NOTHING
    assert found.notes == (
        "precision only: the second model stores other weights than the first",
    )  # fmt: skip


def test_one_name_for_two_values(tmp_path: Path) -> None:
    """An exporter calls a folded convolution as it called the one before its batch norm."""
    proto = normalised("Conv", bias=False)
    twin = folded_batchnorms(proto).model
    twin.graph.node[0].output[0] = "c"
    twin.graph.node.append(node("Identity", "c", "y"))
    assert proto.graph.node[0].output[0] == "c"
    found = compared(proto, twin, tmp_path)
    assert found.outcome is Outcome.WITHIN, found.reason


def test_half_types_need_step_1(tmp_path: Path) -> None:
    """In float16 rounding hides too much for step 2 alone."""
    proto = normalised("Conv", dtype="float16")
    found = compared(proto, folded_batchnorms(proto).model, tmp_path)
    assert found.outcome is Outcome.UNKNOWN
    assert "float16 alone proves nothing" in found.reason


def test_one_weight_that_differs(tmp_path: Path) -> None:
    """More than rounding explains is over, whoever made the file."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: values * np.where(values == values[3, 4], 1.5, 1.0))
    found = compared(proto, other, tmp_path)
    assert found.outcome is Outcome.OVER
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


@pytest.mark.parametrize("share", [1e-4, 1e-5, 1e-6])
def test_one_weight_that_differs_by_little_was_not_rounded(share: float, tmp_path: Path) -> None:
    """Among 11,700 that are the same, one that is off is no rounding, however little it is off."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda w: w * np.where(abs(w) == abs(w).max(), 1 + share, 1.0))
    found = compared(proto, other, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.OVER, Basis.NETWORK)
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


def test_all_weights_off_by_one_unit_may_have_been_rounded(tmp_path: Path) -> None:
    """Each is the next number in float32: what a rounding on another way makes."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: np.nextafter(values, np.float32(0)))
    found = compared(proto, other, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.WITHIN, Basis.NOTHING), found.reason


def test_layers_under_other_names(tmp_path: Path) -> None:
    """The first layer that differs is found by value where no name is the same."""
    proto, other = network("float32"), network("float32")
    change(other, "w1", lambda values: values * np.where(values == values[3, 4], 1.5, 1.0))
    kept = {"x", "fc2", "second"}
    for each in other.graph.node:
        each.name = f"renamed {each.name}"
        for names in (each.input, each.output):
            names[:] = [n if n in kept or n[0] in "wb" else f"renamed {n}" for n in names]
    found = compared(proto, other, tmp_path)
    assert found.first_divergence is not None
    assert found.first_divergence.scope == "fc1"


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    """A file whose weights lie in a file that is missing cannot be compared."""
    path = tmp_path / "first.onnx"
    write_model(linear(65, 30), path, largest=0)
    assert compared_files(path, path, Claim(seeds=(0,))).outcome is Outcome.WITHIN
    (tmp_path / "first.onnx.data").unlink()
    with pytest.raises(TransformError, match="lie in a file that is not there"):
        compared_files(path, path, Claim())


def test_a_large_model_is_two_files(tmp_path: Path) -> None:
    """Above the size of one message the weights lie beside the graph, and are written anew."""
    path, small = tmp_path / "large.onnx", tmp_path / "small.onnx"
    proto = linear_model(4, 65, 30)
    for _ in range(2):
        write_model(proto, path, largest=1000)
    write_model(proto, small)
    onnx.checker.check_model(path, full_check=True)
    assert (tmp_path / "large.onnx.data").stat().st_size < 1.5 * 4 * (65 * 30 + 30)
    assert not (tmp_path / "small.onnx.data").exists()
    assert compared_files(path, small, Claim(seeds=(0,))).outcome is Outcome.WITHIN


@pytest.mark.parametrize("kind", ["FLOAT", "BFLOAT16", "INT4", "DOUBLE"])
def test_values_beside_the_graph_are_those_of_the_model(tmp_path: Path, kind: str) -> None:
    """Values written as numbers, packed ones too, are read back from whole pages of the file."""
    code = TensorProto.DataType.Value(kind)
    tensors = [
        onnx.helper.make_tensor(name, code, [40, 70], [position % 7 for position in range(2800)])
        for name in ("first", "second")
    ]
    small = onnx.helper.make_tensor("small", code, [2], [1, 2])
    proto = linear_model(4, 65, 30)
    proto.graph.initializer.extend((*tensors, small))
    path = tmp_path / "values.onnx"
    write_model(proto, path, largest=0)
    stored = onnx.load(path, load_external_data=False).graph.initializer
    places = {each.name: {e.key: e.value for e in each.external_data} for each in stored}
    assert [name for name, place in places.items() if place] == ["linear.weight", "first", "second"]
    assert all(int(place["offset"]) % 4096 == 0 for place in places.values() if place)
    for before, after in zip(proto.graph.initializer, onnx.load(path).graph.initializer, strict=True):
        assert before.name == after.name
        assert (numpy_helper.to_array(before) == numpy_helper.to_array(after)).all()


def test_other_inputs_are_other_models(tmp_path: Path) -> None:
    """Files that take other inputs are not the same, and nothing is run."""
    found = compared(linear_model(4, 8, 8), linear_model(4, 8, 8, dtype="float16"), tmp_path)
    assert found.outcome is Outcome.OVER
    assert "input 'x' is float16 and was float32" in found.reason


def sequence(factor: float) -> onnx.ModelProto:
    """x and factor · relu(x) as one output that is a sequence."""
    nodes = [node("Relu", "x", "r"), node("Mul", "r factor", "scaled"), node("SequenceConstruct", "x scaled", "s")]
    result = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    stored = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    return model(nodes, [value("x", 2, 3)], [result], [stored])


def test_tensors_of_a_sequence_are_outputs(tmp_path: Path) -> None:
    """Each is compared on its own; the second one differs by a half of its size."""
    right = compared(sequence(1.0), sequence(1.0), tmp_path)
    assert right.outcome is Outcome.WITHIN, right.reason
    assert {record.name for record in right.outputs} == {"s.0", "s.1"}
    found = compared(sequence(1.0), sequence(1.5), tmp_path)
    assert found.outcome is Outcome.OVER
    over = {record.name for record in found.outputs if record.outcome is Outcome.OVER}
    assert over == {"s.1"}


def test_a_value_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    """An optional output without a value cannot be looked into, and is no green one."""
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 3])
    optional = onnx.helper.make_optional_type_proto(kind)
    nodes = [node("Relu", "x", "y"), node("Optional", "", "o", type=kind)]
    result = onnx.helper.make_value_info("o", optional)
    proto = model(nodes, [value("x", 2, 3)], [value("y", 2, 3), result])
    found = compared(proto, proto, tmp_path)
    assert found.outcome is Outcome.UNKNOWN
    assert "'o' is a NoneType" in found.reason


def embedding(table: Any, *others: onnx.NodeProto, dtype: str = "int64") -> onnx.ModelProto:
    """Rows of a table by their numbers, and what other nodes make of either."""
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("Cast", "ids", "cast", to=onnx.TensorProto.INT64), node("Gather", "t cast", "y")]
    weights = [numpy_helper.from_array(table, "t")]
    ids, result = value("ids", 4, 100, code=code), value("y", 4, 100, table.shape[1])
    return model([*others, *nodes], [ids], [result], weights)


def test_integers_reach_every_row_of_a_table(tmp_path: Path) -> None:
    """400 numbers, three seeds: every row but the first two is another one, and that is seen."""
    table = drawn(0, 50, 8)
    other = np.where(np.arange(50)[:, None] < 2, table, 7.0).astype("float32")
    assert compared(embedding(table), embedding(other), tmp_path).outcome is Outcome.OVER
    right = compared(embedding(table), embedding(table), tmp_path)
    assert (right.outcome, right.notes) == (Outcome.WITHIN, ())


RANGES = {
    "alone": ((), "int64", {"ids": 300}),
    "and its shape": ((node("Shape", "ids", "size"),), "int64", {"ids": 300}),
    "and its shape for an identity": ((node("EyeLike", "ids", "eye"),), "int64", {"ids": 300}),
    "of a type that ends before": ((), "int8", {"ids": 128}),
    "and as numbers": ((node("Add", "ids ids", "sum"),), "int64", {}),
    "and a smaller table": ((node("Gather", "axes ids", "e", axis=1),), "int64", {"ids": 7}),
}


@pytest.mark.parametrize(("others", "dtype", "ranges"), RANGES.values(), ids=RANGES)
def test_ranges_of_integers(
    others: tuple[onnx.NodeProto, ...], dtype: str, ranges: dict[str, int], tmp_path: Path
) -> None:
    """An input that only indexes stored tables is drawn from the rows that all of them have."""
    proto = embedding(drawn(0, 300, 8), *others, dtype=dtype)
    proto.graph.initializer.append(numpy_helper.from_array(drawn(1, 3, 7), "axes"))
    assert drawn_inputs(Program(proto), {}).specs["ids"].high == ranges.get("ids")
    found = compared(proto, proto, tmp_path)
    assert found.outcome is Outcome.WITHIN, found.reason
    said = ("integers 0 and 1 for 'ids': the file says no range",)
    assert found.notes == (() if ranges else said)
