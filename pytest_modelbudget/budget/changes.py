"""A pure comparison of two budgets and their locks: what the later ones make easier to keep, or redefine."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Union

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.deployment_forms import deployment_texts
from pytest_modelbudget.budget.kinds import KINDS, Loosening, Lost, compare_exceptions
from pytest_modelbudget.budget.lock_file import Lock, LockedValue
from pytest_modelbudget.budget.source_forms import source_texts
from pytest_modelbudget.budget.transform_forms import settings_texts
from pytest_modelbudget.metrics.measured_model import Deployment
from pytest_modelbudget.metrics.measurement import Metric
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.units import readable, readable_pair, several

CheckKey = tuple[str, str]  # the model's path in its file, and the check's name
Subject = budgets.Subject[Any]
LockedOf = Callable[[str, str], Union[LockedValue, None]]


def loosenings(
    before: budgets.Budget, now: budgets.Budget | None, metrics: Mapping[str, Metric]
) -> tuple[Loosening, ...]:
    """List what ``now`` asks less than ``before``, kind by kind; then exceptions to new limits."""
    is_lifted = now and before.loosen is budgets.Loosen.FORBID and now.loosen is not budgets.Loosen.FORBID
    now = now or budgets.Budget(before.file, ())
    places = {path: subject.place for path, _, subject in now.subjects()}
    known, today = ({held.key: held.check for held in budget.held()} for budget in (before, now))
    changes = [*_dropped(before, places), *_unshipped(before, now)]
    for kind, row in KINDS.items():
        for (path, name), check in known.items():
            if check.kind == kind and path in places:
                changes.extend(row.compare(Lost(path, check, places[path], metrics), check, today.get((path, name))))
    for (path, name), check in today.items():
        if (path, name) not in known and isinstance(check, budgets.Limit):
            changes.extend(compare_exceptions(Lost(path, check, check.place, metrics), None, check.waiver))
    if is_lifted:
        what, text = "loosen removed", "budget loosened: loosen: forbid is gone"
        words = before.loosen.value, now.loosen.value
        changes.append(Loosening(budgets.Place(before.file, 1), "", None, None, what, *words, text))
    return tuple(changes)


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
    limits = ((held.key, held.check) for held in budget.held() if held.check.kind in budgets.LOCKED)
    known = [(key, limit, before) for key, limit in limits if (before := at_base(*key)) is not None]
    if lock is None:
        if not known:
            return
        text = f"budget loosened: {file} is gone, or cannot be read, with {several(len(known), 'baseline')}"
        yield Loosening(budgets.Place(budget.file, 1), "", None, None, "lock removed", len(known), None, text)
        return
    for key, limit, before in known:
        now, today, subject = lock.value(*key), measured.get(key), Lost(key[0], limit, limit.place, metrics)
        is_least = isinstance(limit, budgets.Limit) and limit.max is None and limit.grow is None and not limit.auto
        way, moved = (-1, "lowered") if is_least else (1, "raised")
        if now is None or now.unit != before.unit:
            was = readable(before.value, before.unit)
            yield subject.lost("baseline removed", before.value, None, f"{limit.name} baseline removed, was {was}")
        elif way * now.value > way * before.value and (
            today is None or key in accepted or way * now.value > way * today.value
        ):
            seen = f"{readable_pair(now.value, today.value, today.unit)[1]} measured" if today else "not measured here"
            change = subject.moved(f"baseline {moved}", before.value, now.value, f"baseline {moved}")
            yield replace(change, text=f"{change.text} ({seen})")


def _dropped(before: budgets.Budget, places: Mapping[str, budgets.Place]) -> Iterator[Loosening]:
    """Models that are gone, each with all its parts; then transforms and deployments."""
    gone = {path: subject for path, _, subject in before.subjects() if path not in places}
    kinds = (budgets.WHOLE, budgets.CHANGED, budgets.DEPLOYED)
    for path, subject in sorted(gone.items(), key=lambda each: kinds.index(each[1].kind)):
        names = budgets.names_of(path)
        if budgets.path_of(*names[:-1]) in gone:
            continue
        below = [other for other in gone if budgets.names_of(other)[: len(names)] == names]
        count, kind = len({held.key for held in before.held() if held.path in below}), subject.kind
        text = f"budget loosened: {kind} {path} dropped with {count} limit{'s' * (count != 1)}"
        place = next(
            (at for other, at in places.items() if budgets.names_of(other)[0] == names[0]),
            budgets.Place(before.file, 1),
        )
        yield Loosening(place, path, None, None, f"{kind} dropped", count, None, text)


def _unshipped(before: budgets.Budget, now: budgets.Budget) -> Iterator[Loosening]:
    """Files that transforms are no longer compared with."""
    today = {path: subject for path, _, subject in now.subjects() if not getattr(subject.made, "shipped", None)}
    for path, _, subject in before.subjects():
        if path in today and (was := getattr(subject.made, "shipped", None)):
            text = f"budget loosened: shipped of {path} removed, was {was[0]}"
            yield Loosening(today[path].place, path, None, None, "shipped removed", was[0], None, text)


LONGEST, LEAD = 60, 10  # characters of a text that are shown, and those of them that are the same
ELSE = "its limits now apply to a different model"

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
    """List what unchanged limits apply to instead, in the order of today's file.

    transforms is the table that both files were read by. What a model says for itself and its
    variants stands there once.
    """
    if now is None:
        return ()
    earlier = {path: subject for path, _, subject in before.subjects()}
    kept = {each.key for each in before.held()} & {each.key for each in now.held()}
    held = {path for path, _ in kept}
    known: dict[tuple[str, budgets.Place, str], Redefinition] = {}
    for model in now.models:
        for path, _, subject in model.walk(model.path, ()):
            below = {each.path for each in subject.walk(path, ())}
            was = earlier.get(path)
            changed = [*_of_subject(path, was, subject, transforms)] if held & below else []
            for change in (*changed, *_of_runs(path, was, subject)):
                key = model.name, change.place, change.text
                known[key] = replace(change, path=model.name) if key in known else change
    return tuple(known.values())


def _of_subject(
    path: str, was: Subject | None, now: Subject, transforms: Mapping[str, Transform]
) -> Iterator[Redefinition]:
    """Compare what a subject is made of; a variant may have stood in a transform's place, or the other way round."""
    old, new = (_name_of(was) if was and was.kind == now.kind else None), _name_of(now)
    if now.kind == budgets.WHOLE and was is not None and was.kind == budgets.CHANGED:
        yield _redefined(was.kind, path, was.kind, (_name_of(was), None), now.place)
    elif old is None or (now.kind == budgets.CHANGED and old != new):
        if now.kind != budgets.WHOLE:
            yield _redefined(now.kind, path, now.kind, (old, new), now.place_of())
    elif was is not None:
        for key, texts in _changes(_texts(was, transforms), _texts(now, transforms)):
            yield _redefined(now.kind, path, key, texts, now.place_of(key))


def _name_of(subject: Subject) -> str:
    """The word for what a subject is made of: its transform, or its device."""
    made = subject.made
    if isinstance(made, budgets.Transformation):
        return made.transform
    return made.device.name if isinstance(made, Deployment) else ""


def _texts(subject: Subject, transforms: Mapping[str, Transform]) -> Declared:
    """What a subject is made of, as a budget may spell it."""
    made = subject.made
    if isinstance(made, budgets.Transformation):
        return settings_texts(made, transforms)
    return deployment_texts(made) if isinstance(made, Deployment) else source_texts(made)


def _of_runs(path: str, was: Subject | None, now: Subject) -> Iterator[Redefinition]:
    """Compare the layers, inputs and calls of limits that need a run."""
    earlier = {run.title: run.texts for run in _runs(was)} if was else {}
    for run in _runs(now):
        before, after = earlier.get(run.title, run.texts), run.texts
        for key in after:
            if before[key] != after[key]:
                texts = _shortened(before[key] or None, after[key] or None)
                yield _redefined(run.title, path, key, texts, run.place)


def _runs(subject: Subject) -> Iterable[budgets.ValuesRun | budgets.TimedRun]:
    runs = (check.run for check in subject.checks if isinstance(check, budgets.Limit))
    return {run.title: run for run in runs if run is not None}.values()


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
