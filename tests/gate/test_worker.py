"""What the worker of a model keeps between requests, and what it imports before it measures."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.budget.budget import Place, Subject, Transformation
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import transforming
from pytest_modelbudget.gate.transforming import TransformedModel
from pytest_modelbudget.gate.worker import ApplyTransform, Measure, ModuleFile, Worker, pickled
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.registry import tables

SOURCE = ModelSource("torch", "net:net")
CHECK = Subject("tiled", Place("net.yaml", 1), Transformation("tile_linear", {}))


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
    """A transformed model with parts serves a request without parts, not the other way round."""
    seen: list[bool] = []

    def apply(*_: Any, with_parts: bool, **__: Any) -> TransformedModel:
        seen.append(with_parts)
        return TransformedModel(MeasuredModel("torch", notes=(str(with_parts),)))

    monkeypatch.setattr(transforming, "transformed_model", apply)
    worker = Worker(tables(), root=tmp_path)
    for with_parts in asked:
        given = worker.transformed(ApplyTransform(SOURCE, CHECK, with_parts)).measured.notes
        assert not with_parts or given == ("True",)
    assert seen == applied


def test_an_answer_that_cannot_be_pickled_says_so() -> None:
    """A lambda of the user's in a profile, say."""
    request = Measure(SOURCE, (), False)
    answer = pickle.loads(pickled(MeasuredModel("torch", profile=lambda: None), request))
    assert "cannot be pickled" in str(answer.failure)


def test_a_conftest_is_loaded_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two may have one name, and the deeper one is first on the path: each runs once, in the session's order."""
    monkeypatch.setattr(sys, "loaded_here", [], raising=False)
    files = []
    for name in ("top", "top/deep"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "conftest_of_this_test.py"
        file.write_text(f"import sys\nsys.loaded_here.append({name!r})\n")
        monkeypatch.syspath_prepend(file.parent)
        files.append(ModuleFile("conftest_of_this_test", str(file)))
    for each in (*files, files[1]):
        assert each.load().__file__ == each.file
    assert vars(sys)["loaded_here"] == ["top", "top/deep"]
    assert ModuleFile.of(pytest).load() is pytest
