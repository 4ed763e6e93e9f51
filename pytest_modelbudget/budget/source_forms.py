"""The forms of a model's source: targets, what is called with which arguments, dims, and how it is read."""

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath, PureWindowsPath

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.grammar import SOME_TEXT, Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.input_forms import FLOATING_TYPE, INPUTS, size_form
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import (
    AS_WRITTEN,
    GROUPED,
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    Call,
    InputSpecs,
    ModelSource,
    attribute_meant,
    names_attribute,
)
from pytest_modelbudget.formats.table import Format

CALL = "call"
CALLING = (CALL, "args", "kwargs")


def _argument_value(node: Node, reading: Reading) -> object:
    """A plain value, or what a call makes; in lists and mappings, too."""
    if isinstance(node, Listing):
        return [_argument_value(item, reading) for item in node.items]
    if isinstance(node, Block):
        if any(key.text == CALL for key, _ in node.entries):
            return CALLED.of(node, reading)
        return {key.text: _argument_value(value, reading) for key, value in node.entries}
    return grammar.plain_value(node, reading)


def _read_kwargs(entry: Entry, reading: Reading) -> Mapping[str, object] | None:
    block = reading.block(entry.value, "kwargs: a mapping of names to values")
    if block is None:
        return None
    for key, _ in block.entries:
        if not key.text.isidentifier():
            reading.refuse(key.place, f"{shown(key.text)} is no name of an argument")
    return {key.text: _argument_value(value, reading) for key, value in block.entries}


def _read_args(entry: Entry, reading: Reading) -> tuple[object, ...]:
    items = reading.items(entry.value, "args: a list of values")
    return tuple(_argument_value(item, reading) for item in items)


def _callable_name(word: Text, key: str, reading: Reading) -> str:
    if not names_attribute(word.text):
        raise BudgetError(_no_such_name(word.text, "transformers:BertConfig"))
    return word.text


_VALUE: Schema = {"$ref": "#/definitions/value"}
VALUE: Form[object] = Form(
    lambda entry, reading: _argument_value(entry.value, reading),
    {
        "if": {"type": "object", "required": [CALL]},
        "then": {"$ref": "#/definitions/call"},
        "else": {"items": _VALUE, "additionalProperties": _VALUE},
    },
    "value",
)
ARGS = Form(_read_args, {"type": "array", "items": _VALUE}, "values")
KWARGS = Form(_read_kwargs, {"type": "object", "additionalProperties": _VALUE}, "named_values")
_CALLABLE = grammar.spelled("call: a module:callable", _callable_name, SOME_TEXT)
CALLED: Form[Call] = Grammar(
    "a call",
    (
        Field(CALL, _CALLABLE, "module:callable, called anew for each model", required=True),
        Field("args", ARGS, "its positional arguments", default=()),
        Field("kwargs", KWARGS, "its keyword arguments", default={}),
    ),
).form(lambda values, reading: Call(values[CALL] or "", values["args"], values["kwargs"]), "call")
DIMS = grammar.named(size_form("a size"), "dims: a mapping of symbols to sizes, {batch: 1}", name="dims")
QDQ = grammar.one_word(
    (GROUPED, AS_WRITTEN),
    f"{{key}}: {GROUPED} or {AS_WRITTEN}",
    f"{{word}} is no way to read QDQ: write {GROUPED} or {AS_WRITTEN}",
    name="qdq",
    meaning=lambda word: "" if word == GROUPED else word,
)

OPTIMIZER: Form[str] = grammar.one_word(
    OPTIMIZERS,
    f"an optimizer: {', '.join(OPTIMIZERS)}",
    f"{{word}} is no optimizer whose states are known: write {', '.join(OPTIMIZERS)}",
    name="optimizer",
)
TRAINING_GRAMMAR = Grammar(
    "training",
    (Field("optimizer", OPTIMIZER, "what keeps values of its own for each parameter", default=USUAL_OPTIMIZER),),
    expected="training: a mapping such as {optimizer: adam}",
    empty="training says nothing: name the optimizer, as in {optimizer: adam}",
)
TRAINING: Form[str] = replace(
    TRAINING_GRAMMAR.form(lambda values, reading: values["optimizer"], "training"),
    text=lambda optimizer: f"{{optimizer: {optimizer}}}",
    texts=lambda optimizer: {} if optimizer == USUAL_OPTIMIZER else {"optimizer": optimizer},
)

_WEIGHT_SUFFIXES = (".pt", ".pth", ".pt2", ".ts", ".ckpt", ".bin", ".safetensors", ".onnx", ".pkl")


def is_path_format(model_format: Format) -> bool:
    """Whether the format's target is a file, and not a module's attribute."""
    return bool(model_format.suffixes)


def target_form(model_format: Format) -> Form[str]:
    """The target under a format's key: a module's attribute, or a file inside the project."""
    problem_of = partial(_path_problem, model_format) if is_path_format(model_format) else _no_attribute

    def meaning(word: Text, key: str, reading: Reading) -> str:
        problem = problem_of(word.text, reading) if word.text.strip() else f"{key}: names nothing"
        if problem is not None:
            raise BudgetError(problem)
        return word.text

    return grammar.spelled(f"{model_format.key}: a {model_format.target}", meaning, SOME_TEXT, "target")


def _no_attribute(target: str, reading: Reading) -> str | None:
    """Say why a target is no "module:attribute"; None where it is one."""
    if names_attribute(target) and not target.endswith(_WEIGHT_SUFFIXES):
        return None
    if target.endswith(_WEIGHT_SUFFIXES) or (re.search(r"[/\\]", target) and not attribute_meant(target)):
        others = [front for front in reading.tables.formats.values() if target.endswith(front.suffixes)]
        other = "".join(f", or for such a model file {front.key}:" for front in others)
        return (
            f"{shown(target)} is a file, and a state dict is no model: name a factory that "
            f"loads it, package.module:function{other}"
        )
    return _no_such_name(target, "package.module:callable")


def _no_such_name(target: str, example: str) -> str:
    guess = f"did you mean {meant}?" if (meant := attribute_meant(target)) else f"write {example}"
    return f"{shown(target)} is no module:attribute: {guess}"


def _path_problem(model_format: Format, target: str, reading: Reading) -> str | None:
    """Say why a target is no path of that format inside the project, or None. Opens nothing."""
    problem = place_problem(target, "a model file", reading)
    if problem is not None:
        return problem
    suffix = PurePosixPath(target).suffix
    for other in reading.tables.formats.values():
        if suffix in other.suffixes and suffix not in model_format.suffixes:
            kind = other.target.removeprefix("path of ")
            return f"{shown(target)} is {kind}: write it under {other.key}:"
    return None


def place_problem(target: str, what: str, reading: Reading) -> str | None:
    """Say why a target is no path inside the project, or None. Opens nothing."""
    if not target.isprintable():
        return f"{shown(target)} holds characters that no path should have"
    if "\\" in target or PureWindowsPath(target).drive:
        return f"{shown(target)} is no path of every system: separate folders with /"
    if "://" in target:
        return f"{shown(target)} is an address, and nothing is fetched: write the path of {what} in the project"
    path = os.path.normpath(os.path.join(reading.folder, target))
    if not PurePosixPath(path).is_relative_to(reading.root) or target.endswith("/"):
        return f"{shown(target)} lies outside the project: {what} must stay inside it"
    return None


INPUTS_FIELD = Field("inputs", INPUTS, "one spec such as float32 1x3x224x224, a list, or by name")
DTYPE_FIELD = Field("dtype", FLOATING_TYPE, "converts the model's floating-point weights")
DIMS_FIELD = Field("dims", DIMS, "sizes of the symbolic dimensions that the file brings", default={})
QDQ_FIELD = Field("qdq", QDQ, "as_written measures dequantise, operation and quantise apart", default="")
TRAINING_FIELD = Field("training", TRAINING, "what a training step is measured with: {optimizer: adam}", default="")
ARGUMENT_FIELDS = (
    Field("args", replace(ARGS, uses=(VALUE, CALLED)), "positional arguments of the callable under torch:", default=()),
    Field("kwargs", KWARGS, "keyword arguments of the callable under torch:", default={}),
)
# Everything that a budget says of a model beside where it is; a ModelSource has the same names.
RUN_ON = (*ARGUMENT_FIELDS, INPUTS_FIELD, DTYPE_FIELD, DIMS_FIELD, QDQ_FIELD, TRAINING_FIELD)


def target_fields(formats: Mapping[str, Format]) -> tuple[Field, ...]:
    """The keys that name a model, one for each format."""
    return tuple(Field(key, target_form(front), front.target) for key, front in formats.items())


def source_texts(source: ModelSource) -> dict[str, Texts]:
    """All that a budget says of where a model comes from and what it is run on, by key."""
    where = f"{source.format} {posixpath.normpath(str(source.target))}"
    run_on = ((known, getattr(source, known.key)) for known in RUN_ON)
    return {"source": {"": where}, **{known.key: known.form.written(value) if value else {} for known, value in run_on}}


def declared_texts(source: ModelSource) -> dict[str, str]:
    """The same as a budget may spell it: {"source": "torch my_nets:Detector", "kwargs": "{width: 0.5}"}."""
    return {key: _flow(texts) for key, texts in source_texts(source).items() if texts}


def _flow(texts: Texts) -> str:
    """One value, or several by name."""
    return texts[""] if "" in texts else f"{{{', '.join(f'{name}: {text}' for name, text in texts.items())}}}"


def refuse_dtype_of_a_file(format: str, values: Values, reading: Reading) -> None:
    """A file holds its weights in the type that it was saved in."""
    if "dtype" in values and is_path_format(reading.tables.formats[format]):
        message = f"'dtype' converts modules, and {format}: names a file: save it in that type"
        reading.refuse(values.place("dtype"), message)


def _refuse_what_does_not_fit(model_format: Format, values: Values, reading: Reading) -> None:
    for key in {"args", "kwargs"} & values.entries.keys() if is_path_format(model_format) else ():
        message = f"'{key}' is for a callable, and {model_format.key}: names a file: remove it"
        reading.refuse(values.place(key), message)
    refuse_dtype_of_a_file(model_format.key, values, reading)
    if "dims" in values and not model_format.brings_inputs:
        message = f"'dims' binds symbols that a file brings: under {model_format.key}: write inputs"
        reading.refuse(values.place("dims"), message)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The inputs and the type of models that do not say them themselves."""

    inputs: InputSpecs | None = None
    dtype: str | None = None
    is_broken: bool = False  # then what a model lacks may have been meant to stand there
    places: Mapping[str, Place] = field(default_factory=dict)  # of what they say, by key


def model_source(values: Values, defaults: Defaults, reading: Reading) -> ModelSource | None:
    """The one source that a model names, and what it is run on."""
    key, formats = values.key, [key for key in values.entries if key in reading.tables.formats]
    for second in formats[1:]:
        reading.refuse(values.place(second), f"'{second}' is a second source beside '{formats[0]}': a model has one")
    if not formats and not values.meant & reading.tables.formats.keys():
        keys = " or ".join(f"{known}:" for known in reading.tables.formats)
        reading.refuse(key.place, f"the model {shown(key.text)} names no source: give {keys}")
    if len(formats) != 1:
        return None
    model_format = reading.tables.formats[formats[0]]
    _refuse_what_does_not_fit(model_format, values, reading)
    inputs = values["inputs"]
    if inputs is None and not model_format.brings_inputs:
        inputs = defaults.inputs
    target = values[model_format.key]
    run_on = {key: values[key] for key in ("args", "kwargs", "dims", "qdq", "training")}
    dtype = values["dtype"] or (None if is_path_format(model_format) else defaults.dtype)
    return target and ModelSource(
        model_format.key, target, inputs or InputSpecs(), dtype=dtype, **run_on, base=reading.folder
    )


def declared_places(source: ModelSource, values: Values, defaults: Defaults) -> dict[str, Place]:
    """The place of each key of a model, and of "source"; defaults only where they are taken."""
    taken = {"inputs"} if source.inputs else set[str]()
    taken |= {"dtype"} if source.dtype is not None else set()
    places = {key: place for key, place in defaults.places.items() if key in taken}
    return {**places, **values.places, "source": values.place(source.format)}


def second_source(formats: Mapping[str, Format]) -> Form[ModelSource]:
    """A model to compare with: its source alone; its inputs are those of the first."""
    fields = (*target_fields(formats), *ARGUMENT_FIELDS, DTYPE_FIELD)
    table = Grammar("a second model", fields)

    def read(entry: Entry, reading: Reading) -> ModelSource | None:
        values = table.read(entry, reading)
        if values is None:
            return None
        formats = [key for key in values.entries if key in reading.tables.formats]
        if len(formats) != 1:
            keys = " or ".join(f"{key}:" for key in reading.tables.formats)
            reading.refuse(entry.value.place, f"a comparison needs one second model: give {keys}")
            return None
        model_format = reading.tables.formats[formats[0]]
        _refuse_what_does_not_fit(model_format, values, reading)
        run_on = {key: values[key] for key in ("args", "kwargs", "dtype")}
        target = values[model_format.key]
        return target and ModelSource(model_format.key, target, **run_on, base=reading.folder)

    schema: Schema = {
        "type": "object",
        "oneOf": [{"required": [key]} for key in formats],
        "additionalProperties": False,
        "properties": {
            **dict.fromkeys(formats, SOME_TEXT),
            **{known.key: known.form.schema for known in ARGUMENT_FIELDS},
            "dtype": FLOATING_TYPE.reference,
        },
    }
    return Form(read, schema, texts=_second_source_texts, uses=(FLOATING_TYPE,))


def _second_source_texts(source: ModelSource) -> Texts:
    return {
        f"{key} {name}".rstrip(): text for key, texts in source_texts(source).items() for name, text in texts.items()
    }
