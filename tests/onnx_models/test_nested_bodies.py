"""Conditions on sizes inside of branches and loops, where what they ask about stands behind another condition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.builders.onnx_graphs import graph, integers, measured, model, node, scalar, stored, value

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
WEIGHTS = [stored("w", 4, 4), integers("axis", 1), scalar("one", 1, np.int64), scalar("three", 3, np.int64)]


def squeezed(read: str, result: str) -> list[onnx.NodeProto]:
    """torch's squeeze(1), as its scripts are exported: only a run of the file would tell a rank that is open."""
    then = graph([node("Squeeze", f"{read} axis", f"{result}1")], [], [value(f"{result}1", 8, 4)])
    other = graph([node("Identity", read, f"{result}2")], [], [value(f"{result}2", 8, 1, 4)])
    return [
        node("Shape", read, f"{result}_sizes"),
        node("Gather", f"{result}_sizes one", f"{result}_size"),
        node("Equal", f"{result}_size one", f"{result}_is_one"),
        node("If", f"{result}_is_one", result, then_branch=then, else_branch=other),
    ]


def layer(read: str, result: str, final: str) -> list[onnx.NodeProto]:
    """Two squeezes of which the second reads what comes of the first, then 8 x 4 · 4 x 4."""
    return [
        *squeezed(read, f"{result}a"),
        node("Relu", f"{result}a", f"{result}r"),
        node("Unsqueeze", f"{result}r axis", f"{result}u"),
        *squeezed(f"{result}u", f"{result}b"),
        node("MatMul", f"{result}b w", f"{result}m"),
        node("Unsqueeze", f"{result}m axis", final),
    ]


def in_a_branch(steps: Sequence[onnx.NodeProto], made: str) -> list[onnx.NodeProto]:
    """They run, or a Neg does: data decide."""
    then = graph(steps, [], [value(made, 8, 1, 4)])
    other = graph([node("Neg", "x", f"{made}n")], [], [value(f"{made}n", 8, 1, 4)])
    return [node("If", "flag", f"{made}i", then_branch=then, else_branch=other)]


def looped(result: str) -> list[onnx.NodeProto]:
    """Three runs of the layer."""
    steps = [node("Identity", "goes", "goes_on"), *layer("state", "l", "left")]
    body = graph(
        steps,
        [value("at", code=INT64), value("goes", code=BOOL), value("state", 8, 1, 4)],
        [value("goes_on", code=BOOL), value("left", 8, 1, 4)],
    )
    return [node("Loop", "three - x", result, body=body)]


def stacked(*, is_scan: bool) -> list[onnx.NodeProto]:
    """Three runs, each of which also gives the squeezed rows: their shape is known behind the condition alone."""
    steps = [*squeezed("state", "l"), node("MatMul", "l w", "m"), node("Unsqueeze", "m axis", "left")]
    slices = value("l")
    slices.type.tensor_type.ClearField("shape")
    states, left = [value("state", 8, 1, 4)], [value("left", 8, 1, 4), slices]
    if is_scan:
        body = graph(steps, [*states, value("each", 4)], left)
        return [node("Scan", "x w3", "y s", body=body, num_scan_inputs=1)]
    given = [value("at", code=INT64), value("goes", code=BOOL), *states]
    body = graph([node("Identity", "goes", "on"), *steps], given, [value("on", code=BOOL), *left])
    return [node("Loop", "three - x", "y s", body=body)]


@pytest.mark.parametrize("is_scan", [False, True], ids=["Loop", "Scan"])
def test_a_slice_behind_a_condition_has_its_shape(is_scan: bool, tmp_path: Path) -> None:
    """Three runs of 8 x 4 · 4 x 4, and their 3 x 8 rows together by the same weight."""
    nodes = [*stacked(is_scan=is_scan), node("MatMul", "s w", "z")]
    outputs = [value("y", 8, 1, 4), value("z", 3, 8, 4)]
    found = measured(model(nodes, [value("x", 8, 1, 4)], outputs, [*WEIGHTS, stored("w3", 3, 4)]), tmp_path)
    assert (found["macs"].value, found["macs"].unmeasured) == (6 * 8 * 4 * 4, ())
    assert found["ops"].complete
    assert found["peak_activation"].complete


PROGRAMS = {
    "as it stands": (layer("x", "l", "y"), 1),
    "in a branch": ([*in_a_branch(layer("x", "l", "y1"), "y1"), node("Relu", "y1i", "y")], 1),
    "in a branch of a branch": (
        [*in_a_branch(in_a_branch(layer("x", "l", "y1"), "y1"), "y1i"), node("Relu", "y1ii", "y")], 1
    ),
    "in a loop": (looped("y"), 3),
    "in a loop in a branch": ([*in_a_branch(looped("y1"), "y1"), node("Relu", "y1i", "y")], 3),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "runs"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_size_behind_a_condition_decides_the_next_one(nodes: list[onnx.NodeProto], runs: int, tmp_path: Path) -> None:
    """8 x 4 · 4 x 4 in each run, and nothing is unknown."""
    inputs = [value("x", 8, 1, 4), value("flag", code=BOOL)]
    macs = measured(model(nodes, inputs, [value("y", 8, 1, 4)], WEIGHTS), tmp_path)["macs"]
    assert (macs.value, macs.unmeasured) == (runs * 8 * 4 * 4, ())
