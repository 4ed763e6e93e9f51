"""Garbage collection: paused while a model is measured, and past what stays loaded; what is garbage is freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.gate.garbage import collection_paused, loaded_for_good
from pytest_modelbudget.gate.measuring import MeasuredModels, measure_model
from pytest_modelbudget.registry import tables

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


def import_that_fails(collecting: list[bool]) -> None:
    collecting.append(gc.isenabled())
    raise ImportError


def is_walked(value: object) -> bool:
    """Whether a collection looks at this object."""
    return any(each is value for each in gc.get_objects())


def test_a_session_passes_its_framework_over_and_frees_garbage(framework: Format, tmp_path: Path) -> None:
    gc.disable()  # so that the first node still waits
    before = weakref.ref(Node())
    gc.enable()
    models = MeasuredModels(replace(tables(), formats={"lab": framework}), root=tmp_path)
    failure = models.of(ModelSource("lab", "a.lab")).failure
    after, model = weakref.ref(Node()), Node()
    assert str(failure) == "it is no model"
    assert before() is None
    assert not is_walked(framework.reader().__globals__["Layer"])  # type: ignore[attr-defined]  # a function
    models.of(ModelSource("lab", "b.lab"))  # for which nothing is loaded
    assert is_walked(model)
    assert gc.isenabled()
    gc.collect()
    assert after() is None


def test_measuring_by_itself_leaves_collection_as_it_is(framework: Format, tmp_path: Path) -> None:
    """In somebody else's process, where what lives may have to be freed."""
    node = Node()
    measure_model(ModelSource("lab", "a.lab"), replace(tables(), formats={"lab": framework}), root=tmp_path)
    assert is_walked(node)


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("context", [collection_paused, loaded_for_good])
def test_collection_goes_on_as_before_whatever_is_raised(context: type, collecting: bool) -> None:
    node = Node()
    if not collecting:
        gc.disable()
    within: list[bool] = []
    with pytest.raises(ImportError), context():
        import_that_fails(within)
    assert within == [False]
    assert gc.isenabled() is collecting
    assert is_walked(node)
