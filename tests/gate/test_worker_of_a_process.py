"""What a process of a model's own keeps between requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget.budget import Place, TransformCheck
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.in_own_process import ApplyTransform, SessionSetup, Worker
from pytest_modelbudget.gate.transforming import TransformedModel
from pytest_modelbudget.metrics.measured_model import MeasuredModel

SOURCE = ModelSource("torch", "net:net")
CHECK = TransformCheck("tiled", Place("net.yaml", 1), "tile_linear", {})


@pytest.mark.parametrize(
    ("asked", "applied"),
    [
        pytest.param((True, False, True), [True], id="numbers first, then a comparison"),
        pytest.param((False, False), [False], id="no parts"),
        pytest.param((False, True, False), [False, True], id="a comparison first: it has no parts"),
    ],
)
def test_a_transform_is_applied_once_and_has_the_parts_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: tuple[bool, ...], applied: list[bool]
) -> None:
    seen: list[bool] = []

    def apply(*_: Any, with_parts: bool, **__: Any) -> TransformedModel:
        seen.append(with_parts)
        return TransformedModel(MeasuredModel("torch", notes=(str(with_parts),)))

    monkeypatch.setattr(transforming, "transformed_model", apply)
    worker = Worker(SessionSetup(tmp_path))
    for with_parts in asked:
        given = worker.transformed(ApplyTransform(SOURCE, CHECK, with_parts)).measured.notes
        assert not with_parts or given == ("True",)
    assert seen == applied
