"""What is wrong with a budget file: every problem with its place, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.errors import BudgetError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a budget file must say differently, and where."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}:{self.place.column}: {self.message}"


class BudgetFileError(BudgetError):
    """A budget file with problems, in the order of the file; its text has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = sorted(problems, key=lambda each: (each.place.line, each.place.column))
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(found))
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[BudgetFileError], tuple[tuple[Problem, ...]]]:
        return BudgetFileError, (self.problems,)


def shown(word: str, longest: int = 60) -> str:
    """A word of the file in quotes, on one line and not too long for a message."""
    text = word if len(word) <= longest else word[: longest - 1] + "…"
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return f"'{text}'"


def suggestion(word: str, known: Iterable[str]) -> str:
    """A "did you mean" for a word that nothing knows, or the words that are known."""
    words = list(known)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known are {', '.join(words)}" if 0 < len(words) <= 16 else "nothing like it is known"
