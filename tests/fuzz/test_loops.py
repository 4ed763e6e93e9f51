"""Random loops: they cost what their runs cost, written one behind the other as a program without a loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.builders.marks import TIMES
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value

ALONE, PAIRS = ("Exp", "Sigmoid", "Identity"), ("Add", "Mul")
OUTSIDE = ["x", "e"]
EXP = node("Exp", "x", "e")
ZEROS = stored("z", 8)
CHANGES = "onnx::Loop 'r0': its states change places from run to run"


@dataclass(frozen=True)
class Rounds:
    """Steps (operator, operands, result) that run so often, and states: what each begins as, and what a run leaves."""

    count: int
    steps: list[tuple[str, list[str], str]]
    given: list[str]
    left: list[str]

    @property
    def behind(self) -> list[tuple[str, list[str], str]]:
        """Sums of all last states and x, so that somebody reads each."""
        names = [f"r{at}" for at in range(len(self.given))]
        return [("Add", [f"y{at - 1}" if at else "x", name], f"y{at}") for at, name in enumerate(names)]

    @property
    def result(self) -> str:
        return self.behind[-1][2]


@st.composite
def rounds(draw: st.DrawFn) -> Rounds:
    """Up to four steps on up to three states and what stands outside, in up to nine runs."""
    states = [f"s{at}" for at in range(draw(st.integers(1, 3)))]
    known, steps = [*states, *OUTSIDE], []
    for at in range(draw(st.integers(1, 4))):
        operator = draw(st.sampled_from((*ALONE, *PAIRS)))
        operands = draw(st.lists(st.sampled_from(known), min_size=1 + (operator in PAIRS), max_size=2)) * 2
        steps.append((operator, operands[: 1 + (operator in PAIRS)], f"t{at}"))
        known.append(f"t{at}")
    inside = [name for name in known if name not in OUTSIDE]
    begun = [draw(st.sampled_from([*OUTSIDE, "z"])) for _ in states]
    return Rounds(draw(st.integers(1, 9)), steps, begun, [draw(st.sampled_from(inside)) for _ in states])


def looped(each: Rounds) -> onnx.ModelProto:
    """The rounds as a Loop."""
    values = [value(f"s{at}", 8) for at in range(len(each.given))]
    body = graph(
        [node("Identity", "c", "d"), *(node(operator, " ".join(read), made) for operator, read, made in each.steps),
         *(node("Identity", name, f"u{at}") for at, name in enumerate(each.left))],
        [value("i", code=TensorProto.INT64), value("c", code=TensorProto.BOOL), *values],
        [value("d", code=TensorProto.BOOL), *(value(f"u{at}", 8) for at in range(len(each.left)))],
    )  # fmt: skip
    results = " ".join(f"r{at}" for at in range(len(each.given)))
    behind = [node(operator, " ".join(read), made) for operator, read, made in each.behind]
    nodes = [EXP, node("Loop", f"n - {' '.join(each.given)}", results, body=body), *behind]
    counted = scalar("n", each.count, np.int64)
    return model(nodes, [value("x", 8)], [value(each.result, 8)], [counted, ZEROS])


def written_out(each: Rounds, *, returns_states: bool) -> onnx.ModelProto:
    """The rounds one behind the other; returns_states has the caller get all that a run leaves."""
    now = {f"s{at}": name for at, name in enumerate(each.given)}
    nodes, states = [EXP], dict.fromkeys([each.result])
    for run in range(each.count):
        for operator, read, made in each.steps:
            nodes.append(node(operator, " ".join(now.get(name, name) for name in read), f"{made}.{run}"))
            now[made] = f"{made}.{run}"
        nodes += [node("Identity", now[name], f"u{at}.{run}") for at, name in enumerate(each.left)]
        now.update({f"s{at}": f"u{at}.{run}" for at in range(len(each.left))})
        states.update(dict.fromkeys(now[f"s{at}"] for at in range(len(each.left))))
    ends = {f"r{at}": now[f"s{at}"] for at in range(len(each.left))}
    nodes += [
        node(operator, " ".join(ends.get(name, name) for name in read), made) for operator, read, made in each.behind
    ]
    returned = [name for name in states if name not in ("x", "z")] if returns_states else [each.result]
    return model(nodes, [value("x", 8)], [value(name, 8) for name in returned], [ZEROS])


@settings(max_examples=30 * TIMES, deadline=None)
@given(rounds())
def test_a_loop_costs_what_its_runs_cost_one_behind_the_other(each: Rounds) -> None:
    """What lives is that of the program as it stands; what moves, that of one of which every state is wanted."""
    with TemporaryDirectory() as folder:
        whole = measured(looped(each), Path(folder))
        alive = measured(written_out(each, returns_states=False), Path(folder))
        moved = measured(written_out(each, returns_states=True), Path(folder))
    if CHANGES in {missing.why for missing in whole["bandwidth"].unmeasured}:
        return
    assert whole["peak_activation"].value == alive["peak_activation"].value
    assert whole["bandwidth"].value == moved["bandwidth"].value
    assert whole["flops"].value == moved["flops"].value
