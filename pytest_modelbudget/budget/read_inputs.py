"""Inputs of a budget: ``float32 1x3x224x224``, ``float32[1, 3]`` or ``{dtype, shape, …}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_modelbudget.budget.grammar import (
    DTYPES,
    FLOATING,
    INTEGER,
    LARGEST_SIZE,
    MOST_DIMENSIONS,
    SPEC,
)
from pytest_modelbudget.budget.plain_values import integer
from pytest_modelbudget.budget.problem import shown, suggestion
from pytest_modelbudget.budget.reading import Entry, Reading
from pytest_modelbudget.budget.yaml_nodes import Block, Listing, Node, Text
from pytest_modelbudget.frontends.model_source import InputSpec, InputSpecs, TensorSpec

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
