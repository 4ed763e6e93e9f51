"""The model that is being measured, named for whoever waits for it: nothing hangs without a word."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from shutil import get_terminal_size

from pytest_modelbudget.reports.fit import bar
from pytest_modelbudget.reports.text import cut_middle, printed_line

FIRST_SECONDS, AGAIN_SECONDS = 10.0, 60.0  # until a model is named, and until it is named again
EACH_SECOND = 1.0  # where the line is a terminal's last one, and written anew


class Watch:
    """Names models that take long on the process's own stderr, which pytest captures for no test."""

    def __init__(self, width: int = 0) -> None:
        self.width = width
        self._stderr = None
        with suppress(OSError):  # a process may have none
            self._stderr = os.dup(2)

    @contextmanager
    def naming(self, model_id: str) -> Iterator[None]:
        """Name a model inside this context, if that takes long."""
        is_done = threading.Event()
        thread = threading.Thread(target=self._name, args=(model_id, is_done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def _name(self, model_id: str, is_done: threading.Event) -> None:
        pauses = (EACH_SECOND, EACH_SECOND) if self.width else (FIRST_SECONDS, AGAIN_SECONDS)
        seconds, pause = 0.0, pauses[0]
        while not is_done.wait(pause):
            seconds, pause = seconds + pause, pauses[1]
            said = f"is being measured, for {seconds:.0f} s now" if not self.width else f"{seconds:.0f} s"
            self._write(printed_line(f"model budget: {model_id} {said}"))
        if self.width and seconds:
            self._write("")

    def _write(self, line: str) -> None:
        written = f"\r\x1b[K{cut_middle(line, self.width - 1)}" if self.width else f"\n{line}\n"
        if self._stderr is not None:
            with suppress(OSError):
                os.write(self._stderr, written.encode())

    def close(self) -> None:
        """Give the descriptor back."""
        if self._stderr is not None:
            os.close(self._stderr)
        self._stderr = None


def progress(done: int, of: int, what: str) -> None:
    """A bar as a terminal's last line, which goes where nothing comes next."""
    if sys.stderr.isatty():
        line = f"{bar(Fraction(done, of))} {done} of {of}  {what}" if what else ""
        print(f"\r\x1b[K{cut_middle(line, get_terminal_size().columns - 1)}", end="", file=sys.stderr, flush=True)
