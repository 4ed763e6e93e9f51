"""What an ONNX model is fed and gives: inputs and their ranges, outputs and their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.errors import InputError, TransformError
from pytest_modelbudget.formats.model import DrawnInputs, Output
from pytest_modelbudget.formats.source import TensorSpec
from pytest_modelbudget.graph.tensor import least_precise
from pytest_modelbudget.onnx_models.program import FLOATING, Body, Node, Program, ValueType, value_type

Feeds = Mapping[str, Any]  # arrays by name


def given_inputs(model: onnx.ModelProto) -> tuple[onnx.ValueInfoProto, ...]:
    """Inputs that a caller must give: those without a stored value."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return tuple(value for value in model.graph.input if value.name not in stored)


def upcast(inputs: Feeds) -> Feeds:
    """The same values, floating ones in float64."""
    return {name: value if value.dtype.kind in "biuc" else value.astype("float64") for name, value in inputs.items()}


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value that is a tensor, or those of a sequence 's' as 's.0', 's.1' and so on.

    Raises TransformError for a map and for an optional value that is not there.
    """
    if isinstance(value, list):
        for position, part in enumerate(value):
            yield from tensors_in(f"{name}.{position}", part)
    elif hasattr(value, "dtype"):
        yield name, value
    else:
        what = type(value).__name__
        raise TransformError(f"'{name}' is a {what}: only tensors and their sequences are compared")


def drawn_inputs(model: onnx.ModelProto, dims: Mapping[str, int]) -> DrawnInputs:
    """Types, shapes and ranges of what a model must be given, and whether rows may be stacked.

    A first axis that dims leaves open is 1. Rows may be stacked where every first axis is a symbol
    in the file. Raises InputError for another axis that is open, and for what is no tensor.
    """
    specs: dict[str, TensorSpec] = {}
    stacks, ranges = True, index_ranges(model)
    for value in given_inputs(model):
        known = value_type(value.type)
        spec = spec_of(value.name, known, dims)
        specs[value.name] = replace(spec, high=ranges.get(value.name))
        stacks = stacks and bool(known.shape) and isinstance((known.shape or (0,))[0], str)
    stacks = stacks and bool(specs)
    return DrawnInputs(specs, stacks, resizes=stacks, notes=range_notes(model, ranges))


SEE_NO_VALUE = frozenset({"onnx::Shape", "onnx::Size"})


def index_ranges(model: onnx.ModelProto) -> Mapping[str, int]:
    """Below what integer inputs stay: the size of the smallest stored table that each indexes.

    Inputs that are read in any other way than by Gather, or by nothing, are left out.
    """
    graph = Program(model).graph
    ranges = {}
    for name in graph.inputs:
        dtype = graph.types[name].dtype
        if "int" not in dtype.name:
            continue
        sizes = list(_sizes(name, graph))
        if sizes and all(sizes):
            signs = 0 if dtype.name.startswith("u") else 1
            ranges[name] = min(*sizes, 2 ** int(dtype.bits - signs))
    return ranges


def _sizes(name: str, graph: Body) -> Iterator[int]:
    """The size of every table that a value indexes; 0 for a reader of another kind."""
    names = [name]
    for carried in names:  # which grows
        for use in graph.uses.get(carried, ()):
            names.extend(result for result in use.carries_into if result not in names)
            if not use.carries_into and use.node.operator not in SEE_NO_VALUE:
                yield _table_size(carried, use.node, graph)


def _table_size(name: str, node: Node, graph: Body) -> int:
    if node.operator != "onnx::Gather" or node.inputs[0] == name:
        return 0
    table = graph.stored.get(graph.origin(node.inputs[0]))
    return table.shape[node.attributes.get("axis", 0)] if table and not table.is_sparse else 0


def range_notes(model: onnx.ModelProto, ranges: Mapping[str, int]) -> tuple[str, ...]:
    """What a report says of integer inputs for which a file names no range."""
    named = [
        f"'{value.name}'"
        for value in given_inputs(model)
        if "int" in _type_name(value.type) and value.name not in ranges
    ]
    return (f"integers 0 and 1 for {', '.join(named)}: the file says no range",) if named else ()


def spec_of(name: str, known: ValueType, dims: Mapping[str, int]) -> TensorSpec:
    """What is drawn for a value of a type. Raises InputError where that is no sized tensor."""
    if known.container or known.shape is None:
        what = known.container or "value without a shape"
        raise InputError(f"'{name}' is a {what}: no values can be drawn for it")
    shape = tuple(_size(name, axis, size, dims) for axis, size in enumerate(known.shape))
    return TensorSpec(tensor_dtype_to_np_dtype(known.code).name, shape)


def _size(name: str, axis: int, size: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    symbol = size or f"{name}.{axis}"
    if symbol in dims:
        return dims[symbol]
    if axis == 0:
        return 1
    raise InputError(f"not bound by dims: {symbol} (of {name})")


def output_types(model: onnx.ModelProto) -> Mapping[str, str]:
    """The element type that a model declares for each output, in their order."""
    return {value.name: _type_name(value.type) for value in model.graph.output}


def _type_name(kind: onnx.TypeProto) -> str:
    known = value_type(kind)
    if known.container or not known.code:
        return known.container
    return str(tensor_dtype_to_np_dtype(known.code).name)


def outputs_of(values: Feeds, types: Mapping[str, str]) -> tuple[Output, ...]:
    """What a run gave, with the types that its model declares.

    A sequence is an output for each of its tensors. Raises TransformError for anything else.
    """
    outputs = []
    for name, dtype in types.items():
        for part, tensor in tensors_in(name, values[name]):
            is_declared = dtype and part == name
            outputs.append(Output(part, dtype if is_declared else tensor.dtype.name, tensor))
    return tuple(outputs)


def stored_dtype(model: onnx.ModelProto) -> str:
    """The least precise floating type among a model's stored tensors; "" without any."""
    codes = {tensor.data_type for tensor in model.graph.initializer} & FLOATING
    return least_precise([tensor_dtype_to_np_dtype(code).name for code in codes])


def declared_differences(original: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """How what two models declare of their inputs and outputs differs, in one line each."""
    differences = []
    for side, of in (("input", given_inputs), ("output", lambda model: model.graph.output)):
        was, now = ({value.name: _type_name(value.type) for value in of(m)} for m in (original, other))
        if list(was) != list(now):
            differences.append(f"{side}s are {_listed(now)} and were {_listed(was)}")
            continue
        for name, dtype in was.items():
            if now[name] != dtype:
                differences.append(f"{side} '{name}' is {now[name]} and was {dtype}")
    return differences


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
