"""Where a budget's models come from: ``torch: package.module:callable``, or a file's path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath

from pytest_modelbudget.budget.budget import Place
from pytest_modelbudget.budget.grammar import (
    DTYPES,
    FLOATING,
    INTEGER,
    LARGEST_SIZE,
    MOST_DIMENSIONS,
    SPEC,
    second_source_grammar,
)
from pytest_modelbudget.budget.reading import Entry, Reading, integer, plain_value
from pytest_modelbudget.budget.yaml_text import Block, Listing, Node, Text, shown, suggestion
from pytest_modelbudget.formats.source import (
    InputSpec,
    InputSpecs,
    ModelSource,
    TensorSpec,
    names_attribute,
)
from pytest_modelbudget.formats.table import FrontEnd

# dtype, then sizes: "1x3x224x224", "[1, 3, 224, 224]", or a scalar's "()" or "[]".
SPEC_PATTERN = (
    r"([A-Za-z][A-Za-z0-9]*)(?:\s+([0-9]+(?:x[0-9]+)*)|\s*\[\s*([0-9]+(?:\s*,\s*[0-9]+)*)?\s*\]"
    r"|\s*\(\s*\))"
)
_SPEC = re.compile(SPEC_PATTERN)
_EXPECTED = "an input such as float32 1x3x224x224"


def read_inputs(node: Node, reading: Reading) -> InputSpecs:
    """Positional inputs from one spec or a list, named ones from a mapping."""
    if isinstance(node, Listing):
        return InputSpecs(_arguments(node.items, reading))
    if isinstance(node, Block) and not _is_spec(node):
        return InputSpecs(named=_by_name(node, reading))
    spec = _tensor(node, reading)
    return InputSpecs((spec,) if spec else ())


def read_dtype(
    node: Node, reading: Reading, *, among: tuple[str, ...] = DTYPES, what: str = "an element type"
) -> str | None:
    """The name of an element type."""
    text = reading.text(node, f"{what} such as {among[0]}")
    return _dtype(text, text.text, reading, among, what) if text else None


def read_model_dtype(node: Node, reading: Reading) -> str | None:
    """The type that a model's floating-point weights are converted to."""
    return read_dtype(node, reading, among=FLOATING, what="a floating-point type")


def _arguments(items: Iterable[Node], reading: Reading) -> tuple[InputSpec, ...]:
    read = (_argument(item, reading) for item in items)
    return tuple(spec for spec in read if spec is not None)


def _is_spec(block: Block) -> bool:
    """Whether a mapping is one spec, and not inputs by name."""
    return any(key.text in {"dtype", "shape"} for key, _ in block.entries)


def _by_name(block: Block, reading: Reading) -> Mapping[str, InputSpec]:
    read = {key.text: _argument(value, reading) for key, value in block.entries}
    if not read:
        reading.refuse(block.place, "expected inputs by name, found an empty mapping")
    return {name: spec for name, spec in read.items() if spec is not None}


def _argument(node: Node, reading: Reading) -> InputSpec | None:
    """One argument: a tensor, or a list of them."""
    if isinstance(node, Listing):
        return _arguments(node.items, reading)
    return _tensor(node, reading)


def _tensor(node: Node, reading: Reading) -> TensorSpec | None:
    if isinstance(node, Block):
        return _spelled_out(node, reading)
    text = reading.text(node, _EXPECTED)
    if text is None:
        return None
    match = _SPEC.fullmatch(text.text.strip())
    if match is None:
        reading.refuse(text.place, _no_spec(text.text))
        return None
    dtype = _dtype(text, match[1], reading, DTYPES, "an element type")
    sizes = re.findall(r"[0-9]+", match[2] or match[3] or "")
    shape = _sizes(text, sizes, reading)
    return TensorSpec(dtype, shape) if dtype and shape is not None else None


def _no_spec(text: str) -> str:
    if text.strip() in DTYPES:
        return (
            f"{shown(text)} has no shape: write {text.strip()} 1x3x224x224, or "
            f"{text.strip()} () for a scalar; float32[1, 3] needs quotes inside {{…}} and […]"
        )
    return f"{shown(text)} is no input: write one such as float32 1x3x224x224"


def _sizes(text: Text, sizes: list[str], reading: Reading) -> tuple[int, ...] | None:
    if len(sizes) > MOST_DIMENSIONS:
        reading.refuse(text.place, f"{len(sizes)} dimensions: at most {MOST_DIMENSIONS} exist")
        return None
    if any(len(size) > 19 or int(size) > LARGEST_SIZE for size in sizes):
        reading.refuse(text.place, f"a dimension of {shown(text.text)} is larger than 2^63 - 1")
        return None
    return tuple(int(size) for size in sizes)


def _dtype(
    text: Text, name: str, reading: Reading, among: tuple[str, ...], what: str
) -> str | None:
    if name in among:
        return name
    reading.refuse(text.place, f"{shown(name)} is not {what}: {suggestion(name, among)}")
    return None


def _spelled_out(block: Block, reading: Reading) -> TensorSpec | None:
    given = reading.fields(block, SPEC)
    if "dtype" not in given or "shape" not in given:
        return None
    dtype = read_dtype(given["dtype"].value, reading)
    shape = _listed_sizes(given["shape"].value, reading)
    low = _bound(given.get("low"), reading)
    high = _bound(given.get("high"), reading)
    _must_be_a_range(given, dtype, low, high, reading)
    return TensorSpec(dtype, shape, low, high) if dtype and shape is not None else None


def _listed_sizes(node: Node, reading: Reading) -> tuple[int, ...] | None:
    """Sizes as a list, or spelled ``1x3x224x224``."""
    if isinstance(node, Text) and re.fullmatch(r"[0-9]+(x[0-9]+)*", node.text):
        return _sizes(node, node.text.split("x"), reading)
    expected = "a shape such as [1, 3, 224, 224]"
    items = reading.items(node, expected)
    sizes = [integer(item, "a dimension: a whole number", reading) for item in items]
    known = [size for size in sizes if size is not None]
    for item, size in zip(items, sizes, strict=True):
        if size is not None and not 0 <= size <= LARGEST_SIZE:
            reading.refuse(item.place, f"a dimension of {size}: it must be 0 to 2^63 - 1")
            return None
    if len(known) > MOST_DIMENSIONS:
        reading.refuse(node.place, f"{len(known)} dimensions: at most {MOST_DIMENSIONS} exist")
        return None
    return tuple(known) if isinstance(node, Listing) and len(known) == len(sizes) else None


def _bound(entry: Entry | None, reading: Reading) -> int | None:
    if entry is None:
        return None
    bound = integer(entry.value, f"{entry.key.text}: a whole number", reading)
    if bound is not None and abs(bound) > LARGEST_SIZE:
        reading.refuse(entry.value.place, f"{entry.key.text} is larger than 2^63 - 1")
        return None
    return bound


def _must_be_a_range(
    given: Mapping[str, Entry], dtype: str | None, low: int | None, high: int | None,
    reading: Reading,
) -> None:  # fmt: skip
    bound = given.get("low") or given.get("high")
    if bound is None or dtype is None:
        return
    if dtype not in INTEGER:
        message = f"'{bound.key.text}' is for integer inputs, and this one is {dtype}: remove it"
        reading.refuse(bound.key.place, message)
    elif high is not None and high <= (low or 0):
        message = f"no integer is at least {low or 0} and below {high}: raise 'high'"
        reading.refuse(given["high"].value.place, message)


_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)")
_WEIGHT_SUFFIXES = (".pt", ".pth", ".pt2", ".ts", ".ckpt", ".bin", ".safetensors", ".onnx", ".pkl")
_NO_INPUTS = "no inputs: give inputs such as float32 1x3x224x224, on the model or under defaults"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What models take that do not say it themselves."""

    inputs: InputSpecs | None = None
    dtype: str | None = None
    is_broken: bool = False  # then what a model lacks may have been meant to stand there
    places: Mapping[str, Place] = field(default_factory=dict)  # of what they say, by key


def read_source(
    name: Text, given: Mapping[str, Entry], defaults: Defaults, reading: Reading
) -> ModelSource | None:
    """The one source that a model names, and what it is run on."""
    formats = [key for key in given if key in reading.front_ends]
    if len(formats) != 1:
        _refuse_sources(name, formats, given, reading)
        return None
    front_end = reading.front_ends[formats[0]]
    target = _target(given[front_end.key].value, front_end, reading)
    _refuse_what_does_not_fit(front_end, given, reading)
    inputs = _inputs(name, front_end, given, defaults, reading)
    if target is None or inputs is None:
        return None
    dtype = None if is_path_format(front_end) else defaults.dtype
    if "dtype" in given:
        dtype = read_model_dtype(given["dtype"].value, reading)
    return ModelSource(
        front_end.key,
        target,
        inputs,
        args=_args(given, reading),
        kwargs=_kwargs(given, reading),
        dtype=dtype,
        dims=read_dims(given["dims"].value, reading) if "dims" in given else {},
        base=reading.folder,
    )


def declared_places(
    source: ModelSource, given: Mapping[str, Entry], defaults: Defaults
) -> dict[str, Place]:
    """Where the file says each key of a model, and "source"; defaults only where they are taken."""
    is_taken = {"inputs": bool(source.inputs), "dtype": source.dtype is not None}
    places = {key: place for key, place in defaults.places.items() if is_taken[key]}
    places |= {key: entry.key.place for key, entry in given.items()}
    return places | {"source": places[source.format]}


def read_second_source(node: Node, reading: Reading) -> ModelSource | None:
    """A model to compare with: its source alone; its inputs are those of the first."""
    given = reading.fields(node, second_source_grammar(reading.front_ends))
    formats = [key for key in given if key in reading.front_ends]
    if len(formats) != 1:
        if isinstance(node, Block):
            keys = " or ".join(f"{key}:" for key in reading.front_ends)
            reading.refuse(node.place, f"a comparison needs one second model: give {keys}")
        return None
    front_end = reading.front_ends[formats[0]]
    target = _target(given[front_end.key].value, front_end, reading)
    _refuse_what_does_not_fit(front_end, given, reading)
    if target is None:
        return None
    return ModelSource(
        front_end.key,
        target,
        args=_args(given, reading),
        kwargs=_kwargs(given, reading),
        dtype=read_model_dtype(given["dtype"].value, reading) if "dtype" in given else None,
        base=reading.folder,
    )


def read_dims(node: Node, reading: Reading) -> Mapping[str, int]:
    """Sizes of symbolic dimensions, by symbol."""
    dims = {}
    for entry in reading.named(node, "dims: a mapping of symbols to sizes, {batch: 1}"):
        size = integer(entry.value, "a size: a whole number", reading)
        if size is not None and not 0 <= size <= LARGEST_SIZE:
            reading.refuse(entry.value.place, f"a size of {size}: it must be 0 to 2^63 - 1")
        elif size is not None:
            dims[entry.key.text] = size
    return dims


def refuse_dtype_of_a_file(format: str, given: Mapping[str, Entry], reading: Reading) -> None:
    """A file holds its weights in the type that it was saved in."""
    if "dtype" in given and is_path_format(reading.front_ends[format]):
        message = f"'dtype' converts modules, and {format}: names a file: save it in that type"
        reading.refuse(given["dtype"].key.place, message)


def is_path_format(front_end: FrontEnd) -> bool:
    """Whether the format's target is a file, and not a module's attribute."""
    return bool(front_end.suffixes)


def _refuse_sources(
    name: Text, formats: list[str], given: Mapping[str, Entry], reading: Reading
) -> None:
    for key in formats[1:]:
        message = f"'{key}' is a second source beside '{formats[0]}': a model has one"
        reading.refuse(given[key].key.place, message)
    if not formats:
        keys = " or ".join(f"{key}:" for key in reading.front_ends)
        reading.refuse(name.place, f"the model {shown(name.text)} names no source: give {keys}")


def _inputs(
    name: Text,
    front_end: FrontEnd,
    given: Mapping[str, Entry],
    defaults: Defaults,
    reading: Reading,
) -> InputSpecs | None:
    if "inputs" in given:
        return read_inputs(given["inputs"].value, reading)
    if front_end.brings_inputs:
        return InputSpecs()
    if defaults.inputs is None and "variants" not in given and not defaults.is_broken:
        reading.refuse(name.place, f"the model {shown(name.text)} has {_NO_INPUTS}")
    return defaults.inputs or InputSpecs()


def _refuse_what_does_not_fit(
    front_end: FrontEnd, given: Mapping[str, Entry], reading: Reading
) -> None:
    for key in ("args", "kwargs"):
        if key in given and is_path_format(front_end):
            message = f"'{key}' is for a callable, and {front_end.key}: names a file: remove it"
            reading.refuse(given[key].key.place, message)
    refuse_dtype_of_a_file(front_end.key, given, reading)
    if "dims" in given and not front_end.brings_inputs:
        message = f"'dims' binds symbols that a file brings: under {front_end.key}: write inputs"
        reading.refuse(given["dims"].key.place, message)


def _args(given: Mapping[str, Entry], reading: Reading) -> tuple[object, ...]:
    if "args" not in given:
        return ()
    items = reading.items(given["args"].value, "args: a list of plain values")
    return tuple(plain_value(item, reading) for item in items)


def _kwargs(given: Mapping[str, Entry], reading: Reading) -> Mapping[str, object]:
    if "kwargs" not in given:
        return {}
    block = reading.block(given["kwargs"].value, "kwargs: a mapping of names to plain values")
    if not isinstance(block, Block):
        return {}
    for key, _ in block.entries:
        if not key.text.isidentifier():
            reading.refuse(key.place, f"{shown(key.text)} is no name of an argument")
    return {key.text: plain_value(value, reading) for key, value in block.entries}


def _target(node: Node, front_end: FrontEnd, reading: Reading) -> str | None:
    text = reading.text(node, f"{front_end.key}: a {front_end.target}")
    if text is None:
        return None
    problem = (
        _path_problem(text.text, front_end, reading)
        if is_path_format(front_end)
        else _attribute_problem(text.text, reading)
    )
    if problem is None:
        return text.text
    reading.refuse(text.place, problem)
    return None


def _attribute_problem(target: str, reading: Reading) -> str | None:
    """Why a target is no "module:attribute", or None."""
    if names_attribute(target) and not target.endswith(_WEIGHT_SUFFIXES):
        return None
    if target.endswith(_WEIGHT_SUFFIXES) or "/" in target or "\\" in target:
        others = [each for each in reading.front_ends.values() if target.endswith(each.suffixes)]
        other = "".join(f", or for such a model file {each.key}:" for each in others)
        return (
            f"{shown(target)} is a file, and a state dict is no model: name a factory that "
            f"loads it, package.module:function{other}"
        )
    dotted = _DOTTED.fullmatch(target)
    guess = f"did you mean {dotted[1]}:{dotted[2]}?" if dotted else "write package.module:callable"
    return f"{shown(target)} is no module:attribute: {guess}"


def _path_problem(target: str, front_end: FrontEnd, reading: Reading) -> str | None:
    """Why a target is no path of that format inside the project, or None. Opens nothing."""
    if not target.isprintable():
        return f"{shown(target)} holds characters that no path should have"
    if "\\" in target or PureWindowsPath(target).drive:
        return f"{shown(target)} is no path of every system: separate folders with /"
    path = os.path.normpath(os.path.join(reading.folder, target))
    if not PurePosixPath(path).is_relative_to(reading.root) or target.endswith("/"):
        return f"{shown(target)} lies outside the project: a model file must stay inside it"
    suffix = PurePosixPath(target).suffix
    for other in reading.front_ends.values():
        if suffix in other.suffixes and suffix not in front_end.suffixes:
            kind = other.target.removeprefix("path of ")
            return f"{shown(target)} is {kind}: write it under {other.key}:"
    return None


def positional_text(specs: tuple[InputSpec, ...]) -> str:
    """Positional inputs: one tensor alone, else a list: "float32 1x3", "[float32 1x3, int64 1]"."""
    alone = len(specs) == 1 and isinstance(specs[0], TensorSpec)
    return spec_text(specs[0] if alone else specs)


def spec_text(spec: InputSpec) -> str:
    """One argument: "float32 1x3", {"dtype": ..., "shape": ..., "low": ...}, or a list of them."""
    if not isinstance(spec, TensorSpec):
        return f"[{', '.join(map(spec_text, spec))}]"
    if spec.low is None and spec.high is None:
        return f"{spec.dtype} {'x'.join(map(str, spec.shape)) or '()'}"
    given: dict[str, object] = {"dtype": spec.dtype, "shape": list(spec.shape)}
    bounds = {"low": spec.low, "high": spec.high}
    return json.dumps(given | {key: each for key, each in bounds.items() if each is not None})
