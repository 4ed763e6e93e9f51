"""One limit on the page: the parts of a case that templates show, as text and lengths of bars."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pytest_modelbudget.budget.budget import path_of
from pytest_modelbudget.equivalence.claim import Outcome
from pytest_modelbudget.graph.graph import scope_text
from pytest_modelbudget.reports import record
from pytest_modelbudget.reports.claims import FirstDivergence
from pytest_modelbudget.reports.messages import claim_lines
from pytest_modelbudget.reports.record import Case
from pytest_modelbudget.units import Number, exact, readable, readable_pair, room, several

ABSENT = "–"
STATUSES = ("over", "unused", "unknown", "warn", "accepted", "within")  # worst first


def signed(change: Number, unit: str) -> str:
    """A change with its sign: every digit of a count, a ratio rounded."""
    amount = change if change > 0 else -change
    text = exact(amount, unit) if isinstance(amount, int) else readable(amount, unit)
    return f"+{text}" if change > 0 else f"−{text}" if change < 0 else text


def path(case: Case) -> str:
    """The limit below its model: "params", "tiled::macs"."""
    return path_of(*case.address.names[len(case.model.address.names) :])


def headroom(case: Case) -> float:
    """A key that sorts limits by headroom, the tightest first."""
    left = case.check.headroom
    return float("inf") if left is None else float(left)


# Figures.


def figures(case: Case) -> tuple[str, str, str]:
    """Measured, limit, and the change since the base or the headroom."""
    left = "?" if case.outcome == "unknown" else case.check.change_text
    return (*_measured_and_limit(case.check), left)


def _measured_and_limit(check: record.Check) -> tuple[str, str]:
    """Measured and limit; the limit of ``ops`` in words, of two ends both, of a claim its own."""
    if check.measured is not None:
        return check.measured, ABSENT if check.allowed is None else str(check.allowed)
    unit, actual, least, most = check.unit, check.actual, check.min, check.maximum
    is_upper = check.outcome is Outcome.UNKNOWN and check.at_least is not None
    sign = "≥ " if check.is_lower_bound else "≤ " if is_upper else ""
    shown = ABSENT if actual is None else sign + readable(actual, unit)
    for word, end in (("least", check.least), ("most", check.most)):
        shown += "" if end is None else f", {word} {readable(end, unit)}"
    if check.ops:
        return shown, "; ".join(_ops_words(check.ops)) or ABSENT
    if actual is not None and most is not None and least is None:
        measured, bound = readable_pair(actual, most, unit)
        return (shown if check.most is not None else sign + measured), bound
    ends = [f"≥ {readable(least, unit)}"] if least is not None else []
    ends += [f"≤ {readable(most, unit)}"] if most is not None else []
    return shown, ", ".join(ends) or ABSENT


def _ops_words(ops: record.AskedOps) -> Iterator[str]:
    if ops.allow is not None:
        yield f"only {', '.join(ops.allow)}"
    if ops.deny:
        yield f"no {', '.join(ops.deny)}"
    yield from (f"{name} ≤ {most:,}" for name, most in ops.max.items())


def digits(check: record.Check) -> str:
    """Every digit of measured and limit, for the title of a figure."""
    if check.measured is not None:
        return ""
    limit = "" if check.limit is None else f", limit {exact(check.limit, check.unit)}"
    return (ABSENT if check.actual is None else exact(check.actual, check.unit)) + limit


MARK = 75  # per cent of a bar's width at which its limit stands


def bar(check: record.Check) -> tuple[str, str]:
    """Lengths in per cent: the value's, and where a minimum stands beside a maximum."""
    most, least = check.maximum, check.min
    actual = check.highest if most is not None else check.lowest
    bound = most if most is not None else Fraction(least or 0)
    if actual is None or not bound:
        return "", ""
    filled = min(Fraction(actual) / bound * MARK, Fraction(100))
    second = Fraction(least) / bound * MARK if least is not None and most is not None else None
    return f"{float(filled):.1f}", "" if second is None else f"{float(second):.1f}"


# What made a number so.


def growth(check: record.Check) -> str:
    """Since the base: before, after and change, and how much was allowed; "" where nothing changed."""
    before, after, unit = check.baseline, check.actual, check.unit
    if before is None or after is None or before == after:
        return ""
    change = after - before
    texts = readable_pair(before, after, unit)
    part = f", {room(Fraction(change) / before, signed=True)}" if before else ""
    most = f"; allowed {readable(check.allowed, unit)}" if isinstance(check.allowed, int) else ""
    return f"{texts[0]} → {texts[1]} since the base ({signed(change, unit)}{part}{most})"


def evidence(case: Case) -> list[str]:
    """On what a number was measured in a run, with its layers; of memories that are too small, what lives there."""
    if case.check.measured_on:
        return [case.check.measured_on, *case.check.evidence]
    is_unfit = case.outcome != "within" and isinstance(case.owner, record.DeploymentReport) and case.check.is_claim
    return list(claim_lines(case)) if is_unfit else []


def divergence_words(divergence: FirstDivergence | None) -> Iterator[tuple[str, str]]:
    """The first divergence: the layer, by how much, and where most."""
    if divergence is None:
        return
    yield from (("layer", scope_text(divergence.scope)), ("error", f"{divergence.error} of its size"))
    if worst := divergence.worst:
        yield "most at", f"{list(worst.index)}: {worst.original} → {worst.transformed}"
    if divergence.reservation:
        yield "but", divergence.reservation


WIDTH, HEIGHT = 532, 70  # of the chart of a history


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A locked number through the commits that changed it: an SVG path in steps, and (x, y, words) of its dots."""

    path: str
    dots: tuple[tuple[str, str, str], ...]
    words: str


def history_view(points: Sequence[record.PastNumber], unit: str) -> HistoryView | None:
    """The line of some numbers of a unit, with a gap where the number was not locked."""
    values = [point.value for point in points if point.value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    line, dots = "", []
    for position, (point, before) in enumerate(zip(points, (None, *points), strict=False)):
        if point.value is None:
            continue
        part = float(Fraction(point.value - low) / Fraction(high - low)) if high != low else 1.0
        x, until = (f"{WIDTH * at / len(points):.1f}" for at in (position, position + 1))
        y = f"{HEIGHT * (1 - part):.1f}"
        line += f"{f'M{x} ' if before is None or before.value is None else 'V'}{y}H{until}"
        dots.append((x, y, point.text))
    least, most = readable_pair(low, high, unit)
    return HistoryView(line, tuple(dots), f"locked numbers of {several(len(points), 'commit')}, from {least} to {most}")
