"""A pure comparison of two budgets: what the later one makes easier to keep, or redefines."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Union

from pytest_modelbudget.budget.address import names_of, path_of
from pytest_modelbudget.budget.budget import (
    EQUIVALENCE,
    AnyLimit,
    Budget,
    Level,
    Limit,
    Loosen,
    ModelBudget,
    OpsLimit,
    Place,
    TransformCheck,
)
from pytest_modelbudget.budget.limit_forms import AUTO
from pytest_modelbudget.budget.source_forms import source_texts
from pytest_modelbudget.budget.transform_forms import settings_texts
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.units import Number, percentage, readable_pair

LimitSetting = Union[Number, str, None]
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
    before: LimitSetting
    after: LimitSetting
    text: str
    percent: str | None = None


def loosenings(before: Budget, now: Budget | None, metrics: Mapping[str, Metric]) -> tuple[Loosening, ...]:
    """List what ``now`` asks less than ``before``, in the order of the older file."""
    places = dict(now.places()) if now else {}
    changes = list(_dropped(before, places))
    today = {held.check: held.limit for held in now.held()} if now else {}
    changes.extend(_claims(before, now, places))
    for held in before.held():
        if held.path in places:
            subject = _Subject(held.path, held.limit, places[held.path], metrics)
            changes.extend(_of_one(subject, held.limit, today.get(held.check)))
    if now and before.loosen is Loosen.FORBID and now.loosen is not Loosen.FORBID:
        what, text = "loosen removed", "budget loosened: loosen: forbid is gone"
        words = before.loosen.value, now.loosen.value
        changes.append(Loosening(Place(before.file, 1), "", None, None, what, *words, text))
    return tuple(changes)


def _dropped(before: Budget, places: Mapping[str, Place]) -> Iterator[Loosening]:
    """Models that are gone, each with all that stood below it."""
    gone = [path for path, _ in before.places() if path not in places]
    transforms = {path for path, _ in before.transformed()}
    for path in gone:
        names = names_of(path)
        if path_of(*names[:-1]) in gone:
            continue
        below = [other for other in gone if names_of(other)[: len(names)] == names]
        count = sum(held.path in below for held in before.held())
        kind = "transform" if path in transforms else "model"
        text = f"budget loosened: {kind} {path} dropped with {count} limit{'s' * (count != 1)}"
        place = next((at for other, at in places.items() if names_of(other)[0] == names[0]),
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
    """Compare one limit with what it was; None is a limit that is gone."""
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

    def lost(self, what: str, before: LimitSetting, after: LimitSetting, words: str) -> Loosening:
        """Something that is no longer asked."""
        return self._said(what, before, after, f"budget loosened: {words}")

    def moved(self, what: str, before: Number, after: Number, end: str = "", texts: Texts | None = None) -> Loosening:
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
        self, what: str, before: LimitSetting, after: LimitSetting, text: str, percent: str | None = None
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
            yield subject.moved("max raised", before.max, now.max, "", (before.written, now.written))
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


LONGEST, LEAD = 60, 10  # characters of a text that are shown, and those of them that are the same
ELSE = "its limits are held on something else"

# {"dtype": {"": "bfloat16"}, "kwargs": {"width": "0.5"}}: the values of a key, by name where it
# is a mapping.
Declared = dict[str, dict[str, str]]
BothTexts = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Redefinition:
    """One key of a model, or of a transform, that says something else than it did.

    place is where it stands today, or what it was said of where nothing is left of it. what is the
    key ("inputs", "tile"), "source" for where a model comes from, "transform" for another one.
    before and after are as a budget may spell them, of a mapping only what differs; None is
    nothing.
    """

    place: Place
    path: str
    what: str
    before: str | None
    after: str | None
    text: str


def redefinitions(before: Budget, now: Budget | None, transforms: Mapping[str, Transform]) -> tuple[Redefinition, ...]:
    """List what limits that stay are held on instead, in the order of today's file.

    transforms is the table that both files were read by. What a model says for itself and its
    variants stands there once.
    """
    if now is None:
        return ()
    models = {model.path: model for model in before.models}
    checks = dict(before.transformed())
    held = {path for path, _ in _checks(before) & _checks(now)}
    known: dict[tuple[str, Place, str], Redefinition] = {}
    for model in now.models:
        changed = _of_model(models.get(model.path), model, held)
        for change in (*changed, *_of_transforms(checks, model, held, transforms)):
            key = model.name, change.place, change.text
            known[key] = replace(change, path=model.name) if key in known else change
    return tuple(known.values())


def _checks(budget: Budget) -> set[tuple[str, str]]:
    """The path and the name of all that a file holds."""
    claims = {(path, EQUIVALENCE) for path, _ in budget.claims()}
    return claims | {held.check for held in budget.held()}


def _of_model(was: ModelBudget | None, now: ModelBudget, held: set[str]) -> Iterator[Redefinition]:
    """Compare what a model declares, where it or a transform of it is held to something."""
    if was is None or not held & {now.path, *_transforms(now)}:
        return
    for key, texts in _changes(source_texts(was.source), source_texts(now.source)):
        place = now.declared_at.get(key, now.declared_at["source"])
        yield _redefined("model", now.path, key, texts, place)


def _of_transforms(
    earlier: Mapping[str, TransformCheck], now: ModelBudget, held: set[str], known: Mapping[str, Transform]
) -> Iterator[Redefinition]:
    """Compare a model's transforms; a variant may have stood in a transform's place."""
    for path, check in _transforms(now).items():
        if path in held:
            yield from _of_transform(earlier.get(path), check, path, known)
    if now.path in held and now.path in earlier:
        before = earlier[now.path].transform
        yield _redefined("transform", now.path, "transform", (before, None), now.place)


def _transforms(model: ModelBudget) -> dict[str, TransformCheck]:
    return {path_of(model.path, check.name): check for check in model.transforms}


def _of_transform(
    was: TransformCheck | None, now: TransformCheck, path: str, known: Mapping[str, Transform]
) -> Iterator[Redefinition]:
    """Compare one transform; None is a variant that stood in its place."""
    place = now.declared_at["transform"]
    if was is None or was.transform != now.transform:
        before = was.transform if was else None
        yield _redefined("transform", path, "transform", (before, now.transform), place)
        return
    transform = known[now.transform]
    for key, texts in _changes(settings_texts(was, transform), settings_texts(now, transform)):
        yield _redefined("transform", path, key, texts, now.declared_at.get(key, place))


def _redefined(kind: str, path: str, what: str, texts: BothTexts, place: Place) -> Redefinition:
    """One key in words: "model changed: dtype none -> bfloat16: its limits are held ..."."""
    key = "" if what == kind else f" {what}"
    before, after = (text or "none" for text in texts)
    return Redefinition(place, path, what, *texts, f"{kind} changed:{key} {before} -> {after}: {ELSE}")


# What differs.


def _changes(before: Declared, now: Declared) -> Iterator[tuple[str, BothTexts]]:
    """Every key whose values are others, with those values."""
    for key in dict.fromkeys((*before, *now)):
        first, second = before.get(key, {}), now.get(key, {})
        if first != second:
            yield key, _shortened(_unlike(first, second), _unlike(second, first))


def _unlike(values: Mapping[str, str], others: Mapping[str, str]) -> str | None:
    """The values that others have not: "0.5", or "{width: 0.5}" of a mapping."""
    unlike = {name: text for name, text in values.items() if others.get(name) != text}
    if not unlike or "" in unlike:
        return unlike.get("")
    named = (f"{_printable(name)}: {text}" for name, text in unlike.items())
    return f"{{{', '.join(named)}}}"


def _shortened(*texts: str | None) -> BothTexts:
    """Two texts as they are, or from shortly before where they part if one of them is long."""
    first, second = texts
    start = 0
    if max(len(first or ""), len(second or "")) > LONGEST:
        start = max(0, len(posixpath.commonprefix([first or "", second or ""])) - LEAD)
    return _cut(first, start), _cut(second, start)


def _cut(text: str | None, start: int) -> str | None:
    if text is None:
        return None
    end = start + LONGEST
    return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"


def _printable(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)
