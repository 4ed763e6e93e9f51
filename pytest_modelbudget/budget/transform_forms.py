"""``transforms:`` of a model: one transform each, the claim it is held to, and limits after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from pytest_modelbudget.budget.budget import EquivalenceCheck, Place, TransformCheck
from pytest_modelbudget.budget.grammar import (
    FLAG,
    RESERVED,
    Entry,
    Field,
    Form,
    Grammar,
    Reading,
    Schema,
    Texts,
    Values,
    listed,
    named,
    one_word,
    plain_text,
    plain_value,
    spelled,
    whole_number,
)
from pytest_modelbudget.budget.limit_forms import held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import SOME_TEXT, second_source
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import names_attribute
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform

# Bounds of a claim.

SHARES = (Bound.COSINE, Bound.TOP1)  # which no output has more of than 1
BOUNDS: Mapping[Bound, str] = {
    Bound.MAX_ABS: "largest absolute error of an element",
    Bound.MSE: "largest mean squared error",
    Bound.SQNR: "least signal-to-quantisation-noise ratio, in dB",
    Bound.COSINE: "least cosine between the outputs",
    Bound.TOP1: "least share of rows whose largest element is the same one",
    Bound.P99_ABS: "largest absolute error of 99 % of the elements",
}


def wanted_for(bound: Bound) -> str:
    """The words for what may be written for a bound."""
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


def _number(bound: Bound) -> Form[Fraction]:
    wanted = wanted_for(bound)

    def meaning(word: Text, key: str, reading: Reading) -> Fraction:
        number = amount_of(bound, word.text)
        if number is None:
            raise BudgetError(f"expected {wanted}, found {shown(word.text)}")
        return number

    pattern = {"type": "string", "pattern": r"^[0-9.]+([eE][-+]?[0-9]+)?%?$"}
    return spelled(wanted, meaning, {"anyOf": [{"type": "number"}, pattern]}, "number")


def _bounds(values: Values, reading: Reading) -> dict[Bound, Fraction]:
    return {bound: values[bound.value] for bound in Bound if values[bound.value] is not None}


BOUND_FIELDS = tuple(Field(bound.value, _number(bound), about) for bound, about in BOUNDS.items())
OUTPUT_GRAMMAR = Grammar("the bounds of an output", BOUND_FIELDS)
OUTPUT = OUTPUT_GRAMMAR.form(_bounds, "output")
OUTPUTS = named(OUTPUT, "outputs: a mapping of names to bounds", names={"minLength": 1}, name="output_bounds")


# Claims.


def _whole_numbers(least: int) -> Form[tuple[int, ...]]:
    return listed(
        whole_number(least=least, most=2**31 - 1, refusal=f"{{key}} of {{number}}: it must be at least {least}"),
        "{key}: a list of whole numbers",
        empty="{key} is empty: name at least one",
        name="whole_numbers",
    )


_KINDS = [kind.value for kind in Kind]
KIND = one_word(
    _KINDS, f"a kind of claim: {', '.join(_KINDS)}", "{word} is no kind of claim: {guess}", name="kind", meaning=Kind
)
SEEDS_FORM = _whole_numbers(0)
CLAIM_GRAMMAR = Grammar(
    "an equivalence",
    (
        Field("kind", KIND, "which test decides", required=True),
        Field("seeds", SEEDS_FORM, "seeds of the inputs; 0, 1 and 2", default=()),
        Field("batch", _whole_numbers(1), "sizes of the first dimension of inputs: [1, 3]", default=()),
        Field("same_non_finite", FLAG, "accept NaN and Inf at identical positions", default=False),
        *BOUND_FIELDS,
        Field("outputs", OUTPUTS, "bounds of single outputs, by name", default={}),
    ),
)


def _claim(values: Values, reading: Reading) -> Claim | None:
    return values["kind"] and Claim(
        values["kind"],
        _bounds(values, reading),
        values["outputs"],
        seeds=tuple(dict.fromkeys(values["seeds"])) or SEEDS,
        batches=tuple(dict.fromkeys(values["batch"])),
        same_non_finite=values["same_non_finite"],
    )


CLAIM = CLAIM_GRAMMAR.form(_claim)


def _read_equivalence(entry: Entry, reading: Reading) -> EquivalenceCheck | None:
    """A kind alone, or {kind, seeds, batch, bounds}."""
    if isinstance(entry.value, Block):
        claim = CLAIM.read(entry, reading)
    else:
        kind = KIND.read(entry, reading)
        claim = Claim(kind) if kind else None
    if claim and claim.kind is Kind.EXACT_ALGEBRA and (claim.bounds or claim.of_output):
        message = "exact_algebra has a criterion of its own: bounds belong to lossy and custom"
        reading.refuse(entry.place, message)
    return EquivalenceCheck(entry.place, claim) if claim else None


EQUIVALENCE = Form(_read_equivalence, {"anyOf": [KIND.reference, CLAIM.schema]}, "equivalence", uses=(KIND, CLAIM))


# Settings of a transform: the forms that stand for what transforms say of them.

LARGEST_TILE = 2**31
TILE_SIZE = whole_number(
    "a size: a whole number",
    least=1,
    most=LARGEST_TILE,
    refusal="a tile of {number}: it must be at least 1",
    schema={"type": "integer", "minimum": 1},
)


def _tile(setting: Setting) -> Form[tuple[int | None, ...]]:
    """(m, k, n); one number is k and n. All rows are one tile's where m is not given."""
    axes = setting.axes

    def read(entry: Entry, reading: Reading) -> tuple[int | None, ...] | None:
        if not isinstance(entry.value, Listing):
            size = TILE_SIZE.read(entry, reading)
            return None if size is None else (None, size, size)
        sizes = [TILE_SIZE.of(item, reading) for item in entry.value.items]
        if len(sizes) != len(axes):
            message = f"a tile of {len(sizes)} sizes: write 64, or [{', '.join(axes)}]"
            reading.refuse(entry.value.place, message)
            return None
        return tuple(dict(zip(axes, sizes, strict=True)).get(axis) for axis in "mkn")

    def text(tile: tuple[int | None, ...]) -> str:
        m, k, n = tile
        sizes = dict(zip("mkn", tile, strict=True))
        return str(k) if m is None and k == n else plain_text([sizes[axis] for axis in axes])

    count = {"minItems": len(axes), "maxItems": len(axes)}
    sizes: Schema = {"type": "array", "items": TILE_SIZE.schema, **count}
    return Form(read, {"anyOf": [TILE_SIZE.schema, sizes]}, text=text)


def _globs(setting: Setting) -> Form[tuple[str, ...]]:
    def read(entry: Entry, reading: Reading) -> tuple[str, ...]:
        node = entry.value
        items: tuple[Node, ...] = node.items if isinstance(node, Listing) else (node,)
        if not items:
            message = f"{setting.key} names no layer: write a glob such as head.*"
            reading.refuse(node.place, message)
        texts = [reading.text(item, "a glob on module paths such as head.*") for item in items]
        return tuple(text.text for text in texts if text is not None)

    several: Schema = {"type": "array", "items": SOME_TEXT, "minItems": 1}
    return Form(read, {"anyOf": [SOME_TEXT, several]})


def _callable(word: Text, key: str, reading: Reading) -> str:
    if names_attribute(word.text):
        return word.text
    raise BudgetError(f"{shown(word.text)} is no callable: write package.module:callable")


def _plain_texts(value: object) -> Texts:
    if isinstance(value, Mapping):
        return {name: plain_text(item) for name, item in value.items()}
    return {"": plain_text(value)}


SETTING_FORMS: Mapping[SettingForm, Callable[[Setting, Mapping[str, Format]], Form[Any]]] = {
    SettingForm.TILE: lambda setting, _: _tile(setting),
    SettingForm.WORD: lambda setting, _: one_word(
        setting.words, f"{{key}}: {' or '.join(setting.words)}", "{word} is no value of {key}: {guess}"
    ),
    SettingForm.GLOBS: lambda setting, _: _globs(setting),
    SettingForm.INTEGER: lambda setting, _: whole_number(),
    SettingForm.FLAG: lambda setting, _: replace(FLAG, name=""),
    SettingForm.TARGET: lambda setting, _: spelled("{key}: package.module:callable", _callable, SOME_TEXT),
    SettingForm.VALUES: lambda setting, _: Form(
        lambda entry, reading: plain_value(entry.value, reading), {"type": "object"}, texts=_plain_texts
    ),
    SettingForm.SOURCE: lambda setting, formats: second_source(formats),
}


def setting_field(setting: Setting, formats: Mapping[str, Format]) -> Field:
    """The key of one setting, under the form that the transform gives it."""
    form = SETTING_FORMS[setting.form](setting, formats)
    return Field(setting.key, form, setting.about, setting.required, setting.default)


def settings_grammar(transform: Transform, formats: Mapping[str, Format]) -> Grammar:
    """The settings of one transform."""
    fields = tuple(setting_field(setting, formats) for setting in transform.settings)
    return Grammar(f"'{transform.key}'", fields)


def settings_texts(check: TransformCheck, transform: Transform) -> dict[str, Texts]:
    """Every setting of a transform as a budget may spell it; nothing of one that has no value."""
    settings = (transform.whole,) if transform.whole else transform.settings
    values = {setting.key: check.settings[setting.key] for setting in settings}
    return {
        setting.key: setting_field(setting, {}).form.written(values[setting.key])
        if values[setting.key] is not None
        else {}
        for setting in settings
    }


# Transforms.

Settings = tuple[Mapping[str, object], Mapping[str, Place]]


def _settings_form(transform: Transform, formats: Mapping[str, Format]) -> Form[Settings]:
    """Every setting, those that are not given at their defaults, and where the file says which."""
    if transform.whole is not None:
        whole = setting_field(transform.whole, formats)

        def read_whole(entry: Entry, reading: Reading) -> Settings:
            return {whole.key: whole.form.read(entry, reading)}, {"transform": entry.place}

        return Form(read_whole, whole.form.schema, uses=whole.form.uses)
    grammar = settings_grammar(transform, formats)

    def read(entry: Entry, reading: Reading) -> Settings:
        values = grammar.read(entry, reading)
        settings = {key: values[key] for key in grammar.keys} if values else {}
        return settings, {"transform": entry.place, **(values.places if values else {})}

    return Form(read, grammar.schema, uses=grammar.uses)


def transform_grammar(tables: Tables) -> Grammar:
    """The keys of one entry under transforms: one transform, what is held, and how."""
    about = "that the outputs are still the same: exact_algebra, or {kind: lossy, sqnr: 30}"
    keys = (
        Field(key, _settings_form(transform, tables.formats), transform.about)
        for key, transform in tables.transforms.items()
    )
    return Grammar(
        "a transform",
        (*keys, Field("equivalence", EQUIVALENCE, about), *limit_fields(tables.metrics)),
        reserved=RESERVED,
        more={
            "oneOf": [{"required": [key]} for key in tables.transforms],
            "anyOf": [{"required": [key]} for key in ("equivalence", "limits", "scopes")],
        },
    )


def _transform(values: Values, reading: Reading) -> TransformCheck | None:
    name, keys = values.key, [key for key in values.entries if key in reading.tables.transforms]
    for key in keys[1:]:
        message = f"'{key}' is a second transform beside '{keys[0]}': give each a name of its own"
        reading.refuse(values.place(key), message)
    if not keys:
        known = ", ".join(reading.tables.transforms)
        message = f"{shown(name.text)} does not say what is done: give one of {known}"
        reading.refuse(name.place, message)
    if len(keys) != 1:
        return None
    if not {"equivalence", "limits", "scopes"} & values.entries.keys():
        message = f"the transform {shown(name.text)} holds nothing: give equivalence or limits"
        reading.refuse(name.place, message)
    equivalence, transform = values["equivalence"], reading.tables.transforms[keys[0]]
    if equivalence is not None:
        _must_have_a_bound(equivalence, transform, reading)
    settings, declared_at = values[transform.key]
    limits = held_limits(values)
    return TransformCheck(name.text, name.place, transform.key, settings, equivalence, limits, declared_at)


def _must_have_a_bound(check: EquivalenceCheck, transform: Transform, reading: Reading) -> None:
    """A claim other than exact algebra declares what may differ, or its transform does."""
    claim = check.claim
    brings_bounds = claim.kind is Kind.LOSSY and transform.claims is Kind.LOSSY
    is_bound = claim.bounds or claim.of_output or brings_bounds
    if claim.kind is not Kind.EXACT_ALGEBRA and not is_bound:
        message = f"'{claim.kind.value}' declares no bound: give one, such as sqnr: 30 or "
        reading.refuse(check.place, f"{message}max_abs: 1e-3")


def transform_form(tables: Tables) -> Form[TransformCheck]:
    """One entry under transforms."""
    return transform_grammar(tables).form(_transform, "transform")
