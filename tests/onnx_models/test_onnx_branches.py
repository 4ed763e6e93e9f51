"""Limits on operators hold every branch and body of an ONNX file that data may take, counted or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget.budget.budget import OpsLimit, Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.metrics.branches import branches
from pytest_modelbudget.registry import tables
from tests.builders.onnx_bodies import in_its_body
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value
from tests.builders.programs import program

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
WITHIN, OVER, UNKNOWN = Outcome.WITHIN, Outcome.OVER, Outcome.UNKNOWN
SQUARE = [stored("w", 8, 8)]


def way(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch that gives a row of 8; its last node makes it."""
    return graph(nodes, [], [value(nodes[-1].output[0], 1, 8)])


def steps(name: str, *operators: str) -> list[onnx.NodeProto]:
    """One operator after the other, from x: MatMul is by w, and own ones are of the domain lab."""
    made, read = [], "x"
    for at, operator in enumerate(operators):
        operands = f"{read} w" if operator == "MatMul" else read
        domain = "lab" if operator.startswith("own") else ""
        made.append(node(operator, operands, f"{name}{at}", domain=domain))
        read = f"{name}{at}"
    return made


def chosen(
    then: onnx.GraphProto, other: onnx.GraphProto, *, before: Sequence[onnx.NodeProto] = (), known: bool | None = None
) -> onnx.ModelProto:
    """An If between two branches, on a flag that is stored or an input."""
    made = node("If", "flag", "y", then_branch=then, else_branch=other)
    flags = [] if known is not None else [value("flag", code=BOOL), value("inner", code=BOOL)]
    weights = [*SQUARE, *([scalar("flag", known, np.bool_)] if known is not None else [])]
    return model([*before, made], [value("x", 1, 8), *flags], [value("y", 1, 8)], weights, domains=["lab"])


def either(**more: bool) -> onnx.ModelProto:
    """MatMul and Erf, or two MatMul and a Relu, which are dearer."""
    return chosen(way(*steps("t", "MatMul", "Erf")), way(*steps("e", "MatMul", "MatMul", "Relu")), **more)


def nested() -> onnx.ModelProto:
    """(Erf, and then two Erf or a Relu), or two MatMul, which are counted; behind one Erf: at most 1 + 1 + 2 Erf."""
    inner = node("If", "inner", "i", then_branch=way(*steps("a", "Erf", "Erf")), else_branch=way(*steps("b", "Relu")))
    then = way(*steps("t", "Erf"), inner)
    return chosen(then, way(*steps("e", "MatMul", "MatMul")), before=[node("Erf", "x", "first")])


def within_the_counted() -> onnx.ModelProto:
    """(MatMul, and then two Erf or a MatMul), or a Relu: the counted branch holds one that is not counted."""
    inner = node("If", "inner", "i", then_branch=way(*steps("a", "Erf", "Erf")), else_branch=way(*steps("b", "MatMul")))
    return chosen(way(*steps("t", "MatMul"), inner), way(*steps("e", "Relu")))


def looped(times: int | None) -> onnx.ModelProto:
    """A Loop whose body chooses between Erf and MatMul; how often it runs is stored, or an input."""
    then, other = graph([node("Erf", "h", "t")], [], [value("t", 1, 8)]), way(node("MatMul", "h w", "e"))
    body = graph(
        [node("Identity", "c", "on"), node("If", "flag", "after", then_branch=then, else_branch=other)],
        [value("i", code=INT64), value("c", code=BOOL), value("h", 1, 8)],
        [value("on", code=BOOL), value("after", 1, 8)],
    )
    inputs = [value("x", 1, 8), value("flag", code=BOOL)]
    if times is None:
        inputs.append(value("times", code=INT64))
    weights = [*SQUARE, *([] if times is None else [scalar("times", times, np.int64)])]
    return model([node("Loop", "times - x", "y", body=body)], inputs, [value("y", 1, 8)], weights)


def misfit() -> onnx.ModelProto:
    """A branch that cannot run on a row of 8, or a Relu."""
    then = graph([node("Erf", "x", "t"), node("MatMul", "t v", "t2")], [], [value("t2", 1, 8)], [stored("v", 4, 8)])
    return chosen(then, way(*steps("e", "Relu")))


def verdict(made: onnx.ModelProto, folder: Path, **limit: object) -> Verdict:
    """A limit on operators, held against a file."""
    onnx.save(made, folder / "m.onnx")
    found = measure_model(ModelSource("onnx", str(folder / "m.onnx")), tables(), root=folder)
    return judge_limit(OpsLimit(Place("b.yaml", 3), **limit), found)  # type: ignore[arg-type]  # a test's shorthand


THEN = "in the then_branch of If 'y', which is not counted"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"deny": ("erf",)}, f"ops 1 onnx::Erf > 0   denied, first in t1, {THEN}"),
        ({"deny": ("onnx::Erf",)}, f"ops 1 onnx::Erf > 0   denied, first in t1, {THEN}"),
        ({"allow": ("matmul", "relu")}, f"ops 1 onnx::Erf > 0   not allowed, first in t1, {THEN}"),
        ({"max": {"erf": 0}}, "ops 1 erf > 0, where data take the then_branch of If 'y'"),
        ({"max": {"matmul": 1}}, "ops 2 matmul > 1, the last in e1"),
        ({"deny": ("erf",), "scope": "t1"}, f"ops of t1 1 onnx::Erf > 0   denied, first in t1, {THEN}"),
    ],
)
def test_a_branch_that_is_not_counted_is_held(limit: dict[str, object], reason: str, tmp_path: Path) -> None:
    """The line says which operator, and in which branch."""
    found = verdict(either(), tmp_path, **limit)
    assert (found.outcome, found.reason) == (OVER, reason)


@pytest.mark.parametrize(
    "limit",
    [
        {"deny": ("softmax",)},
        {"allow": ("matmul", "relu", "erf")},
        {"max": {"matmul": 2, "erf": 1, "relu": 1}},
        {"deny": ("erf",), "scope": "e*"},
    ],
)
def test_one_branch_runs_and_not_both(limit: dict[str, object], tmp_path: Path) -> None:
    """Two MatMul or one are two."""
    assert verdict(either(), tmp_path, **limit).outcome is WITHIN


def test_what_is_counted_stays(tmp_path: Path) -> None:
    """The number, its parts and its notes are those of the counted branch."""
    ops = measured(either(), tmp_path)["ops"]
    assert (ops.value, dict(ops.parts), ops.complete) == (3, {"matmul": 2, "relu": 1}, True)


def test_a_branch_that_never_runs_is_not_held(tmp_path: Path) -> None:
    """A stored condition takes the other one."""
    assert verdict(either(known=False), tmp_path, deny=("erf",)).outcome is WITHIN
    assert verdict(either(known=True), tmp_path, deny=("erf",)).outcome is OVER


@pytest.mark.parametrize(
    ("made", "kind", "most"),
    [
        pytest.param(nested(), "erf", 1 + 1 + 2, id="nested"),
        pytest.param(nested(), "relu", 1, id="the other one of a nested"),
        pytest.param(nested(), "matmul", 2, id="the counted"),
        pytest.param(within_the_counted(), "erf", 2, id="within the counted"),
        pytest.param(within_the_counted(), "matmul", 1 + 1, id="the counted within the counted"),
        pytest.param(within_the_counted(), "relu", 1, id="beside one that holds another"),
        pytest.param(looped(5), "erf", 5 * 1, id="repeated"),
        pytest.param(looped(5), "matmul", 5 * 1, id="repeated, counted"),
    ],
)
def test_a_maximum_holds_the_path_with_most_of_a_kind(
    made: onnx.ModelProto, kind: str, most: int, tmp_path: Path
) -> None:
    """Exactly as many are within, one less is over."""
    assert verdict(made, tmp_path, max={kind: most}).outcome is WITHIN
    found = verdict(made, tmp_path, max={kind: most - 1})
    assert (found.outcome, found.reason.startswith(f"ops {most} {kind} > {most - 1}, ")) == (OVER, True)


def test_every_branch_on_the_path_is_named(tmp_path: Path) -> None:
    """A path may take several."""
    reason = verdict(nested(), tmp_path, max={"relu": 0}).reason
    assert reason.endswith("where data take the then_branch of If 'y', the else_branch of If 'i'")


@pytest.mark.parametrize(
    ("limit", "outcome", "words"),
    [
        ({"deny": ("erf",)}, OVER, "denied, first in t, in the then_branch of If 'after', which is"),
        ({"deny": ("onnx::MatMul",)}, OVER, "denied, first in e, in the else_branch of If 'after', which is"),
        ({"allow": ("loop", "reshape", "erf")}, OVER, "1 onnx::MatMul > 0   not allowed"),
        ({"max": {"erf": 9}}, UNKNOWN, "how often erf runs in the then_branch of If 'after' is not known; "),
        ({"max": {"erf": 9}, "allow_unmeasured": ("onnx::Loop",)}, WITHIN, ""),
        ({"max": {"softmax": 0}}, WITHIN, ""),
        ({"deny": ("softmax",)}, WITHIN, ""),
    ],
)  # fmt: skip
def test_a_body_that_is_not_counted_is_held(
    limit: dict[str, object], outcome: Outcome, words: str, tmp_path: Path
) -> None:
    """Which operators it holds is known where nobody knows how often it runs."""
    found = verdict(looped(None), tmp_path, **limit)
    assert (found.outcome, words in found.reason) == (outcome, True), found.reason


def test_the_body_of_an_operator_without_a_rule_is_held(tmp_path: Path) -> None:
    """It may run whatever it is given; which kind the operator itself has stays unknown."""
    found = verdict(in_its_body(), tmp_path, deny=("onnx::MatMul",))
    assert (found.outcome, "in the body of mystery 'y', which is not counted" in found.reason) == (OVER, True)
    assert verdict(in_its_body(), tmp_path, deny=("erf",)).outcome is UNKNOWN


def test_a_branch_that_does_not_fit_is_held(tmp_path: Path) -> None:
    """A device that lacks an operator cannot load the file, whichever shapes it is run on."""
    found = verdict(misfit(), tmp_path, deny=("erf",))
    assert found.reason == f"ops 1 onnx::Erf > 0   denied, first in t, {THEN}"


def test_an_operator_without_a_rule_may_be_of_any_kind_there_too(tmp_path: Path) -> None:
    """Unless the budget accepts it; its name is known."""
    made = chosen(way(*steps("t", "MatMul", "own1")), way(*steps("e", "own2")))
    found = verdict(made, tmp_path, deny=("erf",), allow_unmeasured=("lab::own1",))
    assert (found.outcome, "1 lab::own2 in e0 (no rule, else_branch of If 'y')" in found.reason) == (UNKNOWN, True)
    found = verdict(made, tmp_path, deny=("erf",), allow_unmeasured=("lab::own1", "lab::own2"))
    assert (found.outcome, found.marked) == (WITHIN, True)
    assert verdict(made, tmp_path, deny=("lab::own2",)).outcome is OVER
    assert verdict(made, tmp_path, deny=("onnx::Erf",)).outcome is WITHIN


def quantised(*names: str) -> list[onnx.NodeProto]:
    """Products of integers on a grid, one after the other: dequantise, MatMul, quantise."""
    made, read = [], "x"
    for name in names:
        made += [
            node("DequantizeLinear", f"{read} scale zero", f"{name}x"),
            node("DequantizeLinear", "q scale zero", f"{name}w"),
            node("MatMul", f"{name}x {name}w", f"{name}m"),
            node("QuantizeLinear", f"{name}m scale zero", f"{name}q"),
        ]
        read = f"{name}q"
    return made


def test_branches_are_read_on_integers(tmp_path: Path) -> None:
    """Groups of dequantise, operation and quantise in the other branch are one operation, too."""
    bytes_ = TensorProto.INT8
    then, other = quantised("a"), quantised("b", "c")
    ends = [graph(nodes, [], [value(nodes[-1].output[0], 1, 8, code=bytes_)]) for nodes in (then, other)]
    choice = node("If", "flag", "y", then_branch=ends[0], else_branch=ends[1])
    weights = [stored("q", 8, 8, dtype=np.int8), scalar("scale", 0.1), scalar("zero", 0, np.int8)]
    inputs = [value("x", 1, 8, code=bytes_), value("flag", code=BOOL)]
    made = model([choice], inputs, [value("y", 1, 8, code=bytes_)], weights)
    assert verdict(made, tmp_path, allow=("matmul",)).outcome is WITHIN
    assert verdict(made, tmp_path, max={"matmul": 2}).outcome is WITHIN


def test_branches_are_lowered(tmp_path: Path) -> None:
    """A device's compiler fuses activations in the other branch, too."""
    add = [node("Add", "x x", "t0"), node("Relu", "t0", "t1"), node("Erf", "t1", "t2")]
    onnx.save(chosen(way(*add), way(*steps("e", "MatMul", "MatMul"))), tmp_path / "m.onnx")
    found = branches(program(tmp_path / "m.onnx", fuse_activations=("relu",)).costed)
    (then,) = (branch for branch in found if not branch.is_counted)
    assert {row.kind: row.count for row in then.ops} == {"add": 1, "erf": 1}
