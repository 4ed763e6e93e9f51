"""A budget file read into plain data, every problem of it reported at once, in place; and its editor schema.

The schema (JSON Schema, draft-07) is coarser than the reader: it knows keys, shapes and units, not paths, op kinds or
sums.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget import grammar, source_forms
from pytest_modelbudget.budget.budget import Budget, Isolation, Loosen, Place, Subject, Transformation
from pytest_modelbudget.budget.deployment_forms import ReadText, deployment_form, devices_of, hardware_field
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Values
from pytest_modelbudget.budget.kinds import KINDS
from pytest_modelbudget.budget.limit_forms import DEPLOYING, held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import (
    DIMS_FIELD,
    DTYPE_FIELD,
    INPUTS_FIELD,
    QDQ_FIELD,
    TRAINING_FIELD,
    Defaults,
)
from pytest_modelbudget.budget.transform_forms import transform_form
from pytest_modelbudget.budget.value_forms import room_for
from pytest_modelbudget.budget.yaml_text import (
    BudgetFileError,
    Node,
    Problem,
    Refused,
    Text,
    entries_of,
    node_at,
    shown,
    tree,
)
from pytest_modelbudget.formats.source import FETCH_LFS, LFS_POINTER, USUAL_OPTIMIZER, ModelSource
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.metrics.measurement import Metric, Stage
from pytest_modelbudget.ops.table import OpTable
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.transforms.table import transform_table
from pytest_modelbudget.transforms.transform import Transform
from pytest_modelbudget.units import some_of

VERSION = 1
MARKER = "model_budget"
LARGEST = 1_000_000  # bytes of a budget file
MARK_IT = f"no line begins with {MARKER}: {VERSION}: correct the key, or keep a file that is no budget elsewhere"
MARKED = f"{MARKER}: {VERSION}".encode()
NOT_UTF_8 = "not UTF-8: save the file as UTF-8"
# The keys that hold a model to anything: of its program some numbers, and what only a run tells.
KIND_FIELDS = tuple(kind.field for kind in KINDS.values() if kind.field)
AMOUNTS, RUN_FOR = ("limits", "scopes"), ("transforms", *(known.key for known in KIND_FIELDS), "deployments")
HELD = (*AMOUNTS, *RUN_FOR)
_MARKED = re.compile(rf"^(?:\ufeff|---\s+|\{{\s*)*([\"']?){MARKER}\1\s*:(?:\s|$)", re.MULTILINE)
# A key like the marker with a version, or models with limits: nobody means anything else by it.
_MEANT = re.compile(
    r"""^[ \t{]*["']?(?:model[-_ ]?budgets?["']?\s*:\s*["']?\d|models["']?\s*:(?=[\s\S]*\blimits["']?\s*:))""",
    re.MULTILINE | re.IGNORECASE,
)


def is_budget(content: str | bytes) -> bool:
    """Whether a YAML text carries the marker key at the start of a line; never raises.

    Broken YAML with the marker is a broken budget; without it, it is none of our business.
    """
    return _MARKED.search(_decoded(content)) is not None


def is_meant(content: str | bytes) -> bool:
    """True for a text that lacks the marker alone: a budget to be refused, and not to be skipped."""
    return not is_budget(content) and _MEANT.search(_decoded(content)) is not None


def is_for_the_gate(content: bytes) -> bool:
    """True for YAML that is a budget, was meant for one, or is a pointer of Git LFS to a file that may be one."""
    return is_budget(content) or is_meant(content) or content.startswith(LFS_POINTER)


def _decoded(content: str | bytes) -> str:
    """A text to look for the marker in, also in UTF-16, which some editors write and which is refused then."""
    if isinstance(content, bytes):
        content = content.replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff\ufffd")
    return content


def budget_text(path: Path, file: str) -> str:
    """The text of a budget file, without a byte order mark; file names it in problems.

    Raises BudgetFileError where it cannot be read, is not checked out, no UTF-8, or too large.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            message = f"the file has {size:,} bytes, a budget at most {LARGEST:,}: split it"
            raise BudgetFileError([Problem(Place(file, 1), message)])
        content = path.read_bytes()
        if content.startswith(LFS_POINTER):
            raise BudgetFileError([Problem(Place(file, 1), f"a pointer of Git LFS: {FETCH_LFS}")])
        if b"\0" in content:
            raise BudgetFileError([Problem(Place(file, 1), NOT_UTF_8)])
        return content.decode("utf-8-sig")
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise BudgetFileError([Problem(Place(file, 1), message)]) from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        place = Place(file, before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise BudgetFileError([Problem(place, NOT_UTF_8)]) from error


def read_budget(
    path: Path, tables: Tables, *, root: Path, text: str | None = None, read: ReadText = budget_text
) -> Budget:
    """The budget of one file; places name it relative to ``root``, the project's root.

    text is what the file is to hold in place of what it does hold, such as another revision's; read gives the text of
    the hardware file that it names, the only other one that is opened.
    Raises BudgetFileError with every problem of the file.
    """
    where, top = Path(os.path.abspath(path)), Path(os.path.abspath(root))
    inside = where.is_relative_to(top)
    file = where.relative_to(top).as_posix() if inside else where.as_posix()
    text = budget_text(where, file) if text is None else text
    if is_meant(text):
        raise BudgetFileError([Problem(Place(file, 1), MARK_IT)])
    node, problems = tree(text, file)
    reading = Reading(where.parent, top if inside else where.parent, tables, problems)
    _must_be_our_version(node, reading)
    reading = replace(reading, devices=devices_of(node, reading, read))
    values = file_grammar(tables).read(Entry(Text("", False, node.place), node), reading)
    models = tuple(_budgets(values, reading)) if values else ()
    if reading.problems or values is None:
        raise BudgetFileError(reading.problems)
    return Budget(file, models, values["loosen"], values.place("loosen") if "loosen" in values else None)


def _must_be_our_version(node: Node, reading: Reading) -> None:
    """Refuse at once a file of another version: its other keys are not ours to judge."""
    version = node_at(node, (MARKER,))
    if not isinstance(version, Text):
        if version is not None and not isinstance(version, Refused):
            reading.refuse(version.place, f"expected {MARKER}: {VERSION}")
        return
    number = grammar.scalar(version.text) if version.plain and len(version.text) < 10 else None
    if type(number) is int and number > VERSION:
        message = (
            f"{MARKER}: {number} is read by a newer version of pytest-modelbudget; this one reads "
            f"{MARKER}: {VERSION}: pip install --upgrade pytest-modelbudget"
        )
        raise BudgetFileError([Problem(version.place, message)])
    if type(number) is not int or number != VERSION:
        quotes = "" if version.plain else ", without quotes"
        message = f"{MARKER} must be {VERSION}, not {shown(version.text)}: write {MARKER}: {VERSION}{quotes}"
        reading.refuse(version.place, message)


REBUILT = "a variant is the model as it is built: write one with other arguments under models:, by a name of its own"
ANOTHER_MODEL = tuple(grammar.refused(key, f"{key!r} in a variant: {REBUILT}") for key in ("args", "kwargs"))
VERSION_FORM: Form[None] = Form(lambda entry, reading: None, {"const": VERSION}, "version")
_LOOSEN = " or ".join(loosen.value for loosen in Loosen)
LOOSEN = grammar.one_word(
    [loosen.value for loosen in Loosen], _LOOSEN, f"'loosen' is {_LOOSEN}, not {{word}}", name="loosen", meaning=Loosen
)
NO_LEVEL = grammar.refused("level", "'level' is not available in this version: remove it")


def _elsewhere(what: str, places: Mapping[str, str]) -> tuple[Field, ...]:
    """Keys that stand in another mapping of the file than this one: refused, with where each is written."""
    return tuple(grammar.refused(key, f"unknown key {key!r} in {what}: {place}") for key, place in places.items())


OWN_LIMITS = "each model has its own: write it there"
DEFAULTS_GRAMMAR = Grammar(
    "the defaults",
    (INPUTS_FIELD, DTYPE_FIELD, NO_LEVEL, *_elsewhere("the defaults", dict.fromkeys((*HELD, "variants"), OWN_LIMITS))),
)
BESIDE_MODELS = "write it beside models, and not in one"
NO_KEYS_OF_A_MODEL = _elsewhere(
    "a model",
    {
        **dict.fromkeys(("defaults", "loosen", "hardware"), BESIDE_MODELS),
        "level": "write it on a limit: {max: 11.7 M, level: warn}",
    },
)


def _read_defaults(entry: Entry, reading: Reading) -> Defaults:
    known = len(reading.problems)
    values = DEFAULTS_GRAMMAR.read(entry, reading)
    if values is None:
        return Defaults(is_broken=True)
    return Defaults(values["inputs"], values["dtype"], len(reading.problems) > known, values.places)


DEFAULTS = Form(_read_defaults, DEFAULTS_GRAMMAR.schema, "defaults", uses=DEFAULTS_GRAMMAR.uses)


ISOLATION_FIELDS = (
    Field(
        "isolate", grammar.FLAG, "false: measures the model in the session's process, and not in a process of its own"
    ),
    Field(
        "timeout",
        room_for("model", "s", "60 s"),
        "the longest that process may take for one step: measuring, or a transform",
    ),
    Field("memory", room_for("model", "B", "4 GiB"), "the most memory that process may take"),
)


def model_grammar(tables: Tables) -> Grammar:
    """The keys of a model: one source, what it is run on, and what it is held to."""
    taken = frozenset((*tables.metrics, budgets.EQUIVALENCE, budgets.FITS))  # by checks
    named = grammar.by_name("deployment", deployment_form(tables), taken)
    on_devices = Field("deployments", named, "the model on devices, and what must hold there", default={})
    transforms = grammar.by_name("transform", transform_form(tables, on_devices), taken)
    about = "changes to the model, and what must still hold"
    parts = (*tables.transforms, "apply", "compare", budgets.EQUIVALENCE)
    held = (
        *limit_fields(tables.metrics),
        Field("transforms", transforms, about, default={}, also=parts),
        *KIND_FIELDS,
        on_devices,
        grammar.refused(budgets.FITS, f"a model fits a device: {DEPLOYING}"),
    )
    variant = Grammar(
        "a variant",
        (INPUTS_FIELD, DIMS_FIELD, DTYPE_FIELD, QDQ_FIELD, TRAINING_FIELD, *held, *ANOTHER_MODEL),
        needs=HELD,
        lacking="the variant {name} has no limits: they are not inherited",
    ).form(lambda values, _: values, "variant")
    variants = grammar.by_name("variant", variant, taken)
    held_by = [{"required": [key]} for key in (*AMOUNTS, "variants", *RUN_FOR)]
    return Grammar(
        "a model",
        (
            *source_forms.target_fields(tables.formats),
            *source_forms.RUN_ON,
            *ISOLATION_FIELDS,
            *held,
            Field("variants", variants, "the same model under other inputs, own limits"),
            *NO_KEYS_OF_A_MODEL,
        ),
        more={"allOf": [_one_source(tables.formats), {"anyOf": held_by}]},
    )


def _one_source(formats: Mapping[str, Format]) -> Schema:
    """The schema of one source, with arguments under callables only."""
    sources = []
    for key, model_format in formats.items():
        others = [other for other in formats if other != key]
        if source_forms.is_path_format(model_format):
            others += ["args", "kwargs", "dtype"]
        if not model_format.brings_inputs:
            others.append("dims")
        sources.append({"required": [key], "not": {"anyOf": [{"required": [other]} for other in others]}})
    return {"oneOf": sources}


def file_grammar(tables: Tables) -> Grammar:
    """The keys of a budget file."""
    models = grammar.by_name("model", model_grammar(tables).form(lambda values, _: values, "model"))
    return Grammar(
        "a budget file",
        (
            Field(MARKER, VERSION_FORM, f"the version of this format, {MARKER}: {VERSION}", required=True),
            Field("defaults", DEFAULTS, "what models say that do not say it themselves", default=Defaults()),
            hardware_field(),
            Field("models", models, "every model by a name of your choice", required=True, default={}),
            Field("loosen", LOOSEN, "forbid fails what loosens a limit or redefines a model", default=Loosen.WARN),
        ),
    )


# Models and variants, put together.


def _budgets(file: Values, reading: Reading) -> Iterator[Subject[ModelSource]]:
    """Every model of the file, each followed by its variants."""
    defaults: Defaults = file["defaults"]
    needs_inputs = partial(_must_have_inputs, defaults, reading)
    for values in file["models"].values():
        name, source = values.key, source_forms.model_source(values, defaults, reading)
        if not {*HELD, "variants"} & {*values.entries, *values.meant}:
            reading.refuse(name.place, f"the model {shown(name.text)} has no limits: a gate must hold something")
        places = source_forms.declared_places(source, values, defaults) if source else {}
        isolation = _isolation(values, reading)
        needs_inputs(values, source, places)
        yield from _budget(name, None, source, values, places, isolation, reading)
        for variant in (values["variants"] or {}).values():
            varied = _varied(source, variant, reading)
            declared_at = {**places, **_changes(variant), **variant.places}
            needs_inputs(variant, varied, declared_at)
            yield from _budget(name, variant.key, varied, variant, declared_at, isolation, reading)


def _changes(variant: Values) -> dict[str, Place]:
    """Where a variant says in what it runs otherwise than its model, as "run"; nothing where it says none of it."""
    keys = (INPUTS_FIELD.key, DIMS_FIELD.key, DTYPE_FIELD.key)
    return dict([("run", variant.places[key]) for key in keys if key in variant.places][:1])


def _isolation(values: Values, reading: Reading) -> Isolation:
    """What a model says of a process of its own; its variants have the same."""
    timeout, memory = (values[key] and values[key][1] for key in ("timeout", "memory"))
    isolation = Isolation(values["isolate"], timeout, memory)
    for key in ("timeout", "memory"):
        if key in values and isolation.isolate is False:
            message = f"'{key}' bounds a process of its own, and 'isolate: false' wants none: remove one of them"
            reading.refuse(values.place(key), message)
    return isolation


def _budget(
    model: Text, variant: Text | None, source: ModelSource | None, values: Values,
    places: Mapping[str, Place], isolation: Isolation, reading: Reading,
) -> Iterator[Subject[ModelSource]]:  # fmt: skip
    """The budget of one model or variant, where it holds anything."""
    transforms: tuple[Subject[Transformation], ...] = tuple(values["transforms"].values())
    for part in transforms:
        _must_know(part, source, reading)
    _must_be_called_otherwise(values, reading)
    checks = (*held_limits(values), *chain(*(values[known.key] for known in KIND_FIELDS)))
    parts = (*transforms, *values["deployments"].values())
    if source and (checks or parts):
        held = chain(checks, *(part.checks for part in transforms))
        metrics = reading.tables.metrics
        stages = {metrics[check.metric].stage for check in held if check.kind == "number"}
        if not source.training and Stage.TRAINED in stages:
            source = replace(source, training=USUAL_OPTIMIZER)
        place, name = values.key.place, variant.text if variant else None
        yield Subject(model.text, place, source, checks, parts, places, name, isolation)


def _must_have_inputs(
    defaults: Defaults, reading: Reading, values: Values, source: ModelSource | None, places: Mapping[str, Place]
) -> None:
    """Refuse a model without inputs that is held to what only a run can tell."""
    if source is None or source.inputs or "inputs" in places or defaults.is_broken:
        return
    if reading.tables.formats[source.format].brings_inputs:
        return
    metrics = reading.tables.metrics
    needing = [limit.metric for limit in held_limits(values) if not metrics[limit.metric].needs_no_run]
    needing += [key for key in RUN_FOR if key in values]
    if needing:
        what, name = values.grammar.what.partition(" ")[2], shown(values.key.text)
        ways = f"float32 1x3x224x224, on the model or under defaults (modelbudget init {source.target} looks for some)"
        message = f"the {what} {name} has no inputs for {some_of(needing, 3)}: give inputs such as {ways}"
        reading.refuse(values.key.place, message)


def _must_be_called_otherwise(values: Values, reading: Reading) -> None:
    """Refuse a name that two things below one model have: variants, transforms, deployments."""
    known: dict[str, str] = {}
    for key in ("variants", "transforms", "deployments"):
        for name, _ in entries_of(values.entries[key].value) if key in values else ():
            if name.text in known:
                what, other = key.removesuffix("s"), known[name.text].removesuffix("s")
                reading.refuse(name.place, f"a {what} may not be called {shown(name.text)}: a {other} is called so")
            known.setdefault(name.text, key)


def _must_know(part: Subject[Transformation], source: ModelSource | None, reading: Reading) -> None:
    """Refuse a transform that does not know the model's format."""
    transform, known = reading.tables.transforms[part.made.transform], reading.tables.formats
    if source is not None and not transform.takes(known[source.format]):
        formats = ", ".join(model_format.key for model_format in known.values() if transform.takes(model_format))
        message = f"'{part.made.transform}' knows models under {formats}, not under {source.format}"
        reading.refuse(part.declared_at["transform"], message)


def _varied(source: ModelSource | None, values: Values, reading: Reading) -> ModelSource | None:
    """The model's source with the variant's inputs, dtype, dims and qdq in place of its own."""
    if source is None:
        return None
    source_forms.refuse_dtype_of_a_file(source.format, values, reading)
    return replace(
        source,
        inputs=values["inputs"] if values["inputs"] is not None else source.inputs,
        dtype=values["dtype"] or source.dtype,
        dims={**source.dims, **values["dims"]},
        training=values["training"] or source.training,
        qdq=values["qdq"] if "qdq" in values else source.qdq,  # noqa: SIM401  # it has no get()
    )


def json_schema(
    metrics: Mapping[str, Metric], formats: Mapping[str, Format], transforms: Mapping[str, Transform] | None = None
) -> Schema:
    """The schema of budget files over these metrics and formats."""
    known = transform_table() if transforms is None else transforms
    table = file_grammar(Tables(OpTable(()), metrics, formats, known))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Model budget",
        "description": "Size limits of neural networks, held by pytest --model-budget",
        **table.schema,
        "definitions": {name: schema for form in table.uses for name, schema in form.definitions()},
    }


def schema_text(
    metrics: Mapping[str, Metric], formats: Mapping[str, Format], transforms: Mapping[str, Transform] | None = None
) -> str:
    """The schema as the text of a file."""
    return json.dumps(json_schema(metrics, formats, transforms), indent=2, ensure_ascii=False) + "\n"
