"""The forms of a model's source: targets, what is called with which arguments, dims, and how it is read."""

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Limit, Place
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Texts, Values
from pytest_modelbudget.budget.input_forms import CALL, CALLABLE, DIMENSION, FLOATING_TYPE, INPUTS, no_callable
from pytest_modelbudget.budget.limit_forms import AUTO, LEVEL, end_form
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.equivalence.user_inputs import SUFFIXES, GivenInputs
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.evaluation.evaluate import ACCURACY, ERROR, LIMITED, SCORES, unscored
from pytest_modelbudget.formats.source import (
    AS_WRITTEN,
    CACHE_TYPES,
    GROUPED,
    LARGEST_SIZE,
    OPTIMIZERS,
    OTHERS,
    USUAL_OPTIMIZER,
    Call,
    Evaluation,
    InputSpecs,
    ModelSource,
    Serving,
    attribute_meant,
    names_attribute,
)
from pytest_modelbudget.formats.table import Format
from pytest_modelbudget.units import with_article

# A callable, and what it is called with.


def _argument_value(node: Node, reading: Reading) -> object:
    """A plain value, or what a call makes; in lists and mappings, too."""
    if isinstance(node, Listing):
        return [_argument_value(item, reading) for item in node.items]
    if isinstance(node, Block):
        if any(key.text == CALL for key, _ in node.entries):
            return CALLED.of(node, reading)
        return {key.text: _argument_value(value, reading) for key, value in node.entries}
    return grammar.plain_value(node)


def _read_kwargs(entry: Entry, reading: Reading) -> Mapping[str, object] | None:
    block = reading.node(Block, entry.value, "kwargs: a mapping of names to values")
    if block is None:
        return None
    for key, _ in block.entries:
        if not key.text.isidentifier():
            reading.refuse(key.place, f"{shown(key.text)} is no name of an argument")
    return {key.text: _argument_value(value, reading) for key, value in block.entries}


def _read_args(entry: Entry, reading: Reading) -> tuple[object, ...]:
    several = reading.node(Listing, entry.value, "args: a list of values")
    return tuple(_argument_value(item, reading) for item in several.items) if several else ()


VALUE: Form[object] = Form(lambda entry, reading: _argument_value(entry.value, reading), {}, "value")
ARGS = Form(_read_args, {"type": "array", "items": VALUE.reference}, "values")
KWARGS = Form(_read_kwargs, {"type": "object", "additionalProperties": VALUE.reference}, "named_values")
CALLED: Form[Call] = Grammar(
    "a call",
    (
        Field(CALL, CALLABLE, "module:callable, called for each model", required=True),
        Field("args", ARGS, "its positional arguments", default=()),
        Field("kwargs", KWARGS, "its keyword arguments", default={}),
    ),
).form(lambda values, reading: Call(values[CALL] or "", values["args"], values["kwargs"]), "call")
VALUE.schema.update({
    "if": {"type": "object", "required": [CALL]},
    "then": CALLED.reference,
    "else": {"items": VALUE.reference, "additionalProperties": VALUE.reference},
})  # fmt: skip


# What a model is run on.

DIMS = grammar.named(DIMENSION, "dims: a mapping of symbols to sizes, {batch: 1}", name="dims")
QDQ = grammar.one_word(
    (GROUPED, AS_WRITTEN), "way to read QDQ", name="qdq", meaning=lambda word: "" if word == GROUPED else word
)
OPTIMIZER: Form[str] = grammar.one_word(OPTIMIZERS, "optimizer whose states are known", name="optimizer")
TRAINING = replace(
    Grammar(
        "training",
        (Field("optimizer", OPTIMIZER, "what keeps values of its own for each parameter", required=True),),
        expected="training: a mapping such as {optimizer: adam}",
    ).form(lambda values, reading: values["optimizer"] or USUAL_OPTIMIZER, "training"),
    texts=lambda optimizer: {"optimizer": optimizer},
)
CACHE_TYPE: Form[str] = grammar.one_word(CACHE_TYPES, "type of a cache", name="cache_dtype")
TOKENS = grammar.whole_number(1, LARGEST_SIZE, "a number of tokens")
SERVING_GRAMMAR = Grammar(
    "serving",
    (
        Field("context", TOKENS, "tokens that are cached for each sequence", required=True),
        Field("batch", grammar.whole_number(1, LARGEST_SIZE, "a number of sequences"), "sequences", default=1),
        Field("cache_dtype", CACHE_TYPE, "the type of the cache (default: the program's)", default=""),
        Field("memory", grammar.amount("B", "24 GB"), "what max_context has to fit: 24 GB"),
        Field("reserve", grammar.amount("B"), "what the engine takes besides", default=0),
    ),
    expected="serving: a mapping such as {context: 8192, batch: 4}",
)


def _serving(values: Values, reading: Reading) -> Serving | None:
    """All that a model is served with; amounts of bytes are whole."""
    if values["context"] is None:
        return None
    memory, reserve = values["memory"], values["reserve"]
    return Serving(values["context"], values["batch"], values["cache_dtype"], memory and int(memory), int(reserve))


SERVING = replace(SERVING_GRAMMAR.form(_serving, "serving"), texts=SERVING_GRAMMAR.texts)


# What its answers are scored on.


def _given(word: Text, key: str, reading: Reading) -> GivenInputs:
    """The path of a file of arrays, or a callable that yields them."""
    is_file = word.text.endswith(SUFFIXES)
    if not is_file and not names_attribute(word.text):
        raise BudgetError(f"{shown(word.text)} is no inputs: write data/file.npz, or package.module:callable")
    if is_file and (problem := place_problem(word.text, "a file of inputs", reading)):
        raise BudgetError(problem)
    return GivenInputs(word.text, reading.folder)


GIVEN_FORM = grammar.spelled(
    "{key}: the path of a .npz file, or package.module:callable", _given, SOME_TEXT, "given_inputs"
)


def _metric(word: Text, key: str, reading: Reading) -> str:
    if word.text not in SCORES and not names_attribute(word.text):
        raise BudgetError(f"{shown(word.text)} is no metric: write {', '.join(SCORES)}, or package.module:callable")
    return word.text


METRIC = grammar.spelled("{key}: top1, top5, mse, or package.module:callable", _metric, SOME_TEXT, "scored_by")


class Evaluating(NamedTuple):
    """Data and metric, "" where a transform takes those of its model, and limits on the answers."""

    evaluation: Evaluation
    limits: tuple[Limit, ...]


EVALUATE_GRAMMAR = Grammar(
    "evaluate",
    (
        Field("data", GIVEN_FORM, "a .npz file with inputs and labels, or package.module:callable"),
        Field("metric", METRIC, "top1, top5, mse, or package.module:callable"),
        Field("batch", grammar.whole_number(1, LARGEST_SIZE), "rows of one call; 64 where any may be", default=0),
        Field("min", end_form(ACCURACY, "%", least=True), "the least share of right answers: 97.4 %"),
        Field("drop", grammar.amount("%"), "how much less may be right than before the transform: 0.5 %"),
        Field("max", end_form(ERROR, ""), "the largest mean error"),
        LEVEL,
    ),
)


def _evaluating(values: Values, reading: Reading) -> Evaluating:
    given, metric = values["data"], values["metric"] or ""
    keys = [key for key in LIMITED if values[key] is not None or values.written(key) == AUTO]
    limits = []
    for key in keys:
        end: Any = {"auto": (key,)} if values[key] is None else {"min" if key == "min" else "max": values[key]}
        limits.append(Limit(LIMITED[key], values.place(key), level=values["level"], written=values.written(key), **end))
    if why := unscored(metric, {limit.metric for limit in limits}):
        reading.refuse(limits[0].place, why)
    is_error, data = metric == "mse" or "max" in keys, str(given.source) if given else ""
    return Evaluating(Evaluation(data, metric, values["batch"], is_error, reading.folder), tuple(limits))


EVALUATE = replace(EVALUATE_GRAMMAR.form(_evaluating, "evaluate"), texts=EVALUATE_GRAMMAR.texts)
EVALUATE_FIELD = Field("evaluate", EVALUATE, "answers on labelled data: {data: test.npz, metric: top1, min: 97 %}")
INPUTS_FIELD = Field("inputs", INPUTS, "one spec such as float32 1x3x224x224, a list, or by name")
DTYPE_FIELD = Field("dtype", FLOATING_TYPE, "converts the model's floating-point weights")
DIMS_FIELD = Field("dims", DIMS, "sizes of the symbolic dimensions that the file brings", default={})
QDQ_FIELD = Field("qdq", QDQ, "as_written measures dequantise, operation and quantise apart", default="")
TRAINING_FIELD = Field("training", TRAINING, "what a training step is measured with: {optimizer: adam}", default="")
SERVING_FIELD = Field("serving", SERVING, "a language model with its cache: {context: 8192, batch: 4}")
ARGUMENT_FIELDS = (
    Field("args", ARGS, "positional arguments of the callable under torch:", default=()),
    Field("kwargs", KWARGS, "keyword arguments of the callable under torch:", default={}),
)
# Everything that a budget says of a model beside where it is; a ModelSource has the same names.
RUN_ON = (
    *ARGUMENT_FIELDS, INPUTS_FIELD, DTYPE_FIELD, DIMS_FIELD, QDQ_FIELD, TRAINING_FIELD, SERVING_FIELD, EVALUATE_FIELD
)  # fmt: skip


# Targets.

_WEIGHT_SUFFIXES = (".pt", ".pth", ".pt2", ".ts", ".ckpt", ".bin", ".safetensors", ".onnx", ".pkl")


def target_form(model_format: Format) -> Form[str]:
    """The target under a format's key: a module's attribute, or a file inside the project. Opens nothing."""

    def meaning(word: Text, key: str, reading: Reading) -> str:
        target = word.text
        if model_format.suffixes:
            problem = place_problem(target, "a model file", reading) or _of_another_format(target, key, reading)
        else:
            problem = _no_model(target, reading)
        if problem:
            raise BudgetError(problem)
        return target

    return grammar.spelled(f"{model_format.key}: a {model_format.target}", meaning, SOME_TEXT, "target")


def _of_another_format(target: str, key: str, reading: Reading) -> str:
    """Say under which key a file belongs, where that is another one."""
    formats = reading.tables.formats
    other = next((other for other in formats.values() if target.endswith(other.suffixes)), None)
    if other is None or target.endswith(formats[key].suffixes):
        return ""
    return f"{shown(target)} is {other.target.removeprefix('path of ')}: write it under {other.key}:"


def _no_model(target: str, reading: Reading) -> str:
    """Say why a target is no callable that makes a model; "" where it is one."""
    is_file = re.search(r"[/\\]", target) and not attribute_meant(target)
    if not is_file and not target.endswith(_WEIGHT_SUFFIXES):
        return no_callable(target)
    others = [front.key for front in reading.tables.formats.values() if target.endswith(front.suffixes)]
    for name, suffixes, _, way_out in OTHERS:
        if target.endswith(suffixes):
            return f"{shown(target)} is {with_article(f'{name} file')}: {way_out}"
    return (
        f"{shown(target)} is a file, and a state dict is no model: name a factory that loads it, "
        f"package.module:function{''.join(f', or for such a model file {key}:' for key in others)}"
    )


def place_problem(target: str, what: str, reading: Reading) -> str:
    """Say why a target is no path inside the project; "" where it is one. Opens nothing."""
    if "://" in target:
        return f"{shown(target)} is an address, and nothing is fetched: write the path of {what} in the project"
    if "\\" in target or PureWindowsPath(target).drive:
        on_windows = PureWindowsPath(target)
        write = "a path inside the project" if on_windows.drive else f"forward slashes: {on_windows.as_posix()}"
        return f"{shown(target)} is read on Windows alone: write {write}"
    path = os.path.normpath(os.path.join(reading.folder, target))
    if not target.strip() or not PurePosixPath(path).is_relative_to(reading.root):
        return f"{shown(target)} lies outside the project: {what} must stay inside it"
    return ""


def target_fields(formats: Mapping[str, Format]) -> tuple[Field, ...]:
    """The keys that name a model, one for each format."""
    return tuple(Field(key, target_form(front), front.target) for key, front in formats.items())


# A source as texts.


def source_texts(source: ModelSource) -> dict[str, Texts]:
    """All that a budget says of where a model comes from and what it is run on, by key."""
    where = f"{source.format} {posixpath.normpath(str(source.target))}"
    run_on = {known.key: (known, getattr(source, known.key)) for known in RUN_ON}
    said = {key: known.form.texts(value) if value else {} for key, (known, value) in run_on.items()}
    if source.training == USUAL_OPTIMIZER:  # which a limit on training brings, too
        said["training"] = {}
    return {"source": {"": where}, **said}


def declared_texts(source: ModelSource) -> dict[str, str]:
    """The same as a budget may spell it: {"source": "torch my_nets:Detector", "kwargs": "{width: 0.5}"}."""
    return {key: grammar.flow(texts) for key, texts in source_texts(source).items() if texts}


# A source out of the values of a model.


def format_of(values: Values, reading: Reading) -> Format | None:
    """The format of the one source that a model names; keys that are not for it are refused."""
    known = [reading.tables.formats[key] for key in values.entries if key in reading.tables.formats]
    if len(known) != 1 or values[known[0].key] is None:
        return None
    refuse_other_keys(known[0], values, reading)
    return known[0]


def refuse_other_keys(model_format: Format, values: Values, reading: Reading) -> None:
    """Refuse arguments and a type of what is a file, which has both in it, and dims of what is none."""
    key, refused = model_format.key, dict[str, str]()
    if model_format.suffixes:
        refused = dict.fromkeys(("args", "kwargs"), f"is for a callable, and {key}: names a file: remove it")
        refused["dtype"] = f"converts modules, and {key}: names a file: save it in that type"
    if not model_format.brings_inputs:
        refused["dims"] = f"binds symbols that a file brings: under {key}: write inputs"
    for name in refused.keys() & values.entries.keys():
        reading.refuse(values.place(name), f"'{name}' {refused[name]}")


def model_source(values: Values, defaults: Values | None, reading: Reading) -> ModelSource | None:
    """The one source that a model names, and what it is run on."""
    model_format = format_of(values, reading)
    if model_format is None:
        return None
    inputs, dtype = values["inputs"], values["dtype"]
    if defaults and inputs is None and not model_format.brings_inputs:
        inputs = defaults["inputs"]
    if defaults and dtype is None and not model_format.suffixes:
        dtype = defaults["dtype"]
    run_on = {key: values[key] for key in ("args", "kwargs", "dims", "qdq", "training", "serving")}
    run_on["evaluate"] = values["evaluate"] and values["evaluate"].evaluation
    target = values[model_format.key]
    return ModelSource(model_format.key, target, inputs or InputSpecs(), dtype=dtype, **run_on, base=reading.folder)


def declared_places(source: ModelSource, values: Values, defaults: Values | None) -> dict[str, Place]:
    """The place of each key of a model, and of "source"; defaults only where they are taken."""
    taken = {"inputs": source.inputs, "dtype": source.dtype}
    places = {key: place for key, place in (defaults.places if defaults else {}).items() if taken.get(key)}
    return {**places, **values.places, "source": values.place(source.format)}


def second_source(formats: Mapping[str, Format]) -> Form[ModelSource]:
    """A model to compare with: its source alone; its inputs are those of the first."""

    def made(values: Values, reading: Reading) -> ModelSource | None:
        model_format = format_of(values, reading)
        if model_format is None:
            return None
        run_on = {key: values[key] for key in ("args", "kwargs", "dtype")}
        return ModelSource(model_format.key, values[model_format.key], **run_on, base=reading.folder)

    def texts(source: ModelSource) -> Texts:
        words = ((key, name, text) for key, each in source_texts(source).items() for name, text in each.items())
        return {f"{key} {name}".rstrip(): text for key, name, text in words}

    fields = (*target_fields(formats), *ARGUMENT_FIELDS, DTYPE_FIELD)
    return replace(Grammar("a second model", fields, one_of=tuple(formats)).form(made), texts=texts)
