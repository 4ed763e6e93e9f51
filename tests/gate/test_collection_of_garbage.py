"""Garbage collection: paused while models are measured or reported, seldom in what stays; what is garbage is freed."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.gate.garbage import collection_paused, loaded_as_old
from pytest_modelbudget.gate.measuring import measure_model
from pytest_modelbudget.gate.report_files import write_report
from pytest_modelbudget.registry import tables
from pytest_modelbudget.reports.build import session_report
from pytest_modelbudget.reports.table import FileReport

FRAMEWORK = """
from pytest_modelbudget.errors import SourceError

class Layer:
    pass

def load(source, rules):
    raise SourceError("it is no model")
"""


class Node:
    """One that holds itself: only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Format:
    """A format whose framework is loaded by nobody yet."""
    name = f"framework_of_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(tmp_path)
    return Format("lab", "path", name)


@pytest.fixture
def unhurried() -> Iterator[None]:
    """No collection comes by itself."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*thresholds)


def import_that_fails(collecting: list[bool]) -> None:
    collecting.append(gc.isenabled())
    raise ImportError


def generation_of(value: object) -> int | None:
    """The generation of objects that this one is in: 2 is walked least often; None where it is in none."""
    return next((age for age in range(3) if any(each is value for each in gc.get_objects(age))), None)


@pytest.mark.usefixtures("unhurried")
def test_a_framework_is_as_old_as_what_stays_and_garbage_is_freed(framework: Format, tmp_path: Path) -> None:
    formats = replace(tables(), formats={"lab": framework})
    before = weakref.ref(Node())
    failure = measure_model(ModelSource("lab", "a.lab"), formats, root=tmp_path).failure
    after = weakref.ref(Node())
    assert str(failure) == "it is no model"
    assert generation_of(framework.reader().__globals__["Layer"]) == 2  # type: ignore[attr-defined]  # a function
    assert gc.get_freeze_count() == 0
    model = Node()
    measure_model(ModelSource("lab", "b.lab"), formats, root=tmp_path)  # for which nothing is loaded
    assert generation_of(model) == 0
    gc.collect()
    assert (before(), after()) == (None, None)


def test_what_somebody_froze_stays_so(framework: Format, tmp_path: Path) -> None:
    node = Node()
    gc.freeze()
    measure_model(ModelSource("lab", "a.lab"), replace(tables(), formats={"lab": framework}), root=tmp_path)
    assert generation_of(node) is None


def test_no_collection_while_a_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a deep model is some thousands of objects, none of them garbage."""
    within: list[bool] = []
    renderer = ModuleType("a_renderer_that_notes_it")
    renderer.render = lambda report: within.append(gc.isenabled()) or "text"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, renderer.__name__, renderer)
    kind = FileReport("--model-budget-note", "nothing", renderer.__name__)
    write_report(kind, session_report(), tmp_path / "note.txt", "note.txt")
    assert (within, gc.isenabled()) == ([False], True)


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("context", [collection_paused, loaded_as_old])
def test_collection_goes_on_as_before_whatever_is_raised(context: type, collecting: bool) -> None:
    node = Node()
    if not collecting:
        gc.disable()
    within: list[bool] = []
    with pytest.raises(ImportError), context():
        import_that_fails(within)
    assert within == [False]
    assert gc.isenabled() is collecting
    assert generation_of(node) is not None
