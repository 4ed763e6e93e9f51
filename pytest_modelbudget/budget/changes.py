"""A pure comparison of two budgets and their locks: what the later ones make easier to keep, or redefine."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Union

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.deployment_forms import deployment_texts
from pytest_modelbudget.budget.limit_forms import AUTO
from pytest_modelbudget.budget.lock_file import Lock, LockedValue
from pytest_modelbudget.budget.source_forms import source_texts
from pytest_modelbudget.budget.transform_forms import settings_texts
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.units import Number, percentage, readable, readable_pair, several

GRANTS = ("exception added", "exception raised", "exception prolonged")
LimitSetting = Union[Number, str, None]
Texts = tuple[str, str]
CheckKey = tuple[str, str]  # the model's path in its file, and the check's name
LockedOf = Callable[[str, str], Union[LockedValue, None]]


@dataclass(frozen=True, slots=True)
class Loosening:
    """One thing that a budget no longer asks, or asks less of.

    place is where it stands today, line 1 where nothing is left of it. check is the name of the
    limit ("params@layer4.*"), None where a whole model or file is meant. before and after are
    numbers in the metric's unit, or words; None is nothing.
    """

    place: budgets.Place
    path: str
    check: str | None
    metric: str | None
    what: str
    before: LimitSetting
    after: LimitSetting
    text: str
    percent: str | None = None


def loosenings(
    before: budgets.Budget, now: budgets.Budget | None, metrics: Mapping[str, Metric]
) -> tuple[Loosening, ...]:
    """List what ``now`` asks less than ``before``, in the order of the older file; then exceptions to new limits."""
    is_lifted = now and before.loosen is budgets.Loosen.FORBID and now.loosen is not budgets.Loosen.FORBID
    now = now or budgets.Budget(before.file, ())
    places = dict(now.places())
    today = {held.check: held.limit for held in now.held()}
    changes = [*_dropped(before, places), *_claims(before, now, places), *_fitting(before, now, places)]
    for held in before.held():
        if held.path in places:
            subject = _Subject(held.path, held.limit, places[held.path], metrics)
            changes.extend(_of_one(subject, held.limit, today.get(held.check)))
    known = {held.check for held in before.held()}
    for held in now.held():
        if held.check not in known and isinstance(held.limit, budgets.Limit):
            subject = _Subject(held.path, held.limit, held.limit.place, metrics)
            changes.extend(_of_exception(subject, None, held.limit.accept))
    if is_lifted:
        what, text = "loosen removed", "budget loosened: loosen: forbid is gone"
        words = before.loosen.value, now.loosen.value
        changes.append(Loosening(budgets.Place(before.file, 1), "", None, None, what, *words, text))
    return tuple(changes)


def renamings(
    before: budgets.Budget, now: budgets.Budget | None, metrics: Mapping[str, Metric]
) -> tuple[Mapping[str, str], tuple[Redefinition, ...]]:
    """Models that have another name today, by the older one; and the sentence on each.

    A model is renamed where it comes from the same source on the same inputs, with the same transforms, and is held to
    no less. One whose limits grow from locked numbers is not: the base's lock knows the older name alone.
    """
    was, today = _by_name(before), _by_name(now) if now else {}
    fresh: dict[str, list[str]] = {}  # names by where they come from, a name for each of its variants
    for name in [name for name in today if name not in was]:
        for origin in dict.fromkeys(map(_origin, today[name])):
            fresh.setdefault(origin, []).append(name)
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in [name for name in was if name not in today and _is_held_by_numbers(was[name])]:
        like = (other for other in fresh.get(_origin(was[name][0]), ()) if other not in taken)
        same = (other for other in like if _is_renamed(was[name], today[other], other, metrics))
        if (other := next(same, None)) is not None:
            taken.add(other)
            names[name] = other
    said = tuple(
        Redefinition(today[new][0].place, new, "name", old, new, f"model renamed: {old} -> {new}, and held to no less")
        for old, new in names.items()
    )
    return names, said


def _by_name(budget: budgets.Budget) -> dict[str, list[budgets.ModelBudget]]:
    """The models of a file with their variants."""
    models: dict[str, list[budgets.ModelBudget]] = {}
    for model in budget.models:
        models.setdefault(model.name, []).append(model)
    return models


def _origin(model: budgets.ModelBudget) -> str:
    """Where a model comes from and what it is run on, as text."""
    return json.dumps(source_texts(model.source), sort_keys=True)


def _is_held_by_numbers(models: list[budgets.ModelBudget]) -> bool:
    """Whether a model with its variants is held to anything, and none of it grows from a locked number."""
    held = budgets.Budget("", tuple(models))
    limits = [each.limit for each in held.held()]
    grows = any(isinstance(limit, budgets.Limit) and limit.grow is not None for limit in limits)
    return bool(limits or [*held.claims()]) and not grows


def _is_renamed(
    was: list[budgets.ModelBudget], now: list[budgets.ModelBudget], name: str, metrics: Mapping[str, Metric]
) -> bool:
    """Whether a model with its variants is the same under a new name, and held to as much."""
    renamed = [replace(model, name=name) for model in was]
    before, after = (budgets.Budget("", tuple(models)) for models in (renamed, now))
    today = {model.path: model for model in after.models}
    is_same = all(
        model.path in today
        and source_texts(model.source) == source_texts(today[model.path].source)
        and _made(model) == _made(today[model.path])
        for model in before.models
    )
    return is_same and not loosenings(before, after, metrics)


def _made(model: budgets.ModelBudget) -> list[tuple[str, str, Mapping[str, object]]]:
    """The transforms of a model, without what is held of them."""
    return [(check.name, check.transform, check.settings) for check in model.transforms]


def lock_loosenings(
    budget: budgets.Budget, lock: Lock | None, file: str, *,
    at_base: LockedOf, measured: Mapping[CheckKey, LockedValue], metrics: Mapping[str, Metric],
    accepted: Collection[CheckKey] = (),
) -> Iterator[Loosening]:  # fmt: skip
    """List what a budget's lock, of that file name, lets grow further than the base's did.

    A locked number loosens its limit where it is gone, or above both the base's and what is measured: below both of a
    limit that is a mere minimum. One that says what is measured never does: growth is judged by the base's. What is
    measured and merely accepted is no such number.
    """
    known = [(held, before) for held in budget.held() if (before := at_base(*held.check)) is not None]
    if lock is None:
        if not known:
            return
        text = f"budget loosened: {file} is gone, or cannot be read, with {several(len(known), 'baseline')}"
        yield Loosening(budgets.Place(budget.file, 1), "", None, None, "lock removed", len(known), None, text)
        return
    for held, before in known:
        limit, now, today = held.limit, lock.value(*held.check), measured.get(held.check)
        subject = _Subject(held.path, limit, limit.place, metrics)
        is_least = isinstance(limit, budgets.Limit) and limit.max is None and limit.grow is None and not limit.auto
        way, moved = (-1, "lowered") if is_least else (1, "raised")
        if now is None or now.unit != before.unit:
            was = readable(before.value, before.unit)
            yield subject.lost("baseline removed", before.value, None, f"{limit.name} baseline removed, was {was}")
        elif way * now.value > way * before.value and (
            today is None or held.check in accepted or way * now.value > way * today.value
        ):
            seen = f"{readable_pair(now.value, today.value, today.unit)[1]} measured" if today else "not measured here"
            change = subject.moved(f"baseline {moved}", before.value, now.value, f"baseline {moved}")
            yield replace(change, text=f"{change.text} ({seen})")


def _dropped(before: budgets.Budget, places: Mapping[str, budgets.Place]) -> Iterator[Loosening]:
    """Models that are gone, each with all that stood below it."""
    gone = [path for path, _ in before.places() if path not in places]
    kinds = {path: "transform" for path, _ in before.transformed()}
    kinds |= {path: "deployment" for path, _ in before.deployed()}
    checks = checks_of(before)
    for path in gone:
        names = budgets.names_of(path)
        if budgets.path_of(*names[:-1]) in gone:
            continue
        below = [other for other in gone if budgets.names_of(other)[: len(names)] == names]
        count = sum(held in below for held, _ in checks)
        kind = kinds.get(path, "model")
        text = f"budget loosened: {kind} {path} dropped with {count} limit{'s' * (count != 1)}"
        place = next(
            (at for other, at in places.items() if budgets.names_of(other)[0] == names[0]),
            budgets.Place(before.file, 1),
        )
        yield Loosening(place, path, None, None, f"{kind} dropped", count, None, text)


def _claims(before: budgets.Budget, now: budgets.Budget, places: Mapping[str, budgets.Place]) -> Iterator[Loosening]:
    """Claims about the outputs of transforms that are no longer made, or are weaker ones."""
    today = dict(now.claims())
    for path, claim in before.claims():
        same = today.get(path)
        if path not in places or same == claim:
            continue
        kinds = claim.kind.value, same.kind.value if same else None
        if same is None:
            what, words = "claim removed", f"equivalence of {path} removed, was {kinds[0]}"
        elif same.is_weaker_than(claim):
            what, words = "claim weakened", f"equivalence of {path} asks for less"
            if kinds[0] != kinds[1]:
                words = f"equivalence of {path} {kinds[0]} -> {kinds[1]}"
            elif claim.given not in (None, same.given):
                words = f"equivalence of {path} is held on other inputs than {claim.given.text}"
        else:
            continue
        yield Loosening(
            places[path], path, budgets.EQUIVALENCE, budgets.EQUIVALENCE, what, *kinds, f"budget loosened: {words}"
        )


def _fitting(before: budgets.Budget, now: budgets.Budget, places: Mapping[str, budgets.Place]) -> Iterator[Loosening]:
    """Deployments that need no longer fit."""
    today = dict(now.fitting())
    for path, _ in before.fitting():
        if path in places and path not in today:
            text = f"budget loosened: {budgets.FITS} of {path} removed"
            yield Loosening(places[path], path, budgets.FITS, budgets.FITS, "fits removed", "true", None, text)


def _of_one(subject: _Subject, before: budgets.AnyLimit, now: budgets.AnyLimit | None) -> Iterator[Loosening]:
    """Compare one limit with what it was; None is a limit that is gone."""
    if now is None:
        was = "a limit on operations"
        if isinstance(before, budgets.Limit):  # as its file spells it, where it is a quantity
            was = before.written or f"grow {percentage(before.grow or Fraction())}"
        yield subject.lost("metric removed", was, None, f"{before.name} removed, was {was}")
        return
    subject = replace(subject, place=now.place)
    if before.level is budgets.Level.ERROR and now.level is budgets.Level.WARN:
        yield subject.lost("level lowered", "error", "warn", f"level of {before.name} error -> warn")
    for op in now.allow_unmeasured:
        if op not in before.allow_unmeasured:
            yield subject.lost("op newly allowed", None, op, f"{before.name} accepts {op} unmeasured")
    if isinstance(before, budgets.Limit) and isinstance(now, budgets.Limit):
        yield from _of_limit(subject, before, now)
    elif isinstance(before, budgets.OpsLimit) and isinstance(now, budgets.OpsLimit):
        yield from _of_ops(subject, before, now)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The limit that is spoken of, and where it stands today."""

    path: str
    limit: budgets.AnyLimit
    place: budgets.Place
    metrics: Mapping[str, Metric]

    def lost(self, what: str, before: LimitSetting, after: LimitSetting, words: str) -> Loosening:
        """Something that is no longer asked."""
        name, metric, text = self.limit.name, self.limit.metric, f"budget loosened: {words}"
        return Loosening(self.place, self.path, name, metric, what, before, after, text)

    def moved(self, what: str, before: Number, after: Number, end: str = "", texts: Texts | None = None) -> Loosening:
        """A bound that moved: "budget loosened +14.3 %: params 3.5 M -> 4.0 M"."""
        share = Fraction(after - before) / Fraction(before) if before else None
        percent = None if share is None else f"{'+' if share > 0 else ''}{percentage(share)[:-1]}"
        metric = self.metrics.get(self.limit.metric)
        first, second = texts or readable_pair(before, after, metric.unit if metric else "op")
        by, name = f" {percent} %" if percent else "", self.limit.name
        text = f"budget loosened{by}: {f'{name} {end}'.rstrip()} {first} -> {second}"
        return Loosening(self.place, self.path, name, self.limit.metric, what, before, after, text, percent)


def _of_limit(subject: _Subject, before: budgets.Limit, now: budgets.Limit) -> Iterator[Loosening]:
    texts = {"max": (before.written, now.written), "min": None}
    for end, moved, way in (("max", "raised", 1), ("min", "lowered", -1)):
        was, value = getattr(before, end), getattr(now, end)
        if was is not None and value is None:
            after = AUTO if end in now.auto else None
            yield subject.lost(f"{end} removed", was, after, f"{end} of {now.name} {'is auto' if after else 'removed'}")
        elif was is not None and way * value > way * was:
            yield subject.moved(f"{end} {moved}", was, value, "" if end == "max" else end, texts[end])
    if before.grow is not None and now.grow is None:
        words = f"grow of {before.name} removed, was {percentage(before.grow)}"
        yield subject.lost("grow removed", before.grow, None, words)
    elif before.grow is not None and now.grow is not None:
        if now.grow > before.grow:
            shares = percentage(before.grow), percentage(now.grow)
            yield subject.moved("grow raised", before.grow, now.grow, "grow", shares)
        if now.floor > before.floor:
            yield subject.moved("floor raised", before.floor, now.floor, "floor")
    yield from _of_exception(subject, before.accept, now.accept)


def _of_exception(
    subject: _Subject, before: budgets.Acceptance | None, now: budgets.Acceptance | None
) -> Iterator[Loosening]:
    """Compare an exception with what it was: another one, a larger amount, or a later day."""
    if now is None:
        return
    added, raised, prolonged = GRANTS
    subject, name = replace(subject, place=now.place), subject.limit.name
    if before is None or before.end != now.end:
        yield subject.lost(added, before.written if before else None, now.written, f"{name} {now.words}")
        return
    if now.to != before.to and (now.to < before.to) == (now.end == "min"):
        words = f"{name} accepted to {before.written} -> {now.written}: {now.reason}"
        yield subject.lost(raised, before.written, now.written, words)
    if now.until > before.until:
        words = f"{name} accepted until {before.until} -> {now.until}: {now.reason}"
        yield subject.lost(prolonged, str(before.until), str(now.until), words)


def _of_ops(subject: _Subject, before: budgets.OpsLimit, now: budgets.OpsLimit) -> Iterator[Loosening]:
    if before.allow is not None and now.allow is None:
        yield subject.lost("op newly allowed", ", ".join(before.allow), None, "any operation is allowed")
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

# {"dtype": {"": "bfloat16"}, "kwargs": {"width": "0.5"}}: the values of a key, by name where it is a mapping.
Declared = dict[str, dict[str, str]]
BothTexts = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Redefinition:
    """One key of a model, or of a transform, that says something else than it did.

    place is where it stands today, or what it was said of where nothing is left of it. what is the key ("inputs",
    "tile"), "source" for where a model comes from, "transform" for another one. before and after are as a budget may
    spell them, of a mapping only what differs; None is nothing.
    """

    place: budgets.Place
    path: str
    what: str
    before: str | None
    after: str | None
    text: str


def redefinitions(
    before: budgets.Budget, now: budgets.Budget | None, transforms: Mapping[str, Transform]
) -> tuple[Redefinition, ...]:
    """List what limits that stay are held on instead, in the order of today's file.

    transforms is the table that both files were read by. What a model says for itself and its
    variants stands there once.
    """
    if now is None:
        return ()
    models = {model.path: model for model in before.models}
    checks = dict(before.transformed())
    held = {path for path, _ in checks_of(before) & checks_of(now)}
    known: dict[tuple[str, budgets.Place, str], Redefinition] = {}
    for model in now.models:
        was = models.get(model.path)
        changed = (
            *_of_model(was, model, held),
            *_of_runs(was, model),
            *_of_transforms(checks, model, held, transforms),
            *_of_deployments(dict(before.deployed()), model, held),
        )
        for change in changed:
            key = model.name, change.place, change.text
            known[key] = replace(change, path=model.name) if key in known else change
    return tuple(known.values())


def checks_of(budget: budgets.Budget) -> set[tuple[str, str]]:
    """The path and the name of all that a file holds."""
    claims = {(path, budgets.EQUIVALENCE) for path, _ in budget.claims()}
    fitting = {(path, budgets.FITS) for path, _ in budget.fitting()}
    return claims | fitting | {held.check for held in budget.held()}


def _of_model(was: budgets.ModelBudget | None, now: budgets.ModelBudget, held: set[str]) -> Iterator[Redefinition]:
    """Compare what a model declares, where it, a transform of it or a deployment is held to something."""
    changed = (budgets.path_of(now.path, check.name) for check in now.transforms)
    if was is None or not held & {now.path, *changed, *dict(now.deployed())}:
        return
    for key, texts in _changes(source_texts(was.source), source_texts(now.source)):
        yield _redefined("model", now.path, key, texts, now.declared_at.get(key, now.declared_at["source"]))


def _of_runs(was: budgets.ModelBudget | None, now: budgets.ModelBudget) -> Iterator[Redefinition]:
    """Compare on which layers, inputs and calls limits are held that only a run can tell."""
    earlier = {check.keys: check.held_on for check in (was.run_checks if was else ())}
    for check in now.run_checks:
        before, after = earlier.get(check.keys, check.held_on), check.held_on
        for key in after:
            if before[key] != after[key]:
                texts = _shortened(before[key] or None, after[key] or None)
                yield _redefined(" ".join(check.keys), now.path, key, texts, check.place)


def _of_transforms(
    earlier: Mapping[str, budgets.TransformCheck],
    model: budgets.ModelBudget,
    held: set[str],
    known: Mapping[str, Transform],
) -> Iterator[Redefinition]:
    """Compare a model's transforms, held themselves or on devices.

    A variant may have stood in a transform's place, or the other way round.
    """
    for now in model.transforms:
        path, place = budgets.path_of(model.path, now.name), now.declared_at["transform"]
        was, transform = earlier.get(path), known[now.transform]
        if not held & {path, *(budgets.path_of(path, check.name) for check in now.deployments)}:
            continue
        if was is None or was.transform != now.transform:
            yield _redefined("transform", path, "transform", (was.transform if was else None, now.transform), place)
        else:
            for key, texts in _changes(settings_texts(was, transform), settings_texts(now, transform)):
                yield _redefined("transform", path, key, texts, now.declared_at.get(key, place))
    if model.path in held and model.path in earlier:
        yield _redefined("transform", model.path, "transform", (earlier[model.path].transform, None), model.place)


def _of_deployments(
    earlier: Mapping[str, budgets.DeploymentCheck], model: budgets.ModelBudget, held: set[str]
) -> Iterator[Redefinition]:
    """Compare devices, figure by figure, and what their compilers do."""
    for path, now in model.deployed():
        was = earlier.get(path)
        if path not in held:
            continue
        if was is None:  # a transform or a variant stood in its place
            yield _redefined("deployment", path, "deployment", (None, now.deployment.device.name), now.place)
            continue
        for key, texts in _changes(deployment_texts(was.deployment), deployment_texts(now.deployment)):
            yield _redefined("deployment", path, key, texts, now.declared_at.get(key, now.place))


def _redefined(kind: str, path: str, what: str, texts: BothTexts, place: budgets.Place) -> Redefinition:
    """One key in words: "model changed: dtype none -> bfloat16: its limits are held ..."."""
    key = "" if what == kind else f" {what}"
    before, after = (text or "none" for text in texts)
    return Redefinition(place, path, what, *texts, f"{kind} changed:{key} {before} -> {after}: {ELSE}")


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
    named = (f"{name if name.isprintable() else json.dumps(name)}: {text}" for name, text in unlike.items())
    return f"{{{', '.join(named)}}}"


def _shortened(*texts: str | None) -> BothTexts:
    """Two texts as they are, or from shortly before where they part if one of them is long."""
    start = 0
    if max(len(text or "") for text in texts) > LONGEST:
        start = max(0, len(posixpath.commonprefix([text or "" for text in texts])) - LEAD)
    end, lead = start + LONGEST, "…" if start else ""
    first, second = (text and f"{lead}{text[start:end]}{'…' if len(text) > end else ''}" for text in texts)
    return first, second
