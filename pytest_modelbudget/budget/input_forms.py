"""The forms of what a model is run on: element types, shapes, tensors, plain values, and inputs of them all."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.errors import BudgetError, InputError
from pytest_modelbudget.formats.containers import Record
from pytest_modelbudget.formats.source import (
    LARGEST_SIZE,
    Call,
    InputSpec,
    InputSpecs,
    Plain,
    TensorSpec,
    is_whole,
    names_attribute,
    of_values,
)

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


def size_form(what: str) -> Form[int]:
    """What reads the size of something, which its refusal is about."""
    refusal = f"{what} of {{number}}: write the real size, 0 to 2^63 - 1"
    return grammar.whole_number(f"{what}: a whole number", least=0, most=LARGEST_SIZE, refusal=refusal, schema=SIZE)


DIMENSION = size_form("a dimension")


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
ANY: Form[object] = Form(lambda entry, reading: grammar.plain_value(entry.value, reading), {})
VALUES, CALL = "values", "call"


def _of_values(values: Values, reading: Reading) -> TensorSpec | None:
    """{values, dtype}: integers that are given as they are."""
    try:
        return of_values(values["dtype"], values[VALUES])
    except InputError as error:
        reading.refuse(values.place(VALUES), str(error))
        return None


VALUED = Grammar(
    "an input",
    (
        Field(VALUES, ANY, "integers that decide sizes, as lists within lists", required=True),
        Field("dtype", _element_type((*INTEGER, "bool"), "a type of integers", ""), "element type", default="int64"),
    ),
)
WITH_VALUES = VALUED.form(_of_values)


def _read_tensor(entry: Entry, reading: Reading) -> TensorSpec | None:
    if isinstance(entry.value, Block):
        has_values = any(key.text == VALUES for key, _ in entry.value.entries)
        return (WITH_VALUES if has_values else SPELLED_OUT).read(entry, reading)
    text = reading.text(entry.value, "an input such as float32 1x3x224x224")
    if text is None:
        return None
    match = re.fullmatch(SPEC_PATTERN, text.text.strip())
    if match is None:
        reading.refuse(text.place, f"{shown(text.text)} {_why_no_input(text.text.strip())}")
        return None
    dtype = ELEMENT_TYPE.of(replace(text, text=match[1]), reading)
    shape = _spelled_sizes(text, re.findall(r"[0-9]+", match[2] or match[3] or ""), reading)
    return TensorSpec(dtype, shape) if dtype and shape is not None else None


def _why_no_input(spec: str) -> str:
    """What is wrong with a text that is no spec, and what to write."""
    if spec in DTYPES:
        more = "float32[1, 3] needs quotes inside {…} and […]"
        return f"has no shape: write {spec} 1x3x224x224, or {spec} () for a scalar; {more}"
    if meant := _other_spelling(spec):
        return f"is no input: did you mean {meant}?"
    if open_size := _open_size(spec):
        return f"is no input: {shown(open_size)} is no size: write a real one, such as 1 ('dims' is for files)"
    match = re.match(rf"({SPEC_PATTERN})\s+(.+)", spec)
    if match and match[2] in INTEGER and (bounds := re.findall(r"\d+", match.groups()[-1])):
        sizes = ", ".join(re.findall(r"[0-9]+", match[1].removeprefix(match[2])))
        written = f"{{dtype: {match[2]}, shape: [{sizes}], high: {bounds[-1]}}}"
        return f"is no input: write integers below a bound as {written}"
    return "is no input: write one such as float32 1x3x224x224"


def _other_spelling(spec: str) -> str:
    """The spec that a text is but for signs between sizes or an order that others use, or without a type; else ""."""
    words = re.fullmatch(r"(?:torch\.)?([a-z]+[0-9]*)[\s:=,\[(]+(.+)|(.+?)\s+(?:torch\.)?([a-z]+[0-9]*)", spec)
    dtype, sizes = (words[1] or words[4], words[2] or words[3]) if words else ("float32", spec)
    is_shape = re.fullmatch(r"[\[(\s]*[0-9]+(?:\s*[xX×*,]\s*[0-9]+)*\s*,?[\])\s]*", sizes)
    is_number = words is None and spec.isdecimal()  # a plain value, more likely than a size alone
    return f"{dtype} {'x'.join(re.findall('[0-9]+', sizes))}" if dtype in DTYPES and is_shape and not is_number else ""


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
    if isinstance(spec, Record) and isinstance(spec.kind, Call):
        return str(InputSpecs((spec,)))
    if isinstance(spec, Mapping):
        return f"{{{', '.join(f'{grammar.plain_text(name)}: {spec_text(part)}' for name, part in spec.items())}}}"
    return f"[{', '.join(map(spec_text, spec))}]"


_SPECS: list[Schema] = [{"type": "string", "pattern": rf"^\s*{SPEC_PATTERN}\s*$"}, SPEC.schema, VALUED.schema]
INPUT: Form[TensorSpec] = Form(_read_tensor, {"anyOf": _SPECS}, "input", spec_text, uses=(*SPEC.uses, *VALUED.uses))

PLAIN = "plain"
_ANY: Form[Plain] = Form(lambda entry, reading: Plain(ANY.read(entry, reading)), {})
PLAIN_GRAMMAR = Grammar("a plain input", (Field(PLAIN, _ANY, "what the model is given as it is", required=True),))
PLAIN_INPUT: Form[Plain] = PLAIN_GRAMMAR.form(lambda values, reading: values[PLAIN])


def is_spelled_out(given: Mapping[str, object]) -> bool:
    """Whether a mapping is one tensor, and not several inputs by name."""
    return bool({"dtype", "shape"} & given.keys()) or ({*given} == {VALUES} and _are_integers(given[VALUES]))


def _are_integers(value: object) -> bool:
    """Whether these are integers in lists, and no list of specs."""
    if isinstance(value, (list, tuple, Listing)):
        items = value.items if isinstance(value, Listing) else value
        return bool(items) and all(isinstance(item, (list, tuple, Listing)) or _is_integer(item) for item in items)
    return False


def _is_integer(value: object) -> bool:
    word = grammar.scalar(value.text) if isinstance(value, Text) and value.plain else value
    return is_whole(word)


def is_alone(given: Mapping[str, object]) -> bool:
    """Whether a mapping is a tensor, or what a call gives, and not several inputs by name."""
    return is_spelled_out(given) or CALL in given


def is_one_input(given: Mapping[str, object]) -> bool:
    """Whether a mapping is one argument: such a one, or a plain value."""
    return is_alone(given) or {*given} == {PLAIN}


def _callable_name(word: Text, key: str, reading: Reading) -> str:
    if not names_attribute(word.text):
        raise BudgetError(f"{shown(word.text)} is not module:callable, such as nets:Batch")
    return word.text


def _called(values: Values, reading: Reading) -> Record | None:
    """{call, args, kwargs}: what a callable makes of specs and plain values."""
    parts = {**dict(enumerate(values["args"])), **values["kwargs"]}
    return Record(Call(values[CALL]), parts) if values[CALL] else None


def _read_argument(entry: Entry, reading: Reading) -> InputSpec | None:
    """A tensor, a plain value, or a list or mapping of arguments."""
    node = entry.value
    if isinstance(node, Listing):
        return _arguments(node.items, reading)
    if isinstance(node, Block):
        given = {key.text: value for key, value in node.entries}
        if given.keys() == {PLAIN}:
            return PLAIN_INPUT.read(entry, reading)
        if CALL in given:
            return MADE_INPUT.read(entry, reading)
        return _read_tensor(entry, reading) if is_spelled_out(given) else _by_name(node, reading)
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
    "not": {"anyOf": [{"required": ["dtype"]}, {"required": ["shape"]}, {"required": [CALL]}]},
    "additionalProperties": {"$ref": "#/definitions/argument"},
}
_PLAIN_INPUTS: list[Schema] = [{"type": ["null", "boolean", "number"]}, PLAIN_GRAMMAR.schema]
_MADE_INPUT: Schema = {"type": "object", "required": [CALL], "properties": {CALL: grammar.SOME_TEXT}}
ARGUMENT: Form[InputSpec] = Form(
    _read_argument,
    {"anyOf": [INPUT.reference, _ARGUMENTS, _NAMED_ARGUMENTS, *_PLAIN_INPUTS, _MADE_INPUT]},
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


_ARGS: Form[tuple[InputSpec, ...]] = Form(
    lambda entry, reading: _arguments(reading.items(entry.value, "args: a list of inputs"), reading), _ARGUMENTS
)
_KWARGS: Form[Mapping[str, InputSpec]] = Form(
    lambda entry, reading: (
        _by_name(block, reading) if (block := reading.block(entry.value, "kwargs: inputs by name")) else {}
    ),
    _NAMED_ARGUMENTS,
)
_CALLABLE = grammar.spelled("call: a module:callable", _callable_name, grammar.SOME_TEXT)
MADE_GRAMMAR = Grammar(
    "a made input",
    (
        Field(CALL, _CALLABLE, "module:callable that makes the input", required=True),
        Field("args", _ARGS, "its positional arguments", default=()),
        Field("kwargs", _KWARGS, "its keyword arguments", default={}),
    ),
)
MADE_INPUT: Form[Record] = MADE_GRAMMAR.form(_called)


def _read_inputs(entry: Entry, reading: Reading) -> InputSpecs:
    """Positional inputs from one spec or a list, named ones from a mapping."""
    node = entry.value
    if isinstance(node, Listing):
        specs = InputSpecs(_arguments(node.items, reading))
        if message := numbers_alone(specs):
            reading.refuse(node.place, message)
        return specs
    if isinstance(node, Block) and not is_alone({key.text: value for key, value in node.entries}):
        return InputSpecs(named=_by_name(node, reading))
    spec = _read_argument(entry, reading) if isinstance(node, Block) else INPUT.read(entry, reading)
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


_INPUTS: Schema = {"anyOf": [INPUT.reference, _ARGUMENTS, _NAMED_ARGUMENTS, MADE_GRAMMAR.schema]}
INPUTS = Form(_read_inputs, _INPUTS, "inputs", _inputs_text, _inputs_texts, uses=(INPUT, ARGUMENT))
