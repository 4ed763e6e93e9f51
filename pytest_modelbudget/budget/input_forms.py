"""The forms of what a model is run on: element types, shapes, tensors, plain values, and inputs of them all."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.formats.source import LARGEST_SIZE, InputSpec, InputSpecs, Plain, TensorSpec

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


def _read_tensor(entry: Entry, reading: Reading) -> TensorSpec | None:
    if isinstance(entry.value, Block):
        return SPELLED_OUT.read(entry, reading)
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
