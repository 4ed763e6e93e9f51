"""The forms of a model's source and of what it is run on: targets, arguments, inputs, dims."""

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath, PureWindowsPath

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.errors import BudgetError
from pytest_modelbudget.formats.source import (
    AS_WRITTEN,
    GROUPED,
    LARGEST_SIZE,
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    Call,
    InputSpec,
    InputSpecs,
    ModelSource,
    Plain,
    TensorSpec,
    attribute_meant,
    names_attribute,
)
from pytest_modelbudget.formats.table import Format

MOST_DIMENSIONS = 16

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("int8", "int16", "int32", "int64", "uint8")
# What people say for them, as torch does.
ALSO_CALLED = {
    "float32": ("float", "fp32"), "float16": ("half", "fp16"), "bfloat16": ("bf16",), "float64": ("double", "fp64"),
    "int64": ("long",), "int32": ("int",), "int16": ("short",), "uint8": ("byte",),
}  # fmt: skip
DTYPES = (*FLOATING, *INTEGER, "bool", "complex64", "complex128")

SIZE: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_SIZE}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}

# dtype, then sizes: "1x3x224x224", "[1, 3, 224, 224]", or a scalar's "()" or "[]".
SPEC_PATTERN = r"([A-Za-z][A-Za-z0-9]*)(?:\s+([0-9]+(?:x[0-9]+)*)|\s*\[\s*([0-9]+(?:\s*,\s*[0-9]+)*)?\s*\]|\s*\(\s*\))"


def _element_type(among: tuple[str, ...], what: str, name: str) -> Form[str]:
    refusal = f"{{word}} is not {what}: {{guess}}"
    return grammar.one_word(among, f"{what} such as {among[0]}", refusal, name=name, also=ALSO_CALLED)


ELEMENT_TYPE = _element_type(DTYPES, "an element type", "dtype")
FLOATING_TYPE = _element_type(FLOATING, "a floating-point type", "floating_dtype")
BOUND_OF_VALUES = grammar.whole_number(
    least=-LARGEST_SIZE,
    most=LARGEST_SIZE,
    refusal="{key} is larger than 2^63 - 1",
    schema={"type": "integer", "minimum": -LARGEST_SIZE, "maximum": LARGEST_SIZE},
    name="integer",
)


def _size(what: str) -> Form[int]:
    refusal = f"{what} of {{number}}: write the real size, 0 to 2^63 - 1"
    return grammar.whole_number(f"{what}: a whole number", least=0, most=LARGEST_SIZE, refusal=refusal, schema=SIZE)


DIMENSION = _size("a dimension")


def _spelled_sizes(text: Text, sizes: list[str], reading: Reading) -> tuple[int, ...] | None:
    if len(sizes) > MOST_DIMENSIONS:
        reading.refuse(text.place, f"{len(sizes)} dimensions: at most {MOST_DIMENSIONS} exist")
        return None
    if any(len(size) > 19 or int(size) > LARGEST_SIZE for size in sizes):
        reading.refuse(text.place, f"a dimension of {shown(text.text)} is larger than 2^63 - 1")
        return None
    return tuple(int(size) for size in sizes)


def _read_shape(entry: Entry, reading: Reading) -> tuple[int, ...] | None:
    """Sizes as a list, or spelled ``1x3x224x224``."""
    node = entry.value
    if isinstance(node, Text) and re.fullmatch(r"[0-9]+(x[0-9]+)*", node.text):
        return _spelled_sizes(node, node.text.split("x"), reading)
    items = reading.items(node, "a shape such as [1, 3, 224, 224]")
    sizes = [DIMENSION.of(item, reading) for item in items]
    if len(items) > MOST_DIMENSIONS:
        reading.refuse(node.place, f"{len(items)} dimensions: at most {MOST_DIMENSIONS} exist")
        return None
    known = tuple(size for size in sizes if size is not None)
    return known if isinstance(node, Listing) and len(known) == len(sizes) else None


_SHAPES: list[Schema] = [
    {"type": "array", "items": SIZE, "maxItems": MOST_DIMENSIONS},
    {"type": "string", "pattern": "^[0-9]+(x[0-9]+)*$"},
    SIZE,
]
SHAPE = Form(_read_shape, {"anyOf": _SHAPES}, "shape")


def _spelled_out(values: Values, reading: Reading) -> TensorSpec | None:
    """{dtype, shape, low, high}; a range is for integers, and holds one at least."""
    dtype, low, high = values["dtype"], values["low"], values["high"]
    bound = next((key for key in ("low", "high") if key in values), None)
    if bound and dtype and dtype not in INTEGER:
        reading.refuse(values.place(bound), f"'{bound}' is for integer inputs, and this one is {dtype}: remove it")
    elif bound and dtype and high is not None and high <= (low or 0):
        message = f"no integer is at least {low or 0} and below {high}: raise 'high'"
        reading.refuse(values.entries["high"].value.place, message)
    shape = values["shape"]
    return TensorSpec(dtype, shape, low, high) if dtype and shape is not None else None


SPEC = Grammar(
    "an input",
    (
        Field("dtype", ELEMENT_TYPE, "element type", required=True),
        Field("shape", SHAPE, "sizes, outermost first; [] is a scalar", required=True),
        Field("low", BOUND_OF_VALUES, "smallest integer that is drawn"),
        Field("high", BOUND_OF_VALUES, "the integer above the largest one that is drawn"),
    ),
)
SPELLED_OUT = SPEC.form(_spelled_out)


def _read_tensor(entry: Entry, reading: Reading) -> TensorSpec | None:
    if isinstance(entry.value, Block):
        return SPELLED_OUT.read(entry, reading)
    text = reading.text(entry.value, "an input such as float32 1x3x224x224")
    if text is None:
        return None
    match = re.fullmatch(SPEC_PATTERN, text.text.strip())
    if match is None:
        spec = text.text.strip()
        why = "is no input: write one such as float32 1x3x224x224"
        if spec in DTYPES:
            why = (
                f"has no shape: write {spec} 1x3x224x224, or {spec} () for a scalar; float32[1, 3] needs quotes inside "
                "{…} and […]"
            )
        elif open_size := _open_size(spec):
            why = f"is no input: {shown(open_size)} is no size: write a real one, such as 1 ('dims' is for files)"
        reading.refuse(text.place, f"{shown(text.text)} {why}")
        return None
    dtype = ELEMENT_TYPE.of(replace(text, text=match[1]), reading)
    shape = _spelled_sizes(text, re.findall(r"[0-9]+", match[2] or match[3] or ""), reading)
    return TensorSpec(dtype, shape) if dtype and shape is not None else None


def _open_size(spec: str) -> str:
    """The first size of what would be a spec without it, such as -1, ? or a symbol; "" of others."""
    dtype, *rest = re.split(r"[\s\[(]+", spec, maxsplit=1)
    sizes = re.split(r"\s*,\s*|(?<=\d)x|x(?=\d)", rest[0].rstrip(")] ")) if dtype in DTYPES and rest else []
    odd = [size for size in sizes if not size.isdecimal()]
    return odd[0] if odd and all(re.fullmatch(r"-\d+|\?|\*|\w+", size) for size in odd) else ""


def spec_text(spec: InputSpec) -> str:
    """One argument: "float32 1x3", {"dtype": ..., "shape": ..., "low": ...}, a plain value, or several of them."""
    if isinstance(spec, (TensorSpec, Plain)):
        return spec.spelled if isinstance(spec.spelled, str) else json.dumps(spec.spelled)
    if isinstance(spec, Mapping):
        return f"{{{', '.join(f'{grammar.plain_text(name)}: {spec_text(part)}' for name, part in spec.items())}}}"
    return f"[{', '.join(map(spec_text, spec))}]"


_SPECS: list[Schema] = [{"type": "string", "pattern": rf"^\s*{SPEC_PATTERN}\s*$"}, SPEC.schema]
INPUT: Form[TensorSpec] = Form(_read_tensor, {"anyOf": _SPECS}, "input", spec_text, uses=SPEC.uses)

PLAIN = "plain"
ANY: Form[object] = Form(lambda entry, reading: grammar.plain_value(entry.value, reading), {})
_ANY: Form[Plain] = Form(lambda entry, reading: Plain(ANY.read(entry, reading)), {})
PLAIN_GRAMMAR = Grammar("a plain input", (Field(PLAIN, _ANY, "what the model is given as it is", required=True),))
PLAIN_INPUT: Form[Plain] = PLAIN_GRAMMAR.form(lambda values, reading: values[PLAIN])


def is_spelled_out(names: Iterable[str]) -> bool:
    """Whether a mapping of these names is one tensor, and not several inputs by name."""
    return bool({"dtype", "shape"} & {*names})


def is_one_input(names: Iterable[str]) -> bool:
    """Whether a mapping of these names is one argument: a tensor, or a plain value."""
    return is_spelled_out(names) or {*names} == {PLAIN}


def _read_argument(entry: Entry, reading: Reading) -> InputSpec | None:
    """A tensor, a plain value, or a list or mapping of arguments."""
    node = entry.value
    if isinstance(node, Listing):
        return _arguments(node.items, reading)
    if isinstance(node, Block):
        names = {key.text for key, _ in node.entries}
        if names == {PLAIN}:
            return PLAIN_INPUT.read(entry, reading)
        return SPELLED_OUT.read(entry, reading) if is_spelled_out(names) else _by_name(node, reading)
    if isinstance(node, Text) and node.plain and node.text and not isinstance(grammar.scalar(node.text), str):
        return _ANY.read(entry, reading)
    if isinstance(node, Text) and node.text.isalpha():
        text = node.text
        message = f"{shown(text)} is no input: write one such as float32 1x3x224x224, or {{plain: {text}}} for a text"
        reading.refuse(node.place, message)
        return None
    return INPUT.read(entry, reading)


_ARGUMENTS: Schema = {"type": "array", "items": {"$ref": "#/definitions/argument"}}
_NAMED_ARGUMENTS: Schema = {
    "type": "object",
    "minProperties": 1,
    "not": {"anyOf": [{"required": ["dtype"]}, {"required": ["shape"]}]},
    "additionalProperties": {"$ref": "#/definitions/argument"},
}
_PLAIN_INPUTS: list[Schema] = [{"type": ["null", "boolean", "number"]}, PLAIN_GRAMMAR.schema]
ARGUMENT: Form[InputSpec] = Form(
    _read_argument,
    {"anyOf": [INPUT.reference, _ARGUMENTS, _NAMED_ARGUMENTS, *_PLAIN_INPUTS]},
    "argument",
    spec_text,
    uses=(INPUT,),
)


def _arguments(items: Iterable[Node], reading: Reading) -> tuple[InputSpec, ...]:
    return tuple(spec for spec in (ARGUMENT.of(item, reading) for item in items) if spec is not None)


def _by_name(block: Block, reading: Reading) -> Mapping[str, InputSpec]:
    if not block.entries:
        reading.refuse(block.place, "expected inputs by name, found an empty mapping")
    specs = {key.text: ARGUMENT.of(value, reading) for key, value in block.entries}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _read_inputs(entry: Entry, reading: Reading) -> InputSpecs:
    """Positional inputs from one spec or a list, named ones from a mapping."""
    node = entry.value
    if isinstance(node, Listing):
        specs = InputSpecs(_arguments(node.items, reading))
        if message := numbers_alone(specs):
            reading.refuse(node.place, message)
        return specs
    if isinstance(node, Block) and not is_spelled_out(key.text for key, _ in node.entries):
        return InputSpecs(named=_by_name(node, reading))
    spec = INPUT.read(entry, reading)
    return InputSpecs((spec,) if spec else ())


def numbers_alone(specs: InputSpecs) -> str:
    """Why whole numbers in a list are no inputs, as which a shape would be taken; "" of others."""
    numbers = [spec.value for spec in specs.positional if isinstance(spec, Plain) and type(spec.value) is int]
    if not numbers or len(numbers) < len(specs.positional):
        return ""
    return f"inputs of numbers alone: for a tensor of these sizes write float32 {'x'.join(map(str, numbers))}"


def positional_text(specs: tuple[InputSpec, ...]) -> str:
    """Positional inputs: one tensor alone, else a list: "float32 1x3", "[float32 1x3, int64 1]"."""
    return spec_text(specs[0] if len(specs) == 1 and isinstance(specs[0], TensorSpec) else specs)


def _inputs_texts(specs: InputSpecs) -> Texts:
    if specs.positional:
        return {"": positional_text(specs.positional)}
    return {name: spec_text(spec) for name, spec in specs.named.items()}


def _inputs_text(specs: InputSpecs) -> str:
    if not specs.named:
        return positional_text(specs.positional)
    by_name = (f"{grammar.plain_text(name)}: {spec_text(spec)}" for name, spec in specs.named.items())
    return f"{{{', '.join(by_name)}}}"


_INPUTS: Schema = {"anyOf": [INPUT.reference, _ARGUMENTS, _NAMED_ARGUMENTS]}
INPUTS = Form(_read_inputs, _INPUTS, "inputs", _inputs_text, _inputs_texts, uses=(INPUT, ARGUMENT))


# What a model is built with, and its symbols.


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
DIMS = grammar.named(_size("a size"), "dims: a mapping of symbols to sizes, {batch: 1}", name="dims")
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
    if not formats:
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
