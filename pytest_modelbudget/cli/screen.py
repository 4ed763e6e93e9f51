"""What a terminal adds to plain text: colour, its width, and the line that says what is being measured."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from pytest_modelbudget.gate.watch import Watch
from pytest_modelbudget.reports.terminal import COLOURS
from pytest_modelbudget.reports.text import folded, one_line, printable

PIPE_WIDTH = 120  # where no terminal says how wide it is
RED, GREEN, YELLOW, BOLD, DIM = "red", "green", "yellow", "bold", "light"
CODES = {RED: "31", GREEN: "32", YELLOW: "33", BOLD: "1", DIM: "2"}
# How lines begin that say how it ended, and their colour; those of tables are coloured by their outcome.
ENDINGS = {"it fits": GREEN, "it does not fit": RED, "whether it fits is unknown": RED, "unmeasured": YELLOW}


def terminal_width() -> int:
    """Columns of the terminal, or what a pipe is given."""
    return shutil.get_terminal_size((PIPE_WIDTH, 0)).columns


def print_text(text: str, *, stream: TextIO | None = None) -> None:
    """Print a text that anybody may have written; on a terminal how it ended has a colour."""
    lines = printable(text).split("\n")
    endings = (next((ENDINGS[start] for start in ENDINGS if line.startswith(start)), "") for line in lines)
    print_lines(zip(lines, endings, strict=True), stream=stream)


def print_json(record: object) -> None:
    """Print a record for programs, in letters that every stream can be given, and that no log takes for a command."""
    print(json.dumps(record, indent=1, allow_nan=False).replace("##[", r"#\u0023["))


def print_error(text: str) -> None:
    """Print what went wrong: as wide as the terminal that shows it, and in a log one line, which a search finds."""
    line = printable(one_line(text))
    lines = folded(line, terminal_width()) if sys.stderr.isatty() else [line]
    print_lines(((part, RED) for part in lines), stream=sys.stderr)


def print_lines(lines: Iterable[tuple[str, str]], *, stream: TextIO | None = None) -> None:
    """Print lines, each with its colour, "" of none, or the outcome that has one."""
    print_pieces(([line] for line in lines), stream=stream)


def print_pieces(lines: Iterable[Iterable[tuple[str, str]]], *, stream: TextIO | None = None) -> None:
    """Print lines in pieces, each with its colour, to a terminal without NO_COLOR (https://no-color.org)."""
    stream = stream or sys.stdout
    is_coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        for text, colour in line:
            code, written = CODES.get(COLOURS.get(colour, colour), ""), _written(text, stream)
            print(f"\x1b[{code}m{written}\x1b[0m" if code and is_coloured else written, end="", file=stream)
        print(file=stream)


def _written(text: str, stream: TextIO) -> str:
    """A text in letters that a stream can be given: others as Python writes them, as on standard error."""
    encoding = stream.encoding or "utf-8"  # a stream in memory has none
    if not encoding.lower().startswith("utf"):
        text = text.replace("█", "#").replace("░", ".")
    return text.encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Say which model is being measured, from the first second on in a terminal."""
    watch = Watch(terminal_width() if sys.stderr.isatty() else 0)
    try:
        with watch.naming(model):
            yield
    finally:
        watch.close()
