"""What pages show of a model: sums that are metrics, a timeline against a simulation, bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_modelbudget.formats.model import LoadedModel
from pytest_modelbudget.graph.graph import Op, Weight
from pytest_modelbudget.metrics.compute import flops, macs
from pytest_modelbudget.metrics.storage import params, peak_activation, weight_memory
from pytest_modelbudget.metrics.traffic import bandwidth
from pytest_modelbudget.reports.html import profile as profiles
from pytest_modelbudget.reports.html.profile import memory_profile, packed, profile
from tests.builders.graphs import costed, parameter, tensor
from tests.builders.pages import chain

WIDTHS = st.lists(st.integers(1, 9), min_size=2, max_size=12)


def column(rows: list[dict[str, Any]], key: str) -> int:
    return sum(row[key] or 0 for row in rows)


@given(WIDTHS)
def test_layers_add_up_to_the_metrics(widths: list[int]) -> None:
    """Each column of the layer table is its metric, to the last byte."""
    model, graph = chain(widths)
    rows = profiles.layer_profile(model, graph)["rows"]
    assert column(rows, "params") == params(graph).value
    assert column(rows, "weight_bytes") == weight_memory(graph).value
    assert column(rows, "macs") == macs(graph).value
    assert column(rows, "traffic") == bandwidth(graph).value


def test_a_row_has_the_traffic_of_its_own_layer() -> None:
    """fc0 on 4 -> 8 floats reads 4, its 32 weights, and writes 8; act0 reads and writes 8."""
    model, graph = chain([4, 8, 2])
    rows = {row["scope"]: row for row in profiles.layer_profile(model, graph)["rows"]}
    assert rows["block0.fc0"]["traffic"] == (4 + 4 * 8 + 8) * 4
    assert rows["block0.act0"]["traffic"] == (8 + 8) * 4
    assert rows["block0"]["traffic"] is None
    assert [rows[f"block0.{name}"]["peak"] for name in ("fc0", "act0", "fc1", "act1")] == [32, 32, 0, 0]


def test_own_operations_do_not_count_what_lies_below() -> None:
    """A container that adds by itself: 8 + 8 floats read, 8 written, beside its layer."""
    x, y, z = tensor("x", 1, 8), tensor("y", 1, 8), tensor("z", 1, 8)
    weight = parameter("inner.fc.weight", 8, 8)
    graph = costed(
        Op("aten::linear", (x, weight, None), (y,), scope="inner.fc"),
        Op("aten::add", (x, y), (z,), scope="inner"),
        inputs=(x,), outputs=(z,), weights=(Weight(weight),),
    )  # fmt: skip
    rows = profiles.layer_profile(LoadedModel(graph.graph, "torch"), graph)["rows"]
    (own,) = [row for row in rows if row["type"] == "(own operations)"]
    assert own["traffic"] == (8 + 8 + 8) * 4
    assert column(rows, "traffic") == bandwidth(graph).value


def live_by_simulation(widths: list[int]) -> list[int]:
    """Allocate outputs, look, free what no later op reads: 2 ops a layer, in floats of 4 bytes."""
    live, seen = {"x": widths[0]}, []
    previous = "x"
    for number, width in enumerate(widths[1:]):
        for name in (f"y{number}", f"z{number}"):
            live[name] = width
            seen.append(4 * sum(live.values()))
            del live[previous]
            previous = name
    return seen


@given(WIDTHS)
def test_the_timeline_is_what_a_simulation_allocates(widths: list[int]) -> None:
    """Every step's bytes, and its largest is the metric."""
    _, graph = chain(widths)
    memory = memory_profile(graph.graph)
    assert [each[3] for each in memory["points"]] == live_by_simulation(widths)
    assert memory["peak"] == peak_activation(graph).value == max(live_by_simulation(widths))
    owned = sum(owner["bytes"] for owner in memory["owners"]) + memory["rest"]["bytes"]
    assert owned == memory["peak"]


def test_owners_say_who_made_them_and_how_long_they_live() -> None:
    """At act0 of 4 -> 8 -> 2 live the output of fc0 (steps 0 to 1) and of act0 (1 to 2)."""
    _, graph = chain([4, 8, 2])
    memory = memory_profile(graph.graph)
    assert memory["step"] == 1
    assert memory["owners"] == [
        {"scope": "block0.fc0", "op": "aten::linear", "shape": [1, 8], "dtype": "float32",
         "bytes": 32, "first": 0, "last": 1},
        {"scope": "block0.act0", "op": "aten::relu", "shape": [1, 8], "dtype": "float32",
         "bytes": 32, "first": 1, "last": 2},
    ]  # fmt: skip


def test_a_graph_without_ops_has_a_step_all_the_same() -> None:
    """Its inputs live, and belong to nobody."""
    x = tensor("x", 10)
    memory = memory_profile(costed(inputs=(x,), outputs=(x,)).graph)
    assert (memory["steps"], memory["points"], memory["names"]) == (0, [[0, 0, 0, 40]], [["", ""]])
    assert [owner["op"] for owner in memory["owners"]] == [""]


def test_many_steps_share_points_and_lose_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 steps on 5 points of 5: each is the largest of its own steps."""
    monkeypatch.setattr(profiles, "MOST_SPANS", 5)
    widths = [1, 2, 3, 40, 3, 2, 1, 5, 9, 1, 1, 1, 7]
    memory = memory_profile(chain(widths)[1].graph)
    live = live_by_simulation(widths)
    spans = [(0, 4), (5, 9), (10, 14), (15, 19), (20, 23)]
    expected = [max(live[first : last + 1]) for first, last in spans]
    assert [point[:2] for point in memory["points"]] == [list(span) for span in spans]
    assert [point[3] for point in memory["points"]] == expected
    assert memory["peak"] == max(live) == 4 * (40 + 40)


@pytest.mark.parametrize("most", [profiles.MOST_OP_POINTS, 3])
@given(widths=WIDTHS)
def test_operations_add_up_to_flops_and_traffic(most: int, widths: list[int]) -> None:
    """Every operation is in exactly one point, also where small ones of a kind share theirs."""
    _, graph = chain(widths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiles, "MOST_OP_POINTS", most)
        points = profiles.op_profile(graph)["points"]
    assert len(points) <= most + len({"linear", "relu"})
    moved = sum(point["read"] + point["weights"] + point["write"] for point in points)
    assert moved == bandwidth(graph).value
    assert sum(point["flops"] for point in points) == flops(graph).value
    assert sum(point["count"] for point in points) == len(graph.graph.ops)


def test_what_is_free_or_unknown_has_no_point() -> None:
    """A view is free; an operation without a rule is named, and in no sum."""
    x, y, z = tensor("x", 8), tensor("y", 8), tensor("z", 8)
    graph = costed(
        Op("aten::relu", (x,), (y,), scope="act", times=3),
        Op("strange::op", (y,), (z,), scope="head", times=2),
        inputs=(x,), outputs=(z,),
    )  # fmt: skip
    found = profiles.op_profile(graph)
    assert [(point["kind"], point["count"], point["flops"]) for point in found["points"]] == [("relu", 3, 3 * 8)]
    assert found["unknown"] == [{"scope": "head", "name": "strange::op", "count": 2}]


def test_a_deep_table_is_folded_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 layers in 3 containers on at most 10 rows: the containers, and the model above them."""
    monkeypatch.setattr(profiles, "MOST_ROWS", 10)
    model, graph = chain([4] * 13)
    found = profiles.layer_profile(model, graph)
    assert [row["scope"] for row in found["rows"]] == ["", "block0", "block1", "block2"]
    assert (found["folded_at"], found["left_out"]) == (1, 0)
    assert column(found["rows"], "macs") == 12 * 4 * 4


def test_a_flat_table_keeps_its_largest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without levels to fold, small rows share the last one and nothing is lost."""
    monkeypatch.setattr(profiles, "MOST_ROWS", 3)
    model, graph = chain([4] * 13)
    found = profiles.layer_profile(model, graph)
    assert [row["type"] for row in found["rows"]][-1] == profiles.SMALLER
    assert len(packed(found["rows"])["rows"]) == len(found["rows"])  # every row has every column
    assert len(found["rows"]) == 3
    assert column(found["rows"], "macs") == 12 * 4 * 4


def test_a_profile_is_text_without_rounding() -> None:
    """A count beyond 2**53 goes as a string: JavaScript would make another number of it."""
    x, y = tensor("x", 2**20, 2**20), tensor("y", 2**20, 2**20)
    weight = parameter("fc.weight", 2**20, 2**20)
    graph = costed(Op("aten::linear", (x, weight, None), (y,), scope="fc"), inputs=(x,), outputs=(y,))
    found = json.loads(profile(LoadedModel(graph.graph, "torch"), graph))
    points = found["ops"]["points"]
    point = dict(zip(points["columns"], points["rows"][0], strict=True))
    assert point["macs"] == str(2**60)
    assert point["read"] == 4 * 2**40


def test_packing_keeps_every_cell() -> None:
    """Keys once, and the values of each row in their order."""
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    assert packed(rows) == {"columns": ["a", "b"], "rows": [[1, "x"], [None, "y"]]}
    assert packed([]) == {"columns": [], "rows": []}
