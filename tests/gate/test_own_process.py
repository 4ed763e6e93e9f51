"""Whoever asks a process of its own is left with no process and no folder, however far that came."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.gate import own_process
from pytest_modelbudget.gate.in_own_process import SessionSetup
from pytest_modelbudget.gate.own_process import Bounds, OwnProcess

SOURCE = ModelSource("onnx", "nothing.onnx")
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing here tells open files")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def refused(*_: object) -> None:
    raise OSError("no more processes")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnProcess:
    """One whose folders are in tmp_path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = OwnProcess(Bounds("60 s", "4 GiB"), lambda: SessionSetup(tmp_path))
    process.measure(SOURCE)  # what Python itself starts for all of them, and keeps
    process.end()
    return process


def left(folder: Path) -> tuple[int, int, list[str]]:
    """How many processes run and files are open, and what is in a folder."""
    return len(multiprocessing.active_children()), len(os.listdir("/proc/self/fd")), os.listdir(folder)


def test_a_process_that_starts_too_slowly_is_ended(
    asked: OwnProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(tmp_path)
    monkeypatch.setattr(own_process, "STARTING_SECONDS", 0.0)
    assert "could be started within 0 s" in str(asked.measure(SOURCE).failure)
    assert left(tmp_path) == before


def test_an_interruption_while_it_starts_ends_it(
    asked: OwnProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(tmp_path)
    monkeypatch.setattr(own_process._Child, "_await", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked.measure(SOURCE)
    assert left(tmp_path) == before


def test_one_that_cannot_be_started_leaves_nothing(
    asked: OwnProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left(tmp_path)
    monkeypatch.setattr(own_process, "_start", refused)
    assert "could be started: no more processes" in str(asked.measure(SOURCE).failure)
    assert left(tmp_path) == before


def test_what_was_ended_is_started_again(asked: OwnProcess, tmp_path: Path) -> None:
    """The file is not there, which its process says."""
    assert "nothing.onnx does not exist" in str(asked.measure(SOURCE).failure)
    asked.end()
    assert left(tmp_path)[2] == []
