"""The model that is being measured, named for whoever waits for it: nothing hangs without a word."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pytest_modelbudget.errors import in_code, is_users_file
from pytest_modelbudget.gate.python_files import is_installed
from pytest_modelbudget.reports.text import cut_middle, printed_line

FIRST_SECONDS, AGAIN_SECONDS = 10.0, 60.0  # until a model is named, and until it is named again
LOG_WIDTH = 80  # of a line where nobody knows how wide it may be
EACH_SECOND = 1.0  # where the line is a terminal's last one, and written anew


class Watch:
    """Names models that take long on the stderr that the process was started with, which pytest captures for no test.

    With a width the line is a terminal's own: it has at most so many characters, counts seconds, and goes at the end.
    """

    def __init__(self, width: int = 0) -> None:
        self.width = width
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
        pauses = (EACH_SECOND, EACH_SECOND) if self.width else (FIRST_SECONDS, AGAIN_SECONDS)
        seconds, pause = 0.0, pauses[0]
        while not is_done.wait(pause):
            seconds, pause = seconds + pause, pauses[1]
            where = _place(sys._current_frames().get(watched))
            said = f"is being measured, for {seconds:.0f} s now" if not self.width else f"{seconds:.0f} s"
            self._write(printed_line(f"model budget: {model_id} {said}"), printed_line(where))
        if self.width and seconds:
            self._write("")

    def _write(self, line: str, where: str = "") -> None:
        gap = "\n " if len(line + where) > LOG_WIDTH else ""
        written = f"\r\x1b[K{cut_middle(line + where, self.width - 1)}" if self.width else f"\n{line}{gap}{where}\n"
        if self._stderr is not None:
            with suppress(OSError):
                os.write(self._stderr, written.encode())

    def close(self) -> None:
        """Give the descriptor back."""
        if self._stderr is not None:
            os.close(self._stderr)
        self._stderr = None


def _place(frame: FrameType | None) -> str:
    """The innermost line of the user's project, "" where none runs."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_program = file.startswith("<") or frame.f_globals.get("__name__") == "__main__"
        if is_users_file(file) and not is_installed(file) and not is_program:
            return f" {in_code(frame.f_code.co_name, file, frame.f_lineno)}"
        frame = frame.f_back
    return ""
