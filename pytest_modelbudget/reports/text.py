"""Text as it fits its place: one line, columns, a width, and letters that every file can hold."""

import re
from collections.abc import Sequence
from itertools import count
from unicodedata import category

PLAIN = re.compile(r"[\n\t -~]*")  # most text, which needs no look at each letter
UNPRINTABLE = frozenset({"Cc", "Cs", "Cn"})  # control characters, surrogates, no characters at all
_COLUMN = re.compile(r"{(?::([<>])(\d*))?}")


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

    widths = _COLUMN.sub(widened, layout)
    return [widths.format(*row).rstrip() for row in rows]


def cut_middle(text: str, width: int) -> str:
    """Text of at most that width; what is left out of its middle shows as dots."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def printable(text: str) -> str:
    """Text in which what no file can hold as text is written out, as Python would write it."""
    if PLAIN.fullmatch(text):
        return text
    return "".join(
        letter
        if letter in "\n\t" or category(letter) not in UNPRINTABLE
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
