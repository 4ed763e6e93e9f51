"""What a change to a budget file makes easier to keep: a pure comparison of two budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Union

from pytest_modelbudget.budget.budget import (
    EQUIVALENCE,
    AnyLimit,
    Budget,
    Level,
    Limit,
    Loosen,
    OpsLimit,
    Place,
)
from pytest_modelbudget.budget.grammar import AUTO
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.units import Number, percentage, readable_pair

Setting = Union[Number, str, None]
Texts = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Loosening:
    """One thing that a budget no longer asks, or asks less of.

    place is where it stands today, line 1 where nothing is left of it. check is the name of the
    limit ("params@layer4.*"), None where a whole model or file is meant. before and after are
    numbers in the metric's unit, or words; None is nothing.
    """

    place: Place
    path: str
    check: str | None
    metric: str | None
    what: str
    before: Setting
    after: Setting
    text: str
    percent: str | None = None


def loosenings(
    before: Budget, now: Budget | None, metrics: Mapping[str, Metric]
) -> tuple[Loosening, ...]:
    """What ``now`` asks less than ``before``, in the order of the older file."""
    places = dict(now.places()) if now else {}
    found = list(_dropped(before, places))
    today = {held.check: held.limit for held in now.held()} if now else {}
    found.extend(_claims(before, now, places))
    for held in before.held():
        if held.path in places:
            subject = _Subject(held.path, held.limit, places[held.path], metrics)
            found.extend(_of_one(subject, held.limit, today.get(held.check)))
    if now and before.loosen is Loosen.FORBID and now.loosen is not Loosen.FORBID:
        what, text = "loosen removed", "budget loosened: loosen: forbid is gone"
        words = before.loosen.value, now.loosen.value
        found.append(Loosening(Place(before.file, 1), "", None, None, what, *words, text))
    return tuple(found)


def _dropped(before: Budget, places: Mapping[str, Place]) -> Iterator[Loosening]:
    """Models that are gone, each with all that stood below it."""
    gone = [path for path, _ in before.places() if path not in places]
    transforms = {path for path, _ in before.transformed()}
    for path in gone:
        if path.rpartition("::")[0] in gone:
            continue
        below = [each for each in gone if each == path or each.startswith(f"{path}::")]
        count = sum(held.path in below for held in before.held())
        kind = "transform" if path in transforms else "model"
        text = f"budget loosened: {kind} {path} dropped with {count} limit{'s' * (count != 1)}"
        model = path.partition("::")[0]
        place = next((at for name, at in places.items() if name.partition("::")[0] == model),
                     Place(before.file, 1))  # fmt: skip
        yield Loosening(place, path, None, None, f"{kind} dropped", count, None, text)


def _claims(before: Budget, now: Budget | None, places: Mapping[str, Place]) -> Iterator[Loosening]:
    """Claims about the outputs of transforms that are no longer made, or are weaker ones."""
    today = dict(now.claims()) if now else {}
    for path, claim in before.claims():
        if path not in places or today.get(path) == claim:
            continue
        same = today.get(path)
        kinds = claim.kind.value, same.kind.value if same else None
        if same is None:
            what, words = "claim removed", f"equivalence of {path} removed, was {kinds[0]}"
        elif same.is_weaker_than(claim):
            what, words = "claim weakened", f"equivalence of {path} asks for less"
            if kinds[0] != kinds[1]:
                words = f"equivalence of {path} {kinds[0]} -> {kinds[1]}"
        else:
            continue
        text = f"budget loosened: {words}"
        yield Loosening(places[path], path, EQUIVALENCE, EQUIVALENCE, what, *kinds, text)


def _of_one(subject: _Subject, before: AnyLimit, now: AnyLimit | None) -> Iterator[Loosening]:
    """What one limit asks less than it did; None is a limit that is gone."""
    if now is None:
        was = _spelled(before)
        yield subject.lost("metric removed", was, None, f"{before.name} removed, was {was}")
        return
    subject = replace(subject, place=now.place)
    yield from _of_level(subject, before, now)
    if isinstance(before, Limit) and isinstance(now, Limit):
        yield from _of_limit(subject, before, now)
    elif isinstance(before, OpsLimit) and isinstance(now, OpsLimit):
        yield from _of_ops(subject, before, now)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The limit that is spoken of, and where it stands today."""

    path: str
    limit: AnyLimit
    place: Place
    metrics: Mapping[str, Metric]

    def lost(self, what: str, before: Setting, after: Setting, words: str) -> Loosening:
        """Something that is no longer asked."""
        return self._said(what, before, after, f"budget loosened: {words}")

    def moved(
        self, what: str, before: Number, after: Number, end: str = "", texts: Texts | None = None
    ) -> Loosening:
        """A bound that moved: "budget loosened +14.3 %: params 3.5 M -> 4.0 M"."""
        share = Fraction(after - before) / Fraction(before) if before else None
        percent = None if share is None else f"{'+' if share > 0 else ''}{percentage(share)[:-1]}"
        metric = self.metrics.get(self.limit.metric)
        first, second = texts or readable_pair(before, after, metric.unit if metric else "op")
        by = f" {percent} %" if percent else ""
        name = f"{self.limit.name} {end}".rstrip()
        text = f"budget loosened{by}: {name} {first} -> {second}"
        return self._said(what, before, after, text, percent)

    def _said(
        self, what: str, before: Setting, after: Setting, text: str, percent: str | None = None
    ) -> Loosening:
        name, metric = self.limit.name, self.limit.metric
        return Loosening(self.place, self.path, name, metric, what, before, after, text, percent)


def _spelled(limit: AnyLimit) -> str:
    """A limit in a few words: as its file spells it, where it is a quantity."""
    if isinstance(limit, OpsLimit):
        return "a limit on operations"
    return limit.written or f"grow {percentage(limit.grow or Fraction())}"


def _of_level(subject: _Subject, before: AnyLimit, now: AnyLimit) -> Iterator[Loosening]:
    if before.level is Level.ERROR and now.level is Level.WARN:
        levels = before.level.value, now.level.value
        yield subject.lost("level lowered", *levels, f"level of {before.name} error -> warn")
    for op in now.allow_unmeasured:
        if op not in before.allow_unmeasured:
            words = f"{before.name} accepts {op} unmeasured"
            yield subject.lost("op newly allowed", None, op, words)


def _of_limit(subject: _Subject, before: Limit, now: Limit) -> Iterator[Loosening]:
    if before.max is not None:
        if now.max is None:
            yield _end_removed(subject, "max", before.max, now)
        elif now.max > before.max:
            yield subject.moved(
                "max raised", before.max, now.max, "", (before.written, now.written)
            )
    if before.min is not None:
        if now.min is None:
            yield _end_removed(subject, "min", before.min, now)
        elif now.min < before.min:
            yield subject.moved("min lowered", before.min, now.min, "min")
    yield from _of_growth(subject, before, now)


def _end_removed(subject: _Subject, end: str, was: Number, now: Limit) -> Loosening:
    after = AUTO if end in now.auto else None
    words = f"{end} of {now.name} {'is auto' if after else 'removed'}"
    return subject.lost(f"{end} removed", was, after, words)


def _of_growth(subject: _Subject, before: Limit, now: Limit) -> Iterator[Loosening]:
    if before.grow is None:
        return
    if now.grow is None:
        words = f"grow of {before.name} removed, was {percentage(before.grow)}"
        yield subject.lost("grow removed", before.grow, None, words)
        return
    if now.grow > before.grow:
        texts = percentage(before.grow), percentage(now.grow)
        yield subject.moved("grow raised", before.grow, now.grow, "grow", texts)
    if now.floor > before.floor:
        yield subject.moved("floor raised", before.floor, now.floor, "floor")


def _of_ops(subject: _Subject, before: OpsLimit, now: OpsLimit) -> Iterator[Loosening]:
    if before.allow is not None and now.allow is None:
        words = "any operation is allowed"
        yield subject.lost("op newly allowed", ", ".join(before.allow), None, words)
    for op in now.allow or ():
        if before.allow is not None and op not in before.allow:
            yield subject.lost("op newly allowed", None, op, f"{op} is newly allowed")
    for op in before.deny:
        if op not in now.deny:
            yield subject.lost("op newly allowed", op, None, f"{op} is no longer denied")
    for op, most in before.max.items():
        if op not in now.max:
            yield subject.lost("max removed", most, None, f"max of {op} removed")
        elif now.max[op] > most:
            yield subject.moved("max raised", most, now.max[op], op)
