"""What the graph of an ONNX file leaves out stands in one table, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from pytest_modelbudget import measure
from pytest_modelbudget.errors import SourceError
from tests.builders.onnx_bodies import BOOL, INT64, chosen, in_its_body, looped, unknown
from tests.builders.onnx_graphs import graph, measured, model, node, scalar, stored, value


@pytest.mark.parametrize(
    ("proto", "macs", "params"),
    [
        pytest.param(chosen(flag=True), 8 * 4, 8 * 4 + 8 * 6, id="the branch that is taken"),
        pytest.param(chosen(flag=False), 8 * 6, 8 * 4 + 8 * 6, id="the other one"),
        pytest.param(chosen(flag=None), 8 * 6, 8 * 4 + 8 * 6, id="the dearer one"),
        pytest.param(looped(3), 3 * 8 * 8, 8 * 8, id="a loop"),
        pytest.param(looped(0), 0, 8 * 8, id="a loop that never runs"),
    ],
)
def test_what_bodies_store_is_counted(proto: onnx.ModelProto, macs: int, params: int, tmp_path: Path) -> None:
    """Whether they run or not."""
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    found = measure(path)
    assert (found["macs"].value, found["params"].value) == (macs, params)
    assert found["params"].complete


def at_top() -> onnx.ModelProto:
    return model([unknown("x w")], [value("x", 1, 8)], [value("y", 1, 8)], [stored("w", 8, 8)], domains=["lab"])


def in_a_branch() -> onnx.ModelProto:
    body = graph([unknown("x w")], [], [value("y", 1, 8)], [stored("w", 8, 8)])
    made = node("If", "flag", "z", then_branch=body, else_branch=body)
    inputs = [value("x", 1, 8), value("flag", code=BOOL)]
    return model([made], inputs, [value("z", 1, 8)], domains=["lab"])


def from_a_branch() -> onnx.ModelProto:
    body = graph([unknown("x w")], [], [value("y", 1, 8)])
    made = node("If", "flag", "z", then_branch=body, else_branch=body)
    inputs = [value("x", 1, 8), value("flag", code=BOOL)]
    return model([made], inputs, [value("z", 1, 8)], [stored("w", 8, 8)], domains=["lab"])


def in_a_function() -> onnx.ModelProto:
    weight = helper.make_node("Constant", [], ["w"], value=stored("w", 8, 8))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("lab", 1)]
    own = helper.make_function("own", "f", ["x"], ["y"], [weight, unknown("x w")], opsets)
    call = node("f", "x", "y", domain="own")
    return model([call], [value("x", 1, 8)], [value("y", 1, 8)], opset=17, domains=["own", "lab"], functions=[own])


def in_an_attribute() -> onnx.ModelProto:
    made = unknown("x", weight=stored("w", 8, 8))
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], domains=["lab"])


def in_attributes() -> onnx.ModelProto:
    made = unknown("x", weights=[stored("w", 4, 8), stored("v", 4, 8)])
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], domains=["lab"])


READERS = (at_top, in_a_branch, from_a_branch, in_a_function, in_an_attribute, in_attributes, in_its_body)


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_what_an_unknown_operator_stores_is_never_lost(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """64 float32 are 256 bytes of the model, and a parameter or a lower bound that names the operator."""
    path = tmp_path / "net.onnx"
    path.write_bytes(make().SerializeToString())
    found = measure(path)
    assert found["model_size"].value % 256 == 0
    assert found["model_size"].value >= 256
    assert [missing.op for missing in found["macs"].unmeasured] == ["lab::mystery"]
    if make is in_its_body:  # where a rule says what reads it
        assert (found["params"].value, found["params"].complete) == (64, True)
    else:
        assert {missing.op for missing in found["params"].unmeasured} == {"lab::mystery"}


def in_loop(inner: onnx.NodeProto, inputs: str = "times flag x") -> onnx.ModelProto:
    """A Loop of three runs around a node that gives v2."""
    body = graph(
        [node("Identity", "c", "c2"), inner],
        [value("i", code=INT64), value("c", code=BOOL), value("v", 1, 8)],
        [value("c2", code=BOOL), value("v2", 1, 8)],
    )
    made = node("Loop", inputs, "y", body=body)
    weights = [stored("w", 8, 8), scalar("times", 3, "int64"), scalar("flag", True, bool)]
    return model([made], [value("x", 1, 8)], [value("y", 1, 8)], weights)


def test_a_loop_goes_on_inside_a_loop_that_goes_on(tmp_path: Path) -> None:
    """The outer loop's condition, true in each of its 3 runs, is that of the inner one: 3 · 3 products of 8 · 8."""
    inner_body = graph(
        [node("Identity", "d", "d2"), node("MatMul", "u w", "u2")],
        [value("j", code=INT64), value("d", code=BOOL), value("u", 1, 8)],
        [value("d2", code=BOOL), value("u2", 1, 8)],
    )
    found = measured(in_loop(node("Loop", "times c v", "v2", body=inner_body)), tmp_path)["macs"]
    assert (found.value, found.complete) == (3 * 3 * 8 * 8, True)


def scanning(count: int | None, *lengths: int, inputs: int | None = None, **attributes: object) -> onnx.ModelProto:
    """A Scan of rows of a, b ..., of these lengths; its body adds the first row to itself."""
    names = ["a", "b", "c"][: len(lengths)]
    inner = [value(f"{name}i", 8) for name in names[:inputs]]
    body = graph([node("Add", "ai ai", "r")], inner, [value("r", 8)])
    counted = {} if count is None else {"num_scan_inputs": count}
    made = node("Scan", " ".join(names), "y", body=body, **counted, **attributes)
    outer = [value(name, length, 8) for name, length in zip(names, lengths, strict=True)]
    return model([made], outer, [value("y", None, 8)])


UNFIT = "its bodies and what it reads do not fit together"
BRANCH = graph([node("Relu", "x", "z")], [], [value("z", 1, 8)])
BROKEN = {
    "a loop that hands in too little": (
        in_loop(node("Relu", "v", "v2"), "times flag"), UNFIT,
    ),
    "a scan of two lengths": (scanning(2, 3, 4), UNFIT),
    "a scan of no number": (scanning(None, 3), "Required attribute 'num_scan_inputs' is missing"),
    "a scan of more than there is": (scanning(3, 3), UNFIT),
    "a scan of an axis that is not there": (scanning(1, 3, scan_input_axes=[7]), UNFIT),
    "a scan whose body takes less": (scanning(2, 3, 3, inputs=1), UNFIT),
    "an if of one branch": (
        model([node("If", "flag", "y", then_branch=BRANCH)], [value("x", 1, 8)], [value("y", 1, 8)],
              [scalar("flag", True, bool)]),
        "Required attribute 'else_branch' is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "words"), BROKEN.values(), ids=list(BROKEN))
def test_a_node_and_its_body_at_odds_are_named(proto: onnx.ModelProto, words: str, tmp_path: Path) -> None:
    """No runtime takes such a file, so no number of it is complete; the words name the node and not our code."""
    with pytest.raises(SourceError, match=words) as raised:
        measured(proto, tmp_path)
    assert "zip()" not in str(raised.value)
