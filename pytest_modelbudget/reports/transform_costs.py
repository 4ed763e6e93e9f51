"""What a transform costs: every metric before → after, in a few sentences."""

from __future__ import annotations

from fractions import Fraction

from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.units import readable_pair, room


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
