"""What a Loop or a Scan costs, run by run: the first one finds its states where they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value

ROW = 4 * 8  # bytes of a value of eight floats
EXP = node("Exp", "x", "e")
ADD = node("Add", "a x", "u")


def rows(names: str) -> list[onnx.ValueInfoProto]:
    return [value(name, 8) for name in names.split()]


def loop(count: int, steps: list[onnx.NodeProto], ends: str, given: str, results: str) -> onnx.NodeProto:
    """So many runs of some steps: ends are names of states, "->", and what a run leaves, slices last."""
    states, left = ends.split("->")
    counter, condition = (value(f"{word}{results.split()[0]}", code=code) for word, code in COUNTED)
    goes = node("Identity", condition.name, f"{condition.name}2")
    body = graph(
        [goes, *steps], [counter, condition, *rows(states)], [value(goes.output[0], code=TensorProto.BOOL), *rows(left)]
    )
    return node("Loop", f"n{count} - {given}", results, body=body)


COUNTED = (("i", TensorProto.INT64), ("c", TensorProto.BOOL))


def scan(
    steps: list[onnx.NodeProto], ends: str, given: str, results: str, count: int = 1, **more: Any
) -> onnx.NodeProto:
    """Some steps for each slice of the last count operands."""
    states, left = ends.split("->")
    body = graph(steps, rows(states), rows(left))
    return node("Scan", given, results, body=body, num_scan_inputs=count, **more)


def net(nodes: list[onnx.NodeProto], length: int = 0, outputs: dict[str, tuple[int, ...]] | None = None) -> Any:
    """A program on x, a row, or so many of them; z are stored zeros."""
    x = value("x", length, 8) if length else value("x", 8)
    made = [value(name, *shape) for name, shape in (outputs or {"y": (8,)}).items()]
    counts = [scalar(f"n{count}", count, np.int64) for count in (1, 2, 3, 4, 5, 1000)]
    return model(nodes, [x, value("h", 8)] if length else [x], made, [*counts, stored("z", 8)])


ENDS = {"y": (8,), "k": (8,)}
# name: program, rows that move, rows that are alive
LOOPS: dict[str, tuple[Any, int, int]] = {
    # run 1 reads x, which is its state, too, and writes; others read their state and x, and write
    "a state that is read outside": (net([loop(3, [ADD], "a -> u", "x", "y")]), 2 + 3 + 3, 3),
    "the same, in many runs": (net([loop(1000, [ADD], "a -> u", "x", "y")]), 2 + 999 * 3, 3),
    "the same, in one run": (net([loop(1, [ADD], "a -> u", "x", "y")]), 2, 2),
    "the same, computed": (
        net([EXP, loop(3, [node("Add", "a e", "u")], "a -> u", "e", "y")]), 2 + (2 + 3 + 3), 3,
    ),
    "by a view": (
        net([node("Identity", "x", "v"), loop(3, [node("Add", "a v", "u")], "a -> u", "x", "y")]), 2 + 3 + 3, 3,
    ),
    # zeros are no activation: in run 1 x and u live, then also the state
    "a state that is stored": (net([loop(3, [ADD], "a -> u", "z", "y")]), 3 * 3, 3),
    "two states of one": (
        net([loop(3, [node("Add", "a b", "u"), node("Exp", "b", "v")], "a b -> u v", "x x", "y k")], outputs=ENDS),
        (2 + 2) + 2 * (3 + 2), 3,  # at Exp b, u and v: nobody reads a any more
    ),
    # x + x, then x + u1, u1 + u2; the caller gets the last two
    "a shift register": (
        net([loop(3, [node("Add", "a b", "u")], "a b -> b u", "x x", "y k")], outputs=ENDS), 2 + 3 + 3, 3,
    ),
    # x * x, e * x, x * x: where the states change places, every second run reads one memory. x, e, t; nobody reads s0
    "states that change places": (
        net([EXP, loop(3, [node("Mul", "a x", "t"), node("Add", "t e", "s")], "a b s0 -> b a s", "x e x", "- - y")]),
        2 + (2 + 3) + (3 + 3) + (2 + 3), 3,
    ),
    "a state that goes through": (
        net([loop(3, [node("Add", "a b", "u")], "a b -> u b", "x x", "y k")], outputs=ENDS), 2 + 3 + 3, 3,
    ),
    # sigmoid(q) * q twice a run, within three runs of s + q: reads s, writes g; twice (2 + 3); then s + q, 3
    # at the product s, q, its sigmoid and what comes of it live
    "a loop in a loop": (
        net([loop(3, [
            node("Exp", "s", "g"),
            loop(2, [node("Sigmoid", "q", "f"), node("Mul", "q f", "p")], "q -> p", "g", "r"),
            node("Add", "s r", "u"),
        ], "s -> u", "x", "y")]),
        3 * (2 + 2 * (2 + 3) + 3), 4,
    ),
    # three times: from x, two runs of a + x and its product by x, of which the first reads x alone, and the sum with e;
    # at the product x, e, a + x and what comes of it live, of the outer state nothing
    "a loop in a loop that reads what is outside of both": (
        net([EXP, loop(3, [
            loop(2, [node("Add", "a x", "t"), node("Mul", "t x", "v")], "a -> v", "x", "w"), node("Add", "w e", "u"),
        ], "s -> u", "x", "y")]),
        2 + 3 * ((2 + 3) + (3 + 3) + 3), 4,
    ),
    # the inner state comes from the outer one, which its body reads as well: (2 + 3 + 3) in each of five runs
    "a loop in a loop on its state": (
        net([loop(5, [loop(3, [node("Add", "q s", "p")], "q -> p", "s", "r")], "s -> r", "x", "y")]),
        5 * (2 + 3 + 3), 3,
    ),
}  # fmt: skip


def test_zeros_that_a_loop_starts_with_are_weights_in_its_first_run(tmp_path: Path) -> None:
    """x in every run, what was left in the last two, zeros in the first one, and three results."""
    parts = measured(net([loop(3, [ADD], "a -> u", "z", "y")]), tmp_path)["bandwidth"].parts
    assert parts == {"read": 5 * ROW, "weights": ROW, "write": 3 * ROW}


BOTH = [node("Add", "a b", "r")]
BEFORE = [node("Add", "s a", "r"), node("Identity", "a", "t")]
SUMS = [node("Add", "s a", "t"), node("Mul", "t s", "r")]


def scanned(length: int, steps: list[onnx.NodeProto], ends: str, given: str, results: str, **more: Any) -> Any:
    shapes = {name: (8,) if name == "k" else (length, 8) for name in results.split() if name != "-"}
    return net([scan(steps, ends, given, results, **more)], length, shapes)


BACK: dict[str, Any] = {"count": 2, "scan_input_directions": [0, 1]}
SCANS: dict[str, tuple[Any, int, int]] = {
    # two slices that are one, and a result; h lives with all inputs while the first operation runs
    "twice from the end": (
        scanned(5, BOTH, "a b -> r", "x x", "y", count=2, scan_input_directions=[1, 1]), 5 * 2, 5 + 5 + 1,
    ),
    # a slice and the one before; h first
    "the slice before": (scanned(5, BEFORE, "s a -> t r", "h x", "- y"), 5 * 3, 5 + 5 + 1),
    # the state is the slice that the run before wrote into the result: a product reads two slices of it, and in the
    # first run h is the state
    "a state that is stacked": (scanned(4, SUMS, "s a -> t t r", "h x", "k y w"), 4 * 6, 4 + 4 + 4 + 1),
    "a state that is stacked from the end": (
        scanned(4, SUMS, "s a -> t t r", "h x", "k y w", scan_output_directions=[1, 0]), 4 * 6, 4 + 4 + 4 + 1,
    ),
    # slices that nobody reads go nowhere: the state before and the sum live, and in run 1 h, x and the sum
    "slices that nobody reads": (scanned(4, [node("Add", "s a", "t")], "s a -> t t", "h x", "k -"), 4 * 3, 4 + 2),
}  # fmt: skip


BOTH_KINDS = {**LOOPS, **SCANS}


UNMEASURED = {
    "from both ends": scanned(5, BOTH, "a b -> r", "x x", "y", **BACK),
    "all rows for each": net([scan(
        [scan([node("Add", "a b", "t"), node("Add", "s t", "u")], "s b -> u", "z x", "r")], "a -> r", "x", "y",
    )], 6, {"y": (6, 8)}),
    "states that change places": net(
        [EXP, loop(1000, [node("Mul", "a x", "t"), node("Add", "t e", "s")], "a b s0 -> b a s", "x e x", "- - y")]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "why"), [*zip(UNMEASURED.values(), [
    "Scan 'y': it scans a tensor of which it reads another part in the same run",
    "Scan 'r': it scans a tensor of which it reads another part in the same run",
    "its states change places from run to run",
], strict=True)], ids=UNMEASURED)  # fmt: skip
def test_a_body_of_which_no_run_stands_for_others_is_unmeasured(
    made: onnx.ModelProto, why: str, tmp_path: Path
) -> None:
    """Two slices are one in some runs, or a state lies in another memory in every second run."""
    (missing,) = measured(made, tmp_path)["bandwidth"].unmeasured
    assert missing.why.endswith(why)


@pytest.mark.parametrize(("made", "moved", "alive"), BOTH_KINDS.values(), ids=BOTH_KINDS)
def test_a_body_costs_what_its_runs_cost(made: onnx.ModelProto, moved: int, alive: int, tmp_path: Path) -> None:
    """Each run reads one memory once, whatever names it has there, and slices of its own; it writes one of its own."""
    found = measured(made, tmp_path)
    assert (found["bandwidth"].value / ROW, found["peak_activation"].value / ROW) == (moved, alive)


def test_directions_that_are_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'y', its bodies and what it reads do not fit together"):
        measured(scanned(4, BOTH, "a b -> r", "x x", "y", count=2, scan_input_directions=[0]), tmp_path)


def test_what_is_not_measured_in_a_loop_is_counted_as_often_as_it_runs(tmp_path: Path) -> None:
    steps = [node("mystery", "a", "t", domain="lab"), node("Exp", "a", "u")]
    made = model(
        [loop(5, steps, "a -> u", "x", "y")], [value("x", 8)], [value("y", 8)], [scalar("n5", 5, np.int64)],
        domains=["lab"],
    )  # fmt: skip
    (missing,) = measured(made, tmp_path)["macs"].unmeasured
    assert (missing.op, missing.count) == ("lab::mystery", 5)


def in_turns(flag: str, name: str, *, erf: int) -> onnx.NodeProto:
    """An If between the exponential of t, and so many erf of it, of which each is by itself."""
    most = [node("Erf", f"{name}{at}" if at else "t", f"{name}{at + 1}") for at in range(erf)]
    branches = {
        "then_branch": graph(most, [], rows(f"{name}{erf}")),
        "else_branch": graph([node("Exp", "t", f"{name}e")], [], rows(f"{name}e")),
    }
    return node("If", flag, name, **branches)


def test_data_take_the_same_branch_in_all_runs(tmp_path: Path) -> None:
    """Two branches in a body of five runs are four paths; the dearest is counted: two erf, one of the others, a sum."""
    steps = [node("Identity", "a", "t"), in_turns("f", "v", erf=2), in_turns("g", "w", erf=1), node("Add", "v w", "u")]
    flags = [value(name, code=TensorProto.BOOL) for name in "fg"]
    made = model(
        [loop(5, steps, "a -> u", "x", "y")], [value("x", 8), *flags], [value("y", 8)], [scalar("n5", 5, np.int64)]
    )
    found = measured(made, tmp_path)["bandwidth"]
    assert (found.value, found.complete) == (5 * (2 * 2 + 2 + 3) * ROW, True)


def within(depth: int) -> onnx.ModelProto:
    """Loops of five runs in one another, around a sum of the innermost state and x."""
    steps, left = [node("Add", f"a{depth} x", "v")], "v"
    for level in range(depth, 0, -1):
        given = f"a{level - 1}" if level > 1 else "x"
        steps, left = [loop(5, steps, f"a{level} -> {left}", given, f"w{level}")], f"w{level}"
    return net([*steps, node("Identity", left, "y")])


def test_loops_in_one_another_are_read_as_far_as_time_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 · 5 · 5 sums the first reads one memory, all others two; more nodes than the most are not read."""
    assert measured(within(3), tmp_path)["bandwidth"].value == (125 * 3 - 1) * ROW
    monkeypatch.setattr("pytest_modelbudget.onnx_models.control_flow.MOST_READ", 20)
    found = measured(within(3), tmp_path)["bandwidth"]
    (missing,) = found.unmeasured
    inside = "onnx::Loop 'w1': onnx::Loop 'w2': onnx::Loop 'w3'"
    assert missing.why == f"{inside}: bodies have more than 20 nodes, as often as they are read"
