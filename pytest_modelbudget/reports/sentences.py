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
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from unicodedata import category

from pytest_modelbudget.budget.budget import EQUIVALENCE, Limit, Place
from pytest_modelbudget.budget.verdict import Verdict
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.equivalence.divergence import Worst
from pytest_modelbudget.equivalence.judgement import Basis, Equivalence
from pytest_modelbudget.graph.scopes import is_in_scope, scope_text, share_lines
from pytest_modelbudget.reports.cases import Case, headroom_text, maximum
from pytest_modelbudget.reports.record import Record, blame_record
from pytest_modelbudget.units import exact, percentage, readable_pair, room


def grown_lines(blame: Sequence[Record]) -> Iterator[str]:
    """A line for each entry of a check's blame, in columns; none where nothing is blamed."""
    rows = [(f"{entry['delta']:+,}", grown_name(entry), shapes(entry)) for entry in blame]
    deltas, names = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for delta, name, change in rows:
        yield f"  {delta:>{deltas}}  {name:<{names}}   {change}".rstrip()


def grown_name(entry: Record) -> str:
    """The parameter or scope that grew; "(3 others)" for the rest of a long list."""
    if entry["scope"] is None:
        count = entry.get("count", 0)
        others = "one other" if count == 1 else f"{count} others"
        return f"({others if count else 'not told apart'})"
    names = (entry["scope"], entry.get("name"))
    return scope_text(".".join(name for name in names if name))


def shapes(entry: Record) -> str:
    """The shape then and now: "[1000, 1280] -> [1175, 1280]", "new [64, 3]", "gone", or ""."""
    if entry["scope"] is None:
        return ""
    before, after = (_shape(entry.get(key)) for key in ("shape_before", "shape_after"))
    if entry.get("before") is None:
        return f"new {after}".rstrip()
    if entry.get("after") is None:
        return f"gone {before}".rstrip()
    return after if before == after else f"{before} -> {after}"


def _shape(sizes: Sequence[int] | None) -> str:
    return "" if sizes is None else str(list(sizes))


LARGEST_SHARES = 3


def one_line(text: str) -> str:
    """Any text as one line, for summaries that show no more."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def failure_lines(verdict: Verdict, accept: str = "") -> tuple[str, ...]:
    """The first line says everything; the others help to mend it.

    accept is the command that makes a broken limit what was measured.
    """
    place = verdict.limit.place
    headline = f"{one_line(verdict.reason)}{_baseline(verdict)}   {place}"
    if verdict.outcome is not Outcome.OVER or verdict.measurement is None:
        return (headline,)
    grown = grown_lines(blame_record(verdict.blame))
    shown = grown if verdict.blame.differences else _largest(verdict)
    if not verdict.measurement.complete or not isinstance(verdict.limit, Limit):
        accept = ""  # an update writes no lower bounds, and no operations
    return (headline, *shown, f"fix: {_way_out(verdict, accept)}")


def _baseline(verdict: Verdict) -> str:
    """The locked number that a number is compared with, and what may be added to it."""
    locked, limit = verdict.baseline.locked, verdict.limit
    if locked is None or verdict.measurement is None:
        return ""
    before, _ = readable_pair(locked.value, verdict.measurement.value, locked.unit)
    grow = limit.grow if isinstance(limit, Limit) else None
    allowance = "" if grow is None else f", grow {percentage(grow)}"
    return f"   baseline {before}{allowance}"


def _largest(verdict: Verdict) -> Iterator[str]:
    """The scopes that a broken maximum is mostly made of."""
    measurement = verdict.measurement
    if measurement is None or not _is_maximum(verdict):
        return
    shares = sorted(measurement.shares, key=lambda share: -share.value)[:LARGEST_SHARES]
    yield from share_lines((share.scope, int(share.value)) for share in shares)


def _is_maximum(verdict: Verdict) -> bool:
    """Whether it is a maximum of whole things that is broken, which its shares add up to."""
    limit, measurement = verdict.limit, verdict.measurement
    if not isinstance(limit, Limit) or measurement is None:
        return False
    ends = [end for end in (limit.max, verdict.allowed) if end is not None]
    return isinstance(measurement.value, int) and any(measurement.value > end for end in ends)


def _way_out(verdict: Verdict, accept: str) -> str:
    place = verdict.limit.place
    if not isinstance(verdict.limit, Limit):
        return f"replace these operations, or permit them at {place}"
    if _is_maximum(verdict):
        shrunk = "the layer" if verdict.blame.differences else "what is largest"
        return f"shrink {shrunk} above, or {_accepting(accept) or f'raise the limit at {place}'}"
    return f"change the model, or {_accepting(accept) or f'the limit at {place}'}"


def _accepting(command: str) -> str:
    return f"accept: {command}" if command else ""


MOST_SHARES_NAMED = 5
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
    return list(islice(sorted(inside, key=lambda share: -share[1]), MOST_SHARES_NAMED))


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


def equivalence_lines(equivalence: Equivalence, place: Place, repeat: str) -> tuple[str, ...]:
    """The first line says everything; the others help to find the layer."""
    words = f"equivalence {equivalence.outcome.value}: {one_line(equivalence.reason)}   {place}"
    return (words, *_evidence(equivalence), f"repeat: {repeat}")


def _evidence(equivalence: Equivalence) -> Iterator[str]:
    divergence = equivalence.first_divergence
    if divergence is not None:
        scope = scope_text(divergence.scope)
        size = f", by {divergence.error:.2g} of its size" if divergence.error < 1e300 else ""
        yield f"  first layer that differs: {scope}{size}{_most(divergence.worst)}"
    worst = next((o for o in equivalence.outputs if o.outcome is Outcome.OVER and o.worst), None)
    if worst is not None and worst.worst is not None:
        yield f"  worst output element: '{worst.name}', {worst.family} inputs{_most(worst.worst)}"
    if equivalence.weights:
        seeds = ", ".join(map(str, equivalence.seeds))
        yield f"  weights: {equivalence.weights}; inputs: seeds {seeds}"
    yield from (f"  {one_line(note)}" for note in equivalence.notes)


def _most(worst: Worst | None) -> str:
    if worst is None:
        return ""
    return f", most at {list(worst.index)}: {told_apart(worst.original, worst.transformed)}"


def told_apart(before: float, after: float) -> str:
    """Two numbers in six digits, or in as many more as it takes to see a difference."""
    pairs = [(f"{before:.{digits}g}", f"{after:.{digits}g}") for digits in range(6, 18)]
    return " -> ".join(next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))


def costs(model: Record, transform: Record) -> list[str]:
    """How much was changed, the metrics that differ with both numbers, then the others."""
    before, after = model["metrics"], transform["metrics"]
    told = [_changed(transform)] if transform.get("changes") else []
    same = []
    for key, was in before.items():
        now = after.get(key)
        if now is None or "value" not in was or "value" not in now:
            continue
        if was["value"] == now["value"]:
            same.append(key)
        else:
            told.append(f"{key} {_before_after(was, now)}")
    if same:
        told.append(f"{', '.join(same)} unchanged")
    return told


def _changed(transform: Record) -> str:
    """How many of the layers that a transform met it changed, by operation or type."""
    counts: dict[str, list[int]] = {}
    for change in transform["changes"]:
        row = counts.setdefault(change["operation"], [0, 0])
        row[0] += bool(change["became"])
        row[1] += 1
    return "; ".join(f"{done} of {seen} {name} changed" for name, (done, seen) in counts.items())


def _before_after(was: Record, now: Record) -> str:
    """Both numbers, and the difference as a share of the first."""
    first, second = Fraction(was["value"]), Fraction(now["value"])
    texts = readable_pair(first, second, was["unit"])
    share = f" ({room((second - first) / first, signed=True)})" if first else ""
    least = "" if was.get("complete", True) and now.get("complete", True) else ", a lower bound"
    return f"{texts[0]} -> {texts[1]}{share}{least}"
