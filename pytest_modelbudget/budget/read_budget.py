"""A budget file read into plain data, every problem of it reported at once, in place; and its editor schema.

The schema (JSON Schema, draft-07) is coarser than the reader: it knows keys, shapes and units, not paths, op kinds or
sums.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pytest_modelbudget.budget import SUFFIXES, grammar, source_forms
from pytest_modelbudget.budget import budget as budgets
from pytest_modelbudget.budget.budget import BETWEEN, Budget, Isolation, Loosen, Place, Subject, Transformation
from pytest_modelbudget.budget.deployment_forms import HARDWARE, deployment_form
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, ReadText, Schema, Values
from pytest_modelbudget.budget.kinds import KINDS
from pytest_modelbudget.budget.limit_forms import DEPLOYING, held_limits, limit_fields
from pytest_modelbudget.budget.source_forms import (
    DIMS_FIELD,
    DTYPE_FIELD,
    EVALUATE_FIELD,
    INPUTS_FIELD,
    QDQ_FIELD,
    SERVING_FIELD,
    TRAINING_FIELD,
)
from pytest_modelbudget.budget.transform_forms import GOLDEN, GOLDEN_FIELD, transform_form
from pytest_modelbudget.budget.yaml_text import BudgetFileError, Problem, Text, entries_of, shown, tree
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.evaluation.evaluate import DROP, LIMITED, unscored
from pytest_modelbudget.formats.source import FETCH_LFS, LFS_POINTER, USUAL_OPTIMIZER, ModelSource
from pytest_modelbudget.metrics.measurement import Stage
from pytest_modelbudget.registry import Tables
from pytest_modelbudget.units import some_of

NOT_ONES_OWN = {".git", ".hg", ".svn", "node_modules"}  # folders in which no budget is looked for
VERSION = 1
MARKER = "model_budget"
MARK_IT = f"no line begins with {MARKER}: {VERSION}: correct the key, or keep a file that is no budget elsewhere"
NO_HARDWARE = f"a hardware file, and no budget: name it in the key 'hardware' of a file with {MARKER}: {VERSION}"
MARKED = f"{MARKER}: {VERSION}".encode()
NOT_UTF_8 = "not UTF-8: save the file as UTF-8"
# The keys that hold a model to anything: of its program some numbers, and what only a run tells.
KIND_FIELDS = tuple(kind.field for kind in KINDS.values() if kind.field)
AMOUNTS, RUN_FOR = ("limits", "scopes"), (
    "transforms", GOLDEN, *(known.key for known in KIND_FIELDS), "deployments", "evaluate"
)  # fmt: skip
HELD = (*AMOUNTS, *RUN_FOR)
_MARKED = re.compile(rf"^(?:\ufeff|---\s+|\{{\s*)*([\"']?){MARKER}\1\s*:(?:\s|$)", re.MULTILINE)
_HARDWARE = re.compile(r"^hardware\s*:\s*\d+\s*(?:#.*)?$", re.MULTILINE)  # a version, where budgets have a path
# A key like the marker with a version, or models with limits: nobody means anything else by it.
_MEANT = re.compile(
    r"""^[ \t{]*["']?(?:model[-_ ]?budgets?["']?\s*:\s*["']?\d|models["']?\s*:(?=[\s\S]*\blimits["']?\s*:))""",
    re.MULTILINE | re.IGNORECASE,
)


def is_budget(content: str | bytes) -> bool:
    """Whether a YAML text carries the marker key at the start of a line; never raises."""
    return _MARKED.search(_decoded(content)) is not None


def is_meant(content: str | bytes) -> bool:
    """True for a text that lacks the marker alone: a budget to be refused, and not to be skipped."""
    return not is_budget(content) and _MEANT.search(_decoded(content)) is not None


def is_for_the_gate(content: bytes) -> bool:
    """True for YAML that is a budget, was meant for one, or is a pointer of Git LFS to a file that may be one."""
    return is_budget(content) or is_meant(content) or content.startswith(LFS_POINTER)


def yaml_files(roots: Iterable[Path]) -> Iterator[Path]:
    """The YAML files at or below some paths, in capitals too, and links that lead nowhere; no pipes."""
    for root in roots:
        if root.is_file():
            yield from [root] if root.suffix.lower() in SUFFIXES else []
        for folder, below, names in os.walk(root):
            below[:] = sorted(set(below) - NOT_ONES_OWN)
            if "pyvenv.cfg" in names:
                below.clear()
            files = (Path(folder, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))
            yield from (file for file in files if file.is_file() or file.is_symlink())


def may_be_budget(path: Path) -> bool:
    """True for a file that is for the gate, or cannot be read."""
    try:
        return is_for_the_gate(path.read_bytes())
    except OSError:
        return True


def _decoded(content: str | bytes) -> str:
    """A text to look for the marker in, also in UTF-16, which some editors write and which is refused then."""
    if isinstance(content, bytes):
        content = content.replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff\ufffd")
    return content


def budget_text(path: Path, file: str) -> str:
    """The text of a budget file, without a byte order mark; file names it in problems.

    Raises BudgetFileError where it cannot be read, is not checked out, or no UTF-8.
    """
    try:
        content = path.read_bytes()
        problem = f"a pointer of Git LFS: {FETCH_LFS}" if content.startswith(LFS_POINTER) else ""
        text = content.decode("utf-8-sig")
        if "\0" in text:
            problem = NOT_UTF_8
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        problem = NOT_UTF_8
    if problem:
        raise BudgetFileError([Problem(Place(file, 1), problem)])
    return text


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
    if not is_budget(text) and _HARDWARE.search(text):
        raise BudgetFileError([Problem(Place(file, 1), NO_HARDWARE)])
    node = tree(text, file)
    reading = Reading(where.parent, top if inside else where.parent, tables, read)
    values = file_grammar(tables).read(Entry(Text("", False, node.place), node), reading)
    models = tuple(_budgets(values, reading)) if values else ()
    if reading.problems or values is None:
        raise BudgetFileError(reading.problems)
    return Budget(file, models, values["loosen"], values.place("loosen") if "loosen" in values else None)


def _read_version(entry: Entry, reading: Reading) -> None:
    """Refuse at once a file of a newer version: its other keys are not ours to judge."""
    number, place = grammar.plain_value(entry.value), entry.value.place
    if type(number) is int and number > VERSION:
        message = (
            f"{MARKER}: {number} is read by a newer version of pytest-modelbudget; this one reads "
            f"{MARKER}: {VERSION}: pip install --upgrade pytest-modelbudget"
        )
        raise BudgetFileError([Problem(place, message)])
    if type(number) is not int or number != VERSION:
        found = f"not {shown(entry.value.text)}: " if isinstance(entry.value, Text) else ""
        reading.refuse(place, f"{MARKER} must be the number {VERSION}, {found}write {MARKER}: {VERSION}")


VERSION_FORM: Form[None] = Form(_read_version, {"const": VERSION}, "version")
LOOSEN = grammar.one_word([loosen.value for loosen in Loosen], name="loosen", meaning=Loosen)
REBUILT = "a variant is the model as it is built: write one with other arguments under models:, by a name of its own"
NEEDS_DATA = "give data, such as data/test.npz, and metric, such as top1"
NO_LEVEL = "write it on a limit: {max: 11.7 M, level: warn}"
DEFAULTS_GRAMMAR = Grammar(
    "the defaults",
    (INPUTS_FIELD, DTYPE_FIELD),
    elsewhere={
        "level": NO_LEVEL, **dict.fromkeys((*HELD, "variants"), "each model has its own: write it there"),
    },
)  # fmt: skip
NOT_IN_A_MODEL = {
    **dict.fromkeys(("defaults", "loosen", "hardware"), "write it next to models, and not in one"),
    "level": NO_LEVEL,
}


DEFAULTS = DEFAULTS_GRAMMAR.form(lambda values, _: values, "defaults")
ISOLATION_FIELDS = (
    Field("isolate", grammar.FLAG, "false: measures the model in the session's process, not in one of its own"),
    Field(
        "timeout",
        grammar.amount("s", "60 s"),
        "the longest that process may take for one step: measuring, or a transform",
    ),
    Field("memory", grammar.amount("B", "4 GiB"), "the most memory that process may take"),
)


def model_grammar(tables: Tables) -> Grammar:
    """The keys of a model: one source, what it is run on, and what it is held to."""
    taken = frozenset((*tables.metrics, budgets.EQUIVALENCE, budgets.FITS, GOLDEN))  # by checks
    named = grammar.by_name("deployment", deployment_form(tables), taken)
    on_devices = Field("deployments", named, "the model on devices, and what must hold there", default={})
    transforms = grammar.by_name("transform", transform_form(tables, on_devices), taken)
    parts = (*tables.transforms, "apply", "compare", budgets.EQUIVALENCE)
    held = (
        *limit_fields(tables.metrics),
        Field("transforms", transforms, "changes to the model, and what must still hold", default={}, also=parts),
        GOLDEN_FIELD,
        *KIND_FIELDS,
        on_devices,
    )
    fits = {budgets.FITS: f"a model fits a device: {DEPLOYING}"}
    variant = Grammar(
        "a variant",
        (INPUTS_FIELD, DIMS_FIELD, DTYPE_FIELD, QDQ_FIELD, TRAINING_FIELD, SERVING_FIELD, EVALUATE_FIELD, *held),
        needs=HELD,
        elsewhere={**dict.fromkeys(("args", "kwargs"), REBUILT), **fits},
    ).form(lambda values, _: values, "variant")
    variants = grammar.by_name("variant", variant, taken)
    return Grammar(
        "a model",
        (
            *source_forms.target_fields(tables.formats),
            *source_forms.RUN_ON,
            *ISOLATION_FIELDS,
            *held,
            Field("variants", variants, "the same model under other inputs, own limits"),
        ),
        needs=(*AMOUNTS, "variants", *RUN_FOR),
        one_of=tuple(tables.formats),
        elsewhere={**NOT_IN_A_MODEL, **fits},
    )


def file_grammar(tables: Tables) -> Grammar:
    """The keys of a budget file; hardware comes before the models that are put on devices."""
    models = grammar.by_name("model", model_grammar(tables).form(lambda values, _: values, "model"))
    return Grammar(
        "a budget file",
        (
            Field(MARKER, VERSION_FORM, f"the version of this format, {MARKER}: {VERSION}", required=True),
            Field("defaults", DEFAULTS, "what models say that do not say it themselves"),
            HARDWARE,
            Field("models", models, "every model by a name of your choice", required=True, default={}),
            Field("loosen", LOOSEN, "forbid fails what loosens a limit or redefines a model", default=Loosen.WARN),
        ),
    )


# Models and variants, put together.


def _budgets(file: Values, reading: Reading) -> Iterator[Subject[ModelSource]]:
    """Every model of the file, each followed by its variants."""
    defaults: Values | None = file["defaults"]
    for values in file["models"].values():
        name, source = values.key, source_forms.model_source(values, defaults, reading)
        places = source_forms.declared_places(source, values, defaults) if source else {}
        isolation = _isolation(values, reading)
        _must_have_inputs(values, source, places, reading)
        yield from _budget(name, None, source, values, places, isolation, reading)
        for variant in (values["variants"] or {}).values():
            varied = _varied(source, variant, reading)
            declared_at = {**places, **_changes(variant), **variant.places}
            _must_have_inputs(variant, varied, declared_at, reading)
            yield from _budget(name, variant.key, varied, variant, declared_at, isolation, reading)


def _changes(variant: Values) -> dict[str, Place]:
    """Where a variant says in what it runs otherwise than its model, as "run"; nothing where it says none of it."""
    keys = (INPUTS_FIELD.key, DIMS_FIELD.key, DTYPE_FIELD.key)
    return dict([("run", variant.places[key]) for key in keys if key in variant.places][:1])


def _isolation(values: Values, reading: Reading) -> Isolation:
    """What a model says of a process of its own; its variants have the same."""
    isolation = Isolation(values["isolate"], values.written("timeout") or None, values.written("memory") or None)
    for key in {"timeout", "memory"} & values.entries.keys() if isolation.isolate is False else ():
        message = f"'{key}' bounds a process of its own, and 'isolate: false' wants none: remove one of them"
        reading.refuse(values.place(key), message)
    return isolation


def _budget(
    model: Text, variant: Text | None, source: ModelSource | None, values: Values,
    places: Mapping[str, Place], isolation: Isolation, reading: Reading,
) -> Iterator[Subject[ModelSource]]:  # fmt: skip
    """The budget of one model or variant, where it holds anything; steps stand beside what they make."""
    given: Iterable[Subject[Transformation]] = filter(None, (*values["transforms"].values(), values[GOLDEN]))
    made = chain(*((*part.transforms, replace(part, parts=part.deployments)) for part in given))
    transforms = tuple(_evaluated(part, source, reading) for part in made)
    for part in transforms:
        _must_know(part, source, reading)
    _must_be_called_otherwise(values, reading)
    if "evaluate" in values and source and source.evaluate:
        if not ((source.evaluate.data and source.evaluate.metric) or reading.problems):
            reading.refuse(values.place("evaluate"), f"evaluate: {NEEDS_DATA}")
        for limit in (each for each in values["evaluate"].limits if each.metric == DROP):
            reading.refuse(limit.place, "'drop' is from a model to what a transform makes of it: write it there")
    checks = (*held_limits(values), *chain(*(values[known.key] for known in KIND_FIELDS)))
    parts = (*transforms, *values["deployments"].values())
    if source and (checks or parts):
        held = chain(checks, *(part.checks for part in transforms))
        metrics = reading.tables.metrics
        stages = {metrics[check.metric].stage: check for check in held if check.kind == "number"}
        if source.serving is None and (served := stages.get(Stage.SERVED)):
            reading.refuse(served.place, f"{served.metric} is of a model in service: add 'serving: {{context: 8192}}'")
        on_devices = chain(values["deployments"].values(), *(part.parts for part in transforms))
        if not source.training and (Stage.TRAINED in stages or any(each.made.is_trained for each in on_devices)):
            source = replace(source, training=USUAL_OPTIMIZER)
        place, name = values.key.place, variant.text if variant else None
        yield Subject(model.text, place, source, checks, parts, places, name, isolation)


def _evaluated(part: Subject[Transformation], source: ModelSource | None, reading: Reading) -> Subject[Transformation]:
    """A transform with the data and the metric of its model, where it is evaluated and names none."""
    own, of_model = part.made.evaluate, source.evaluate if source else None
    if own is None or (own.data and own.metric):
        return part
    if own.data or own.metric or of_model is None:
        reading.refuse(part.place_of("evaluate"), f"evaluate: {NEEDS_DATA}, here or on the model")
        return part
    if why := unscored(of_model.metric, {check.metric for check in part.checks} & {*LIMITED.values()}):
        reading.refuse(part.place_of("evaluate"), why)
    evaluate = replace(of_model, is_error=of_model.is_error or own.is_error)
    return replace(part, made=replace(part.made, evaluate=evaluate))


def _must_have_inputs(
    values: Values, source: ModelSource | None, places: Mapping[str, Place], reading: Reading
) -> None:
    """Refuse a model without inputs whose limits need a run, in a file that is valid otherwise."""
    if source is None or source.inputs or "inputs" in places or reading.problems:
        return
    if reading.tables.formats[source.format].brings_inputs:
        return
    metrics = reading.tables.metrics
    held = (metrics[limit.metric] for limit in held_limits(values))
    needing = [metric.key for metric in held if not (metric.needs_no_run or metric.stage is Stage.SERVED)]
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
    if source is None or part.made.steps:
        return
    transforms, known = reading.tables.transforms, reading.tables.formats
    transform, given = transforms[part.made.transform], [transforms[each.transform].gives for each in part.made.after]
    format = [source.format, *filter(None, given)][-1]
    if not transform.takes(known[format]):
        formats = ", ".join(model_format.key for model_format in known.values() if transform.takes(model_format))
        message = f"'{part.made.transform}' knows models under {formats}, not under {format}"
        reading.refuse(part.declared_at["transform"], message)


def _varied(source: ModelSource | None, values: Values, reading: Reading) -> ModelSource | None:
    """The model's source with the variant's inputs, dtype, dims and qdq in place of its own."""
    if source is None:
        return None
    source_forms.refuse_other_keys(reading.tables.formats[source.format], values, reading)
    said = {key: values[key] for key in ("inputs", "dtype", "training", "qdq", "serving") if key in values}
    known = {key: value for key, value in said.items() if value is not None}
    asked = values["evaluate"]
    evaluate = asked.evaluation if asked and asked.evaluation.data else source.evaluate
    return replace(source, dims={**source.dims, **values["dims"]}, evaluate=evaluate, **known)


def json_schema(tables: Tables) -> Schema:
    """The schema of budget files over these metrics, formats and transforms."""
    schema = file_grammar(tables).schema
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Model budget",
        "description": "Size limits of neural networks, checked by pytest --model-budget",
        **schema,
        "definitions": grammar.definitions(schema, {}),
    }


def schema_text(tables: Tables) -> str:
    """The schema as the text of a file."""
    return json.dumps(json_schema(tables), indent=2, ensure_ascii=False) + "\n"


def names_transform(words: str) -> bool:
    """Whether a source is spelled BUDGET::MODEL::TRANSFORM."""
    return words.partition(BETWEEN)[0].endswith(SUFFIXES)


Named = tuple[Subject[ModelSource], Subject[Transformation] | None]


def subject_named(words: str, registry: Tables, root: Path) -> Named:
    """The model of BUDGET::MODEL, with the transform of BUDGET::MODEL::TRANSFORM. Raises InputError for neither."""
    file, _, path = words.partition(BETWEEN)
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist: name a budget file, such as budgets/x.yaml{BETWEEN}MODEL")
    known: dict[str, Named] = {}
    for model in read_budget(Path(file), registry, root=root).models:
        known[model.path] = model, None
        known |= {f"{model.path}{BETWEEN}{part.name}": (model, part) for part in model.transforms}
    if path not in known:
        raise InputError(f"{file} has no '{path}': name one of {', '.join(known)} after {file}{BETWEEN}")
    return known[path]
