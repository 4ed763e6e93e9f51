"""What a page draws of a program on a device: the arena's buffers, operations under its lines, its array in use."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_modelbudget.deployment.device import ArenaRules, Device
from pytest_modelbudget.reports.html import profile as profiles
from pytest_modelbudget.reports.json_records import from_json
from pytest_modelbudget.reports.record import Report, report_text
from tests.builders.pages import BARE, BOARD, deployed_chain, with_everything


def drawn(device: Device) -> Any:
    """The profile of fc0 (4 -> 8) and fc1 (8 -> 2) in float32 on a device: a ReLU is computed inside each."""
    return json.loads(str(deployed_chain([4, 8, 2], device).measured.profile))


def rows(packed: Any, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of packed rows."""
    return [tuple(row[packed["columns"].index(column)] for column in columns) for row in packed["rows"]]


def test_buffers_stand_where_the_arena_has_them() -> None:
    """16 B of input, 32 and 8 B of outputs: the largest lies at 0, and both others above it, one after the other."""
    arena = drawn(BOARD)["arena"]
    assert rows(arena["buffers"], "scope", "op", "bytes", "offset", "first", "last") == [
        ("", "", 16, 32, 0, 0),
        ("block0.fc0", "aten::linear", 32, 0, 0, 1),
        ("block0.fc1", "aten::linear", 8, 32, 1, 1),
    ]
    assert (arena["bytes"], arena["bound"], arena["step"], arena["steps"]) == (16 + 32, 16 + 32, 0, 2)
    assert arena["rest"] == {"count": 0, "bytes": 0}


def test_inputs_and_outputs_outside_the_arena_are_not_in_the_map() -> None:
    """fc0's result alone lies inside."""
    arena = drawn(replace(BOARD, arena=ArenaRules(io_inside=False)))["arena"]
    assert rows(arena["buffers"], "scope", "offset") == [("block0.fc0", 0)]
    assert (arena["bytes"], arena["inside"]) == (32, False)


def test_many_buffers_are_thinned_by_what_they_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes by steps: 16 · 1, 32 · 2 and 8 · 1. The last is counted, and not drawn."""
    monkeypatch.setattr(profiles, "MOST_BUFFERS", 2)
    arena = drawn(BOARD)["arena"]
    assert rows(arena["buffers"], "bytes") == [(16,), (32,)]
    assert arena["rest"] == {"count": 1, "bytes": 8}


def test_operations_stand_at_the_memory_that_they_wait_for() -> None:
    """At 1,000 MAC/s, flash of 200 B/s and sram of 100 B/s.

    fc0: 32 MACs 0.032 s, 4·8·4 B of weights 0.64 s, (4 + 8)·4 B of activations 0.48 s.
    fc1: 16 MACs 0.016 s, 8·2·4 B of weights 0.32 s, (8 + 2)·4 B of activations 0.4 s.
    """
    roofline = drawn(BOARD)["roofline"]
    assert rows(roofline["points"], "scope", "macs", "dtype", "memory", "bytes", "binds", "seconds") == [
        ("block0.fc0", 32, "float32", "flash", 128, "flash", 0.64),
        ("block0.fc1", 16, "float32", "sram", 40, "sram", 0.4),
    ]
    assert roofline["seconds"] == {"flash": 0.64, "sram": 0.4}
    assert roofline["bandwidths"] == {"flash": 200, "sram": 100}
    assert (roofline["rest"], roofline["missing"]) == (0, [])


def test_a_device_without_figures_bounds_nothing() -> None:
    """Each operation is counted with the first figure that it lacks, and there is no array."""
    found = drawn(BARE)
    assert found["roofline"]["points"] == {"columns": [], "rows": []}
    assert found["roofline"]["missing"] == [["bare gives no rate of float32 MACs", 2]]
    assert "array" not in found


def test_the_array_has_cycles_for_each_layer() -> None:
    """2 x 2, weight stationary, (2·2 + 2 + 1 - 2) = 5 cycles a fold: 4x8 takes 2·4 folds, 8x2 takes 4·1."""
    array = drawn(BOARD)["array"]
    assert rows(array["rows"], "scope", "macs", "cycles", "products") == [
        ("block0.fc0", 32, 5 * 8, [[1, 4, 8, 1]]),
        ("block0.fc1", 16, 5 * 4, [[1, 8, 2, 1]]),
    ]
    assert (array["cycles"], array["macs"], array["used"]) == (60, 48, 48 / (60 * 4))


def test_many_operations_leave_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point: fc0, of 0.64 s and 40 cycles; sums are of all."""
    monkeypatch.setattr(profiles, "MOST_TIMED", 1)
    found = drawn(BOARD)
    assert rows(found["roofline"]["points"], "scope") == rows(found["array"]["rows"], "scope") == [("block0.fc0",)]
    assert found["roofline"]["rest"] == 1
    assert found["roofline"]["seconds"] == {"flash": 0.64, "sram": 0.4}
    assert found["array"]["rest"] == {"count": 1, "cycles": 20}
    assert found["array"]["cycles"] == 60


def test_json_has_no_profile() -> None:
    """That file says the same whether a page is written beside it or not."""
    record = with_everything()
    assert all(each["profile"] for each in record["models"][0]["deployments"])
    assert '"profile"' not in report_text(from_json(Report, record))
