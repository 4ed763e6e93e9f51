"""Inputs without elements: what reads nothing else costs nothing, which a reader is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch
from torch import nn

from pytest_modelbudget import measure
from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.kinds import judge_limit
from pytest_modelbudget.formats.source import InputSpecs, ModelSource, TensorSpec
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.metrics.measurement import ByWeight
from pytest_modelbudget.metrics.storage import PARAMS
from pytest_modelbudget.registry import tables
from tests.builders.onnx_graphs import model, node, stored, value
from tests.builders.project import Project

pytestmark = pytest.mark.needs_torch


class Cached(nn.Module):
    """A Linear 4 → 2 over past rows and new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([past, x]))  # type: ignore[no-any-return]


NOTHING = "no input has an element: what is counted is a run on nothing"


@pytest.mark.parametrize("inputs", ["float32 0x4", "float32 0x3x4", ["float32 0x4", "float32 0x4"]])
def test_no_element_at_all_is_said(inputs: str | list[str]) -> None:
    measured = measure(Cached() if isinstance(inputs, list) else nn.Linear(4, 2), inputs)
    assert (measured["macs"].value, measured.notes) == (0, (NOTHING,))


def test_a_symbol_that_is_bound_to_0_is_said(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], [value("x", "N", 4)], [value("y", "N", 2)], [stored("w", 4, 2)])
    onnx.save(proto, tmp_path / "net.onnx")
    for rows, notes in ((3, ()), (0, (NOTHING,))):
        measured = measure(tmp_path / "net.onnx", dims={"N": rows})
        assert (measured["macs"].value, measured.notes) == (rows * 4 * 2, notes)


@pytest.mark.parametrize("source", ["torch", "onnx"])
def test_a_limit_on_a_run_on_nothing_is_unknown(source: str, project: Project) -> None:
    """What the model stores is known all the same."""
    proto = model([node("MatMul", "x w", "y")], [value("x", "N", 4)], [value("y", "N", 2)], [stored("w", 4, 2)])
    onnx.save(proto, project.path / "net.onnx")
    given = {
        "torch": 'torch: "torch.nn:Linear", args: [4, 2], inputs: float32 0x4',
        "onnx": "onnx: ../net.onnx, dims: {N: 0}",
    }
    limits = "{params: 10, macs: 10, peak_activation: 10, ops: {max: {linear: 0}}}"
    project.budget(f"  net: {{{given[source]}, limits: {limits}}}")
    output = project.run().stdout.str()
    assert "4 limits: 0 over, 0 warn, 1 within, 3 unknown" in output
    assert f"macs unknown: {NOTHING}: give inputs, or dims, of at least 1" in output


def test_one_of_several_is_said() -> None:
    """A cache of 0 past rows is a first step: 3 rows by 4 by 2."""
    measured = measure(Cached(), ["float32 3x4", "float32 0x4"])
    assert measured["macs"].value == 3 * 4 * 2
    assert measured.notes == ("input input.1 has a size of 0",)


@pytest.mark.parametrize(("how", "outcome"), [(PARAMS.how, "within"), (None, "unknown")], ids=["stored", "run"])
def test_of_an_extensions_metrics_those_of_weights_are_known(
    how: ByWeight | None, outcome: str, tmp_path: Path
) -> None:
    """Whether a run decides a number, its metric says."""
    mine = replace(PARAMS, key="my_params", how=how, also=())
    registry = tables([SimpleNamespace(METRICS=(mine,))])
    source = ModelSource("torch", nn.Linear(4, 2), InputSpecs((TensorSpec("float32", (0, 4)),)))
    measured = measure_model(source, registry, root=tmp_path)
    verdict = judge_limit(Limit("my_params", Place("net.yaml", 1), max=10), measured)
    assert verdict.outcome == outcome
