"""Inputs that are one number or flag, whose values dims bind: they decide branches, loops and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_modelbudget import measure
from pytest_modelbudget.errors import InputError
from tests.builders.onnx_graphs import graph, integers, model, node, scalar, stored, value
from tests.builders.project import Project

BOOL, INT32, INT64, UINT8 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8


def chosen(flag: onnx.ValueInfoProto, *steps: onnx.NodeProto, then: float = 1.0) -> onnx.ModelProto:
    """x (8, 4) · w (4, 4) plus a constant, or x · narrow (4, 1) · wide (1, 4): what comes of the flag says which."""
    made = steps[-1].output[0] if steps else flag.name
    square = graph([node("MatMul", "x w", "p"), node("Add", "p c", "t")], [], [value("t", 8, 4)], [scalar("c", then)])
    thin = graph([node("MatMul", "x narrow", "h"), node("MatMul", "h wide", "e")], [], [value("e", 8, 4)])
    nodes = [*steps, node("If", made, "y", then_branch=square, else_branch=thin)]
    weights = [stored("w", 4, 4), stored("narrow", 4, 1), stored("wide", 1, 4), scalar("sixteen", 16, np.int64)]
    return model(nodes, [value("x", 8, 4), flag], [value("y", 8, 4)], weights)


def looped() -> onnx.ModelProto:
    """n runs of state (8, 4) · w (4, 4)."""
    body = graph(
        [node("Identity", "goes", "on"), node("MatMul", "state w", "left")],
        [value("at", code=INT64), value("goes", code=BOOL), value("state", 8, 4)],
        [value("on", code=BOOL), value("left", 8, 4)],
    )
    nodes = [node("Loop", "n - x", "y", body=body)]
    return model(nodes, [value("x", 8, 4), value("n", code=INT64)], [value("y", 8, 4)], [stored("w", 4, 4)])


def stretched() -> onnx.ModelProto:
    """n rows of four, by w (4, 4)."""
    nodes = [
        node("Concat", "n four", "sizes", axis=0),
        node("Expand", "x sizes", "rows"),
        node("MatMul", "rows w", "y"),
    ]
    inputs, outputs = [value("x", 1, 4), value("n", 1, code=INT64)], [value("y", "rows", 4)]
    return model(nodes, inputs, outputs, [stored("w", 4, 4), integers("four", 4)])


RATE = value("rate", code=INT64)
PROGRAMS = {
    "a flag": (chosen(value("flag", code=BOOL)), {"flag": 1}, 8 * 4 * 4),
    "a flag that is not set": (chosen(value("flag", 1, code=BOOL)), {"flag": 0}, 2 * 8 * 4),
    "a number that is compared": (chosen(RATE, node("Equal", "rate sixteen", "is")), {"rate": 16}, 8 * 4 * 4),
    "another number": (chosen(RATE, node("Equal", "rate sixteen", "is")), {"rate": 8}, 2 * 8 * 4),
    "a byte": (chosen(value("rate", code=UINT8), node("Cast", "rate", "is", to=BOOL)), {"rate": 200}, 8 * 4 * 4),
    "a number in a matrix": (
        chosen(value("rate", 1, 1, code=INT64), node("Cast", "rate", "is", to=BOOL)),
        {"rate": 2},
        8 * 4 * 4,
    ),
    "a count": (looped(), {"n": 3}, 3 * 8 * 4 * 4),
    "no run": (looped(), {"n": 0}, 0),
    "a size": (stretched(), {"n": 5}, 5 * 4 * 4),
}


@pytest.mark.parametrize(("made", "dims", "macs"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_bound_number_decides(made: onnx.ModelProto, dims: dict[str, int], macs: int, tmp_path: Path) -> None:
    """Nothing is left open, and no branch is counted for another."""
    onnx.save(made, tmp_path / "net.onnx")
    found = measure(tmp_path / "net.onnx", dims=dims)
    assert (found["macs"].value, found["macs"].unmeasured) == (macs, ())
    assert found["bandwidth"].complete
    assert not any("dearer" in note for note in found.notes)


@pytest.mark.parametrize(("made", "dims", "macs"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_an_open_number_is_named(made: onnx.ModelProto, dims: dict[str, int], macs: int, tmp_path: Path) -> None:
    """Beside what it leaves open."""
    onnx.save(made, tmp_path / "net.onnx")
    found = measure(tmp_path / "net.onnx")
    said = [*found.notes, *(missing.why for missing in found["macs"].unmeasured)]
    assert any(f"({next(iter(dims))} in dims decides it)" in each for each in said), said


def test_a_number_beside_data_decides_nothing_alone(tmp_path: Path) -> None:
    """Whether any entry of x is above it."""
    steps = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Cast", "m", "most", to=INT64),
        node("Greater", "most rate", "is"),
    ]
    onnx.save(chosen(RATE, *steps), tmp_path / "net.onnx")
    for dims in ({}, {"rate": 3}):
        assert (
            measure(tmp_path / "net.onnx", dims=dims).notes[0] == "If 'y' is counted as its dearer branch, then_branch"
        )


def test_a_size_makes_a_number(tmp_path: Path) -> None:
    """An input of an open size that is bound to 1 has a value to bind; what nobody gave is named."""
    onnx.save(chosen(value("rate", None, code=INT64), node("Cast", "rate", "is", to=BOOL)), tmp_path / "net.onnx")
    found = measure(tmp_path / "net.onnx", dims={"rate.0": 1})
    assert found.notes[0].endswith("dearer branch, then_branch (rate in dims decides it)")
    assert measure(tmp_path / "net.onnx", dims={"rate.0": 1, "rate": 0})["macs"].value == 2 * 8 * 4
    with pytest.raises(InputError, match=r"dimension 'rate': symbols are rate\.0$"):
        measure(tmp_path / "net.onnx", dims={"rate.0": 2, "rate": 0})


def test_a_name_of_a_size_is_no_number_to_bind(tmp_path: Path) -> None:
    """dims has it already, for the rows of x: nothing else is asked for."""
    made = chosen(RATE, node("Equal", "rate sixteen", "is"))
    for each in (made.graph.input[0], made.graph.output[0]):
        each.type.tensor_type.shape.dim[0].dim_param = "rate"
    onnx.save(made, tmp_path / "net.onnx")
    assert measure(tmp_path / "net.onnx", dims={"rate": 8}).notes[0].endswith("dearer branch, then_branch")


def test_a_number_beside_chance_decides_nothing_alone(tmp_path: Path) -> None:
    steps = [
        node("RandomUniform", "", "u", shape=[1]),
        node("Cast", "rate", "f", to=TensorProto.FLOAT),
        node("Greater", "u f", "is"),
    ]
    onnx.save(chosen(RATE, *steps), tmp_path / "net.onnx")
    assert measure(tmp_path / "net.onnx").notes[0] == "If 'y' is counted as its dearer branch, then_branch"


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"rte": 8}, "has a dimension 'rte': all its sizes are fixed; numbers are rate"),
        ({"rate": 2**40}, f"rate is {2**40}, and no int32: write one from 0 to {2**31 - 1}"),
    ],
)
def test_what_no_number_can_be(dims: dict[str, int], says: str, tmp_path: Path) -> None:
    narrow = chosen(value("rate", code=INT32), node("Cast", "rate", "is", to=BOOL))
    onnx.save(narrow, tmp_path / "net.onnx")
    with pytest.raises(InputError, match=says):
        measure(tmp_path / "net.onnx", dims=dims)


@pytest.mark.parametrize(("added", "outcomes"), [(1.0, {"passed": 2}), (2.0, {"passed": 1, "failed": 1})])
def test_claims_run_on_bound_numbers(added: float, outcomes: dict[str, int], project: Project) -> None:
    """What is added where the rate is 16 alone: it never is by chance, which draws 0 and 1."""
    for name, then in (("a", 1.0), ("b", added)):
        made = chosen(RATE, node("Equal", "rate sixteen", "is"), then=then)
        (project.path / "budgets" / f"{name}.onnx").write_bytes(made.SerializeToString())
    project.write(
        "budgets/a.yaml",
        "model_budget: 1\nmodels:\n  net:\n    onnx: a.onnx\n    dims: {rate: 16}\n    limits: {macs: 128 MAC}\n"
        "    transforms:\n      twin: {compare: {onnx: b.onnx}, equivalence: exact_algebra}\n",
    )
    project.run("budgets/a.yaml").assert_outcomes(**outcomes)
