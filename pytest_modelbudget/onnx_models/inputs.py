"""What an ONNX model is fed and gives: inputs and their ranges, outputs and their types."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_modelbudget.errors import DimsError, InputError, TransformError, UnboundError
from pytest_modelbudget.formats.model import DrawnInputs, Output
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.graph.tensor import unbound
from pytest_modelbudget.onnx_models.program import Body, Node, Program
from pytest_modelbudget.onnx_models.protos import (
    forget_fixed_shapes,
    name_open_axes,
    numbers_of,
    symbols_of,
    write_sizes,
)
from pytest_modelbudget.onnx_models.value_types import ValueType, dtype_of
from pytest_modelbudget.units import with_article

Feeds = Mapping[str, Any]  # arrays by name
OF_A_PACKAGE = 2  # what dtype.isbuiltin is of types that a package registers with numpy


def as_numbers(values: Any) -> Any:
    """An array as it is, and in 64 bits where its type is one that numpy has not."""
    if values.dtype.isbuiltin != OF_A_PACKAGE:
        return values
    return values.astype(np.int64 if "int" in values.dtype.name else np.float64)


def upcast(inputs: Feeds) -> Feeds:
    """The same values, floating ones in float64."""
    return {name: value if value.dtype.kind in "biuc" else value.astype("float64") for name, value in inputs.items()}


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value that is a tensor, or those of a sequence 's' as 's.0', 's.1' and so on."""
    if isinstance(value, list):
        for position, part in enumerate(value):
            yield from tensors_in(f"{name}.{position}", part)
    elif hasattr(value, "dtype"):
        yield name, value
    else:
        raise TransformError(
            f"'{name}' is {with_article(type(value).__name__)}: only tensors and their sequences are compared"
        )


def bind_dims(program: Program, dims: Mapping[str, int], file: str) -> tuple[Mapping[str, int], Collection[str]]:
    """Write sizes in place of symbols; gives the values of inputs that are numbers, and those that nobody gave one.

    An input's dimension without a name goes by "input.axis". Raises DimsError for a name that no input has, naming the
    symbols that there are.
    """
    graph = program.model.graph
    is_open = any(None in (program.graph.types[name].shape or ()) for name in program.graph.inputs)
    if is_open:
        name_open_axes(graph)
    symbols, numbers = symbols_of(graph), numbers_of(graph, dims)
    unknown = sorted(set(dims) - symbols - numbers)
    if unknown:
        known = ", ".join(sorted(symbols - {""}))
        has = f"symbols are {known}" if known else "all its sizes are fixed" + ("" if numbers else ", leave dims out")
        also = f"; numbers are {', '.join(sorted(numbers))}" if numbers else ""
        raise DimsError(f"dims: no input of {file} has a dimension '{unknown[0]}': {has}{also}")
    if not numbers.issuperset(dims):
        forget_fixed_shapes(graph)
    write_sizes(graph, dims)
    return {name: dims[name] for name in dims if name in numbers}, numbers - dims.keys()


def drawn_inputs(program: Program, dims: Mapping[str, int]) -> DrawnInputs:
    """Types, shapes and ranges of what a model must be given, and whether rows may be stacked.

    A first axis that dims leaves open is 1. Rows may be stacked where the file fixes no first axis; notes
    name integer inputs for which it says no range. Raises InputError for another axis that is open, and for what is no
    tensor.
    """
    ranges, types = index_ranges(program.graph), program.graph.types
    numbers = {name: dims[name] for name in numbers_of(program.model.graph, dims) if name in dims}
    specs = {name: replace(spec_of(name, types[name], dims), high=ranges.get(name)) for name in program.inputs}
    specs.update({name: replace(specs[name], low=value, high=value + 1) for name, value in numbers.items()})
    stacks = bool(specs) and not any(isinstance((types[name].shape or (0,))[0], int) for name in specs)
    unknown = ", ".join(f"'{name}'" for name, spec in specs.items() if "int" in spec.dtype and spec.high is None)
    notes = (f"integers 0 and 1 for {unknown}: the file says no range",) if unknown else ()
    return DrawnInputs(specs, stacks, resizes=stacks, notes=notes)


def index_ranges(graph: Body) -> Mapping[str, int]:
    """Below what integer inputs stay: the size of the smallest stored table that each indexes.

    Inputs whose values are read in any other way than by Gather, or by nothing, are left out.
    """
    ranges = {}
    for name in graph.inputs:
        dtype = graph.types[name].dtype
        sizes = list(_table_sizes(name, graph)) if "int" in dtype.name else []
        if sizes and all(sizes):
            signs = 0 if dtype.name.startswith("u") else 1
            ranges[name] = min(*sizes, 2 ** int(dtype.bits - signs))
    return ranges


def _table_sizes(name: str, graph: Body) -> Iterator[int]:
    """The size of every table that a value indexes; 0 for a reader of another kind."""
    names = [name]
    for carried in names:  # which grows
        for use in graph.uses(carried):
            names.extend(result for result in use.carries_into if result not in names)
            if not use.carries_into and not use.role.unread:
                yield _table_size(carried, use.node, graph)


def _table_size(name: str, node: Node, graph: Body) -> int:
    if node.operator != "onnx::Gather" or node.inputs[0] == name:
        return 0
    table = graph.stored.get(graph.origin(node.inputs[0]))
    return table.shape[node.attributes.get("axis", 0)] if table and not table.is_sparse else 0


def spec_of(name: str, known: ValueType, dims: Mapping[str, int]) -> TensorSpec:
    """What is drawn for a value of a type. Raises InputError where that is no sized tensor."""
    if known.container or known.shape is None:
        what = known.container or "value without a shape"
        raise InputError(f"'{name}' is {with_article(what)}: no values can be drawn for it")
    shape = tuple(_size(name, axis, size, dims) for axis, size in enumerate(known.shape))
    return TensorSpec(dtype_of(known.code).name, shape)


def _size(name: str, axis: int, size: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    symbol = size or f"{name}.{axis}"
    if symbol in dims:
        return dims[symbol]
    if axis == 0:
        return 1
    raise UnboundError(unbound({symbol: [name]}), {symbol: 1}, f"write dims: {{{symbol}: 1}}, or another size")


def declared_dtypes(names: Sequence[str], graph: Body) -> Mapping[str, str]:
    """The element type that a graph declares for each of some values, or its container; "" for neither."""
    types = {name: graph.types[name] for name in names}
    return {name: known.container or (dtype_of(known.code).name if known.code else "") for name, known in types.items()}


def outputs_of(values: Feeds, graph: Body) -> tuple[Output, ...]:
    """What a run gave, with the types that its graph declares.

    A sequence is an output for each of its tensors. Raises TransformError for anything else.
    """
    return tuple(
        Output(part, dtype if dtype and part == name else tensor.dtype.name, as_numbers(tensor))
        for name, dtype in declared_dtypes(graph.outputs, graph).items()
        for part, tensor in tensors_in(name, values[name])
    )


def declared_differences(original: Program, changed: Program) -> Iterator[str]:
    """How what two models declare of their inputs and outputs differs, in one line each."""
    sides = {"input": (original.inputs, changed.inputs), "output": (original.graph.outputs, changed.graph.outputs)}
    for side, (before, after) in sides.items():
        was, now = declared_dtypes(before, original.graph), declared_dtypes(after, changed.graph)
        if list(was) != list(now):
            yield f"{side}s are {_listed(now)} and were {_listed(was)}"
            continue
        for name, dtype in was.items():
            if now[name] != dtype:
                yield f"{side} '{name}' is {now[name]} and was {dtype}"


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
