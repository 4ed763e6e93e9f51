"""Who a number is made of, and who made it grow, as rows of the page.

A layer that was widened, and the largest part of a number without a base to compare with::

    Contribution("classifier.1.weight", "+224,000", shapes="[1000, 1280] -> [1175, 1280]")
    Contribution("classifier.1", "1,281,000", part="36.5%")
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.reports.cases import Case, maximum
from pytest_modelbudget.reports.check_text import largest_shares
from pytest_modelbudget.reports.growth_text import grown_name, shapes
from pytest_modelbudget.reports.html_numbers import number, parsed, signed
from pytest_modelbudget.reports.report import Record
from pytest_modelbudget.reports.scope_text import scope_text
from pytest_modelbudget.units import exact, readable_pair, room


@dataclass(frozen=True, slots=True)
class Contribution:
    """A layer's part of a number, or what it added to it: text for each column."""

    name: str
    value: str
    part: str = ""
    shapes: str = ""


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


def contributions(case: Case) -> tuple[Contribution, ...]:
    """Who made a number grow, where that is known; of a broken maximum, its largest parts."""
    check, unit = case.check, case.check.get("unit", "")
    if check.get("blame"):
        grown = (each for each in check["blame"] if each["delta"])
        return tuple(_grown(each, unit) for each in grown)
    most = maximum(check)
    actual = Fraction(check["actual"] or 0)
    if check["outcome"] != "over" or most is None or actual <= most:
        return ()
    if "exact" in case.measurement or "ops" in check:  # a ratio is not made of its shares
        return ()
    return tuple(
        Contribution(scope_text(scope), exact(value, unit), room(value / actual))
        for scope, value in largest_shares(case)
    )


def _grown(entry: Record, unit: str) -> Contribution:
    """A layer's growth with its shapes; the last entry sums up the others."""
    value = signed(parsed(entry["delta"]), unit)
    return Contribution(grown_name(entry), value, shapes=shapes(entry))
