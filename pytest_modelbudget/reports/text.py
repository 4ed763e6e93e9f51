"""Text as it fits its place: one line, columns, a width, and letters that every file can hold."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from textwrap import wrap
from unicodedata import category

from pytest_modelbudget.graph.graph import scope_text

ASCII_LINES = re.compile(r"(?:[\t -~]{0,2000}(?:\n|\Z))*")  # most text, which needs no look at each letter
UNPRINTABLE = frozenset({"Cc", "Cs", "Cn", "Zl", "Zp"})  # control, surrogates, no characters, ends of lines
TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # bidi marks
LONGEST_LINE = 2000  # characters of a name or message that anybody reads
# GitHub's runner takes a line for a command that begins so behind blanks, or has the older mark anywhere:
# https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|(#)#(?=\[)", re.MULTILINE)
_COLUMN = re.compile(r"{(?::([<>])(\d*))?}")
_WHOLE = re.compile(r"pytest(?: (?:-\S+|'[^']*'|\S+::\S+))+|\[[\d, ]*\](?: -> \[[\d, ]*\])?")  # commands and shapes
_GLUE = "\0"  # which no line holds that may be printed


def one_line(text: str) -> str:
    """Any text as one line, for summaries that show no more."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def aligned(layout: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells as wide as the widest of their column.

    aligned("  {:>}  {:<}   {}", rows): the first column ends, the second begins in one place, and
    the third is as wide as it is. {:>6} is 6 characters wide at the least.
    """
    places = count()

    def widened(column: re.Match[str]) -> str:
        place = next(places)
        if column[1] is None:
            return column[0]
        width = max([int(column[2] or 0), *(len(row[place]) for row in rows)])
        return f"{{:{column[1]}{width}}}"

    rows = [tuple(map(printed_line, row)) for row in rows]
    widths = _COLUMN.sub(widened, layout)
    return [widths.format(*row).rstrip() for row in rows]


def folded(text: str, width: int, column: int | None = None) -> list[str]:
    """One line as lines of at most that width, further in from the second on; commands and shapes stay whole.

    From the second on they begin in that column, or two further in than the first. A command that is wider stands on a
    line of its own, from which it can be copied.
    """
    if len(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    further = indent + "  " if column is None else " " * column
    glued = _WHOLE.sub(lambda found: found[0].replace(" ", _GLUE), text[len(indent) :])
    lines = wrap(
        glued, width, initial_indent=indent, subsequent_indent=further,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [_no_command(line.replace(_GLUE, " ")) for line in lines]


def cut_middle(text: str, width: int) -> str:
    """Text of at most that width: without the padding of its columns, else with dots for its middle."""
    text = text if len(text) <= width else re.sub(r"(?<=\S) {3,}", "  ", text)
    kept = width - 3
    return text if len(text) <= width else f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def cut_front(text: str, width: int) -> str:
    """Text of at most that width; what is left out of its beginning shows as dots."""
    return text if len(text) <= width else f"...{text[len(text) - width + 3 :]}"


def printable(text: str) -> str:
    """Text that a terminal, a file or a page can be given, whoever wrote it.

    What no file can hold, what moves a cursor, what turns the direction of reading and what makes a line a command to
    GitHub is written out, as Python would write it; the middle of an endless line is left out.
    """
    if not ASCII_LINES.fullmatch(text):
        text = "\n".join(cut_middle("".join(map(_shown, line)), LONGEST_LINE) for line in text.split("\n"))
    return _no_command(text)


def printed_line(text: str) -> str:
    """The same as one line, whatever it holds: a line break in a name starts no line of its own."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _no_command(text: str) -> str:
    r"""The text without a line that starts a workflow command: ``  ::error::x`` becomes ``  \x3a:error::x``."""
    return _COMMAND.sub(lambda found: f"{found[1]}\\x3a" if found[2] is None else "#\\x23", text)


def _shown(letter: str) -> str:
    if letter == "\t" or (category(letter) not in UNPRINTABLE and letter not in TURNING):
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def share_lines(shares: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each (scope, part of a number), in columns: "  1,281,000  classifier.1"."""
    rows = [(value, scope_text(scope)) for scope, value in shares]
    width = max((len(value) for value, _ in rows), default=0)
    yield from (f"  {value:>{width}}  {scope}" for value, scope in rows)
