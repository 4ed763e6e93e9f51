"""What a change to a budget file holds limits on instead: a pure comparison of two budgets.

A smaller input, a narrower model or a larger tile may make a limit easier to keep, or harder: which
of the two is not guessed, and every one is told. Values are compared, not how a file spells them.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_modelbudget.budget.budget import (
    EQUIVALENCE,
    Budget,
    ModelBudget,
    Place,
    TransformCheck,
)
from pytest_modelbudget.budget.write_inputs import positional_text, spec_text
from pytest_modelbudget.budget.write_settings import plain_text, setting_text
from pytest_modelbudget.frontends.model_source import ModelSource
from pytest_modelbudget.transforms.transform import Setting, Transform

LONGEST, LEAD = 60, 10  # characters of a text that are shown, and those of them that are the same
ELSE = "its limits are held on something else"

# {"dtype": {"": "bfloat16"}, "kwargs": {"width": "0.5"}}: the values of a key, by name where it
# is a mapping.
Declared = dict[str, dict[str, str]]
Texts = tuple[str | None, str | None]


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


def redefinitions(
    before: Budget, now: Budget | None, transforms: Mapping[str, Transform]
) -> tuple[Redefinition, ...]:
    """What limits that stay are held on instead, in the order of today's file.

    transforms is the table that both files were read by. What a model says for itself and its
    variants is told once.
    """
    if now is None:
        return ()
    models = {model.path: model for model in before.models}
    checks = dict(before.transformed())
    held = {path for path, _ in _checks(before) & _checks(now)}
    found: dict[tuple[str, Place, str], Redefinition] = {}
    for model in now.models:
        changed = _of_model(models.get(model.path), model, held)
        for each in (*changed, *_of_transforms(checks, model, held, transforms)):
            key = model.name, each.place, each.text
            found[key] = replace(each, path=model.name) if key in found else each
    return tuple(found.values())


def _checks(budget: Budget) -> set[tuple[str, str]]:
    """The path and the name of all that a file holds."""
    claims = {(path, EQUIVALENCE) for path, _ in budget.claims()}
    return claims | {held.check for held in budget.held()}


def _of_model(was: ModelBudget | None, now: ModelBudget, held: set[str]) -> Iterator[Redefinition]:
    """What a model declares differently, where it or a transform of it is held to something."""
    if was is None or not held & {now.path, *_transforms(now)}:
        return
    for key, texts in _changes(_of_source(was.source), _of_source(now.source)):
        place = now.declared_at.get(key, now.declared_at["source"])
        yield _told("model", now.path, key, texts, place)


def _of_transforms(
    earlier: Mapping[str, TransformCheck],
    now: ModelBudget,
    held: set[str],
    known: Mapping[str, Transform],
) -> Iterator[Redefinition]:
    """What a model's transforms do differently; a variant may stand in a transform's place."""
    for path, check in _transforms(now).items():
        if path in held:
            yield from _of_transform(earlier.get(path), check, path, known)
    if now.path in held and now.path in earlier:
        before = earlier[now.path].transform
        yield _told("transform", now.path, "transform", (before, None), now.place)


def _transforms(model: ModelBudget) -> dict[str, TransformCheck]:
    return {f"{model.path}::{check.name}": check for check in model.transforms}


def _of_transform(
    was: TransformCheck | None, now: TransformCheck, path: str, known: Mapping[str, Transform]
) -> Iterator[Redefinition]:
    """What one transform does differently; None is a variant that stood in its place."""
    place = now.declared_at["transform"]
    if was is None or was.transform != now.transform:
        before = was.transform if was else None
        yield _told("transform", path, "transform", (before, now.transform), place)
        return
    transform = known[now.transform]
    for key, texts in _changes(_of_settings(was, transform), _of_settings(now, transform)):
        yield _told("transform", path, key, texts, now.declared_at.get(key, place))


def _told(kind: str, path: str, what: str, texts: Texts, place: Place) -> Redefinition:
    """One key in words: "model changed: dtype none -> bfloat16: its limits are held ..."."""
    key = "" if what == kind else f" {what}"
    before, after = (text or "none" for text in texts)
    return Redefinition(
        place, path, what, *texts, f"{kind} changed:{key} {before} -> {after}: {ELSE}"
    )


# What differs.


def _changes(before: Declared, now: Declared) -> Iterator[tuple[str, Texts]]:
    """Every key whose values are others, with those values."""
    for key in dict.fromkeys((*before, *now)):
        first, second = before.get(key, {}), now.get(key, {})
        if first != second:
            yield key, _shortened(_unlike(first, second), _unlike(second, first))


def _unlike(values: Mapping[str, str], others: Mapping[str, str]) -> str | None:
    """The values that others have not: "0.5", or "{width: 0.5}" of a mapping."""
    told = {name: text for name, text in values.items() if others.get(name) != text}
    if not told or "" in told:
        return told.get("")
    named = (f"{_printable(name)}: {text}" for name, text in told.items())
    return f"{{{', '.join(named)}}}"


def _shortened(*texts: str | None) -> Texts:
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


# What is declared.


def _of_source(source: ModelSource) -> Declared:
    """All that a budget says of where a model comes from and what it is run on."""
    inputs = source.inputs
    by_name = {name: spec_text(spec) for name, spec in inputs.named.items()}
    return {
        "source": {"": f"{source.format} {posixpath.normpath(str(source.target))}"},
        "args": {"": plain_text(list(source.args))} if source.args else {},
        "kwargs": {name: plain_text(value) for name, value in source.kwargs.items()},
        "inputs": {"": positional_text(inputs.positional)} if inputs.positional else by_name,
        "dtype": {"": source.dtype} if source.dtype else {},
        "dims": {symbol: str(size) for symbol, size in source.dims.items()},
    }


def _of_settings(check: TransformCheck, transform: Transform) -> Declared:
    settings = (transform.whole,) if transform.whole else transform.settings
    return {each.key: _of_setting(each, check.settings[each.key]) for each in settings}


def _of_setting(setting: Setting, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, ModelSource):
        return {
            f"{key} {name}".rstrip(): text
            for key, texts in _of_source(value).items()
            for name, text in texts.items()
        }
    if isinstance(value, Mapping):
        return {name: plain_text(each) for name, each in value.items()}
    return {"": setting_text(setting, value)}


def _printable(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)
