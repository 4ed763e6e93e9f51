"""Operators of any number of operands cost what the same costs one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from tests.builders.onnx_graphs import measured, model, node, scalar, value

Shapes = Sequence[tuple[int, ...]]
PAIRWISE = {"Sum": "Add", "Max": "Max", "Min": "Min", "Mean": "Add"}
SHAPES = {
    "two": [(2, 3, 4)] * 2,
    "four": [(2, 3, 4)] * 4,
    "broadcast": [(1, 3), (4, 1), (2, 1, 1), ()],  # 4 · 3 elements, then 2 · 4 · 3 twice
    "small ones first": [(), (1,), (5, 6)],
    "empty": [(0, 3), (1, 3), (0, 1)],
}


def of_all(nodes: Sequence[onnx.NodeProto], shapes: Shapes) -> onnx.ModelProto:
    """Nodes that give y, of any shape, of operands x0, x1 and so on."""
    result = value("y")
    result.type.tensor_type.ClearField("shape")
    inputs = [value(f"x{at}", *shape) for at, shape in enumerate(shapes)]
    return model(nodes, inputs, [result], [scalar("count", len(shapes))])


def one_by_one(operator: str, count: int) -> list[onnx.NodeProto]:
    """That of two on the first two, on what it gives and the third, and so on; a mean is divided at the end."""
    firsts = ["x0", *(f"s{at}" for at in range(1, count))]
    nodes = [node(PAIRWISE[operator], f"{firsts[at - 1]} x{at}", f"s{at}") for at in range(1, count)]
    last = node("Div", f"{firsts[-1]} count", "y") if operator == "Mean" else node("Identity", firsts[-1], "y")
    return [*nodes, last]


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operator", PAIRWISE)
def test_operands_are_taken_one_after_another(operator: str, shapes: Shapes, tmp_path: Path) -> None:
    """FLOPs of one node are those of the nodes of two operands; it writes no sum between."""
    together = node(operator, " ".join(f"x{at}" for at in range(len(shapes))), "y")
    found = measured(of_all([together], shapes), tmp_path)["flops"]
    apart = measured(of_all(one_by_one(operator, len(shapes)), shapes), tmp_path)["flops"]
    assert (found.value, found.complete) == (apart.value, True)


@pytest.mark.parametrize(
    ("operator", "count", "flops"),
    [("Sum", 3, 2 * 24), ("Max", 5, 4 * 24), ("Min", 2, 24), ("Mean", 3, 3 * 24)]
    + [(operator, 1, 0) for operator in PAIRWISE],
)
def test_figures(operator: str, count: int, flops: int, tmp_path: Path) -> None:
    """Of 2 · 3 · 4 elements: one for each operand after the first, and for a mean a quotient; one is handed on."""
    together = node(operator, " ".join(f"x{at}" for at in range(count)), "y")
    found = measured(of_all([together], [(2, 3, 4)] * count), tmp_path)["flops"]
    assert (found.value, found.complete) == (flops, True)
