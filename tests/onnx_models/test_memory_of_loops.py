"""What is alive while a Loop or a Scan runs: as in the same steps written out, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.deployment.order import best_order
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.onnx_models.reader import load
from pytest_modelbudget.ops.table import builtin_ops
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value

RUNS, ROW = 3, 4 * 8  # bytes of a value of eight floats
X, Y = value("x", 8), value("y", 8)
Steps = Sequence[tuple[str, str, str]]


def rows(names: str) -> list[onnx.ValueInfoProto]:
    return [value(name, 8) for name in names.split()]


def nodes(steps: Steps) -> list[onnx.NodeProto]:
    return [node(*step) for step in steps]


def looped(
    steps: Steps, states: str, given: str, left: str, results: str, before: Steps = (), behind: Steps = (), **more: Any
) -> onnx.ModelProto:
    """RUNS rounds of some steps, between others."""
    counter, goes = value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL)
    body = graph(
        [node("Identity", "c", "d"), *nodes(steps)],
        [counter, goes, *rows(states)], [value("d", code=TensorProto.BOOL), *rows(left)],
    )  # fmt: skip
    made = [*nodes(before), node("Loop", f"n - {given}", results, body=body), *nodes(behind)]
    return model(made, [X], [Y], [scalar("n", RUNS, np.int64), *more.get("weights", [])])


def written_out(
    steps: Steps, states: str, given: str, left: str, results: str, before: Steps = (), behind: Steps = (), **more: Any
) -> onnx.ModelProto:
    """The same rounds, one behind the other."""
    made, now = [*nodes(before)], dict(zip(states.split(), given.split(), strict=True))
    for run in range(RUNS):
        for operator, read, result in steps:
            made.append(node(operator, " ".join(now.get(name, name) for name in read.split()), f"{result}{run}"))
            now[result] = f"{result}{run}"
        now.update(zip(states.split(), [now[name] for name in left.split()], strict=True))
    ends = dict(zip(results.split(), [now[name] for name in states.split()], strict=True))
    ends = {end: at for end, at in ends.items() if end == "y" or any(end in step[1].split() for step in behind)}
    for each in [*made, *(late := nodes(behind))]:
        for names in (each.input, each.output):
            names[:] = [next((end for end, at in ends.items() if at == name), name) for name in names]
    return model([*made, *late], [X], [Y], more.get("weights", []))


ZEROS = stored("z", 8)
LOOPS: dict[str, tuple[Any, ...]] = {
    "reads from outside": (
        [("Sigmoid", "e", "f"), ("Add", "s f", "u")], "s", "x", "u", "y", [("Exp", "x", "e")],
    ),
    "reads early from outside": (
        [("Add", "s e", "t"), ("Sigmoid", "t", "f"), ("Mul", "t f", "u")], "s", "x", "u", "y", [("Exp", "x", "e")],
    ),
    "a state that is read behind": (
        [("Sigmoid", "s", "f"), ("Mul", "s f", "u")], "s", "e", "u", "h", [("Exp", "x", "e")], [("Add", "h e", "y")],
    ),
    "a state that is read inside": (
        [("Sigmoid", "s", "f"), ("Add", "f e", "g"), ("Mul", "s g", "u")], "s", "e", "u", "y", [("Exp", "x", "e")],
    ),
    "two states of one": (
        [("Sigmoid", "a", "f"), ("Mul", "f b", "g"), ("Exp", "g", "v")], "a b", "x x", "g v", "y h",
    ),
    "two states of one, the other way round": (
        [("Sigmoid", "b", "f"), ("Mul", "f a", "g"), ("Exp", "g", "v")], "a b", "x x", "g v", "h y",
    ),
    "a state that goes through": (
        [("Sigmoid", "a", "f"), ("Mul", "f b", "g")], "a b", "x e", "g b", "y h", [("Exp", "x", "e")],
    ),
    "a state that is read outside as well": (
        [("Mul", "s e", "t"), ("Add", "t e", "u")], "s", "e", "u", "y", [("Exp", "x", "e")],
    ),
    "a state that moves on": (
        [("Mul", "a a", "t")], "a b", "e x", "b t", "h k", [("Exp", "x", "e")],
        [("Add", "h k", "m"), ("Add", "m x", "y")],
    ),
    "a state that moves on from one memory": (
        [("Mul", "a e", "t")], "a b", "e e", "b t", "h k", [("Exp", "x", "e")], [("Add", "h k", "y")],
    ),
    "a state that moves on by a view": (
        [("Identity", "b", "v"), ("Mul", "a e", "t")], "a b", "e e", "v t", "h k", [("Exp", "x", "e")],
        [("Add", "h k", "y")],
    ),
    "in halves": (
        [("Exp", "s", "f"), ("Sqrt", "f", "g"), ("Add", "f g", "u")], "s", "x", "u", "y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS.values(), ids=LOOPS)
def test_as_much_is_alive_in_a_loop_as_in_its_runs_written_out(case: tuple[Any, ...], tmp_path: Path) -> None:
    """Each run finds what it reads from outside, and what the run before left."""
    whole, apart = measured(looped(*case), tmp_path), measured(written_out(*case), tmp_path)
    keys = ("peak_activation", "flops")
    assert {key: whole[key].value for key in keys} == {key: apart[key].value for key in keys}


def test_a_stored_state_is_in_memory_from_the_second_run_on(tmp_path: Path) -> None:
    """e (from outside), the state before, its sigmoid and what is left: four rows, beside stored zeros."""
    made = looped(
        [("Sigmoid", "s", "f"), ("Add", "f e", "g"), ("Mul", "s g", "u")], "s", "z", "u", "y", [("Exp", "x", "e")],
        weights=[ZEROS],
    )  # fmt: skip
    # Add: e, s, f, g; Mul: e, s, g, u
    assert measured(made, tmp_path)["peak_activation"].value == 4 * ROW


def scanned(length: int = 5) -> onnx.ModelProto:
    """A state plus a step of x, put out rectified."""
    body = graph(nodes([("Add", "s e", "t"), ("Relu", "s", "r")]), rows("s e"), rows("t r"))
    made = node("Scan", "h x", "last y", body=body, num_scan_inputs=1)
    return model([made], [value("h", 8), value("x", length, 8)], [value("y", length, 8)])


def test_what_is_scanned_and_what_is_stacked_are_alive_together(tmp_path: Path) -> None:
    """All of x and all of y, the state before and the one that is left; nobody reads the last one, but its run does.

    Each of 5 runs reads the state and a step and writes a state, and reads the state and writes a slice.
    """
    found = measured(scanned(), tmp_path)
    assert found["peak_activation"].value == (5 + 5 + 1 + 1) * ROW
    assert found["bandwidth"].value == 5 * (3 + 2) * ROW
    assert measured(scanned(1), tmp_path)["peak_activation"].value == 2 * ROW  # no run reads what the one run leaves


def test_the_best_order_holds_what_a_loop_does(tmp_path: Path) -> None:
    """Operations of a body stay where they are, and so does their memory."""
    path = tmp_path / "net.onnx"
    path.write_bytes(scanned().SerializeToString())
    found = best_order(load(ModelSource("onnx", str(path)), builtin_ops()).graph)
    assert (found.nbytes, found.proved) == (12 * ROW, True)


@pytest.mark.parametrize("dearer", ["then_branch", "else_branch"])
def test_branches_within_a_loop_hold_what_its_next_run_reads(dearer: str, tmp_path: Path) -> None:
    """In the branch that moves more: e, and there the exponential, its root and their sum."""
    plain = graph(nodes([("Relu", "g", "a")]), [], rows("a"))
    most = graph(nodes([("Exp", "g", "p"), ("Sqrt", "p", "q"), ("Add", "p q", "b")]), [], rows("b"))
    other = "else_branch" if dearer == "then_branch" else "then_branch"
    branch = node("If", "flag", "u", **{dearer: most, other: plain})
    body = graph(
        [node("Identity", "c", "d"), *nodes([("Add", "s e", "g")]), branch],
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), *rows("s")],
        [value("d", code=TensorProto.BOOL), *rows("u")],
    )
    steps = [node("Exp", "x", "e"), node("Loop", "n - x", "y", body=body)]
    made = model(steps, [X, value("flag", code=TensorProto.BOOL)], [Y], [scalar("n", RUNS, np.int64)])
    found = measured(made, tmp_path)["peak_activation"]
    assert (found.value, found.complete) == (4 * ROW, True)


GRID = [scalar("k", 0.1), scalar("zero", 0, np.int8)]
ON_INTEGERS = [
    node("DequantizeLinear", "q k zero", "d"), node("DequantizeLinear", "w k zero", "wd"), node("MatMul", "d wd", "m"),
    node("QuantizeLinear", "m k zero", "mq"), node("DequantizeLinear", "mq k zero", "r"),
]  # fmt: skip
WEIGHTS = [*GRID, stored("w", 8, 8, dtype=np.int8), scalar("n", RUNS, np.int64)]


def test_what_a_scan_holds_is_read_as_integers_where_it_is_quantised(tmp_path: Path) -> None:
    """All of x and y in floats, and a quantised slice before and behind the product, of four rows."""
    quantise = node("QuantizeLinear", "e k zero", "q")
    body = graph([quantise, *ON_INTEGERS], [value("e", 4, 8)], [value("r", 4, 8)])
    scan = node("Scan", "x", "y", body=body, num_scan_inputs=1)
    made = model([scan], [value("x", RUNS, 4, 8)], [value("y", RUNS, 4, 8)], WEIGHTS)
    assert measured(made, tmp_path)["peak_activation"].value == 2 * RUNS * 4 * ROW + 2 * 4 * 8


def test_integers_from_outside_are_held_as_integers(tmp_path: Path) -> None:
    """The quantised x, and three floating tensors while the exponential of a state, its root or the sum is made."""
    steps = nodes([("Exp", "t", "a"), ("Sqrt", "a", "b"), ("Add", "b r", "u")])
    body = graph(
        [node("Identity", "c", "g"), *ON_INTEGERS, *steps],
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), value("t", 4, 8)],
        [value("g", code=TensorProto.BOOL), value("u", 4, 8)],
    )
    whole = [node("QuantizeLinear", "x k zero", "q"), node("Loop", "n - x", "y", body=body)]
    made = model(whole, [value("x", 4, 8)], [value("y", 4, 8)], WEIGHTS)
    assert measured(made, tmp_path)["peak_activation"].value == 3 * 4 * ROW + 4 * 8
