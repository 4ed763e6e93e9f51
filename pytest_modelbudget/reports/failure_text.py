"""What a person reads when a limit is broken: the numbers first, then who they are made of.

params 3.73 M > 3.51 M   over by 219,047 (+6.2%)   baseline 3.50 M   budgets/mobile.yaml:8
  +224,000  classifier.1.weight   [1000, 1280] -> [1175, 1280]
      +175  classifier.1.bias     [1000] -> [1175]
fix: shrink the layer above, or accept: pytest --model-budget --model-budget-update=fix budgets/...

Without a lock file, nobody knows what grew, and the largest layers are named instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_modelbudget.budget.budget import Limit
from pytest_modelbudget.reports.growth_text import grown_lines
from pytest_modelbudget.reports.report import blame_record
from pytest_modelbudget.reports.scope_text import share_lines
from pytest_modelbudget.units import percentage, readable_pair
from pytest_modelbudget.verdict import Outcome, Verdict

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
