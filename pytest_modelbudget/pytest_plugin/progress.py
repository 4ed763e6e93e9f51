"""The model that is being measured, named for whoever waits for it: no session hangs without a word."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from pytest_modelbudget.errors import is_users_file
from pytest_modelbudget.reports.text import printed_line

FIRST_SECONDS, AGAIN_SECONDS = 10.0, 60.0  # until a model is named, and until it is named again


class Watch:
    """Names models that take long on the stderr that pytest was started with, which it captures for no test."""

    def __init__(self) -> None:
        self._stderr = None
        with suppress(OSError):  # a process may have none
            self._stderr = os.dup(2)

    @contextmanager
    def naming(self, model_id: str) -> Iterator[None]:
        """Name a model inside this context, if that takes long."""
        is_done, watched = threading.Event(), threading.get_ident()
        thread = threading.Thread(target=self._name, args=(model_id, is_done, watched), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def _name(self, model_id: str, is_done: threading.Event, watched: int) -> None:
        seconds, pause = 0.0, FIRST_SECONDS
        while not is_done.wait(pause):
            seconds, pause = seconds + pause, AGAIN_SECONDS
            where = _place(sys._current_frames().get(watched))
            line = printed_line(f"model budget: {model_id} is being measured, for {seconds:.0f} s now{where}")
            if self._stderr is not None:
                with suppress(OSError):
                    os.write(self._stderr, f"\n{line}\n".encode())

    def close(self) -> None:
        """Give the descriptor back."""
        if self._stderr is not None:
            os.close(self._stderr)
        self._stderr = None


def _place(frame: FrameType | None) -> str:
    """The innermost line of the user's project, "" where none runs."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users_file(file) and not file.startswith("<") and f"{os.sep}lib{os.sep}python" not in file:
            return f" (in {frame.f_code.co_name}, {'/'.join(Path(file).parts[-2:])}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


WATCH = pytest.StashKey[Watch]()
