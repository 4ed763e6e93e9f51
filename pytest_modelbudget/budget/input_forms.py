"""The forms of what a model is run on: element types, shapes, tensors, plain values, and inputs of them all."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pytest_modelbudget.budget import grammar
from pytest_modelbudget.budget.grammar import Entry, Field, Form, Grammar, Reading, Schema, Texts, Values
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown
from pytest_modelbudget.errors import BudgetError, InputError
from pytest_modelbudget.formats import spellings
from pytest_modelbudget.formats.containers import Record
from pytest_modelbudget.formats.source import (
    LARGEST_SIZE,
    Call,
    InputSpec,
    InputSpecs,
    Plain,
    TensorSpec,
    attribute_meant,
    is_whole,
    names_attribute,
    of_values,
)

MOST_DIMENSIONS = 16

ELEMENT_TYPE: Form[str] = grammar.one_word(
    spellings.DTYPES, "element type", name="dtype", also=spellings.ALSO_CALLED, short=spellings.SHORT
)
FLOATING_TYPE: Form[str] = grammar.one_word(
    spellings.FLOATING, "floating-point type", name="floating_dtype", also=spellings.ALSO_CALLED, short=spellings.SHORT
)
BOUND_OF_VALUES = grammar.whole_number(-LARGEST_SIZE, LARGEST_SIZE, name="integer")
DIMENSION = grammar.whole_number(0, LARGEST_SIZE, "a dimension")


def _read_shape(entry: Entry, reading: Reading) -> tuple[int, ...] | None:
    """Sizes as a list, or spelled ``1x3x224x224``."""
    node = entry.value
    if isinstance(node, Text) and re.fullmatch(r"[0-9]+(x[0-9]+)*", node.text):
        node = Listing(tuple(Text(size, True, node.place) for size in node.text.split("x")), node.place)
    several = reading.node(Listing, node, "a shape such as [1, 3, 224, 224]")
    if several is None:
        return None
    sizes = [DIMENSION.of(item, reading) for item in several.items]
    if len(sizes) > MOST_DIMENSIONS:
        reading.refuse(node.place, f"{len(sizes)} dimensions: at most {MOST_DIMENSIONS} exist")
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


_SHAPES: list[Schema] = [
    {"type": "array", "items": DIMENSION.schema, "maxItems": MOST_DIMENSIONS},
    {"type": "string", "pattern": "^[0-9]+(x[0-9]+)*$"},
    DIMENSION.schema,
]
SHAPE = Form(_read_shape, {"anyOf": _SHAPES}, "shape")


def _spelled_out(values: Values, reading: Reading) -> TensorSpec | None:
    """{dtype, shape, low, high}; a range is for integers, and holds one at least."""
    dtype, low, high = values["dtype"], values["low"], values["high"]
    bound = next((key for key in ("low", "high") if key in values), None)
    if bound and dtype and dtype not in spellings.INTEGER:
        reading.refuse(values.place(bound), f"'{bound}' is for integer inputs, and this one is {dtype}: remove it")
    elif bound and dtype and high is not None and high <= (low or 0):
        message = f"no integer is at least {low or 0} and below {high}: raise 'high'"
        reading.refuse(values.entries["high"].value.place, message)
    shape = values["shape"]
    return TensorSpec(dtype, shape, low, high) if dtype and shape is not None else None


SPELLED_OUT = Grammar(
    "an input",
    (
        Field("dtype", ELEMENT_TYPE, "element type", required=True),
        Field("shape", SHAPE, "sizes, outermost first; [] is a scalar", required=True),
        Field("low", BOUND_OF_VALUES, "smallest integer that is drawn"),
        Field("high", BOUND_OF_VALUES, "the integer above the largest one that is drawn"),
    ),
).form(_spelled_out)
VALUES, CALL = "values", "call"


def _of_values(values: Values, reading: Reading) -> TensorSpec | None:
    """{values, dtype}: integers that are given as they are."""
    try:
        return of_values(values["dtype"], values[VALUES])
    except InputError as error:
        reading.refuse(values.place(VALUES), str(error))
        return None


WITH_VALUES = Grammar(
    "an input",
    (
        Field(VALUES, grammar.ANYTHING, "integers that decide sizes, as lists within lists", required=True),
        Field(
            "dtype", grammar.one_word((*spellings.INTEGER, "bool"), "type of integers"), "their type", default="int64"
        ),
    ),
).form(_of_values)


def _read_tensor(entry: Entry, reading: Reading) -> TensorSpec | None:
    if isinstance(entry.value, Block):
        has_values = any(key.text == VALUES for key, _ in entry.value.entries)
        return (WITH_VALUES if has_values else SPELLED_OUT).read(entry, reading)
    text = reading.node(Text, entry.value, f"an input such as {spellings.EXAMPLE}")
    if text is None:
        return None
    spec = text.text.strip()
    words = spellings.dtype_and_sizes(spec)
    if words is None:
        reading.refuse(text.place, f"{shown(text.text)} {spellings.why_no_input(spec)}")
        return None
    dtype, sizes = ELEMENT_TYPE.of(replace(text, text=words[0]), reading), words[1]
    shape = SHAPE.of(replace(text, text=sizes), reading) if sizes else ()
    return TensorSpec(dtype, shape) if dtype and shape is not None else None


def spec_text(spec: InputSpec) -> str:
    """One argument: "float32 1x3", {"dtype": ..., "shape": ..., "low": ...}, a plain value, or several of them."""
    if isinstance(spec, (TensorSpec, Plain)):
        return spec.spelled if isinstance(spec.spelled, str) else json.dumps(spec.spelled)
    if isinstance(spec, Record) and isinstance(spec.kind, Call):
        return str(InputSpecs((spec,)))
    if isinstance(spec, Mapping):
        return grammar.flow({name: spec_text(part) for name, part in spec.items()})
    return f"[{', '.join(map(spec_text, spec))}]"


_SPECS: list[Schema] = [
    {"type": "string", "pattern": rf"^\s*({spellings.SPEC_PATTERN}|{spellings.SIZES_ALONE})\s*$"},
    SPELLED_OUT.schema,
    WITH_VALUES.schema,
]
INPUT: Form[TensorSpec] = Form(_read_tensor, {"anyOf": _SPECS}, "input")

PLAIN = "plain"
_PLAIN_VALUE: Form[Plain] = Form(lambda entry, reading: Plain(grammar.plain_value(entry.value)), {})
PLAIN_INPUT: Form[Plain] = Grammar(
    "a plain input", (Field(PLAIN, _PLAIN_VALUE, "what the model is given as it is", required=True),)
).form(lambda values, reading: values[PLAIN])


def is_spelled_out(given: Mapping[str, object]) -> bool:
    """Whether a mapping is one tensor, and not several inputs by name."""
    return bool({"dtype", "shape"} & given.keys()) or ({*given} == {VALUES} and _are_integers(given[VALUES]))


def _are_integers(value: object) -> bool:
    """Whether these are integers in lists, and no list of specs."""
    if isinstance(value, (list, tuple, Listing)):
        items = value.items if isinstance(value, Listing) else value
        words = [spellings.scalar(item.text) if isinstance(item, Text) and item.plain else item for item in items]
        return bool(words) and all(isinstance(word, (list, tuple, Listing)) or is_whole(word) for word in words)
    return False


def is_alone(given: Mapping[str, object]) -> bool:
    """Whether a mapping is a tensor, or what a call gives, and not several inputs by name."""
    return is_spelled_out(given) or CALL in given


def is_one_input(given: Mapping[str, object]) -> bool:
    """Whether a mapping is one argument: such a one, or a plain value."""
    return is_alone(given) or {*given} == {PLAIN}


def no_callable(target: str) -> str:
    """Say why a target is no "module:attribute"; "" where it is one."""
    if names_attribute(target):
        return ""
    guess = f"did you mean {meant}?" if (meant := attribute_meant(target)) else "write package.module:callable"
    return f"{shown(target)} is no module:attribute: {guess}"


def _callable(word: Text, key: str, reading: Reading) -> str:
    if why := no_callable(word.text):
        raise BudgetError(why)
    return word.text


CALLABLE = grammar.spelled("{key}: a module:callable", _callable, grammar.SOME_TEXT)


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
        return _read_tensor(entry, reading) if is_spelled_out(given) else BY_NAME.read(entry, reading)
    if isinstance(node, Text) and node.plain and node.text and not isinstance(spellings.scalar(node.text), str):
        return _PLAIN_VALUE.read(entry, reading)
    return INPUT.read(entry, reading)


_ARGUMENT: Schema = {}
ARGUMENT: Form[InputSpec] = Form(_read_argument, _ARGUMENT, "argument", lambda spec: {"": spec_text(spec)})
BY_NAME = grammar.named(ARGUMENT, "inputs by name")
_ARGUMENTS: list[Schema] = [
    INPUT.reference,
    {"type": "array", "items": ARGUMENT.reference},
    {**BY_NAME.schema, "not": {"anyOf": [{"required": [key]} for key in ("dtype", "shape", CALL)]}},
]
MADE_INPUT = Grammar(
    "a made input",
    (
        Field(CALL, CALLABLE, "module:callable that makes the input", required=True),
        Field("args", grammar.listed(ARGUMENT, "args: a list of inputs"), "its positional arguments", default=()),
        Field("kwargs", BY_NAME, "its keyword arguments", default=grammar.NOTHING),
    ),
).form(_called)
_ARGUMENTS.append(MADE_INPUT.schema)
_ARGUMENT["anyOf"] = [*_ARGUMENTS, {"type": ["null", "boolean", "number"]}, PLAIN_INPUT.schema]


def _arguments(items: Iterable[Node], reading: Reading) -> tuple[InputSpec, ...]:
    return tuple(spec for spec in (ARGUMENT.of(item, reading) for item in items) if spec is not None)


def _read_inputs(entry: Entry, reading: Reading) -> InputSpecs:
    """Positional inputs from one spec or a list, named ones from a mapping."""
    node = entry.value
    if isinstance(node, Listing):
        specs = InputSpecs(_arguments(node.items, reading))
        if message := numbers_alone(specs):
            reading.refuse(node.place, message)
        return specs
    if isinstance(node, Block) and not is_alone({key.text: value for key, value in node.entries}):
        return InputSpecs(named=BY_NAME.read(entry, reading) or {})
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


INPUTS = Form(_read_inputs, {"anyOf": _ARGUMENTS}, "inputs", _inputs_texts)
