"""Two graphs side by side: added, removed, reshaped and retyped operations, aligned by scope and kind."""

from __future__ import annotations

import json

import pytest

from pytest_modelbudget.cli.command import main
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.metrics.compute import Operation, operations
from pytest_modelbudget.reports.diff import counted_changes, operation_changes, operation_rows
from pytest_modelbudget.reports.messages import shapes
from pytest_modelbudget.reports.record import ExecutedOps, Growth
from tests.builders.graphs import costed, parameter, tensor, view
from tests.builders.project import Project


def op(scope: str, kind: str, output: str, *weights: str, count: int = 1) -> ExecutedOps:
    return ExecutedOps(scope=scope, kind=kind, outputs=(output,), weights=weights, count=count)


WIDE, RELU = op("fc", "linear", "float32 1x10", "float32 10x64"), op("act", "relu", "float32 1x10")
BLOCKS = op("block", "linear", "float32 1x8", count=3)
# (before, after, [(what, scope, kind, then and now)], how many)
COMPARED = {
    "nothing": ([WIDE, RELU], [RELU, WIDE], [], ""),
    "added": ([WIDE], [WIDE, RELU], [("added", "act", "relu", "float32 1x10")], "1 added"),
    "removed": ([WIDE, RELU], [WIDE], [("removed", "act", "relu", "float32 1x10")], "1 removed"),
    "reshaped": (
        [WIDE],
        [op("fc", "linear", "float32 1x12", "float32 12x64")],
        [("reshaped", "fc", "linear", "float32 1x10 -> 1x12, weights float32 10x64 -> 12x64")],
        "1 reshaped",
    ),
    "reshaped in its weights alone": (
        [WIDE],
        [op("fc", "linear", "float32 1x10", "float32 10x32")],
        [("reshaped", "fc", "linear", "float32 1x10, weights float32 10x64 -> 10x32")],
        "1 reshaped",
    ),
    "retyped": (
        [RELU],
        [op("act", "relu", "bfloat16 1x10")],
        [("retyped", "act", "relu", "float32 1x10 -> bfloat16 1x10")],
        "1 retyped",
    ),
    "both": (
        [RELU],
        [op("act", "relu", "int8 1x12")],
        [("reshaped, retyped", "act", "relu", "float32 1x10 -> int8 1x12")],
        "1 reshaped, 1 retyped",
    ),
    "another kind": (
        [RELU],
        [op("act", "gelu", "float32 1x10")],
        [("added", "act", "gelu", "float32 1x10"), ("removed", "act", "relu", "float32 1x10")],
        "1 added, 1 removed",
    ),
    "in the model itself": ([], [op("", "add", "float32 ()")], [("added", "(model)", "add", "float32 ()")], "1 added"),
    "one more of three": (
        [BLOCKS],
        [op("block", "linear", "float32 1x8", count=4)],
        [("added", "block", "linear", "float32 1x8")],
        "1 added",
    ),
    "all of three": (
        [BLOCKS],
        [op("block", "linear", "float32 1x9", count=3)],
        [("reshaped", "block", "linear", "3 of float32 1x8 -> 1x9")],
        "3 reshaped",
    ),
    "a weight more": (
        [WIDE],
        [op("fc", "linear", "float32 1x10", "float32 10x64", "float32 10")],
        [("reshaped, retyped", "fc", "linear", "float32 1x10, weights float32 10x64, none -> float32 10")],
        "1 reshaped, 1 retyped",
    ),
}


@pytest.mark.parametrize(("before", "after", "rows", "count"), COMPARED.values(), ids=COMPARED)
def test_operations_are_aligned_by_scope_and_kind(
    before: list[ExecutedOps], after: list[ExecutedOps], rows: list[tuple[str, ...]], count: str
) -> None:
    """What is the same on both sides is no change, wherever it stands."""
    changes = operation_changes(before, after)
    assert list(operation_rows(changes)) == rows
    assert counted_changes(changes) == count


def test_operations_of_a_graph_are_those_that_cost_something() -> None:
    """A view moves nothing; what runs twice on the same shapes is one entry."""
    x, w = tensor("x", 2, 4), parameter("fc.weight", 3, 4)
    y, z = tensor("y", 2, 3), tensor("z", 2, 3)
    flat = view(z, (6,), (1,))
    costs = costed(
        Op("aten::linear", (x, w, None), (y,), scope="fc"),
        Op("aten::relu", (y,), (z,), scope="act", times=2),
        Op("aten::view", (z,), (flat,), scope="flatten"),
        inputs=(x,),
        outputs=(flat,),
    )
    assert operations(costs) == (
        Operation("fc", "linear", ("float32 2x3",), ("float32 3x4",)),
        Operation("act", "relu", ("float32 2x3",), (), 2),
    )


GROWN = {
    "half the width": (4 * 6, 2 * 6, (2, 3), (2, 3), "[2, 3] retyped: 32 -> 16 bits"),
    "packed": (6, 3, (2, 3), (2, 3), "[2, 3] retyped: 8 -> 4 bits"),
    "no whole bits": (7, 6, (2, 3), (2, 3), "[2, 3]"),
    "another shape": (24, 48, (2, 3), (4, 3), "[2, 3] -> [4, 3]"),
    "new": (None, 24, None, (2, 3), "new [2, 3]"),
    "no elements": (4, 8, (0,), (0,), "[0]"),
}


@pytest.mark.parametrize(("before", "after", "then", "now", "words"), GROWN.values(), ids=GROWN)
def test_a_pull_request_tells_a_tensor_of_another_type(
    before: int | None, after: int, then: tuple[int, ...] | None, now: tuple[int, ...], words: str
) -> None:
    """Locks have bytes and shapes: at the same shape, bytes are bits an element (4 B x 6 are 6 elements of 32 bits)."""
    entry = Growth(
        scope="fc", name="weight", delta=after - (before or 0), before=before, after=after, shape_before=then,
        shape_after=now,
    )  # fmt: skip
    assert shapes(entry) == words


def test_a_layer_has_no_width() -> None:
    """Its bytes are not those of one tensor of that shape."""
    entry = Growth(scope="fc", delta=12, before=12, after=24, shape_before=(2, 3), shape_after=(2, 3))
    assert shapes(entry) == "[2, 3]"


def test_diff_says_what_became_of_operations(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second layer of 4 x 8 x 2 has three outputs; both forms say so."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    project.run("--model-budget-report=json:before.json")
    project.write("budgets/net.widths", "4 8 3")
    project.run("--model-budget-report=json:after.json")
    monkeypatch.chdir(project.path)
    capsys.readouterr()
    assert main(["diff", "before.json", "after.json"]) == 0
    text = capsys.readouterr().out
    assert "  operations: 1 reshaped\n" in text
    assert "reshaped  layer1  linear  float32 1x2 -> 1x3, weights float32 2x8 -> 3x8" in " ".join(text.split("    "))
    main(["diff", "before.json", "after.json", "--format", "markdown"])
    assert "<summary>operations: 1 reshaped</summary>" in capsys.readouterr().out


def test_a_report_without_operations_is_not_compared_in_silence(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier version lacks them: that nothing is said of them would mean that none changed."""
    project.budget("  net: {widths: net.widths, limits: {params: 60}}\n")
    project.run("--model-budget-report=json:after.json")
    document = json.loads((project.path / "after.json").read_text(encoding="utf-8"))
    del document["models"][0]["operations"]
    project.write("before.json", json.dumps(document))
    monkeypatch.chdir(project.path)
    capsys.readouterr()
    assert main(["diff", "before.json", "after.json"]) == 1
    assert "  operations: not compared: write both reports again" in capsys.readouterr().out
