"""Frameworks are loaded for as long as the process; what is garbage is freed before and afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_modelbudget.formats.table import Format, loaded_for_good

FRAMEWORK = """
class Layer:
    pass

def load(source, rules):
    raise NotImplementedError
"""


class Node:
    """One that holds itself: only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def is_walked(value: object) -> bool:
    """Whether a collection looks at this object."""
    return any(each is value for each in gc.get_objects())


def test_a_framework_is_passed_over_and_garbage_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "framework_of_a_lab.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(tmp_path)
    gc.disable()  # so that the first node still waits
    before = weakref.ref(Node())
    gc.enable()
    load = Format("lab", "path", "framework_of_a_lab").reader()
    after = weakref.ref(Node())
    assert before() is None
    assert not is_walked(load.__globals__["Layer"])  # type: ignore[attr-defined]  # a function
    assert gc.isenabled()
    gc.collect()
    assert after() is None


def test_a_second_use_keeps_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "framework_of_another_lab.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(tmp_path)
    format = Format("lab", "path", "framework_of_another_lab")
    format.reader()
    model = Node()
    format.reader()
    assert is_walked(model)


@pytest.mark.parametrize("collecting", [True, False])
def test_an_import_that_raises_keeps_nothing(collecting: bool) -> None:
    model = Node()
    if not collecting:
        gc.disable()
    try:
        with pytest.raises(ImportError), loaded_for_good():
            raise ImportError
        assert gc.isenabled() is collecting
    finally:
        gc.enable()
    assert is_walked(model)
