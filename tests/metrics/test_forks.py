"""A number of the counted branch is a lower bound where data may take one that has more of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.graph.graph import Fork, Graph, Op, way
from pytest_modelbudget.metrics.branches import bounded, other_routes
from pytest_modelbudget.metrics.costs import CostedGraph
from pytest_modelbudget.metrics.table import METRICS as ALL
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.onnx_models.reader import load
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.graphs import tensor
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value

METRICS = {metric.key: metric for metric in ALL}
ROW = 4 * 8  # bytes
WIDE = 4 * 64


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch that gives a row of 8."""
    return graph(nodes, [], [value(nodes[-1].output[0], 1, 8)])


def small() -> list[onnx.NodeProto]:
    """Two products by 8 x 8: 128 MACs; at most two rows of its own live at once."""
    return [node("MatMul", "x w", "s0"), node("MatMul", "s0 w", "s1")]


def wide() -> list[onnx.NodeProto]:
    """No MAC; 64 values are made of the row, and added up again."""
    return [
        node("Concat", "x x x x x x x x", "w0", axis=0), node("Erf", "w0", "w1"),
        node("ReduceMax", "w1", "w2", axes=[0], keepdims=1),
    ]  # fmt: skip


def chosen(then: list[onnx.NodeProto], other: list[onnx.NodeProto], *behind: onnx.NodeProto) -> onnx.ModelProto:
    """An If between two branches on x, and what is behind it."""
    made = node("If", "flag", "y", then_branch=branch(*then), else_branch=branch(*other))
    inputs = [value("x", 1, 8), value("flag", code=TensorProto.BOOL)]
    last = behind[-1].output[0] if behind else "y"
    return model([made, *behind], inputs, [value(last, 1, 8)], [stored("w", 8, 8)], opset=17)


@pytest.mark.parametrize("behind", [(), (node("Relu", "y", "z"),)])
def test_more_memory_in_the_other_branch_is_said(behind: tuple[onnx.NodeProto, ...], tmp_path: Path) -> None:
    """512 B of two wide values live in the branch without MACs; 64 B in the one that is counted."""
    numbers = measured(chosen(small(), wide(), *behind), tmp_path)
    peak, macs = numbers["peak_activation"], numbers["macs"]
    assert (macs.value, macs.complete) == (2 * 8 * 8, True)
    assert peak.value == 2 * ROW + 1  # the flag
    (why,) = peak.unmeasured
    assert (why.op, why.count) == ("onnx::If", 1)
    assert why.why == f"{2 * WIDE} B where data take the else_branch of If 'y'"
    assert not numbers["total_activation"].complete


def test_a_branch_with_less_of_everything_changes_nothing(tmp_path: Path) -> None:
    """Every number is exact."""
    numbers = measured(chosen(small(), [node("MatMul", "x w", "t")]), tmp_path)
    for key in ("macs", "flops", "bandwidth", "peak_activation", "total_activation", "bops"):
        assert numbers[key].complete, key


def test_a_result_that_is_the_input_keeps_it_alive(tmp_path: Path) -> None:
    """x, handed on by the branch that is not counted, lives as long as what is read behind it."""
    numbers = measured(chosen(small(), [node("Identity", "x", "t")], node("Relu", "y", "z")), tmp_path)
    assert numbers["peak_activation"].complete
    assert numbers["peak_activation"].value == 2 * ROW + 1  # the flag


def test_both_of_two_forks_are_tried(tmp_path: Path) -> None:
    """The second one holds more in the branch that is not counted, whatever the first one took."""
    first = node("If", "flag", "a", then_branch=branch(*small()), else_branch=branch(node("Relu", "x", "r")))
    second = node("If", "flag", "y", then_branch=branch(*small()), else_branch=branch(*wide()))
    inputs = [value("x", 1, 8), value("flag", code=TensorProto.BOOL)]
    made = model([first, second, node("Add", "a y", "z")], inputs, [value("z", 1, 8)], [stored("w", 8, 8)], opset=17)
    (why,) = measured(made, tmp_path)["peak_activation"].unmeasured
    assert why.why.endswith("else_branch of If 'y'")


@pytest.mark.parametrize("count", [5, 1200])
def test_many_forks_are_not_tried(count: int, tmp_path: Path) -> None:
    """Five have 32 paths: multiply-accumulates are those of the branches with most of them; the rest is not proved."""
    forks = [
        node("If", "flag", f"y{at}", then_branch=branch(node("MatMul", "x w", f"p{at}")),
             else_branch=branch(node("Relu", "x", f"r{at}")))
        for at in range(count)
    ]  # fmt: skip
    inputs = [value("x", 1, 8), value("flag", code=TensorProto.BOOL)]
    made = model([*forks], inputs, [value(f"y{count - 1}", 1, 8)], [stored("w", 8, 8)], opset=17)
    numbers = measured(made, tmp_path)
    assert (numbers["macs"].value, numbers["macs"].complete) == (count * 8 * 8, True)
    (why,) = numbers["peak_activation"].unmeasured
    assert why.why == "how much another of more than 16 paths has is not known"


def test_forks_in_a_branch_that_is_not_counted_are_tried_together(tmp_path: Path) -> None:
    """The branch with fewer multiply-accumulates moves most where both forks within it take their wide branch."""

    def inner(name: str) -> onnx.NodeProto:
        nodes = [
            node("Concat", " ".join(["x"] * 8), f"{name}c", axis=0),
            node("ReduceMax", f"{name}c", f"{name}m", axes=[0]),
        ]
        return node("If", "other", name, then_branch=branch(*nodes), else_branch=branch(node("Relu", "x", f"{name}r")))

    many = [node("MatMul", "x w" if not at else f"m{at - 1} w", f"m{at}") for at in range(4)]
    other = [inner("a"), inner("b"), node("Add", "a b", "s")]
    made = node("If", "flag", "y", then_branch=branch(*many), else_branch=branch(*other))
    inputs = [value("x", 1, 8), value("flag", code=TensorProto.BOOL), value("other", code=TensorProto.BOOL)]
    proto = model([made], inputs, [value("y", 1, 8)], [stored("w", 8, 8)], opset=17)
    whys = [each.why for each in measured(proto, tmp_path)["total_activation"].unmeasured]
    assert len(whys) == 1
    assert "of If 'y'" in whys[0]


@pytest.mark.parametrize(("flag", "is_known"), [("f", True), ("g", False), ("b", False)])
@pytest.mark.parametrize("count", [2, 5])
def test_runs_of_a_loop_that_take_different_branches(flag: str, is_known: bool, count: int, tmp_path: Path) -> None:
    """One branch reads h of 64 values, and another makes 2 x 64: three such live where a later run takes the first one.

    Where the flag is outside (f), all runs take one branch; one that a run computes (g) or leaves (b) may be another.
    """
    reads = branch(node("MatMul", "s w", "t0"), node("ReduceMax", "h", "t1"), node("Add", "t0 t1", "t2"))
    widens = branch(
        node("Concat", "s s s s s s s s", "w0", axis=0), node("Erf", "w0", "w1"),
        node("ReduceMax", "w1", "w2", axes=[0], keepdims=1),
    )  # fmt: skip
    truth = TensorProto.BOOL
    body = graph(
        [node("Identity", "c", "d"), node("ReduceMax", "s", "m", keepdims=0), node("Greater", "m half", "g"),
         node("If", flag, "u", then_branch=reads, else_branch=widens)],
        [value("i", code=TensorProto.INT64), value("c", code=truth), value("s", 1, 8), value("b", code=truth)],
        [value("d", code=truth), value("u", 1, 8), value("g", code=truth)],
    )  # fmt: skip
    steps = [node("Erf", "x8", "h"), node("ReduceMax", "x8", "x", axes=[0], keepdims=1),
             node("Loop", "n - x f", "y last", body=body)]  # fmt: skip
    inputs, stores = [value("x8", 8, 8), value("f", code=truth)], [scalar("n", count, np.int64), scalar("half", 0.5)]
    found = measured(model(steps, inputs, [value("y", 1, 8)], [*stores, stored("w", 8, 8)], opset=17), tmp_path)
    why = "a loop whose runs take different branches of If 'u'"
    mixed = [each.why for each in found["peak_activation"].unmeasured if why in each.why]
    assert mixed == ([] if is_known else [f"how much {why} has is not known"])
    assert found["macs"].complete
    assert all(why not in each.why for each in found["flops"].unmeasured)


def test_behind_a_branch_that_gives_a_slice_the_next_slice_is_written(tmp_path: Path) -> None:
    """Three runs of exp on a state that is stacked, too: where a branch passes that on, each reads and writes."""
    product = graph([node("MatMul", "s w", "t0")], [], [value("t0", 8)])
    passed = graph([node("Identity", "s", "e0")], [], [value("e0", 8)])
    truth = TensorProto.BOOL
    body = graph(
        [node("Identity", "c", "d"), node("If", "f", "r", then_branch=product, else_branch=passed),
         node("Exp", "r", "u")],
        [value("i", code=TensorProto.INT64), value("c", code=truth), value("s", 8)],
        [value("d", code=truth), value("u", 8), value("u", 8)],
    )  # fmt: skip
    inputs, outputs = [value("x", 8), value("f", code=truth)], [value("y", 8), value("k", 3, 8)]
    stores = [scalar("n", 3, np.int64), stored("w", 8, 8)]
    path = tmp_path / "net.onnx"
    onnx.save(model([node("Loop", "n - x", "y k", body=body)], inputs, outputs, stores), path)
    costed = CostedGraph(load(ModelSource("onnx", str(path)), builtin_ops()).graph, builtin_ops())
    (route,) = other_routes(costed)
    assert route.costed is not None
    assert bandwidth(route.costed).value == 3 * 2 * ROW


def fork(counted: list[Op], other: list[Op], name: str = "then", source: object = None) -> Fork:
    """A choice between two branches, each of which ends with its last result; the first is counted, under a name."""
    ways = {name: way(counted, [counted[-1].outputs[0]])}
    ways["else" if name == "then" else "then"] = way(other, [other[-1].outputs[0]])
    return Fork("cond", "here", ways, name, source)


def either(counted: list[Op], other: list[Op], name: str = "then") -> CostedGraph:
    """A program that is one choice between two branches on x."""
    graph = Graph(tuple(counted), (X,), (counted[-1].outputs[0],), forks=(fork(counted, other, name),))
    return CostedGraph(graph, builtin_ops())


def steps(name: str, *made: tuple[str, str]) -> list[Op]:
    """Operations in a chain from x, by operator and scope."""
    results = [X, *(tensor(f"{name}{at}", 1, 8) for at in range(len(made)))]
    return [Op(operator, (results[at],), (results[at + 1],), {}, scope) for at, (operator, scope) in enumerate(made)]


X, RELU, UNKNOWN = tensor("x", 1, 8), ("aten::relu", "a"), ("own::step", "a")


@pytest.mark.parametrize(("here", "there", "beyond"), [(1, 3, 2), (2, 2, 0), (3, 1, 0), (0, 2, 2)])
def test_a_branch_tells_what_it_does_not_cover_beyond_the_counted_one(here: int, there: int, beyond: int) -> None:
    number = bounded(
        METRICS["flops"], either(steps("c", RELU, *[UNKNOWN] * here), steps("o", RELU, *[UNKNOWN] * there))
    )
    (path,) = number.others
    assert sum(op.count for op in path.unmeasured) == beyond


def test_a_branch_differs_by_scope() -> None:
    """b stands in the other branch alone, c in the counted one; a has one step more there."""
    counted, other = steps("c", RELU, ("aten::relu", "c")), steps("o", RELU, RELU, ("aten::relu", "b"))
    (path,) = bounded(METRICS["flops"], either(counted, other)).others
    assert {share.scope: share.value for share in path.differences} == {"a": 8, "b": 8, "c": -8}
    assert (path.value, path.is_known) == (24, True)


@pytest.mark.parametrize("results", [1, 3])
def test_branches_that_give_other_numbers_of_results_are_not_put_in_place(results: int) -> None:
    costed = either(steps("c", RELU, RELU), steps("o", RELU, RELU, RELU))
    (fork,) = costed.graph.forks
    ways = dict(fork.ways)
    ways["then"] = replace(ways["then"], outputs=tuple(op.outputs[0] for op in ways["then"].ops))
    ways["else"] = replace(ways["else"], outputs=tuple(op.outputs[0] for op in ways["else"].ops[:results]))
    graph = replace(costed.graph, forks=(replace(fork, ways=ways),))
    (route,) = other_routes(CostedGraph(graph, costed.rules))
    assert (route.costed, route.is_mixed) == (None, False)


@pytest.mark.parametrize("name", ["then", "else"])
def test_the_other_branch_is_tried_whatever_the_counted_one_is_called(name: str) -> None:
    costed = either(steps("c", RELU), steps("o", RELU, RELU), name)
    assert [path.value for path in bounded(METRICS["flops"], costed).others] == [16]
    assert bounded(METRICS["params"], costed).others == ()


@pytest.mark.parametrize(
    ("names", "sources", "expected"),
    [
        (("then", "then"), "aa", [6]),
        (("then", "else"), "aa", [3, 5]),
        (("else", "then"), "aa", [3, 5]),
        (("then", "then"), "ab", [3, 5, 6]),
        (("then", "then"), "ba", [3, 5, 6]),
    ],
)
def test_forks_of_one_source_take_branches_of_one_name(
    names: tuple[str, str], sources: str, expected: list[int]
) -> None:
    """Two forks of 1 or 2 steps, and of 1 or 4: two sources give every sum of them but the counted one, 1 + 1."""
    first, second = steps("a", RELU), steps("b", RELU)
    forks = (
        fork(first, steps("c", *[RELU] * 2), names[0], sources[0]),
        fork(second, steps("d", *[RELU] * 4), names[1], sources[1]),
    )
    outputs = (first[-1].outputs[0], second[-1].outputs[0])
    costed = CostedGraph(Graph((*first, *second), (X,), outputs, forks=forks), builtin_ops())
    values = sorted(path.value for path in bounded(METRICS["flops"], costed).others)
    assert values == [steps * 8 for steps in expected]


def test_a_fork_within_an_only_branch_is_tried() -> None:
    costed = either(steps("c", RELU), steps("o", RELU, RELU))
    (inner,) = costed.graph.forks
    outer = Fork("cond", "around", {"then": replace(inner.ways["then"], forks=(inner,))}, "then")
    around = CostedGraph(replace(costed.graph, forks=(outer,)), costed.rules)
    assert [path.value for path in bounded(METRICS["flops"], around).others] == [16]


def test_a_result_behind_one_that_both_branches_hand_on_is_put_in_place() -> None:
    """x is the first result of both; what reads the second one behind them reads that of the branch that is taken."""
    costed = either(steps("c", RELU), steps("o", RELU, RELU))
    (made,) = costed.graph.forks
    ways = {name: replace(each, outputs=(X, *each.outputs)) for name, each in made.ways.items()}
    last = tensor("z", 1, 8)
    behind = Op("aten::relu", (costed.graph.outputs[0],), (last,), {}, "")
    ops, outputs = (*costed.graph.ops, behind), (X, last)
    graph = replace(costed.graph, ops=ops, outputs=outputs, forks=(replace(made, ways=ways),))
    assert [path.value for path in bounded(METRICS["flops"], CostedGraph(graph, costed.rules)).others] == [24]
