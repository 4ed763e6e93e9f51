"""Garbage collection is paused while models are measured and reported, and goes on afterwards."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_modelbudget.gate.process_state import collection_paused
from pytest_modelbudget.gate.report_files import write_report
from pytest_modelbudget.reports.build import session_report
from pytest_modelbudget.reports.table import FileReport


@pytest.fixture(autouse=True)
def collecting_again() -> Iterator[None]:
    yield
    gc.enable()


def test_no_collection_while_a_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of a deep model is some thousands of objects, none of them garbage."""
    within: list[bool] = []
    renderer = ModuleType("a_renderer_that_notes_it")
    renderer.render = lambda report: within.append(gc.isenabled()) or "text"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, renderer.__name__, renderer)
    kind = FileReport("note", "note.txt", "nothing", renderer.__name__)
    write_report(kind, session_report(), tmp_path / "note.txt", "note.txt")
    assert (within, gc.isenabled()) == ([False], True)


def import_that_fails(collecting: list[bool]) -> None:
    collecting.append(gc.isenabled())
    raise ImportError


@pytest.mark.parametrize("collecting", [True, False])
def test_collection_goes_on_as_before_whatever_is_raised(collecting: bool) -> None:
    if not collecting:
        gc.disable()
    within: list[bool] = []
    with pytest.raises(ImportError), collection_paused():
        import_that_fails(within)
    assert within == [False]
    assert gc.isenabled() is collecting
