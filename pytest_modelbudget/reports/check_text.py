"""The figures of one check as text, for every report that has room for more than a line.

measured  3,729,047
limit     3,510,000
baseline  3,505,960
grown since the baseline
  +224,000  classifier.1.weight   [1000, 1280] -> [1175, 1280]
      +175  classifier.1.bias     [1000] -> [1175]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from unicodedata import category

from pytest_modelbudget.budget.budget import EQUIVALENCE
from pytest_modelbudget.equivalence.judgement import Basis
from pytest_modelbudget.ir.scopes import is_in_scope
from pytest_modelbudget.reports.cases import Case, headroom_text, maximum
from pytest_modelbudget.reports.failure_text import one_line
from pytest_modelbudget.reports.growth_text import grown_lines
from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.reports.scope_text import scope_text, share_lines
from pytest_modelbudget.units import exact

LARGEST_SHARES = 5
PLAIN = re.compile(r"[\n\t -~]*")  # most text, which needs no look at each letter
UNPRINTABLE = frozenset({"Cc", "Cs", "Cn"})  # control characters, surrogates, no characters at all
FIGURES = {"actual": "measured", "limit": "limit", "min": "minimum", "baseline": "baseline",
           "allowed": "allowed growth to"}  # fmt: skip
NARROW = frozenset({Basis.LAYERS.value, Basis.NOTHING.value})  # less than step 1 on the network
CLAIMED = {"measured": "measured", "allowed": "allowed"}  # of an equivalence, as text


def headline(case: Case) -> str:
    """One line that says everything: "params 3.73 M > 3.51 M   over by 219,047 (+6.2%)"."""
    reason, outcome = one_line(case.check["reason"]), f"{case.name} {case.check['outcome']}"
    if case.is_claim:
        return f"{outcome}: {reason}"
    return reason or outcome


def figures(case: Case) -> Iterator[tuple[str, str]]:
    """What was measured and held, in every digit and with its unit."""
    check = case.check
    for key, label in CLAIMED.items() if case.is_claim else FIGURES.items():
        value = check.get(key)
        if value is not None:
            yield label, value if case.is_claim else figure(value, check.get("unit", ""))
    if left := headroom_text(check):
        yield "headroom", left
    yield "outcome", check["outcome"]
    yield "level", check["level"]


def figure(value: int | str | Fraction, unit: str) -> str:
    """Every digit that the record has, thousands separated, and the unit."""
    return exact(Fraction(value), unit)


def detail_lines(case: Case) -> Iterator[str]:
    """Figures, then the layers that grew, else those that the number is mostly made of."""
    told = dict(figures(case))
    width = max(map(len, told))
    yield from (f"{label:<{width}}  {text}" for label, text in told.items())
    if case.is_claim:
        yield from evidence_lines(case.owner.get(EQUIVALENCE, {}))
        return
    grown = list(grown_lines(case.check.get("blame", ())))
    if grown:
        yield from ("grown since the baseline", *grown)
        return
    largest = list(largest_lines(case))
    if largest:
        yield from ("largest layers", *largest)


def evidence_lines(equivalence: Record) -> Iterator[str]:
    """Where a transform's outputs part from the model's, and under which weights and inputs."""
    divergence = equivalence.get("first_divergence")
    if divergence:
        scope = scope_text(divergence["scope"])
        yield f"first layer that differs: {scope}, by {divergence['error']} of its size"
    if equivalence.get("weights"):
        seeds = ", ".join(str(seed) for seed in equivalence.get("seeds", ()))
        yield f"weights: {equivalence['weights']}" + (f"; inputs: seeds {seeds}" if seeds else "")


def reservations(case: Case) -> Iterator[str]:
    """What a claim that holds rests on, in a line each, where that is less than it usually is.

    A claim that fails has all of it in the text of its failure.
    """
    if not case.is_claim or case.outcome != "within":
        return
    equivalence = case.owner.get(EQUIVALENCE, {})
    basis, notes = equivalence.get("basis", ""), equivalence.get("notes", ())
    if basis in NARROW and not any(note.startswith(basis) for note in notes):
        yield basis
    yield from map(one_line, notes)


def largest_shares(case: Case) -> list[tuple[str, Fraction]]:
    """The scopes with the largest parts of a check's number, and those parts."""
    inside = (
        (share["scope"], Fraction(share["value"]))
        for share in case.measurement.get("shares", ())
        if is_in_scope(share["scope"], case.check.get("scope"))
    )
    return list(islice(sorted(inside, key=lambda share: -share[1]), LARGEST_SHARES))


def largest_lines(case: Case) -> Iterator[str]:
    """A line for each of the largest shares, where it is a maximum that they add up to."""
    if maximum(case.check) is None:
        return
    shares = largest_shares(case)
    yield from share_lines((scope, int(value)) for scope, value in shares if value.denominator == 1)


def printable(text: str) -> str:
    """Text in which what no file can hold as text is written out, as Python would write it."""
    if PLAIN.fullmatch(text):
        return text
    return "".join(
        letter if letter in "\n\t" or category(letter) not in UNPRINTABLE else _written_out(letter)
        for letter in text
    )


def _written_out(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
