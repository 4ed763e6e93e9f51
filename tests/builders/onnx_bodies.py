"""ONNX files of branches, loops and operators without a rule, each with a weight of its own."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from tests.builders.onnx_graphs import graph, model, node, scalar, stored, value

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def branch(name: str, columns: int) -> onnx.GraphProto:
    """x (1, 8) times a weight of its own."""
    return graph([node("MatMul", f"x {name}", "z")], [], [value("z", 1, None)], [stored(name, 8, columns)])


def chosen(*, flag: bool | None) -> onnx.ModelProto:
    """An If between 8 x 4 and 8 x 6, of a stored condition or an input."""
    made = node("If", "flag", "y", then_branch=branch("a", 4), else_branch=branch("b", 6))
    inputs = [value("x", 1, 8), *([value("flag", code=BOOL)] if flag is None else [])]
    weights = [] if flag is None else [scalar("flag", flag, bool)]
    return model([made], inputs, [value("y", 1, None)], weights)


def looped(times: int) -> onnx.ModelProto:
    """A Loop over one product of 8 x 8."""
    body = graph(
        [node("Identity", "c", "c2"), node("MatMul", "v w", "v2")],
        [value("i", code=INT64), value("c", code=BOOL), value("v", 1, 8)],
        [value("c2", code=BOOL), value("v2", 1, 8)],
        [stored("w", 8, 8)],
    )
    made = node("Loop", "times - x", "y", body=body)
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], [scalar("times", times, "int64")])


def unknown(operands: str, **attributes: object) -> onnx.NodeProto:
    """An operator that no rule knows, with a result of known shape."""
    return node("mystery", operands, "y", domain="lab", **attributes)


def in_its_body() -> onnx.ModelProto:
    body = graph([node("MatMul", "a w", "b")], [value("a", 1, 8)], [value("b", 1, 8)], [stored("w", 8, 8)])
    return model([unknown("x", body=body)], [value("x", 1, 8)], [value("y", 1, 8)], domains=["lab"])
