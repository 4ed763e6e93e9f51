"""What a person reads when a limit is broken: the numbers first, then who they are made of.

params 3.73 M > 3.51 M   over by 219,047 (+6.2%)   budgets/mobile.yaml:8
  1,281,000  classifier.1
    412,160  features.18.0
fix: shrink what is largest above, or raise the limit at budgets/mobile.yaml:8
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_modelbudget.budget.budget import Limit
from pytest_modelbudget.verdict import Outcome, Verdict

LARGEST_SHARES = 3


def one_line(text: str) -> str:
    """Any text as one line, for summaries that show no more."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def failure_lines(verdict: Verdict) -> tuple[str, ...]:
    """The first line says everything; the others help to mend it."""
    place = verdict.limit.place
    headline = f"{one_line(verdict.reason)}   {place}"
    if verdict.outcome is not Outcome.OVER or verdict.measurement is None:
        return (headline,)
    return (headline, *_largest(verdict), f"fix: {_way_out(verdict)} at {place}")


def _largest(verdict: Verdict) -> Iterator[str]:
    """The scopes that a broken maximum is mostly made of."""
    measurement = verdict.measurement
    if measurement is None or not _is_maximum(verdict):
        return
    shares = sorted(measurement.shares, key=lambda share: -share.value)[:LARGEST_SHARES]
    width = max((len(f"{share.value:,}") for share in shares), default=0)
    for share in shares:
        yield f"  {share.value:>{width},}  {share.scope or '(model)'}"


def _is_maximum(verdict: Verdict) -> bool:
    """Whether it is a maximum of whole things that is broken, which its shares add up to."""
    limit, measurement = verdict.limit, verdict.measurement
    if not isinstance(limit, Limit) or limit.max is None or measurement is None:
        return False
    return isinstance(measurement.value, int) and measurement.value > limit.max


def _way_out(verdict: Verdict) -> str:
    if not isinstance(verdict.limit, Limit):
        return "replace these operations, or permit them"
    if _is_maximum(verdict):
        return "shrink what is largest above, or raise the limit"
    return "change the model, or the limit"
