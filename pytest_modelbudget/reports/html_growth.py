"""Who a number is made of, and who made it grow, as rows of the page.

A layer that was widened, and the largest part of a number without a base to compare with::

    Contribution("classifier.1.weight", "+224,000", shapes="1000×1280 → 1175×1280")
    Contribution("classifier.1", "1,281,000", part="36.5%")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.reports.html_numbers import exact_number, number, parsed, shape, signed
from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.units import exact, readable_pair, room
from pytest_modelbudget.verdict import is_in_scope

LARGEST_SHARES = 5
MODEL = "(model)"


@dataclass(frozen=True, slots=True)
class Contribution:
    """A layer's part of a number, or what it added to it: text for each column."""

    name: str
    value: str
    part: str = ""
    shapes: str = ""


def maximum(check: Record) -> Fraction | None:
    """The most that a check lets pass: its limit, or what it may grow to, if that is less."""
    if "measured" in check:  # a claim, which no one number is held to
        return None
    ends = (check["limit"], check.get("allowed"))
    return min((Fraction(end) for end in ends if end is not None), default=None)


def growth(check: Record) -> str:
    """Since the base: before, after and change, and how much was allowed."""
    baseline, actual, unit = check.get("baseline"), check["actual"], check.get("unit", "")
    if baseline is None or actual is None:
        return ""
    before, after = parsed(baseline), parsed(actual)
    change = after - before
    if not change:
        return f"unchanged since the base: {exact(before, unit)}"
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    allowed = check.get("allowed")
    most = "" if allowed is None else f"; allowed {number(allowed, unit)}"
    return f"{texts[0]} → {texts[1]} since the base ({signed(change, unit)}{part}{most})"


def contributions(owner: Record, check: Record) -> tuple[Contribution, ...]:
    """Who made a number grow, where that is known; of a broken maximum, its largest parts.

    owner is the record that has the check's metric: of a model, or of a transform.
    """
    if check.get("blame"):
        unit = check.get("unit", "")
        return tuple(_blamed(each, unit) for each in check["blame"] if each["delta"])
    most = maximum(check)
    if check["outcome"] != "over" or most is None or Fraction(check["actual"] or 0) <= most:
        return ()
    return tuple(_largest(owner["metrics"].get(check["metric"], {}), check))


def _largest(metric: Record, check: Record) -> Iterator[Contribution]:
    """The largest shares of a count; a ratio is not made of its shares."""
    if "exact" in metric or "ops" in check:
        return
    glob = check.get("scope")
    shares = [share for share in metric.get("shares", ()) if is_in_scope(share["scope"], glob)]
    for share in sorted(shares, key=lambda each: -Fraction(each["value"]))[:LARGEST_SHARES]:
        part = room(Fraction(share["value"]) / Fraction(check["actual"]))
        value = exact_number(share["value"], metric["unit"])
        yield Contribution(share["scope"] or MODEL, value, part)


def _blamed(blame: Record, unit: str) -> Contribution:
    """A layer's growth with its shapes; the last entry, without a scope, sums up the others."""
    value = signed(parsed(blame["delta"]), unit)
    if blame["scope"] is None:
        count = blame.get("count", 0)
        others = "one other" if count == 1 else f"{count} others"
        return Contribution(others if count else "everything else", value)
    name = ".".join(filter(None, (blame["scope"], blame.get("name"))))
    return Contribution(name or MODEL, value, shapes=_shapes(blame))


def _shapes(blame: Record) -> str:
    """The shape then and now: "1000×1280 → 1175×1280", "new 64×3", "gone"."""
    before, after = (
        shape(sizes) if sizes is not None else ""
        for sizes in (blame.get("shape_before"), blame.get("shape_after"))
    )
    if blame.get("before") is None:
        return f"new {after}".strip()
    if blame.get("after") is None:
        return f"gone {before}".strip()
    return after if before == after else f"{before} → {after}"
