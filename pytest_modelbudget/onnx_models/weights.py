"""What each stored tensor is: parameter, quantiser, buffer, constant or shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any
from zlib import crc32

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from pytest_modelbudget.graph.tensor import StorageKind
from pytest_modelbudget.onnx_models.program import (
    FLOATING,
    Use,
    all_graphs,
    attribute,
    read_body,
    shape_values,
    uses_of,
    with_graph,
)
from pytest_modelbudget.ops.table import OpTable

PARAMETER_ROLES = frozenset({
    "weight", "bias", "slope", "table", "hidden_weight", "hidden_bias", "peephole",
    "second_weight", "second_bias", "third_weight", "third_bias",
})  # fmt: skip
# Kinds whose plain operands are parameters where they are stored and floating.
LEARNT_OPERANDS = frozenset({
    "add", "sub", "mul", "div", "matmul", "einsum", "gather", "attention", "deltas",
})  # fmt: skip
STATISTICS = frozenset({"mean", "variance"})
QUANTISERS = frozenset({"weight_scale", "weight_zero_point"})
# Kinds that hand their first operand on, so that its role is that of their result.
CARRIERS = frozenset({
    "reshape", "alias", "dropout", "transpose", "slice", "split", "expand", "copy", "pad", "cat",
    "cast", "dequantize", "quantize",
})  # fmt: skip
CARRIED = frozenset({"x", "parts"})
SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"
# Attributes whose product is the number of logical elements of a packed weight.
PACKED = {
    "com.microsoft::MatMulNBits": ("K", "N"),
    "com.microsoft::MatMulBnb4": ("K", "N"),
}


@dataclass(frozen=True, slots=True)
class FinalUse:
    """A use at the end of a chain of carriers; floating tells what the value has become."""

    use: Use
    floating: bool


class StoredKinds:
    """Kinds of stored tensors, from the roles in which operations read them."""

    def __init__(
        self,
        uses: Mapping[str, list[Use]],
        stored: frozenset[str],
        masks: frozenset[str],
        shapes: frozenset[str],
    ) -> None:
        self._uses = uses
        self._stored = stored
        self._masks = masks
        self._shapes = shapes

    def kind(
        self, name: str, *, floating: bool, metadata: Mapping[str, str], rank: int
    ) -> StorageKind:
        """The kind of one tensor; where the exporter's metadata says it, that decides."""
        said = metadata.get(SIGNATURE, "")
        if said == "PARAMETER":
            return StorageKind.PARAMETER
        if said == "BUFFER":
            return StorageKind.BUFFER
        if name in self._shapes:
            return StorageKind.SHAPE
        finals = tuple(self._finals(name, floating))
        if name not in self._masks and rank and any(map(_is_parameter, finals)):
            return StorageKind.PARAMETER
        if any(each.use.role in STATISTICS for each in finals):
            return StorageKind.BUFFER
        if any(self._quantises_parameter(each.use) for each in finals):
            return StorageKind.QUANTISER
        return StorageKind.CONSTANT

    def packed(self, name: str) -> int | None:
        """Logical elements of a weight whose bytes hold several in a layout of their own."""
        for use in self._uses.get(name, ()):
            sizes = PACKED.get(use.step.name)
            if sizes and use.role == "weight":
                return prod(int(str(use.step.attributes[size])) for size in sizes)
        return None

    def _finals(self, name: str, floating: bool) -> Iterator[FinalUse]:
        """Uses of a value, those behind carriers in their place."""
        for use in self._uses.get(name, ()):
            if use.kind in CARRIERS and use.role in CARRIED:
                results = use.step.outputs if use.kind == "split" else use.step.outputs[:1]
                for result in results:
                    yield from self._finals(result, floating or use.kind == "dequantize")
            else:
                yield FinalUse(use, floating)

    def _quantises_parameter(self, use: Use) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        if use.role in QUANTISERS:
            return not self._stored.isdisjoint(use.step.inputs[1:4])
        if use.role not in {"scale", "zero_point"}:
            return False
        given, result = use.step.inputs[0], use.step.outputs[0]
        quantised = result if use.kind == "dequantize" else given
        return given in self._stored and any(map(_is_parameter, self._finals(quantised, True)))


def _is_parameter(final: FinalUse) -> bool:
    if final.use.role in PARAMETER_ROLES:
        return True
    return final.floating and final.use.kind in LEARNT_OPERANDS


ADDED = frozenset({"Add", "Sub"})
_NUMPY_NAMES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
}


def masks(graphs: Sequence[onnx.GraphProto]) -> frozenset[str]:
    """Names of the tensors that are added and hold only 0 and −inf or the type's lowest value.

    At least one value must shut something out: a bias of zeros, as every fresh layer has, is a
    parameter. Only values inside the file are looked at.
    """
    added = {
        name
        for each in graphs
        for node in each.node
        if node.op_type in ADDED
        for name in node.input
    }
    if not added:
        return frozenset()
    return frozenset(
        name for name, tensor in _named_tensors(graphs) if name in added and _only_masks(tensor)
    )


def _named_tensors(graphs: Sequence[onnx.GraphProto]) -> Iterator[tuple[str, TensorProto]]:
    """(name of the value, tensor) of initialisers and constants."""
    for each in graphs:
        for tensor in each.initializer:
            yield tensor.name, tensor
        for node in each.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.TENSOR:
                        yield node.output[0], attribute.t


def _only_masks(tensor: TensorProto) -> bool:
    import numpy as np

    name = _NUMPY_NAMES.get(tensor.data_type)
    raw = tensor.raw_data
    if name is None or not (raw or tensor.float_data) or not tensor.dims:
        return False
    values = np.frombuffer(raw, name) if raw else np.array(tensor.float_data, name)
    shut = (values == -np.inf) | (values == np.finfo(name).min)
    return bool(shut.any() and (shut | (values == 0)).all())


# Roles and kinds of what multiplies or divides, where it is a vector.
SPREAD_ROLES = frozenset({"weight", "variance", "slope"})
SPREAD_KINDS = frozenset({"mul", "div"})


def redrawn(model: onnx.ModelProto, rules: OpTable, seed: int = 0) -> onnx.ModelProto:
    """A copy whose floating parameters and statistics are drawn, at the scale of their fan-in.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5), each
    under its own name. What means something by its values (masks, shapes, scalars) stays.
    """
    body = read_body(model.graph, rules)
    uses = uses_of(body)
    names = frozenset(tensor.name for tensor in model.graph.initializer)
    kinds = StoredKinds(uses, names, masks(tuple(all_graphs(model.graph))), shape_values(body))
    stored = []
    for tensor in model.graph.initializer:
        kind = kinds.kind(
            tensor.name,
            floating=tensor.data_type in FLOATING,
            metadata={each.key: each.value for each in tensor.metadata_props},
            rank=len(tensor.dims),
        )
        drawn = kind in (StorageKind.PARAMETER, StorageKind.BUFFER)
        is_drawn = drawn and tensor.data_type in FLOATING
        stored.append(_drawn(tensor, uses.get(tensor.name, ()), seed) if is_drawn else tensor)
    return with_graph(model, model.graph.node, stored)


def _drawn(tensor: TensorProto, uses: Sequence[Use], seed: int) -> TensorProto:
    values = drawn_values(tensor.name, tuple(tensor.dims), uses, seed)
    dtype = tensor_dtype_to_np_dtype(tensor.data_type)
    drawn = numpy_helper.from_array(values.astype(dtype), tensor.name)
    drawn.metadata_props.extend(tensor.metadata_props)
    return drawn


def drawn_values(name: str, shape: tuple[int, ...], uses: Sequence[Use], seed: int) -> Any:
    """The values of one weight, from its name, shape, seed and use alone."""
    import numpy as np

    generator = np.random.Generator(np.random.Philox([seed, crc32(name.encode())]))
    if len(shape) > 1:
        return generator.standard_normal(shape) / sqrt(max(_fan_in(shape, uses), 1))
    spreads = any(use.role in SPREAD_ROLES or use.kind in SPREAD_KINDS for use in uses)
    if spreads or any(use.role in STATISTICS - {"mean"} for use in uses):
        return generator.uniform(0.5, 1.5, shape)
    return generator.standard_normal(shape) * 0.1


def _fan_in(shape: tuple[int, ...], uses: Sequence[Use]) -> int:
    """How many elements of the input one output sums: all but the outputs' own axis."""
    for use in uses:
        name = use.step.name
        turned = name == "onnx::Gemm" and not attribute(use.step.node, "transB", 0)
        if turned or name == "onnx::MatMul":
            return shape[-2]
    return prod(shape[1:])


def without_values(model: onnx.ModelProto) -> Mapping[str, TensorProto]:
    """Stored tensors whose values lie in a file that is not there."""
    stored = model.graph.initializer
    return {each.name: each for each in stored if each.data_location == TensorProto.EXTERNAL}
