"""Runs of ONNX files with values in bfloat16, which numpy has not and ONNX Runtime does not hand out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pytest_modelbudget import check_equivalence
from pytest_modelbudget.onnx_models.running import OnnxRun
from tests.builders.onnx_graphs import graph, model, node, scalar, value

pytest.importorskip("onnxruntime")

BFLOAT16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT
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
