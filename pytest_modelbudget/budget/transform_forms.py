"""``transforms:`` of a model: one transform each, the claim it is held to, and limits after it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import partial
from typing import Any

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import ClaimCheck, Place, Subject, Transformation
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.limit_forms import held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import place_problem, second_source
from pytest_modelbudget.budget.yaml_text import Block, Listing, Text, shown
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.equivalence.inputs import FAMILIES, GIVEN
from pytest_modelbudget.equivalence.user_inputs import SUFFIXES, GivenInputs
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import names_attribute
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform
from pytest_modelbudget.units import Number, ungrouped

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


def exact_number(written: str) -> Fraction | None:
    """A decimal number, or a percentage, exactly; None where it is neither."""
    digits = written.strip()
    try:
        number = Decimal(digits.removesuffix("%"))
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > 300:
        return None
    return Fraction(number) / (100 if digits.endswith("%") else 1)


def amount_of(bound: Bound, written: str) -> Fraction | None:
    """A number that a bound can be; None for any other."""
    amount = exact_number(written)
    return None if amount is None or amount < 0 or (bound in SHARES and amount > 1) else amount


def number_form(
    wanted: str, amount: Callable[[str], Fraction | None], name: str = "", sign: str = ""
) -> Form[Fraction]:
    """A number that amount reads; it gives None for what is none."""

    def meaning(word: Text, key: str, reading: Reading) -> Fraction:
        number = amount(word.text)
        if number is None:
            raise BudgetError(f"expected {wanted.format(key=key)}, found {shown(word.text)}")
        return number

    pattern = {"type": "string", "pattern": rf"^{sign}[0-9.]+([eE][-+]?[0-9]+)?%?$"}
    return grammar.spelled(wanted, meaning, {"anyOf": [{"type": "number"}, pattern]}, name)


def _number_text(number: Number) -> str:
    return "-" * (number < 0) + ungrouped(abs(Fraction(str(number))))


def _bounds(values: Values, reading: Reading) -> dict[Bound, Fraction]:
    return {bound: values[bound.value] for bound in Bound if values[bound.value] is not None}


BOUND_FIELDS = tuple(
    Field(bound.value, number_form(wanted_for(bound), partial(amount_of, bound), "number"), about)
    for bound, about in BOUNDS.items()
)
OUTPUT_GRAMMAR = Grammar("the bounds of an output", BOUND_FIELDS)
OUTPUT = OUTPUT_GRAMMAR.form(_bounds, "output")
OUTPUTS = grammar.named(OUTPUT, "outputs: a mapping of names to bounds", names={"minLength": 1}, name="output_bounds")


def _whole_numbers(least: int) -> Form[tuple[int, ...]]:
    return grammar.listed(
        grammar.whole_number(
            least=least, most=2**31 - 1, refusal=f"{{key}} of {{number}}: it must be at least {least}"
        ),
        "{key}: a list of whole numbers",
        empty="{key} is empty: name at least one",
        name="whole_numbers",
    )


MOST_ROWS = 65_536
ROWS = grammar.whole_number(
    least=1,
    most=MOST_ROWS,
    refusal=f"rows of {{number}}: it must be 1 to {MOST_ROWS:,}",
    schema={"type": "integer", "minimum": 1, "maximum": MOST_ROWS},
)
RUN_FAMILIES = (*FAMILIES, GIVEN)
FAMILY: Form[str] = grammar.one_word(
    RUN_FAMILIES, f"a family of inputs: {', '.join(RUN_FAMILIES)}", "{word} is no family of inputs: {guess}",
    name="family",
)  # fmt: skip
FAMILIES_FORM = grammar.listed(
    FAMILY, "families: a list such as [normal, uniform]", empty="families is empty: name at least one", name="families"
)
FAMILY_BOUNDS = grammar.named(
    Grammar("the bounds of a family", BOUND_FIELDS).form(_bounds, "family_bound"),
    "family_bounds: a mapping of families to bounds",
    names={"enum": list(RUN_FAMILIES)},
    check=lambda key, reading: FAMILY.of(key, reading),
    name="family_bounds",
)


def _given(word: Text, key: str, reading: Reading) -> GivenInputs:
    """The path of a file of arrays, or a callable that yields them."""
    is_file = word.text.endswith(SUFFIXES)
    if not is_file and not names_attribute(word.text):
        raise BudgetError(f"{shown(word.text)} is no inputs: write data/file.npz, or package.module:callable")
    problem = place_problem(word.text, "a file of inputs", reading) if is_file else None
    if problem is not None:
        raise BudgetError(problem)
    return GivenInputs(word.text, reading.folder)


GIVEN_FORM = grammar.spelled(
    "{key}: the path of a .npz file, or package.module:callable", _given, SOME_TEXT, "given_inputs"
)
_KINDS = [kind.value for kind in Kind]
KIND = grammar.one_word(
    _KINDS, f"a kind of claim: {', '.join(_KINDS)}", "{word} is no kind of claim: {guess}", name="kind", meaning=Kind
)
SEEDS_FORM = _whole_numbers(0)
CLAIM_GRAMMAR = Grammar(
    "an equivalence",
    (
        Field("kind", KIND, "which test decides", required=True),
        Field("seeds", SEEDS_FORM, "seeds of the inputs; 0, 1 and 2", default=()),
        Field("inputs", GIVEN_FORM, "inputs beside the drawn ones: data/x.npz, or package.module:callable"),
        Field("families", FAMILIES_FORM, "which inputs are run: [normal, uniform, large, zeros, given]", default=()),
        Field("rows", ROWS, "how many rows each drawn family has"),
        Field("batch", _whole_numbers(1), "sizes of the first dimension of inputs: [1, 3]", default=()),
        Field("same_non_finite", grammar.FLAG, "accept NaN and Inf at identical positions", default=False),
        *BOUND_FIELDS,
        Field("family_bounds", FAMILY_BOUNDS, "bounds of single families of inputs: {large: {sqnr: 5}}", default={}),
        Field("outputs", OUTPUTS, "bounds of single outputs, by name", default={}),
    ),
)


def _claim(values: Values, reading: Reading) -> Claim | None:
    families = tuple(dict.fromkeys(values["families"]))
    if GIVEN in families and "inputs" not in values:
        reading.refuse(values.place("families"), "the family 'given' is what 'inputs' brings: name a file")
    if not values["kind"]:
        return None
    claim = Claim(
        values["kind"],
        _bounds(values, reading),
        values["outputs"],
        values["family_bounds"],
        families=families,
        rows=values["rows"],
        given=values["inputs"],
        seeds=tuple(dict.fromkeys(values["seeds"])) or SEEDS,
        batches=tuple(dict.fromkeys(values["batch"])),
        same_non_finite=values["same_non_finite"],
    )
    if idle := idle_family(claim):
        reading.refuse(values.place("family_bounds"), idle)
    return claim


def idle_family(claim: Claim) -> str:
    """What is wrong with bounds of a family that is not run, which hold nothing; "" where nothing is."""
    idle = [family for family in claim.of_family if family not in claim.run_families]
    return f"family_bounds of '{idle[0]}', which is not run: add it to families, or leave it out" if idle else ""


CLAIM = CLAIM_GRAMMAR.form(_claim)


def _read_equivalence(entry: Entry, reading: Reading) -> ClaimCheck | None:
    """A kind alone, or {kind, seeds, inputs, families, rows, batch, bounds}."""
    if isinstance(entry.value, Block):
        claim = CLAIM.read(entry, reading)
    else:
        kind = KIND.read(entry, reading)
        claim = Claim(kind) if kind else None
    if claim and claim.kind is Kind.EXACT_ALGEBRA and claim.declares_bounds:
        reading.refuse(entry.place, "exact_algebra has a criterion of its own: bounds belong to lossy and custom")
    return ClaimCheck(entry.place, claim) if claim else None


EQUIVALENCE = Form(_read_equivalence, {"anyOf": [KIND.reference, CLAIM.schema]}, "equivalence", uses=(KIND, CLAIM))


# Settings of a transform: the forms that stand for what transforms say of them.

LARGEST_TILE = 2**31
TILE_SIZE = grammar.whole_number(
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
            reading.refuse(entry.value.place, f"a tile of {len(sizes)} sizes: write 64, or [{', '.join(axes)}]")
            return None
        return tuple(dict(zip(axes, sizes, strict=True)).get(axis) for axis in "mkn")

    def text(tile: tuple[int | None, ...]) -> str:
        m, k, n = tile
        sizes = dict(zip("mkn", tile, strict=True))
        return str(k) if m is None and k == n else grammar.plain_text([sizes[axis] for axis in axes])

    sizes: Schema = {"type": "array", "items": TILE_SIZE.schema, "minItems": len(axes), "maxItems": len(axes)}
    return Form(read, {"anyOf": [TILE_SIZE.schema, sizes]}, text=text)


def _callable(word: Text, key: str, reading: Reading) -> str:
    if names_attribute(word.text):
        return word.text
    raise BudgetError(f"{shown(word.text)} is no callable: write package.module:callable")


def _integer(setting: Setting) -> Form[int]:
    """A whole number; one of those that a setting names, where it names some."""
    if not setting.numbers:
        return grammar.whole_number()
    known = " or ".join(map(str, setting.numbers))

    def meaning(word: Text, key: str, reading: Reading) -> int:
        number = grammar.scalar(word.text) if word.plain else None
        if type(number) is not int or number not in setting.numbers:
            raise BudgetError(f"{key} is {shown(word.text)}: write {known}")
        return number

    return grammar.spelled(f"{{key}}: {known}", meaning, {"enum": list(setting.numbers)})


SETTING_FORMS: Mapping[SettingForm, Callable[[Setting, Mapping[str, Format]], Form[Any]]] = {
    SettingForm.TILE: lambda setting, _: _tile(setting),
    SettingForm.WORD: lambda setting, _: grammar.one_word(
        setting.words, f"{{key}}: {' or '.join(setting.words)}", "{word} is no value of {key}: {guess}"
    ),
    SettingForm.GLOBS: lambda setting, _: grammar.one_or_several(
        "a glob on module paths such as head.*", empty="{key} names no layer: write a glob such as head.*"
    ),
    SettingForm.INTEGER: lambda setting, _: _integer(setting),
    SettingForm.NUMBER: lambda setting, _: replace(
        number_form("{key}: a number such as 0.5", exact_number, sign="[-+]?"), text=_number_text
    ),
    SettingForm.FLAG: lambda setting, _: replace(grammar.FLAG, name=""),
    SettingForm.TARGET: lambda setting, _: grammar.spelled("{key}: package.module:callable", _callable, SOME_TEXT),
    SettingForm.VALUES: lambda setting, _: Form(
        lambda entry, reading: grammar.plain_value(entry.value, reading), {"type": "object"}
    ),
    SettingForm.SOURCE: lambda setting, formats: second_source(formats),
}


def setting_field(setting: Setting, formats: Mapping[str, Format]) -> Field:
    """The key of one setting, under the form that the transform gives it."""
    form = SETTING_FORMS[setting.form](setting, formats)
    return Field(setting.key, form, setting.about, setting.required, setting.default)


def settings_grammar(transform: Transform, formats: Mapping[str, Format]) -> Grammar:
    """The settings of one transform."""
    return Grammar(f"'{transform.key}'", tuple(setting_field(setting, formats) for setting in transform.settings))


def settings_texts(given: Mapping[str, object], transform: Transform) -> dict[str, Texts]:
    """Every setting of a transform as a budget may spell it; nothing of one that has no value."""
    settings = (transform.whole,) if transform.whole else transform.settings
    values = ((setting_field(setting, {}), given[setting.key]) for setting in settings)
    return {known.key: {} if value is None else known.form.written(value) for known, value in values}


HELD = ("equivalence", "limits", "scopes", "deployments")  # keys that hold a transform to anything
Settings = tuple[Mapping[str, object], Mapping[str, Place]]


def _settings_form(transform: Transform, formats: Mapping[str, Format]) -> Form[Settings]:
    """Every setting, those that are not given at their defaults, and where the file says which."""
    if transform.whole is not None:
        whole = setting_field(transform.whole, formats)

        def read_whole(entry: Entry, reading: Reading) -> Settings:
            return {whole.key: whole.form.read(entry, reading)}, {"transform": entry.place}

        return Form(read_whole, whole.form.schema, uses=whole.form.uses)
    table = settings_grammar(transform, formats)

    def read(entry: Entry, reading: Reading) -> Settings:
        values = table.read(entry, reading)
        settings = {key: values[key] for key in table.keys} if values else {}
        return settings, {"transform": entry.place, **(values.places if values else {})}

    return Form(read, table.schema, uses=table.uses)


def transform_grammar(tables: Tables, deployments: Field) -> Grammar:
    """The keys of one entry under transforms: one transform, what is held, and how, also on devices."""
    about = "that the outputs are still the same: exact_algebra, or {kind: lossy, sqnr: 30}"
    keys = (
        Field(key, _settings_form(transform, tables.formats), transform.about)
        for key, transform in tables.transforms.items()
    )
    return Grammar(
        "a transform",
        (*keys, Field("equivalence", EQUIVALENCE, about), *limit_fields(tables.metrics), deployments),
        more={
            "oneOf": [{"required": [key]} for key in tables.transforms],
            "anyOf": [{"required": [key]} for key in HELD],
        },
    )


def _transform(values: Values, reading: Reading) -> Subject[Transformation] | None:
    name, keys = values.key, [key for key in values.entries if key in reading.tables.transforms]
    for key in keys[1:]:
        message = f"'{key}' is a second transform beside '{keys[0]}': give each a name of its own"
        reading.refuse(values.place(key), message)
    if not keys:
        known = ", ".join(reading.tables.transforms)
        reading.refuse(name.place, f"{shown(name.text)} does not say what is done: give one of {known}")
    if len(keys) != 1:
        return None
    if not {*HELD} & values.entries.keys():
        reading.refuse(name.place, f"the transform {shown(name.text)} holds nothing: give equivalence or limits")
    transform, equivalence = reading.tables.transforms[keys[0]], values["equivalence"]
    if equivalence is not None:
        _must_have_a_bound(equivalence, transform, reading)
    settings, declared_at = values[transform.key]
    checks = (*held_limits(values), *([equivalence] if equivalence else []))
    made = Transformation(transform.key, settings)
    return Subject(name.text, name.place, made, checks, tuple(values["deployments"].values()), declared_at)


def _must_have_a_bound(check: ClaimCheck, transform: Transform, reading: Reading) -> None:
    """A claim other than exact algebra declares what may differ, or its transform does."""
    claim = check.claim
    brings_bounds = claim.kind is Kind.LOSSY and transform.claims is Kind.LOSSY
    if claim.kind is not Kind.EXACT_ALGEBRA and not (claim.declares_bounds or brings_bounds):
        way = "give one, such as sqnr: 30 or max_abs: 1e-3"
        reading.refuse(check.place, f"'{claim.kind.value}' declares no bound: {way}")


def transform_form(tables: Tables, deployments: Field) -> Form[Subject[Transformation]]:
    """One entry under transforms."""
    return transform_grammar(tables, deployments).form(_transform, "transform")
