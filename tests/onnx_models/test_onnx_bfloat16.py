"""Runs of ONNX files with values in bfloat16, and others that numpy has not and ONNX Runtime does not hand out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.onnx_models.session import OnnxRun
from tests.builders.onnx_graphs import graph, model, node, scalar, value

pytest.importorskip("onnxruntime")

BFLOAT16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT
OTHERS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "INT4", "UINT4"]
X = [value("x", 3, 4)]


def drawn(name: str, *shape: int, factor: float = 1.0) -> onnx.TensorProto:
    values = np.random.default_rng(0).normal(size=shape) * factor
    return numpy_helper.from_array(values.astype(np.float32), name)


def with_branches(untaken: str = "Abs", *, factor: float = 1.0) -> onnx.ModelProto:
    """h in bfloat16 goes into the branches of an If, of which every drawn input takes the first."""
    branches = {
        f"{way}_branch": graph(
            [node("Cast", "h", f"f{way}", to=FLOAT), node(operator, f"f{way}", f"r{way}")],
            [], [value(f"r{way}", None, None)],
        )
        for way, operator in (("then", "Neg"), ("else", untaken))
    }  # fmt: skip
    nodes = [
        node("MatMul", "x w", "m"), node("Cast", "m", "h", to=BFLOAT16), node("ReduceSum", "x", "sum", keepdims=0),
        node("Less", "sum large", "flag"), node("If", "flag", "y", **branches),
    ]  # fmt: skip
    return model(nodes, X, [value("y", 3, 4)], [drawn("w", 4, 4, factor=factor), scalar("large", 1e9)])


def judged(first: onnx.ModelProto, second: onnx.ModelProto, folder: Path, kind: str = "exact_algebra") -> object:
    paths = [folder / "first.onnx", folder / "second.onnx"]
    for proto, path in zip((first, second), paths, strict=True):
        onnx.save(proto, path)
    bounds = {"sqnr": 20} if kind == "lossy" else {}
    found = check_equivalence(*paths, kind=kind, bounds=bounds)
    return str(found.outcome.value), found.reason


@pytest.mark.parametrize("kind", ["exact_algebra", "lossy"])
def test_what_enters_a_branch_that_no_run_took_is_compared(kind: str, tmp_path: Path) -> None:
    """The same branch is the same; another one is not known to be."""
    assert judged(with_branches(), with_branches(), tmp_path, kind)[0] == "within"
    outcome, reason = judged(with_branches(), with_branches("Sqrt"), tmp_path, kind)
    assert (outcome, "no run took else_branch of" in reason) == ("unknown", True)


def test_another_value_before_the_branches_is_found(tmp_path: Path) -> None:
    """Twice the weight is twice the output."""
    assert judged(with_branches(), with_branches(factor=2.0), tmp_path)[0] == "over"


def through(nodes: Sequence[onnx.NodeProto], inputs: int, outputs: int, *, factor: float = 1.0) -> onnx.ModelProto:
    """x (3, 4) to y (3, 4), in these types."""
    return model(
        nodes, [value("x", 3, 4, code=inputs)], [value("y", 3, 4, code=outputs)], [drawn("w", 4, 4, factor=factor)]
    )


INTO = [node("MatMul", "x w", "m"), node("Cast", "m", "y", to=BFLOAT16)]
FROM = [node("Cast", "x", "h", to=FLOAT), node("MatMul", "h w", "y")]
BOTH = [node("Cast", "x", "h", to=FLOAT), node("MatMul", "h w", "m"), node("Cast", "m", "y", to=BFLOAT16)]


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs"), [(INTO, FLOAT, BFLOAT16), (FROM, BFLOAT16, FLOAT), (BOTH, BFLOAT16, BFLOAT16)]
)
def test_inputs_and_outputs(nodes: Sequence[onnx.NodeProto], inputs: int, outputs: int, tmp_path: Path) -> None:
    same, other = (through(nodes, inputs, outputs, factor=factor) for factor in (1.0, 1.125))
    assert judged(same, same, tmp_path)[0] == "within"
    assert judged(same, other, tmp_path)[0] == "over"


def test_values_cross_as_they_are() -> None:
    """Between pieces of one node each, too: numbers, NaN, infinities, the largest and the least that there are."""
    bfloat16 = onnx.helper.tensor_dtype_to_np_dtype(BFLOAT16)
    given = np.array([1.0, -0.1, np.nan, np.inf, -np.inf, 3.39e38, 9.2e-41, -0.0], np.float32)
    nodes = [node("Cast", "x", "h", to=BFLOAT16), node("Identity", "h", "i"), node("Cast", "i", "y", to=FLOAT)]
    proto = model(nodes, [value("x", 8)], [value("y", 8)])
    values = OnnxRun(proto, watched=("h",), most_nodes=1)({"x": given})
    assert values["h"].dtype == bfloat16
    rounded = given.astype(bfloat16)
    np.testing.assert_array_equal(values["h"].view(np.uint16), rounded.view(np.uint16))
    np.testing.assert_array_equal(values["y"], rounded.astype(np.float32))


@pytest.mark.parametrize(
    "type_name", [name for name in OTHERS if name != "FLOAT8E4M3FNUZ"]
)  # which has no large inputs
@pytest.mark.parametrize(("is_in", "is_out"), [(True, True), (True, False), (False, True)])
def test_inputs_and_outputs_of_other_types(type_name: str, is_in: bool, is_out: bool, tmp_path: Path) -> None:
    """Eight times the weight is another model, in whatever few bits."""
    code = TensorProto.DataType.Value(type_name)
    given, told = code if is_in else FLOAT, code if is_out else FLOAT
    nodes = [node("Cast", "x", "h", to=FLOAT), node("MatMul", "h w", "m"), node("Cast", "m", "y", to=told)]
    same, other = (through(nodes, given, told, factor=factor) for factor in (1.0, 8.0))
    assert judged(same, same, tmp_path)[0] == "within"
    assert judged(same, other, tmp_path)[0] == "over"


@pytest.mark.parametrize("type_name", OTHERS)
def test_values_of_other_types_cross_as_they_are(type_name: str) -> None:
    """All that a type has, between pieces of one node each: infinities, NaN and the least of them too."""
    code = TensorProto.DataType.Value(type_name)
    kind = onnx.helper.tensor_dtype_to_np_dtype(code)
    bits = 4 if "INT4" in type_name else 8
    every = np.arange(2**bits, dtype=np.uint8)
    given = every.view(kind) if bits == 8 else (every.astype(np.int8) - 8 * (type_name == "INT4")).astype(kind)
    infinite = {} if bits == 4 else {"saturate": 0}
    nodes = [
        node("Cast", "x", "f", to=FLOAT), node("Cast", "f", "h", to=code, **infinite), node("Cast", "h", "y", to=FLOAT)
    ]  # fmt: skip
    proto = model(nodes, [value("x", len(given), code=code)], [value("y", len(given))])
    values = OnnxRun(proto, watched=("h",), most_nodes=1)({"x": given})
    assert values["h"].dtype == kind
    np.testing.assert_array_equal(values["h"].astype(np.float32), given.astype(np.float32))
    np.testing.assert_array_equal(values["y"], given.astype(np.float32))
