"""The process around a model is as before when the model ends; what cannot be restored is named."""

from __future__ import annotations

import builtins
import decimal
import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.gate.process_state import process_kept


def environ() -> dict[str, str]:
    return dict(os.environ)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], object]]] = {
    "folder": (os.getcwd, lambda: os.chdir("/")),
    "a variable": (environ, lambda: os.environ.update(MODEL="x")),
    "all variables": (environ, lambda: os.environ.clear()),
    "another environ": (environ, lambda: setattr(os, "environ", {})),
    "path": (lambda: list(sys.path), lambda: sys.path.insert(0, "/evil")),
    "another path": (lambda: (id(sys.path), list(sys.path)), lambda: setattr(sys, "path", [])),
    "a module": (lambda: sys.modules["json"], lambda: sys.modules.pop("json")),
    "builtins": (lambda: builtins.print, lambda: setattr(builtins, "print", None)),
    "recursion": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(500)),
    "handler": (lambda: signal.getsignal(signal.SIGTERM), lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "alarm": (lambda: signal.getitimer(signal.ITIMER_REAL), lambda: signal.alarm(100)),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.simplefilter("error")),
    "logging": (lambda: logging.root.level, lambda: logging.root.setLevel(1)),
    "handlers": (lambda: list(logging.root.handlers), lambda: logging.root.handlers.clear()),
    "collection": (lambda: (gc.isenabled(), gc.get_threshold()), lambda: (gc.disable(), gc.set_threshold(1))),
    "decimals": (lambda: decimal.getcontext().prec, lambda: setattr(decimal.getcontext(), "prec", 1)),
    "umask": (lambda: (os.umask(0o22), os.umask(0o22))[1], lambda: os.umask(0o777)),
    "random": (random.getstate, lambda: random.seed(9)),
    "hook": (lambda: sys.excepthook, lambda: setattr(sys, "excepthook", print)),
    "profile": (sys.getprofile, lambda: sys.setprofile(lambda *args: None)),
    "stdout": (lambda: sys.stdout, lambda: setattr(sys, "stdout", None)),
}


@pytest.mark.parametrize(("read", "change"), CHANGES.values(), ids=CHANGES)
def test_r10_what_a_model_changes_is_restored(read: Callable[[], Any], change: Callable[[], object]) -> None:
    """After a model's end, and after its exception."""
    before = read()
    with process_kept() as left:
        change()
    assert read() == before
    assert left.names == []
    with suppress(ValueError), process_kept():
        change()
        raise ValueError("no model")
    assert read() == before


@pytest.mark.parametrize("close", ["sys.stdout.close()", "os.close(1)", "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)"])
def test_r10_streams_stay_open(close: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What is printed afterwards arrives."""
    with process_kept():
        exec(close)
    print("by Python", flush=True)
    os.write(1, b"by the system\n")
    assert capfd.readouterr().out == "by Python\nby the system\n"


def test_r10_a_folder_that_is_gone_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that starts in no folder can leave it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    with process_kept():
        os.chdir(tmp_path)


def test_r10_threads_are_named() -> None:
    """Nobody can end a thread: it is said by name."""
    end = threading.Event()
    with process_kept() as left:
        thread = threading.Thread(target=end.wait, name="poller", daemon=True)
        thread.start()
    end.set()
    thread.join()
    assert left.names == ["a thread that it started still runs: poller"]
