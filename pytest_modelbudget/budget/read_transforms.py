"""``transforms:`` of a model: one transform each, the claim it is held to, and limits after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import cast

from pytest_modelbudget.budget.budget import AnyLimit, EquivalenceCheck, Place, TransformCheck
from pytest_modelbudget.budget.grammar import CLAIM, OUTPUT, settings_grammar, transform_grammar
from pytest_modelbudget.budget.read_source import read_second_source
from pytest_modelbudget.budget.reading import Entry, Reading, flag, integer, plain_value, scalar
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, shown, suggestion
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.formats.source import ModelSource, names_attribute
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform

SHARES = (Bound.COSINE, Bound.TOP1)  # which no output has more of than 1
UNDECIDED = "declares no bound: give one, such as sqnr: 30 or max_abs: 1e-3"


def read_equivalence(
    entry: Entry, transform: Transform, reading: Reading
) -> EquivalenceCheck | None:
    """A kind alone, or {kind, seeds, batch, bounds}."""
    if not isinstance(entry.value, Block):
        kind = _kind(entry.value, reading)
        claim = Claim(kind) if kind is not None else None
    else:
        claim = _claim(entry, reading)
    if claim is None:
        return None
    has_bounds = bool(claim.bounds or claim.of_output)
    if claim.kind is Kind.EXACT_ALGEBRA and has_bounds:
        message = "exact_algebra has a criterion of its own: bounds belong to lossy and custom"
        reading.refuse(entry.key.place, message)
    brings_bounds = claim.kind is Kind.LOSSY and transform.claims is Kind.LOSSY
    if claim.kind is not Kind.EXACT_ALGEBRA and not has_bounds and not brings_bounds:
        reading.refuse(entry.key.place, f"'{claim.kind.value}' {UNDECIDED}")
    return EquivalenceCheck(entry.key.place, claim)


def _claim(entry: Entry, reading: Reading) -> Claim | None:
    given = reading.fields(entry.value, CLAIM)
    kind = _kind(given["kind"].value, reading) if "kind" in given else None
    if kind is None:
        return None
    return Claim(
        kind,
        _bounds(given, reading),
        _outputs(given, reading),
        seeds=_numbers(given, "seeds", reading, least=0) or SEEDS,
        batches=_numbers(given, "batch", reading, least=1),
        same_non_finite="same_non_finite" in given
        and flag(given["same_non_finite"].value, "same_non_finite", reading) is True,
    )


def _kind(node: Node, reading: Reading) -> Kind | None:
    kinds = [kind.value for kind in Kind]
    text = reading.text(node, f"a kind of claim: {', '.join(kinds)}")
    if text is None:
        return None
    if text.text in kinds:
        return Kind(text.text)
    guess = suggestion(text.text, kinds)
    reading.refuse(text.place, f"{shown(text.text)} is no kind of claim: {guess}")
    return None


def _bounds(given: Mapping[str, Entry], reading: Reading) -> dict[Bound, Fraction]:
    found = {
        bound: _number(bound, given[bound.value].value, reading)
        for bound in Bound
        if bound.value in given
    }
    return {bound: number for bound, number in found.items() if number is not None}


def _outputs(given: Mapping[str, Entry], reading: Reading) -> dict[str, Mapping[Bound, Fraction]]:
    if "outputs" not in given:
        return {}
    entries = reading.named(given["outputs"].value, "outputs: a mapping of names to bounds")
    return {
        entry.key.text: _bounds(reading.fields(entry.value, OUTPUT), reading) for entry in entries
    }


def _number(bound: Bound, node: Node, reading: Reading) -> Fraction | None:
    text = reading.text(node, wanted_for(bound))
    if text is None:
        return None
    number = amount_of(bound, text.text)
    if number is None:
        reading.refuse(text.place, f"expected {wanted_for(bound)}, found {shown(text.text)}")
    return number


def wanted_for(bound: Bound) -> str:
    """What may be written for a bound."""
    return "a number from 0 to 1" if bound in SHARES else "a number such as 1e-3"


def amount_of(bound: Bound, written: str) -> Fraction | None:
    """A decimal number, or a percentage, exactly; None where the bound can be no such thing."""
    digits = written.strip()
    try:
        number = Decimal(digits.removesuffix("%"))
    except InvalidOperation:
        return None
    if not number.is_finite() or number < 0 or abs(number.adjusted()) > 300:
        return None
    amount = Fraction(number) / (100 if digits.endswith("%") else 1)
    return None if bound in SHARES and amount > 1 else amount


def _numbers(
    given: Mapping[str, Entry], key: str, reading: Reading, *, least: int
) -> tuple[int, ...]:
    if key not in given:
        return ()
    items = reading.items(given[key].value, f"{key}: a list of whole numbers")
    if isinstance(given[key].value, Listing) and not items:
        reading.refuse(given[key].value.place, f"{key} is empty: name at least one")
    found = [integer(item, f"{key}: a whole number", reading) for item in items]
    for item, number in zip(items, found, strict=True):
        if number is not None and not least <= number < 2**31:
            reading.refuse(item.place, f"{key} of {number}: it must be at least {least}")
    return tuple(dict.fromkeys(number for number in found if number is not None))


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
    if source is not None and not transform.takes(reading.front_ends[source.format]):
        formats = ", ".join(f.key for f in reading.front_ends.values() if transform.takes(f))
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


_WORD = re.compile(r"[A-Za-z_./][\w./:+-]*")


def setting_text(setting: Setting, value: object) -> str:
    """The value of a setting: "64", "[32, 64]", "ragged", '["head.*"]'."""
    if setting.form is SettingForm.TILE:
        return _tile_text(setting, cast("tuple[int | None, int, int]", value))
    return plain_text(value)


def _tile_text(setting: Setting, tile: tuple[int | None, int, int]) -> str:
    """(m, k, n) as the one number that is k and n, or as a size for each of the setting's axes."""
    m, k, n = tile
    if m is None and k == n:
        return str(k)
    sizes = dict(zip("mkn", tile, strict=True))
    return plain_text([sizes[axis] for axis in setting.axes])


def plain_text(value: object) -> str:
    """A plain value; 1, 1.0, true and "1" are four, and the order of keys is none of it."""
    if isinstance(value, str) and _WORD.fullmatch(value) and scalar(value) == value:
        return value
    return json.dumps(value, sort_keys=True)
