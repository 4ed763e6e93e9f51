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

from pytest_modelbudget.graph.graph import Reader
from pytest_modelbudget.graph.tensor import DType, StorageKind
from pytest_modelbudget.onnx_models.program import (
    FLOATING,
    Body,
    Use,
    all_graphs,
    attribute,
    dtype_of,
    handed_on,
    is_floating,
    metadata_of,
    read_body,
    shape_values,
    uses_of,
    with_graph,
)
from pytest_modelbudget.ops.table import OpTable

SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"


@dataclass(frozen=True, slots=True)
class FinalUse:
    """A use at the end of a chain of carriers; floating tells what the value has become."""

    use: Use
    floating: bool


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What decides whether a stored tensor is a weight, beside who reads it."""

    name: str
    dtype: DType
    rank: int
    metadata: Mapping[str, str]

    @property
    def floating(self) -> bool:
        return is_floating(self.dtype)

    @property
    def could_be_weight(self) -> bool:
        """Whether its type and rank leave that open: floating, or integers of a quantiser."""
        narrow = "int" in self.dtype.name and self.dtype.bits <= 8
        return bool(self.rank) and (self.floating or narrow)


class StoredKinds:
    """Kinds of stored tensors, from the roles in which operations read them."""

    def __init__(self, body: Body, stored: frozenset[str], masks: frozenset[str]) -> None:
        self.uses = uses_of(body)
        self._handed_on = handed_on(body)
        self._stored = stored | frozenset(
            result for name in stored for result in self._carried_results(name)
        )
        self._masks = masks
        self._shapes = shape_values(body)

    def kind(self, tensor: StoredTensor) -> StorageKind:
        """The kind of one tensor; where the exporter's metadata says it, that decides."""
        said = tensor.metadata.get(SIGNATURE, "")
        if said == "PARAMETER":
            return StorageKind.PARAMETER
        if said == "BUFFER":
            return StorageKind.BUFFER
        if tensor.name in self._shapes:
            return StorageKind.SHAPE
        finals = tuple(self._finals(tensor.name, tensor.floating))
        if not self._masks_scores(tensor) and tensor.rank and any(map(_is_parameter, finals)):
            return StorageKind.PARAMETER
        if any(each.use.role.statistic for each in finals):
            return StorageKind.BUFFER
        if any(self._quantises_parameter(each.use) for each in finals):
            return StorageKind.QUANTISER
        return StorageKind.CONSTANT

    def unknown_reader(self, tensor: StoredTensor) -> Reader | None:
        """An operation for which a constant may be a weight: no rule says what it reads there."""
        if not tensor.rank or self._masks_scores(tensor):
            return None
        for final in self._finals(tensor.name, tensor.floating):
            if not final.use.role.declared and (final.floating or tensor.could_be_weight):
                return Reader(final.use.step.name, final.use.role.word)
        return None

    def _masks_scores(self, tensor: StoredTensor) -> bool:
        """Whether it holds nothing but a mask, and is added."""
        uses = self.uses.get(tensor.name, ())
        return tensor.name in self._masks and any(use.role.added for use in uses)

    def packed(self, name: str) -> int | None:
        """Logical elements of a weight whose bytes hold several in a layout of their own."""
        for use in self.uses.get(name, ()):
            if use.role.packed:
                return prod(int(str(use.step.attributes[size])) for size in use.role.packed)
        return None

    def _finals(self, name: str, floating: bool) -> Iterator[FinalUse]:
        """Uses of a value, those behind what hands it on in their place."""
        for inside in self._handed_on.get(name, ()):
            yield from self._finals(inside, floating)
        for use in self.uses.get(name, ()):
            for result in use.carries_into:
                yield from self._finals(result, floating or use.role.dequantised)
            if not use.role.carried:
                yield FinalUse(use, floating)

    def _carried_results(self, name: str) -> Iterator[str]:
        for use in self.uses.get(name, ()):
            for result in use.carries_into:
                yield result
                yield from self._carried_results(result)

    def _quantises_parameter(self, use: Use) -> bool:
        """Whether this is the scale or zero point of a stored parameter."""
        for name, role in zip(use.step.inputs, use.step.roles, strict=True):
            if role.word == use.role.quantises and name in self._stored:
                return role.weight or any(map(_is_parameter, self._finals(name, True)))
        return False


def _is_parameter(final: FinalUse) -> bool:
    return final.use.role.weight or (final.floating and final.use.role.learnt)


FIRST = 64  # elements that are looked at before all of them
_NUMPY_NAMES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
}


def masks(graphs: Sequence[onnx.GraphProto]) -> frozenset[str]:
    """Names of the tensors that hold only 0 and −inf or the type's lowest value.

    At least one value must shut something out: a bias of zeros, as every fresh layer has, is a
    parameter. Only values inside the file are looked at, of most tensors the first alone.
    """
    return frozenset(name for name, tensor in _named_tensors(graphs) if _only_masks(tensor))


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
    for count in (FIRST, None):
        if raw:
            values = np.frombuffer(raw, name, count=-1)[:count]
        else:
            values = np.array(tensor.float_data[:count], name)
        shut = (values == -np.inf) | (values == np.finfo(name).min)
        if not (shut | (values == 0)).all():
            return False
    return bool(shut.any())


def redrawn(model: onnx.ModelProto, rules: OpTable, seed: int = 0) -> onnx.ModelProto:
    """A copy whose floating parameters and statistics are drawn, at the scale of their fan-in.

    Weights N(0, 1/√fan_in), biases and shifts N(0, 0.1), scales and variances U(0.5, 1.5), each
    under its own name. What means something by its values (masks, shapes, scalars) stays.
    """
    body = read_body(model.graph, rules)
    names = frozenset(tensor.name for tensor in model.graph.initializer)
    kinds = StoredKinds(body, names, masks(tuple(all_graphs(model.graph))))
    stored = []
    for tensor in model.graph.initializer:
        kind = kinds.kind(
            StoredTensor(
                tensor.name, dtype_of(tensor.data_type), len(tensor.dims), metadata_of(tensor)
            )
        )
        drawn = kind in (StorageKind.PARAMETER, StorageKind.BUFFER)
        is_drawn = drawn and tensor.data_type in FLOATING
        stored.append(_drawn(tensor, kinds.uses.get(tensor.name, ()), seed) if is_drawn else tensor)
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
    if any(use.role.scales for use in uses):
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
