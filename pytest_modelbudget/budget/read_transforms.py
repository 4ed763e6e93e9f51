"""``transforms:`` of a model: one transform each, the claim it is held to, and limits after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_modelbudget.budget.budget import AnyLimit, Place, TransformCheck
from pytest_modelbudget.budget.plain_values import flag, integer, plain_value
from pytest_modelbudget.budget.problem import shown, suggestion
from pytest_modelbudget.budget.read_claims import read_equivalence
from pytest_modelbudget.budget.read_sources import read_second_source
from pytest_modelbudget.budget.reading import Entry, Reading
from pytest_modelbudget.budget.transform_grammar import (
    settings_grammar,
    transform_grammar,
)
from pytest_modelbudget.budget.yaml_nodes import Block, Listing, Node
from pytest_modelbudget.frontends.model_source import ModelSource, names_attribute
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform

ReadLimits = Callable[[Mapping[str, Entry], Reading], tuple[AnyLimit, ...]]
LARGEST_TILE = 2**31


def read_transform(
    entry: Entry, source: ModelSource | None, read_limits: ReadLimits, reading: Reading
) -> TransformCheck | None:
    """One entry under transforms; read_limits reads its limits and scopes."""
    given = reading.fields(entry.value, transform_grammar(reading.transforms))
    if not isinstance(entry.value, Block):
        return None
    keys = [key for key in given if key in reading.transforms]
    if len(keys) != 1:
        _refuse_transforms(entry, keys, given, reading)
        return None
    if not {"equivalence", "limits", "scopes"} & given.keys():
        message = f"the transform {shown(entry.key.text)} holds nothing: give equivalence or limits"
        reading.refuse(entry.key.place, message)
    transform = reading.transforms[keys[0]]
    if source is not None and source.format not in transform.engines:
        formats = ", ".join(transform.engines)
        message = f"'{transform.key}' knows models under {formats}, not under {source.format}"
        reading.refuse(given[keys[0]].key.place, message)
    settings, declared_at = _settings(given[keys[0]], transform, reading)
    equivalence = None
    if "equivalence" in given:
        equivalence = read_equivalence(given["equivalence"], transform, reading)
    return TransformCheck(
        entry.key.text,
        entry.key.place,
        transform.key,
        settings,
        equivalence,
        read_limits(given, reading),
        declared_at,
    )


def _refuse_transforms(
    entry: Entry, keys: list[str], given: Mapping[str, Entry], reading: Reading
) -> None:
    for key in keys[1:]:
        message = f"'{key}' is a second transform beside '{keys[0]}': give each a name of its own"
        reading.refuse(given[key].key.place, message)
    if not keys:
        known = ", ".join(reading.transforms)
        message = f"{shown(entry.key.text)} does not say what is done: give one of {known}"
        reading.refuse(entry.key.place, message)


# Settings.


def _settings(
    entry: Entry, transform: Transform, reading: Reading
) -> tuple[dict[str, object], dict[str, Place]]:
    """Every setting, those that are not given at their defaults, and where the file says which."""
    places = {"transform": entry.key.place}
    if transform.whole is not None:
        return {transform.whole.key: _value(entry.value, transform.whole, reading)}, places
    given = reading.fields(entry.value, settings_grammar(transform))
    settings = {
        each.key: _value(given[each.key].value, each, reading)
        if each.key in given
        else each.default
        for each in transform.settings
    }
    return settings, {**places, **{key: each.key.place for key, each in given.items()}}


def _value(node: Node, setting: Setting, reading: Reading) -> object:
    read: Mapping[SettingForm, Callable[[Node, Setting, Reading], object]] = {
        SettingForm.TILE: _tile,
        SettingForm.WORD: _word,
        SettingForm.GLOBS: _globs,
        SettingForm.INTEGER: lambda node, setting, reading: _whole(node, setting.key, reading),
        SettingForm.FLAG: lambda node, setting, reading: flag(node, setting.key, reading),
        SettingForm.TARGET: _target,
        SettingForm.VALUES: lambda node, setting, reading: plain_value(node, reading),
        SettingForm.SOURCE: lambda node, setting, reading: read_second_source(node, reading),
    }
    return read[setting.form](node, setting, reading)


def _whole(node: Node, key: str, reading: Reading) -> int | None:
    return integer(node, f"{key}: a whole number", reading)


def _size(node: Node, reading: Reading) -> int | None:
    size = integer(node, "a size: a whole number", reading)
    if size is not None and not 0 < size <= LARGEST_TILE:
        reading.refuse(node.place, f"a tile of {size}: it must be at least 1")
        return None
    return size


def _tile(node: Node, setting: Setting, reading: Reading) -> tuple[int | None, ...] | None:
    """(m, k, n); one number is k and n. All rows are one tile's where m is not given."""
    if not isinstance(node, Listing):
        size = _size(node, reading)
        return None if size is None else (None, size, size)
    sizes = [_size(item, reading) for item in node.items]
    if len(sizes) != len(setting.axes):
        axes = ", ".join(setting.axes)
        reading.refuse(node.place, f"a tile of {len(sizes)} sizes: write 64, or [{axes}]")
        return None
    return tuple(dict(zip(setting.axes, sizes, strict=True)).get(axis) for axis in "mkn")


def _word(node: Node, setting: Setting, reading: Reading) -> str | None:
    text = reading.text(node, f"{setting.key}: {' or '.join(setting.words)}")
    if text is None or text.text in setting.words:
        return text.text if text else None
    guess = suggestion(text.text, setting.words)
    reading.refuse(text.place, f"{shown(text.text)} is no value of {setting.key}: {guess}")
    return None


def _globs(node: Node, setting: Setting, reading: Reading) -> tuple[str, ...]:
    items = node.items if isinstance(node, Listing) else (node,)
    if not items:
        reading.refuse(node.place, f"{setting.key} names no layer: write a glob such as head.*")
    texts = [reading.text(item, "a glob on module paths such as head.*") for item in items]
    return tuple(text.text for text in texts if text is not None)


def _target(node: Node, setting: Setting, reading: Reading) -> str | None:
    text = reading.text(node, f"{setting.key}: package.module:callable")
    if text is None or names_attribute(text.text):
        return text.text if text else None
    reading.refuse(text.place, f"{shown(text.text)} is no callable: write package.module:callable")
    return None
