"""A size that dims leaves open is asked for by name, and no number over it looks like one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pytest_modelbudget import measure
from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.verdict import Verdict, judge
from pytest_modelbudget.cli.command import main
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.tensor import unbound, unbound_symbols
from tests.builders.onnx_graphs import graph, integers, model, node, scalar, stored, value
from tests.builders.project import Project

WEIGHT = stored("w", 64, 100)


def linear(*names: str | None) -> onnx.ModelProto:
    """x (names ..., 64) · weight (64, 100), flattened."""
    nodes = [node("MatMul", "x w", "h"), node("Flatten", "h", "y")]
    return model(nodes, [value("x", *names, 64)], [value("y", None, None)], [WEIGHT])


def filled_by_its_shape() -> onnx.ModelProto:
    """ConstantOfShape(Shape(x)) · weight: only the shape of x is read."""
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "z"), node("MatMul", "z w", "y")]
    return model(nodes, [value("x", "batch", 64)], [value("y", None, 100)], [WEIGHT])


def counted_by_its_shape() -> onnx.ModelProto:
    """A Loop that runs once for each row of x."""
    body = graph(
        [node("MatMul", "v w", "m"), node("Identity", "c", "c2"), node("Identity", "v", "v2")],
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("v", 1, 64)],
        [value("c2", code=TensorProto.BOOL), value("v2", 1, 64), value("m", 1, 100)],
    )
    nodes = [node("Shape", "x", "s", start=0, end=1), node("Loop", "s - v0", "v1 y", body=body)]
    inputs = [value("x", "batch", 64), value("v0", 1, 64)]
    return model(nodes, inputs, [value("y", None, 1, 100)], [WEIGHT])


def scanned() -> onnx.ModelProto:
    """A Scan over the rows of x."""
    body = graph([node("MatMul", "r w", "m")], [value("r", 64)], [value("m", 100)])
    nodes = [node("Scan", "x", "y", body=body, num_scan_inputs=1)]
    return model(nodes, [value("x", "batch", 64)], [value("y", None, 100)], [WEIGHT])


def called() -> onnx.ModelProto:
    """The product in a function of the file's own."""
    function = helper.make_function(
        "own", "product", ["a", "b"], ["c"], [helper.make_node("MatMul", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 23)],
    )  # fmt: skip
    nodes = [node("product", "x w", "y", domain="own")]
    inputs, outputs = [value("x", "batch", 64)], [value("y", "batch", 100)]
    return model(nodes, inputs, outputs, [WEIGHT], domains=["own"], functions=[function])


def ranged() -> onnx.ModelProto:
    """Range to the number of rows, times a column."""
    nodes = [
        node("Shape", "x", "s", start=0, end=1),
        node("Squeeze", "s", "n"),
        node("Range", "zero n one", "r"),
        node("Reshape", "r column", "c"),
        node("Mul", "c row", "p"),
        node("MatMul", "p w", "y"),
    ]
    weights = [WEIGHT, integers("column", -1, 1), scalar("zero", 0, "int64"), scalar("one", 1, "int64")]
    weights.append(stored("row", 1, 64, dtype="int64"))
    nodes[4:5] = [node("Mul", "c row", "q"), node("Cast", "q", "p", to=TensorProto.FLOAT)]
    return model(nodes, [value("x", "batch", 64)], [value("y", None, 100)], weights)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "an operand": lambda: linear("batch"),
    "its shape": filled_by_its_shape,
    "a loop's count": counted_by_its_shape,
    "a scan's length": scanned,
    "a function": called,
    "a range": ranged,
}


def judged(path: Path, key: str, most: int, accepted: tuple[str, ...] = ()) -> Verdict:
    limit = Limit(key, Place("b.yaml", 1), max=most, allow_unmeasured=accepted)
    return judge(limit, measure(path)[key])


@pytest.mark.parametrize("key", ["macs", "bandwidth", "peak_activation"])
@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_the_hint_names_dims(make: Callable[[], onnx.ModelProto], key: str, tmp_path: Path) -> None:
    """Whatever an open size hides, the way out is to bind it, and never to accept a lower bound."""
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    verdict = judged(path, key, 10**9)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.reason.endswith("; write dims: {batch: 1}, or other sizes")
    assert "allow_unmeasured" not in verdict.reason


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_what_the_hint_says_measures_everything(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """Followed, every number is complete: two rows of 64 times 100 are 12,800 MACs."""
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    found = measure(path, dims={"batch": 2})
    assert (found["macs"].value, found["macs"].complete) == (2 * 64 * 100, True)


def test_every_symbol_is_named_once(tmp_path: Path) -> None:
    """In the order of the inputs; one without a name goes by its axis, an odd one in quotes."""
    path = tmp_path / "net.onnx"
    path.write_bytes(linear("batch", None, "2*seq + 1").SerializeToString())
    reason = judged(path, "macs", 1).reason
    assert reason.endswith('; write dims: {batch: 1, x.1: 1, "2*seq + 1": 1}, or other sizes')
    assert measure(path, dims={"batch": 1, "x.1": 1, "2*seq + 1": 1})["macs"].value == 64 * 100


def test_a_ratio_says_so_too(tmp_path: Path) -> None:
    """A ratio is not said to move no bytes where only nobody knows how many."""
    path = tmp_path / "net.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    limit = Limit("arithmetic_intensity", Place("b.yaml", 1), min=1)
    reason = judge(limit, measure(path)["arithmetic_intensity"]).reason
    assert "no bytes" not in reason
    assert reason.endswith("; write dims: {batch: 1}, or other sizes")


@pytest.mark.parametrize(
    "symbols",
    [{"batch": ["x"]}, {"batch": ["x", "y"], "x.1": ["x"]}, {"floor(h/2)": ["x"], "a b": ["y"]}],
    ids=lambda symbols: ",".join(symbols),
)
def test_a_reason_gives_its_symbols_back(symbols: dict[str, list[str]]) -> None:
    """What is written about symbols is read as the same symbols."""
    assert unbound_symbols(unbound(symbols)) == list(symbols)
    assert unbound_symbols("no rule") == []


def test_a_lower_bound_that_was_accepted_is_shown(project: Project) -> None:
    """Its row stands beside the tightest one, without a headroom."""
    (project.path / "budgets" / "net.onnx").write_bytes(linear("batch").SerializeToString())
    project.write(
        "budgets/a.yaml",
        "model_budget: 1\nmodels:\n  net: {onnx: net.onnx, limits: {params: 6.5 k, "
        'macs: {max: 1 kMAC, allow_unmeasured: ["onnx::MatMul"]}}}\n',
    )
    result = project.run("budgets/a.yaml")
    result.assert_outcomes(passed=2)
    row = next(line.split() for line in result.outlines if "net::macs" in line)
    assert row == ["within", "net::macs", ">=", "0", "MAC", "1.00", "kMAC", "?"]


def test_an_input_that_nobody_can_size_can_be_accepted(tmp_path: Path) -> None:
    """The hint for a sequence names what the reader takes."""
    element = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [node("ConcatFromSequence", "s", "y", axis=0)]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, [element], [value("y", None)]).SerializeToString())
    assert "allow_unmeasured: [input s, onnx::ConcatFromSequence]" in judged(path, "peak_activation", 1).reason
    assert judged(path, "peak_activation", 1, ("input s", "onnx::ConcatFromSequence")).marked


def test_budgets_take_what_the_hint_names(project: Project) -> None:
    """An input's name is an op name to the reader, as it is to the report."""
    element = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [node("ConcatFromSequence", "s", "y", axis=0)]
    proto = model(nodes, [element], [value("y", None)])
    (project.path / "budgets" / "net.onnx").write_bytes(proto.SerializeToString())
    project.write(
        "budgets/a.yaml",
        "model_budget: 1\nmodels:\n  net: {onnx: net.onnx, limits: {peak_activation: "
        "{max: 1 kB, allow_unmeasured: [input s, 'onnx::ConcatFromSequence']}}}\n",
    )
    project.run("budgets/a.yaml").assert_outcomes(passed=1)


def test_show_has_symbols_for_sizes_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No zero and no scalar stands as a fact, and one line names the cause and the option."""
    path = tmp_path / "net.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    main(["show", str(path)])
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["h"] == ["h", "matmul", "batchx64", "batchx100", "6,400", "100.0%", ">=", "0", ">=", "0"]
    assert rows["Total"] == ["Total", "6,400", ">=", "0", ">=", "0"]
    assert "scalar" not in shown
    assert "read >= 0, weights >= 0, write >= 0" in shown
    words = " ".join(shown.split())
    assert words.count("not bound by dims") == 1
    assert "not bound by dims: batch (of x); bind it: --dims batch=1" in words


def test_fit_says_how_to_bind_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``show`` does."""
    path = tmp_path / "net.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    assert main(["fit", str(path), "--device", "cortex_m4"]) == 1
    assert "\nnot bound by dims: batch (of x); bind it: --dims batch=1\n" in capsys.readouterr().out


def test_a_layer_of_views_is_no_layer_never_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Flatten costs nothing and runs all the same."""
    path = tmp_path / "net.onnx"
    path.write_bytes(linear("batch").SerializeToString())
    main(["show", str(path), "--dims", "batch=2"])
    shown = capsys.readouterr().out
    assert "never called" not in shown
    assert next(line.split() for line in shown.splitlines() if "y reshape" in line)[2:4] == ["2x100", "2x100"]
