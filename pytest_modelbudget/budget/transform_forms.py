"""``transforms:`` of a model: one transform each, the claim it is held to, and limits after it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import ClaimCheck, Place, Subject, Transformation
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.input_forms import CALLABLE
from pytest_modelbudget.budget.limit_forms import held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import EVALUATE_FIELD, GIVEN_FORM, place_problem, second_source
from pytest_modelbudget.budget.yaml_text import Block, Listing, Text, shown
from pytest_modelbudget.equivalence.claim import SEEDS, Bound, Claim, Kind
from pytest_modelbudget.equivalence.inputs import FAMILIES, GIVEN
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.spellings import AMOUNT, ANY_NUMBER, DECIBELS, SHARE, Numbers, exact_number
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.transform import Setting, SettingForm, Transform
from pytest_modelbudget.units import ungrouped

# Numbers.


def number_form(numbers: Numbers) -> Form[Fraction]:
    """An exact number of a kind."""

    def meaning(word: Text, key: str, reading: Reading) -> Fraction:
        number = exact_number(word.text)
        if number is None or not numbers.fits(number):
            raise BudgetError(f"expected {key}: {numbers.wanted}, found {shown(word.text)}")
        return number

    pattern = {"type": "string", "pattern": r"^\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?%?\s*$"}
    return grammar.spelled(f"{{key}}: {numbers.wanted}", meaning, {"anyOf": [{"type": "number"}, pattern]})


# Claims.

BOUNDS: Mapping[Bound, tuple[Numbers, str]] = {
    Bound.MAX_ABS: (AMOUNT, "largest absolute error of an element"),
    Bound.MSE: (AMOUNT, "largest mean squared error"),
    Bound.SQNR: (DECIBELS, "least signal-to-quantisation-noise ratio, in dB"),
    Bound.COSINE: (SHARE, "least cosine between the outputs"),
    Bound.TOP1: (SHARE, "least share of rows whose largest element is the same one"),
    Bound.P99_ABS: (AMOUNT, "largest absolute error of 99 % of the elements"),
}


def _bounds(values: Values, reading: Reading) -> dict[Bound, Fraction]:
    return {bound: values[bound.value] for bound in Bound if values[bound.value] is not None}


BOUND_FIELDS = tuple(Field(bound.value, number_form(numbers), about) for bound, (numbers, about) in BOUNDS.items())
OUTPUT_GRAMMAR = Grammar("the bounds of an output", BOUND_FIELDS)
OUTPUTS = grammar.named(
    OUTPUT_GRAMMAR.form(_bounds, "output"), "outputs: a mapping of names to bounds", name="output_bounds"
)
RUN_FAMILIES = (*FAMILIES, GIVEN)
FAMILY: Form[str] = grammar.one_word(RUN_FAMILIES, "family of inputs", name="family")
FAMILIES_FORM = grammar.listed(FAMILY, "families: a list such as [normal, uniform]", name="families")
FAMILY_BOUNDS = grammar.named(
    Grammar("the bounds of a family", BOUND_FIELDS).form(_bounds, "family_bound"),
    "family_bounds: a mapping of families to bounds",
    keys=FAMILY,
    name="family_bounds",
)
MOST_ROWS = 65_536


KIND = grammar.one_word([kind.value for kind in Kind], "kind of claim", name="kind", meaning=Kind)
_SEED, _SIZE = (grammar.whole_number(least, 2**31 - 1) for least in (0, 1))
SEEDS_FORM = grammar.listed(_SEED, "{key}: a list of whole numbers", name="seeds")
SIZES_FORM = grammar.listed(_SIZE, "{key}: a list of whole numbers")
CLAIM_GRAMMAR = Grammar(
    "an equivalence",
    (
        Field("kind", KIND, "which test decides", required=True),
        Field("seeds", SEEDS_FORM, "seeds of the inputs; 0, 1 and 2", default=()),
        Field("inputs", GIVEN_FORM, "inputs in addition to the drawn ones: data/x.npz, or package.module:callable"),
        Field("families", FAMILIES_FORM, "which inputs are run: [normal, uniform, large, zeros, given]", default=()),
        Field("rows", grammar.whole_number(1, MOST_ROWS), "how many rows each drawn family has"),
        Field("batch", SIZES_FORM, "sizes of the first dimension of inputs: [1, 3]", default=()),
        Field("same_non_finite", grammar.FLAG, "accept NaN and Inf at identical positions", default=False),
        *BOUND_FIELDS,
        Field("family_bounds", FAMILY_BOUNDS, "bounds of single families of inputs: {large: {sqnr: 5}}", default={}),
        Field("outputs", OUTPUTS, "bounds of single outputs, by name", default={}),
    ),
)


def _claim(values: Values, reading: Reading) -> ClaimCheck | None:
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
    place = values.key.place
    if idle := [family for family in claim.of_family if family not in claim.run_families]:
        message = f"family_bounds of '{idle[0]}', which is not run: add it to families, or leave it out"
        reading.refuse(values.place("family_bounds"), message)
    if claim.kind is Kind.EXACT_ALGEBRA and claim.declares_bounds:
        reading.refuse(place, "exact_algebra has a criterion of its own: bounds belong to lossy and custom")
    return ClaimCheck(place, claim)


EQUIVALENCE = grammar.shorthand(CLAIM_GRAMMAR.form(_claim), "kind", KIND, "equivalence")


def _file(word: Text, key: str, reading: Reading) -> tuple[str, Path]:
    """A file of the project, as it is written and where it is."""
    if problem := place_problem(word.text, f"the file of {key}", reading):
        raise BudgetError(problem)
    return word.text, reading.folder / word.text


FILE = replace(
    grammar.spelled("{key}: the path of a file", _file, SOME_TEXT, "project_file"), texts=lambda file: {"": file[0]}
)
RUNNER, GOLDEN = "runner", "golden"  # a key of a model, and the name of the claim that it makes


def _golden(values: Values, reading: Reading) -> Subject[Transformation] | None:
    claim, place = _claim(values, reading), values.key.place
    if claim is None or values["file"] is None:
        return None
    made = Transformation(GOLDEN, {GOLDEN: values["file"]})
    return Subject(GOLDEN, place, made, (claim,), (), {"transform": place})


GOLDEN_FIELD = Field(
    GOLDEN,
    grammar.shorthand(
        Grammar(
            "golden outputs",
            (
                Field("file", FILE, "the file that --model-budget-update=create writes", required=True),
                replace(CLAIM_GRAMMAR.fields[0], required=False, default=Kind.EXACT_ALGEBRA),
                *CLAIM_GRAMMAR.fields[1:],
            ),
        ).form(_golden, "golden_outputs"),
        "file",
        FILE,
    ),
    "outputs that were written to a file, and that the model must still give: net.golden.npz",
)


# Settings of a transform: the forms that stand for what transforms say of them.

TILE_SIZE = grammar.whole_number(1, 2**31, "a size of a tile")


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

    def texts(tile: tuple[int | None, ...]) -> Texts:
        m, k, n = tile
        sizes = dict(zip("mkn", tile, strict=True))
        return {"": str(k) if m is None and k == n else grammar.plain_text([sizes[axis] for axis in axes])}

    sizes: Schema = {"type": "array", "items": TILE_SIZE.schema, "minItems": len(axes), "maxItems": len(axes)}
    return Form(read, {"anyOf": [TILE_SIZE.schema, sizes]}, texts=texts)


def _or_words(form: Form[Any], words: tuple[str, ...]) -> Form[Any]:
    """A form, or one of some words instead."""
    if not words:
        return form
    word: Form[str] = grammar.one_word(words)

    def read(entry: Entry, reading: Reading) -> Any:
        is_word = isinstance(entry.value, Text) and entry.value.text in words
        return (word if is_word else form).read(entry, reading)

    return Form(read, {"anyOf": [word.schema, form.schema]}, texts=form.texts)


def _parts(setting: Setting, formats: Mapping[str, Format]) -> Form[Any]:
    """A mapping of the settings of which a value consists, those that have a default among them; or the first alone."""

    def made(values: Values, reading: Reading) -> dict[str, object]:
        given = {key: values[key] for key in values.grammar.keys}
        return {key: value for key, value in given.items() if value is not None}

    fields = tuple(setting_field(part, formats) for part in setting.parts)
    mapping = Grammar(f"'{setting.key}'", fields).form(made)
    return _or_words(grammar.shorthand(mapping, fields[0].key, fields[0].form), setting.words)


SETTING_FORMS: Mapping[SettingForm, Callable[[Setting, Mapping[str, Format]], Form[Any]]] = {
    SettingForm.TILE: lambda setting, _: _tile(setting),
    SettingForm.WORD: lambda setting, _: grammar.one_word(setting.words),
    SettingForm.GLOBS: lambda setting, _: grammar.words("a glob on module paths such as head.*"),
    SettingForm.INTEGER: lambda setting, _: grammar.whole_number(setting.least, setting.most),
    SettingForm.NUMBER: lambda setting, _: replace(
        number_form(ANY_NUMBER), texts=lambda number: {"": "-" * (number < 0) + ungrouped(abs(Fraction(str(number))))}
    ),
    SettingForm.FLAG: lambda setting, _: grammar.FLAG,
    SettingForm.TARGET: lambda setting, _: CALLABLE,
    SettingForm.VALUES: lambda setting, _: replace(grammar.ANYTHING, schema={"type": "object"}),
    SettingForm.TEXT: lambda *_: grammar.text_form("{key}: a text"),
    SettingForm.FILE: lambda setting, _: FILE,
    SettingForm.SOURCE: lambda setting, formats: second_source(formats),
    SettingForm.INPUTS: lambda setting, _: _or_words(GIVEN_FORM, setting.words),
    SettingForm.PARTS: _parts,
    SettingForm.BY_LAYER: lambda setting, formats: grammar.named(
        _parts(setting, formats), f"{setting.key}: a mapping of globs on module paths"
    ),
}


def setting_field(setting: Setting, formats: Mapping[str, Format]) -> Field:
    """The key of one setting, under the form that the transform gives it."""
    form = SETTING_FORMS[setting.form](setting, formats)
    return Field(setting.key, form, setting.about, setting.required, setting.default, also=setting.also)


def settings_texts(made: Transformation, transforms: Mapping[str, Transform]) -> dict[str, Texts]:
    """Every setting of a transform as a budget may spell it, step by step; nothing of one that has no value."""
    if made.steps:
        texts = (settings_texts(each, transforms).items() for each in made.steps)
        steps = (grammar.flow({key: grammar.flow(text) for key, text in given if text}) for given in texts)
        return {STEPS: {f"{at} {made.steps[at - 1].transform}": text for at, text in enumerate(steps, 1)}}
    transform, given = transforms[made.transform], made.settings
    settings = (transform.whole,) if transform.whole else transform.settings
    values = ((setting_field(setting, {}), given[setting.key]) for setting in settings)
    return {known.key: {} if value is None else known.form.texts(value) for known, value in values}


Settings = tuple[Mapping[str, object], Mapping[str, Place]]


def _settings_form(transform: Transform, formats: Mapping[str, Format]) -> Form[Settings]:
    """Every setting, those that are not given at their defaults, and where the file says which."""
    if transform.whole is not None:
        key, form = transform.whole.key, setting_field(transform.whole, formats).form
        return replace(form, read=lambda entry, reading: ({key: form.read(entry, reading)}, {"transform": entry.place}))

    def made(values: Values, reading: Reading) -> Settings:
        return {key: values[key] for key in values.grammar.keys}, {"transform": values.key.place, **values.places}

    fields = (setting_field(setting, formats) for setting in transform.settings)
    return Grammar(f"'{transform.key}'", tuple(fields)).form(made)


STEPS = "steps"
CLAIM = Field("equivalence", EQUIVALENCE, "that outputs are the same: exact_algebra, or {kind: lossy, sqnr: 30}")


def _steps_form(keys: Iterable[Field]) -> Form[tuple[Subject[Transformation], ...]]:
    """A list of transforms, each by its key alone, or with settings and a claim of its own."""
    known = {field.key: field for field in keys if field.key not in {"compare", GOLDEN}}
    step = Grammar("a step", (*known.values(), CLAIM), one_of=tuple(known)).form(_made, "step")

    def read(entry: Entry, reading: Reading) -> Subject[Transformation] | None:
        value = entry.value
        if isinstance(value, Text):
            value = Block(((value, Block((), value.place)),), value.place)
        return step.read(Entry(Text("", False, value.place), value), reading)

    form = Form(read, {"anyOf": [{"enum": [*known]}, step.reference]})
    return grammar.listed(form, "{key}: a list such as [fold_batchnorm, export_onnx]")


def transform_form(tables: Tables, deployments: Field) -> Form[Subject[Transformation]]:
    """One entry under transforms: one transform or several in steps, what is held, and how, also on devices."""
    keys = [
        Field(key, _settings_form(transform, tables.formats), transform.about)
        for key, transform in tables.transforms.items()
    ]
    return Grammar(
        "a transform",
        (
            *keys,
            Field(STEPS, _steps_form(keys), "transforms one after the other: [fold_batchnorm, {tile: {products: 64}}]"),
            CLAIM,
            Field("model", FILE, "the file that a runner runs: build/net.tflite"),
            Field("shipped", FILE, "the file that modelbudget build wrote of it: build/m.onnx"),
            *limit_fields(tables.metrics),
            EVALUATE_FIELD,
            deployments,
        ),
        needs=("equivalence", "limits", "scopes", "evaluate", "deployments"),
        one_of=(*tables.transforms, STEPS),
    ).form(_transform, "transform")


def _transform(values: Values, reading: Reading) -> Subject[Transformation] | None:
    """What is made, with all its checks; its steps are parts of it."""
    subject = _made(values, reading)
    if subject is None:
        return None
    asked = values["evaluate"]
    made = replace(subject.made, shipped=values["shipped"], evaluate=asked.evaluation if asked else None)
    if runs := made.transform == RUNNER:
        made = replace(made, settings={**made.settings, "model": values["model"], "folder": reading.folder})
    if held_limits(values) or values["deployments"] if runs else "model" in values:
        reading.refuse(values.key.place, "'model' is the file of a runner, and not measured: write limits for the file")
    checks = (*held_limits(values), *subject.checks)
    return replace(subject, made=made, checks=checks, parts=(*values["deployments"].values(), *subject.parts))


def _made(values: Values, reading: Reading) -> Subject[Transformation] | None:
    """One change, or several in steps, and the claim that it makes."""
    key = next((key for key in values.entries if key in (*reading.tables.transforms, STEPS)), None)
    if key is None or not values[key]:
        return None
    check: ClaimCheck | None = values["equivalence"]
    parts: tuple[Subject[Transformation], ...] = ()
    if key == STEPS:
        parts = tuple(_in_turn(values.key.text, values[key], check, reading))
        settings, declared_at = {}, {"transform": values.place(key)}
    else:
        settings, declared_at = values[key]
    made = Transformation(key, settings, steps=tuple(part.made for part in parts))
    if check is not None:
        _must_have_a_bound(check, made, reading)
    return Subject(values.key.text, values.key.place, made, (check,) if check else (), parts, declared_at)


def _in_turn(
    name: str, steps: Iterable[Subject[Transformation]], check: ClaimCheck | None, reading: Reading
) -> Iterator[Subject[Transformation]]:
    """Each step after those before it, and its claim: where it has none, the one of all, exact where it may be."""
    before: tuple[Transformation, ...] = ()
    for at, step in enumerate(steps, 1):
        made, checks = replace(step.made, after=before), step.checks
        if check and not checks:
            is_lossy = reading.tables.transforms[made.transform].claims is Kind.LOSSY
            checks = (ClaimCheck(step.place, check.claim if is_lossy else check.claim.exact),)
        yield replace(step, name=f"{name}.{at}-{made.transform}", made=made, checks=checks)
        before = (*before, step.made)


def _must_have_a_bound(check: ClaimCheck, made: Transformation, reading: Reading) -> None:
    """A claim other than exact algebra declares what may differ, or its transform does."""
    claim, transforms = check.claim, reading.tables.transforms
    is_lossy = any(transforms[each.transform].claims is Kind.LOSSY for each in made.steps or (made,))
    brings_bounds = claim.kind is Kind.LOSSY and is_lossy
    if claim.kind is not Kind.EXACT_ALGEBRA and not (claim.declares_bounds or brings_bounds):
        way = "give one, such as sqnr: 30 or max_abs: 1e-3"
        reading.refuse(check.place, f"'{claim.kind.value}' declares no bound: {way}")
