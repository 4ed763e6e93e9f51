"""Two ONNX models side by side: their inputs, their runs, and values by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.equivalence.batches import Output, Returned, Specs
from pytest_modelbudget.equivalence.comparison import Sides
from pytest_modelbudget.equivalence.onnx_divergence import divergence_search
from pytest_modelbudget.equivalence.onnx_ranges import index_ranges
from pytest_modelbudget.equivalence.onnx_rounding import rounding_search
from pytest_modelbudget.equivalence.onnx_running import (
    Feeds,
    OnnxRun,
    given_inputs,
    tensors_in,
    upcast,
)
from pytest_modelbudget.equivalence.onnx_shared import changed_layers, common_values, frontier
from pytest_modelbudget.equivalence.onnx_stored import FLOATING
from pytest_modelbudget.equivalence.wrong_layers import WrongLayers
from pytest_modelbudget.errors import InputError
from pytest_modelbudget.frontends.model_source import TensorSpec
from pytest_modelbudget.frontends.onnx_types import ValueType, value_type
from pytest_modelbudget.ir.tensor import least_precise


class Original:
    """The first model of two; its float64 runs keep the values that the second shares."""

    def __init__(
        self,
        model: onnx.ModelProto,
        exact: onnx.ModelProto,
        shared: tuple[str, ...] = (),
        layers: tuple[str, ...] = (),
    ) -> None:
        self._stored = OnnxRun(model)
        self._exact = OnnxRun(exact, float64=True, watched=(*shared, *layers))
        self._types = output_types(model)
        self._shared = shared
        self._layers = layers
        self._kept: dict[int, tuple[Feeds, Feeds]] = {}
        self._was_stored = False

    def run(self, inputs: Feeds, *, float64: bool) -> Returned:
        """All outputs in their order.

        A float64 run after one in the model's own types begins other inputs: what was kept goes.
        """
        if float64 and self._was_stored:
            self._kept.clear()
        self._was_stored = not float64
        found = self._exact(upcast(inputs)) if float64 else self._stored(inputs)
        if float64:
            kept = {name: found[name] for name in (*self._shared, *self._layers)}
            self._kept[id(inputs)] = (inputs, kept)
        return outputs_of(found, self._types)

    def kept_values(self, inputs: Feeds) -> Feeds:
        """Float64 values that the second model shares, and those of the layers it has changed.

        They are handed out once, and kept no longer.
        """
        if id(inputs) not in self._kept:
            self.run(inputs, float64=True)
        return self._kept.pop(id(inputs))[1]


class Transformed:
    """The second model, stored and exact. In float64 only what differs from the first is run."""

    def __init__(
        self,
        models: tuple[onnx.ModelProto, onnx.ModelProto],
        original: Original,
        common: frozenset[str],
        layers: Mapping[str, str],
    ) -> None:
        model, exact = models
        self._stored = OnnxRun(model)
        self._exact = OnnxRun(exact, float64=True, watched=layers, given=common)
        self._types = output_types(model)
        self._original = original
        self._layers = layers
        self.wrong_layers = WrongLayers(stored_dtype(model))

    def run(self, inputs: Feeds, *, float64: bool) -> Returned:
        """All outputs in their order."""
        if not float64:
            return outputs_of(self._stored(inputs), self._types)
        kept = self._original.kept_values(inputs)
        shared = {name: value for name, value in kept.items() if name not in self._layers}
        found = self._exact({**upcast(inputs), **shared})
        for name, scope in self._layers.items():
            given = (tensors_in(name, values[name]) for values in (kept, found))
            for (_, before), (_, after) in zip(*given, strict=False):
                if before.shape == after.shape:  # else one name for two things
                    self.wrong_layers.compare(scope, before, after)
        return outputs_of(found, self._types)

    def disagreements(self, promised: Counter[str] | None) -> Iterator[str]:
        """Operators that a graph was measured with, and that this run executes not as often."""
        executed = self._stored.executed()
        for name, count in (promised or {}).items():
            if executed[name] != count:
                yield f"the graph has {count:,} {name}, and the run executes {executed[name]:,}"


def output_types(model: onnx.ModelProto) -> Mapping[str, str]:
    """The element type that a model declares for each output, in their order."""
    return {value.name: _type_name(value.type) for value in model.graph.output}


def _type_name(kind: onnx.TypeProto) -> str:
    known = value_type(kind)
    return known.container or tensor_dtype_to_np_dtype(known.code).name


def outputs_of(found: Feeds, types: Mapping[str, str]) -> Returned:
    """What a run gave, with the types that its model declares.

    A sequence is an output for each of its tensors. Raises TransformError for anything else.
    """
    outputs = []
    for name, dtype in types.items():
        for part, values in tensors_in(name, found[name]):
            outputs.append(Output(part, dtype if part == name else values.dtype.name, values))
    return Returned(tuple(outputs))


def sides(
    original: onnx.ModelProto,
    transformed: onnx.ModelProto,
    *,
    exact: tuple[onnx.ModelProto, onnx.ModelProto] | None = None,
    partial_sums: int = 1,
    promised: Counter[str] | None = None,
    other_weights: Callable[[], bool] = lambda: False,
    same_layers: bool = True,
) -> Sides:
    """Both models as the comparison takes them.

    exact are the float64 copies of both, where the second is made of the first's copy and not an
    upcast of the transformed one: a transform that changes weights rounds them to their type.
    promised are the products of the graph whose costs were told, which the run must execute.
    other_weights tells whether the second model stores other values than the first. same_layers
    says that what both graphs call alike is one value, also where other nodes make it: a rewrite
    promises that, and two files do not, one of which may have a batch norm in its convolution.
    """
    before, after = exact or (original, transformed)
    common = common_values(before, after)
    layers = changed_layers(before, after) if same_layers else {}
    first = Original(original, before, frontier(after, common), tuple(layers))
    second = Transformed((transformed, after), first, common, layers)
    dtype = stored_dtype(original)
    return Sides(
        original=first,
        transformed=second,
        dtype=dtype,
        divergence=divergence_search(before, after),
        rounding=rounding_search((before, original, transformed), dtype, partial_sums),
        partial_sums=lambda: partial_sums,
        differences=tuple(declared_differences(original, transformed)),
        disagreements=lambda: second.disagreements(promised),
        other_weights=other_weights,
        wrong_layers=second.wrong_layers.pairs,
        notes=range_notes(original),
    )


def stored_dtype(model: onnx.ModelProto) -> str:
    """The least precise floating type among a model's stored tensors; "" without any."""
    codes = {tensor.data_type for tensor in model.graph.initializer} & FLOATING
    return least_precise([tensor_dtype_to_np_dtype(code).name for code in codes])


def declared_differences(original: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    """How what two models declare of their inputs and outputs differs, in one line each."""
    found = []
    for side, of in (("input", given_inputs), ("output", lambda model: model.graph.output)):
        was, now = (
            {value.name: _type_name(value.type) for value in of(m)} for m in (original, other)
        )
        if list(was) != list(now):
            found.append(f"{side}s are {_listed(now)} and were {_listed(was)}")
            continue
        for name, dtype in was.items():
            if now[name] != dtype:
                found.append(f"{side} '{name}' is {now[name]} and was {dtype}")
    return found


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def input_specs(model: onnx.ModelProto, dims: Mapping[str, int]) -> tuple[Specs, bool]:
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
    return specs, stacks and bool(specs)


def range_notes(model: onnx.ModelProto) -> tuple[str, ...]:
    """What a report says of integer inputs for which a file names no range."""
    ranges = index_ranges(model)
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
